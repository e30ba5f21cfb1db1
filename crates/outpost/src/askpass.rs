//! The askpass helper of sudo: reads the password from the daemon that started sudo and prints it.

use outpost_broker::{ASKPASS_ANCHOR, ASKPASS_UNDUMPABLE, ASKPASS_VARIABLE, ASKPASS_VERIFIED};
use outpost_cli::errln;
use outpost_sys::connect::{self, Trust};
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use zeroize::Zeroizing;

const PASSWORD_BYTES_MAX: u64 = 1024;

/// Runs the helper if sudo called this binary for a password. Returns none otherwise.
pub(crate) fn run_if_called(called: &OsStr) -> Option<ExitCode> {
    if called == ASKPASS_ANCHOR {
        return Some(anchor());
    }
    let is_proc_exe = Path::new(called).starts_with("/proc") && Path::new(called).ends_with("exe");
    let socket = std::env::var_os(ASKPASS_VARIABLE).filter(|_| is_proc_exe)?;
    Some(ask(Path::new(&socket)))
}

/// Runs until standard input reaches EOF, which the daemon's exit also causes. It keeps `/proc/PID/exe` valid as a path.
fn anchor() -> ExitCode {
    let _ended = io::copy(&mut io::stdin(), &mut io::sink());
    ExitCode::SUCCESS
}

fn ask(socket: &Path) -> ExitCode {
    match fetch(socket) {
        Ok(Some(typed)) => match writeln!(io::stdout(), "{}", typed.as_str()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Ok(None) => ExitCode::FAILURE,
        Err(error) => {
            errln!("outpost: cannot get a password from the daemon on {}: {error}", socket.display());
            ExitCode::FAILURE
        }
    }
}

/// Returns none if the daemon does not recognise this process or has no password.
fn fetch(socket: &Path) -> io::Result<Option<Zeroizing<String>>> {
    let mut daemon = connect::connect(socket, Trust::Own)?;
    let mut recognised = [0];
    if daemon.read(&mut recognised)? != 1 || recognised != [ASKPASS_VERIFIED] {
        return Ok(None);
    }
    // The daemon identifies this process by /proc/PID/exe, which is unreadable once the process is not dumpable.
    outpost_sys::process::set_undumpable()?;
    daemon.write_all(&[ASKPASS_UNDUMPABLE])?;
    let mut typed = Zeroizing::new(String::new());
    let read = daemon.take(PASSWORD_BYTES_MAX).read_to_string(&mut typed)?;
    Ok((read > 0).then_some(typed))
}
