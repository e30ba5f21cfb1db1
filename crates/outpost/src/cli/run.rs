//! `outpost run` and `outpost exec`: a command under the daemon that outlives us, and one that does not.

use super::view::{self, Begin, DetachKeys, Ended, Feed, InputEnd, OnSignal, View};
use super::{Outcome, connect, print};
use crate::hosts::{Host, ProgramThere};
use crate::paths::Paths;
use clap::{Args, ValueEnum};
use outpost_control::client::CallError;
use outpost_control::wire::{self, ExitStatus, Spawned, TerminalSize, Word, Write};
use outpost_sys::signal::{Signal, end_by};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

type Variables = Vec<(OsString, OsString)>;

/// A terminal that nobody looks at.
const SIZE_DEFAULT: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// Run a command under the daemon; it survives this terminal, this connection and the daemon itself.
///
/// Its exit status is ours; 128 and the number of a signal that ended it. Without --tty, SIGINT, SIGTERM and SIGQUIT are
/// passed on to it; when this terminal goes away it runs on.
#[derive(Args)]
pub(super) struct Run {
    /// Print the process's number and return at once
    #[arg(long)]
    detach: bool,
    /// What it may do [default: everything that this user may]
    #[arg(long, value_name = "POLICY")]
    sandbox: Option<Sandbox>,
    #[command(flatten)]
    what: What,
}

/// Run one command in a sandbox; it ends, with everything it started, when this does.
#[derive(Args)]
pub(super) struct Exec {
    /// What it may do
    #[arg(long, value_name = "POLICY", default_value = "workspace-write")]
    sandbox: Sandbox,
    #[command(flatten)]
    what: What,
}

/// Without a network unless there is --network.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sandbox {
    /// Reads everything, writes nothing
    ReadOnly,
    /// Writes to its directory, /tmp and --writable too, but not to .git and the like
    WorkspaceWrite,
    /// None: everything that this user may
    DangerFullAccess,
}

#[derive(Args)]
struct What {
    /// A name to find it by
    #[arg(long, default_value = "")]
    name: String,
    /// Give it a terminal; here, every key goes to it
    #[arg(short, long)]
    tty: bool,
    /// Where it begins [default: here; with --host, in the home there]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// A variable besides those of this environment, or with --host of the daemon's there; others on this host can read it in our arguments
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = clap::builder::OsStringValueParser::new())]
    env: Vec<OsString>,
    /// In a sandbox: let it reach the network
    #[arg(long)]
    network: bool,
    /// In the sandbox workspace-write: a directory that it may write to as well
    #[arg(long, value_name = "DIR")]
    writable: Vec<PathBuf>,
    /// With --tty: keys that leave it running
    #[arg(long, value_name = "KEYS", default_value_t)]
    detach_keys: DetachKeys,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub(super) fn run(paths: &Paths, options: Run) -> Outcome {
    let Run { detach, sandbox, what } = options;
    let confined = what.confined(paths, sandbox.unwrap_or(Sandbox::DangerFullAccess))?;
    let spawn = wire::Spawn { stdin: !detach, sandbox: confined, ..what.spawn(paths)? };
    let sandboxed = spawn.sandbox.is_some();
    let spawned = start(paths, &spawn)?;
    if detach {
        return print(&format!("{}\n", spawned.process));
    }
    what.watch(paths, spawned.process, sandboxed, false)
}

/// This very command, carried out by the daemon of another host with its own binary.
pub(super) fn this_program_there(paths: &Paths, host: &Host) -> Outcome {
    let name = host.name.as_str();
    let ProgramThere { binary, state, runtime } = host.about()?.program.ok_or_else(|| {
        format!("the outpost on {name} is older than this one; `outpost connect {name}` brings it up to date")
    })?;
    let dirs = [("--state-dir", state), ("--runtime-dir", runtime)];
    let dirs = dirs.into_iter().flat_map(|(flag, dir)| [flag.into(), dir.into_os_string()]);
    let command = [binary.into_os_string()].into_iter().chain(dirs).chain(without_place(std::env::args_os()));
    let what = What {
        name: String::new(),
        tty: view::has_terminal(),
        cwd: None,
        env: Vec::new(),
        network: false,
        writable: Vec::new(),
        detach_keys: DetachKeys::default(),
        command: command.collect(),
    };
    run(paths, Run { detach: false, sandbox: None, what })
}

/// Our arguments without those that say where.
fn without_place(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const PLACES: [&str; 3] = ["--host", "--state-dir", "--runtime-dir"];
    let mut kept = Vec::new();
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if PLACES.contains(&&*text) {
            arguments.next();
        } else if !PLACES.iter().any(|place| text.starts_with(&format!("{place}="))) {
            kept.push(argument);
        }
    }
    kept
}

pub(super) fn exec(paths: &Paths, options: Exec) -> Outcome {
    let Exec { sandbox, what } = options;
    let confined = what.confined(paths, sandbox)?;
    let spawn = wire::Spawn { stdin: true, sandbox: confined, ends_with_client: true, ..what.spawn(paths)? };
    let sandboxed = spawn.sandbox.is_some();
    let spawned = start(paths, &spawn)?;
    what.watch(paths, spawned.process, sandboxed, true)
}

fn start(paths: &Paths, spawn: &wire::Spawn) -> Result<Spawned, String> {
    connect(paths)?.call("spawn", spawn).map_err(|error| match error {
        CallError::Refused(failure) => failure.message,
        CallError::Lost(error) => format!(
            "the daemon went away before it said whether the command was started ({error}); `outpost ps` tells"
        ),
    })
}

impl What {
    fn spawn(&self, paths: &Paths) -> Result<wire::Spawn, String> {
        let size =
            outpost_sys::pty::size(std::io::stdout()).ok().filter(|size| size.rows > 0 && size.cols > 0);
        let size = size.map_or(SIZE_DEFAULT, |size| TerminalSize { rows: size.rows, cols: size.cols });
        let (own, directory) = match (&paths.host, &self.cwd) {
            (None, cwd) => (
                Some(std::env::vars_os().collect()),
                absolute(paths, cwd.as_deref().unwrap_or(".".as_ref()))?,
            ),
            // Our own variables are of this host, and some of them are secrets.
            (Some(_), Some(cwd)) => (None, absolute(paths, cwd)?),
            (Some(host), None) => (None, host.about()?.home),
        };
        let words = |variables: Variables| -> Vec<(Word, Word)> {
            variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
        };
        Ok(wire::Spawn {
            id: self.name.clone(),
            command: self.command.iter().map(Into::into).collect(),
            environment: own.map(words),
            added: words(self.added(paths)?),
            directory: Some(directory.into()),
            terminal: self.tty.then_some(size),
            ..wire::Spawn::default()
        })
    }

    /// What was added to the variables; elsewhere also what our terminal is.
    fn added(&self, paths: &Paths) -> Result<Variables, String> {
        let mut added = Variables::new();
        if paths.host.is_some() && self.tty {
            let of_terminal = ["TERM", "COLORTERM"].into_iter();
            added.extend(of_terminal.filter_map(|name| Some((name.into(), std::env::var_os(name)?))));
        }
        for variable in &self.env {
            let bytes = variable.as_bytes();
            let Some(at) = bytes.iter().position(|byte| *byte == b'=').filter(|at| *at > 0) else {
                return Err(format!("--env {variable:?} is not of the form NAME=VALUE"));
            };
            added.push((OsStr::from_bytes(&bytes[..at]).into(), OsStr::from_bytes(&bytes[at + 1..]).into()));
        }
        Ok(added)
    }

    fn confined(&self, paths: &Paths, sandbox: Sandbox) -> Result<Option<wire::Sandbox>, String> {
        let policy = match sandbox {
            Sandbox::ReadOnly => wire::SandboxPolicy::ReadOnly,
            Sandbox::WorkspaceWrite => wire::SandboxPolicy::WorkspaceWrite,
            Sandbox::DangerFullAccess if self.network || !self.writable.is_empty() => {
                return Err("--network and --writable widen a sandbox, and there is none".into());
            }
            Sandbox::DangerFullAccess => return Ok(None),
        };
        if policy == wire::SandboxPolicy::ReadOnly && !self.writable.is_empty() {
            return Err("--writable needs --sandbox workspace-write".into());
        }
        let writable = self.writable.iter().map(|dir| absolute(paths, dir).map(Word::from));
        let writable = writable.collect::<Result<_, _>>()?;
        Ok(Some(wire::Sandbox { policy, network: self.network, writable }))
    }

    fn watch(self, paths: &Paths, process: String, sandboxed: bool, owns: bool) -> Outcome {
        let keys = (self.tty && view::has_terminal()).then_some(self.detach_keys);
        let ended = View {
            paths,
            process: process.clone(),
            begin: Begin::After { seq: 0, skip: 0 },
            feed: Feed::Stdin { write: Write::IfFree, end: InputEnd::Closes },
            keys,
            // A sandbox passes on what its first process gets, to the whole group if it is what a terminal sends.
            on_signal: OnSignal::Forward { group: !sandboxed },
            owns,
            until_now: false,
        }
        .run()?;
        match ended {
            Ended::Exited(exit) => Ok(exit_code(Some(exit))),
            Ended::Detached if owns => {
                errln!("outpost: left; the command ends with us (`outpost run` starts one that stays)");
                Ok(ExitCode::SUCCESS)
            }
            Ended::OutputGone if !owns => {
                errln!("outpost: nobody reads the output any more; {process} goes on without us");
                leave(Ended::OutputGone, &process)
            }
            ended => leave(ended, &process),
        }
    }
}

/// A directory as the daemon knows it.
fn absolute(paths: &Paths, path: &std::path::Path) -> Result<PathBuf, String> {
    let shown = path.display().to_string().escape_debug().to_string();
    match &paths.host {
        None => path.canonicalize().map_err(|error| format!("cannot use the directory {shown}: {error}")),
        Some(_) if path.is_absolute() => Ok(path.to_owned()),
        Some(_) => Err(format!("{shown} is of this host; say where on the other one, from `/` on")),
    }
}

/// We go, for another reason than the end of the process.
pub(super) fn leave(ended: Ended, process: &str) -> Outcome {
    match ended {
        Ended::Exited(_) | Ended::Shown => Ok(ExitCode::SUCCESS),
        Ended::Detached => {
            errln!("outpost: left {process} running; `outpost attach {process}` comes back to it");
            Ok(ExitCode::SUCCESS)
        }
        Ended::OutputGone => end_by(Signal::PIPE),
        Ended::By(signal) => end_by(signal),
    }
}

/// A shell's convention for signals; 255 when nobody knows.
pub(super) fn exit_code(exit: Option<ExitStatus>) -> ExitCode {
    let code = match exit.map(|exit| (exit.code, exit.signal)) {
        Some((Some(code), _)) => u8::try_from(code).unwrap_or(255),
        Some((None, Some(signal))) => u8::try_from(128 + signal).unwrap_or(255),
        _ => 255,
    };
    ExitCode::from(code)
}
