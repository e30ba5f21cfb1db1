//! `outpost run` and `outpost exec`: start a command that outlives the client, or one that ends with it.

use super::view::{self, DetachKeys, InputSource, OnEof, OnSignal, ProcessView, StartAt, ViewEnd};
use super::{Outcome, connect, print};
use crate::hosts::{Host, RemoteProgram};
use crate::paths::Paths;
use clap::{Args, ValueEnum};
use outpost_control::client::CallError;
use outpost_control::wire::{self, ExitStatus, InputClaim, OsText, Spawned, TerminalSize};
use outpost_sys::signal::{Signal, exit_by_signal};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::process::ExitCode;

type Variables = Vec<(OsString, OsString)>;

/// Terminal size for a process that starts without an attached terminal.
const DEFAULT_SIZE: TerminalSize = TerminalSize { rows: 24, cols: 80 };

/// Run a command that survives this terminal, this connection and restarts of the daemon.
///
/// Exits with the exit code of the command, or with 128 + N if signal N ended it. Without --tty, SIGINT, SIGTERM and
/// SIGQUIT are forwarded to the command. The command keeps running when this terminal closes.
#[derive(Args)]
pub(super) struct Run {
    /// Print the number of the process and return without waiting
    #[arg(long)]
    detach: bool,
    /// Sandbox policy [default: no sandbox]
    #[arg(long, value_name = "POLICY")]
    sandbox: Option<Sandbox>,
    #[command(flatten)]
    command: CommandOptions,
}

/// Run a command in a sandbox; it and its descendants end with this client.
#[derive(Args)]
pub(super) struct Exec {
    /// Sandbox policy
    #[arg(long, value_name = "POLICY", default_value = "workspace-write")]
    sandbox: Sandbox,
    #[command(flatten)]
    command: CommandOptions,
}

/// Every policy but the last denies the network unless `--network` is given.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Sandbox {
    /// All files readable, none writable
    ReadOnly,
    /// Also writable: the working directory, /tmp and --writable, but not .git and agent configuration
    WorkspaceWrite,
    /// No sandbox: the command has all rights of this user
    DangerFullAccess,
}

#[derive(Args)]
struct CommandOptions {
    /// Name of the process, for `attach`, `logs` and `kill`
    #[arg(long, default_value = "")]
    name: String,
    /// Allocate a terminal and pass every key to the command
    #[arg(short, long)]
    tty: bool,
    /// Working directory [default: the current one; with --host, the remote home directory]
    #[arg(long, value_name = "DIR")]
    cwd: Option<PathBuf>,
    /// Set a variable in addition to this environment, or with --host to that of the remote daemon; other users of this host can read it in the process list
    #[arg(short, long, value_name = "NAME=VALUE", value_parser = clap::builder::OsStringValueParser::new())]
    env: Vec<OsString>,
    /// Allow network access in the sandbox
    #[arg(long)]
    network: bool,
    /// Additional writable directory in the workspace-write sandbox; repeatable
    #[arg(long, value_name = "DIR")]
    writable: Vec<PathBuf>,
    /// With --tty: key sequence that detaches
    #[arg(long, value_name = "KEYS", default_value_t)]
    detach_keys: DetachKeys,
    /// Command and arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

pub(super) fn run(paths: &Paths, options: Run) -> Outcome {
    let Run { detach, sandbox, command } = options;
    let confined = command.sandbox_policy(paths, sandbox.unwrap_or(Sandbox::DangerFullAccess))?;
    let spawn = wire::Spawn { stdin: !detach, sandbox: confined, ..command.spawn(paths)? };
    let sandboxed = spawn.sandbox.is_some();
    let spawned = start(paths, &spawn)?;
    if detach {
        return print(&format!("{}\n", spawned.process));
    }
    command.attach_to(paths, spawned.process, sandboxed, false)
}

/// Runs this command line on the remote host, with the remote binary, as a process of the remote daemon.
pub(super) fn run_on_remote_host(paths: &Paths, host: &Host) -> Outcome {
    let name = host.name.as_str();
    let RemoteProgram { binary, state, runtime } = host.info()?.program.ok_or_else(|| {
        format!(
            "the outpost on {name} is older than this one\nhint: upgrade it with `outpost connect {name}`"
        )
    })?;
    let dirs = [("--state-dir", state), ("--runtime-dir", runtime)];
    let dirs = dirs.into_iter().flat_map(|(flag, dir)| [flag.into(), dir.into_os_string()]);
    let command =
        [binary.into_os_string()].into_iter().chain(dirs).chain(without_location_flags(std::env::args_os()));
    let command = CommandOptions {
        name: String::new(),
        tty: view::has_terminal(),
        cwd: None,
        env: Vec::new(),
        network: false,
        writable: Vec::new(),
        detach_keys: DetachKeys::default(),
        command: command.collect(),
    };
    run(paths, Run { detach: false, sandbox: None, command })
}

/// The arguments without the program name and without the flags that select a host or directories.
fn without_location_flags(arguments: impl Iterator<Item = OsString>) -> Vec<OsString> {
    const LOCATION_FLAGS: [&str; 3] = ["--host", "--state-dir", "--runtime-dir"];
    let mut kept = Vec::new();
    let mut arguments = arguments.skip(1);
    while let Some(argument) = arguments.next() {
        let text = argument.to_string_lossy();
        if LOCATION_FLAGS.contains(&&*text) {
            arguments.next();
        } else if !LOCATION_FLAGS.iter().any(|flag| text.starts_with(&format!("{flag}="))) {
            kept.push(argument);
        }
    }
    kept
}

pub(super) fn exec(paths: &Paths, options: Exec) -> Outcome {
    let Exec { sandbox, command } = options;
    let confined = command.sandbox_policy(paths, sandbox)?;
    let spawn =
        wire::Spawn { stdin: true, sandbox: confined, ends_with_client: true, ..command.spawn(paths)? };
    let sandboxed = spawn.sandbox.is_some();
    let spawned = start(paths, &spawn)?;
    command.attach_to(paths, spawned.process, sandboxed, true)
}

fn start(paths: &Paths, spawn: &wire::Spawn) -> Result<Spawned, String> {
    connect(paths)?.call("spawn", spawn).map_err(|error| match error {
        CallError::Refused(failure) => failure.message,
        CallError::Lost(error) => format!(
            "lost the connection to the daemon before it confirmed the start: {error}\nhint: `outpost ps` shows whether the command runs"
        ),
    })
}

impl CommandOptions {
    fn spawn(&self, paths: &Paths) -> Result<wire::Spawn, String> {
        let size =
            outpost_sys::pty::size(std::io::stdout()).ok().filter(|size| size.rows > 0 && size.cols > 0);
        let size = size.map_or(DEFAULT_SIZE, |size| TerminalSize { rows: size.rows, cols: size.cols });
        let (environment, directory) = match (&paths.host, &self.cwd) {
            (None, cwd) => (
                Some(std::env::vars_os().collect()),
                absolute(paths, cwd.as_deref().unwrap_or(".".as_ref()))?,
            ),
            // The local environment describes this host and may contain secrets, so it is not sent.
            (Some(_), Some(cwd)) => (None, absolute(paths, cwd)?),
            (Some(host), None) => (None, host.info()?.home),
        };
        let encode = |variables: Variables| -> Vec<(OsText, OsText)> {
            variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect()
        };
        Ok(wire::Spawn {
            id: self.name.clone(),
            command: self.command.iter().map(Into::into).collect(),
            environment: environment.map(encode),
            added: encode(self.added_variables(paths)?),
            directory: Some(directory.into()),
            terminal: self.tty.then_some(size),
            ..wire::Spawn::default()
        })
    }

    /// The variables of `--env`. With `--host` and `--tty` also those that describe the local terminal.
    fn added_variables(&self, paths: &Paths) -> Result<Variables, String> {
        let mut added = Variables::new();
        if paths.host.is_some() && self.tty {
            let of_terminal = ["TERM", "COLORTERM"].into_iter();
            added.extend(of_terminal.filter_map(|name| Some((name.into(), std::env::var_os(name)?))));
        }
        for variable in &self.env {
            let bytes = variable.as_bytes();
            let Some(at) = bytes.iter().position(|byte| *byte == b'=').filter(|at| *at > 0) else {
                return Err(format!("--env needs NAME=VALUE, got {variable:?}"));
            };
            added.push((OsStr::from_bytes(&bytes[..at]).into(), OsStr::from_bytes(&bytes[at + 1..]).into()));
        }
        Ok(added)
    }

    fn sandbox_policy(&self, paths: &Paths, sandbox: Sandbox) -> Result<Option<wire::Sandbox>, String> {
        let policy = match sandbox {
            Sandbox::ReadOnly => wire::SandboxPolicy::ReadOnly,
            Sandbox::WorkspaceWrite => wire::SandboxPolicy::WorkspaceWrite,
            Sandbox::DangerFullAccess if self.network || !self.writable.is_empty() => {
                return Err(
                    "--network and --writable need a sandbox\nhint: add --sandbox workspace-write".into()
                );
            }
            Sandbox::DangerFullAccess => return Ok(None),
        };
        if policy == wire::SandboxPolicy::ReadOnly && !self.writable.is_empty() {
            return Err("--writable needs --sandbox workspace-write".into());
        }
        let writable = self.writable.iter().map(|dir| absolute(paths, dir).map(OsText::from));
        let writable = writable.collect::<Result<_, _>>()?;
        Ok(Some(wire::Sandbox { policy, network: self.network, writable }))
    }

    fn attach_to(self, paths: &Paths, process: String, sandboxed: bool, owns: bool) -> Outcome {
        let detach_keys = (self.tty && view::has_terminal()).then_some(self.detach_keys);
        let ended = ProcessView {
            paths,
            process: process.clone(),
            start: StartAt::After { seq: 0, skip: 0 },
            input: InputSource::Stdin { claim: InputClaim::IfFree, on_eof: OnEof::CloseStdin },
            detach_keys,
            // The init of a sandbox forwards signals itself, and signals of the terminal to the whole group.
            on_signal: OnSignal::Forward { group: !sandboxed },
            owns,
            stop_at_end: false,
        }
        .run()?;
        match ended {
            ViewEnd::Exited(exit) => Ok(exit_code(Some(exit))),
            ViewEnd::Detached if owns => {
                errln!(
                    "outpost: detached; the command ends with this client (use `outpost run` for one that stays)"
                );
                Ok(ExitCode::SUCCESS)
            }
            ViewEnd::OutputClosed if !owns => {
                errln!("outpost: output closed; {process} keeps running. Stop it: `outpost kill {process}`");
                finish(ViewEnd::OutputClosed, &process)
            }
            ended => finish(ended, &process),
        }
    }
}

/// The absolute path of a directory on the daemon's host.
fn absolute(paths: &Paths, path: &std::path::Path) -> Result<PathBuf, String> {
    let shown = path.display().to_string().escape_debug().to_string();
    match &paths.host {
        None => path.canonicalize().map_err(|error| format!("cannot use directory {shown}: {error}")),
        Some(_) if path.is_absolute() => Ok(path.to_owned()),
        Some(_) => Err(format!("--host needs an absolute path on the remote host, got {shown}")),
    }
}

/// Ends the client for another reason than the exit of the process.
pub(super) fn finish(ended: ViewEnd, process: &str) -> Outcome {
    match ended {
        ViewEnd::Exited(_) | ViewEnd::CaughtUp => Ok(ExitCode::SUCCESS),
        ViewEnd::Detached => {
            errln!("outpost: detached; {process} is still running. Reattach: `outpost attach {process}`");
            Ok(ExitCode::SUCCESS)
        }
        ViewEnd::OutputClosed => exit_by_signal(Signal::PIPE),
        ViewEnd::Signalled(signal) => exit_by_signal(signal),
    }
}

/// The shell's convention for signals; 255 for an unknown exit status.
pub(super) fn exit_code(exit: Option<ExitStatus>) -> ExitCode {
    let code = match exit.map(|exit| (exit.code, exit.signal)) {
        Some((Some(code), _)) => u8::try_from(code).unwrap_or(255),
        Some((None, Some(signal))) => u8::try_from(128 + signal).unwrap_or(255),
        _ => 255,
    };
    ExitCode::from(code)
}
