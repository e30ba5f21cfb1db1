//! The `claustrum` drop-in: the five modes of the original relay, with its flags, messages and exit codes.

mod bridge;
mod flags;
mod launch;
mod settings;
mod socket_paths;
mod stop;

pub(crate) use settings::Settings;
pub(crate) use socket_paths::SocketPaths;

use flags::{Flags, Parsed};
use outpost_cli::{err, errln, outln};
use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// The version that `-version` and `server.version` report.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Runs the mode that the arguments select. They do not include the program's name.
pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let flags = match flags::parse(arguments) {
        Parsed::Flags(flags) => flags,
        Parsed::Help => {
            err!("{}", flags::usage());
            return ExitCode::SUCCESS;
        }
        Parsed::Invalid(reason) => {
            err!("{reason}\n{}", flags::usage());
            return ExitCode::from(2);
        }
    };
    let outcome = match mode(&flags) {
        Some(Mode::Version) => {
            outln!("claustrum {VERSION} (built {})", env!("OUTPOST_BUILD_TIME"));
            Ok(())
        }
        Some(Mode::Install) => {
            install(&flags);
            Ok(())
        }
        Some(Mode::Stop) => {
            if let Some(socket) = socket(&flags) {
                stop::stop(&socket);
            }
            Ok(())
        }
        Some(Mode::Bridge) => required_socket(&flags).and_then(|socket| bridge::bridge(&socket)),
        Some(Mode::Serve) => required_socket(&flags).and_then(|socket| launch::serve(&flags, &socket)),
        None => {
            errln!("claustrum: one of --version/--install/--serve/--bridge/--stop is required");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            errln!("claustrum: {reason}");
            ExitCode::FAILURE
        }
    }
}

enum Mode {
    Version,
    Install,
    Stop,
    Bridge,
    Serve,
}

/// If several modes are given, the original's order of precedence decides.
fn mode(flags: &Flags) -> Option<Mode> {
    let modes = [
        (flags.version, Mode::Version),
        (flags.install, Mode::Install),
        (flags.stop, Mode::Stop),
        (flags.bridge, Mode::Bridge),
        (flags.serve, Mode::Serve),
    ];
    modes.into_iter().find_map(|(given, mode)| given.then_some(mode))
}

/// Files of relays that every sandbox hides: sockets, locks and tokens of the relays with records below this state directory
/// or its parent, and of a relay on the default socket.
pub(crate) fn private(state: &Path) -> Vec<PathBuf> {
    let roots = [Some(state), state.parent()].into_iter().flatten();
    let known = roots.flat_map(SocketPaths::recorded);
    let default = default_socket().and_then(|socket| SocketPaths::new(&socket).ok());
    known.chain(default).flat_map(|socket_paths| socket_paths.private()).collect()
}

fn default_socket() -> Option<PathBuf> {
    outpost_sys::user::home().map(|home| home.join(".claude/remote/rpc.sock"))
}

/// "when -socket is omitted, … fall back to ~/.claude/remote/rpc.sock".
fn socket(flags: &Flags) -> Option<PathBuf> {
    match flags.socket.is_empty() {
        false => Some(PathBuf::from(&flags.socket)),
        true => default_socket(),
    }
}

fn required_socket(flags: &Flags) -> Result<PathBuf, String> {
    socket(flags).ok_or_else(|| "cannot resolve home directory: $HOME is not defined".into())
}

fn install(flags: &Flags) {
    // A closed standard output must not end this process in the middle of an installation.
    outpost_sys::signal::ignore_sigpipe();
    let options = outpost_relay_install::Options {
        cli_dir: flags.cli_dir.clone(),
        cli_version: flags.cli_version.clone(),
        cli_url: flags.cli_url.clone(),
        cli_checksum: flags.cli_checksum.clone(),
        cli_zst: flags.cli_zst.clone(),
        cli_keep: flags.cli_keep,
    };
    let mut out = std::io::stdout();
    outpost_relay_install::run(&options, VERSION, &mut out);
    let _stdout_closed = out.flush();
}
