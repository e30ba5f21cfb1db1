//! The command line: its subcommands, their dispatch, and what the daemon shares with them.
//!
//! # Theory of operation
//!
//! [`run`] parses the command line and runs the command. Commands that start or become the daemon are returned to the
//! binary, which links the engine and the keeper; this crate names neither.
//!
//! The viewer (`run`, `exec`, `attach`, `logs`) is one loop with at most one unconfirmed request of each kind (input by
//! offset, size, signal), which is repeated after a reconnect. A later `attach` renders the last MiB through a terminal
//! emulator and shows the resulting screen: replaying raw bytes would make the terminal answer old queries. The viewer
//! tracks terminal modes and restores them on exit, panic and signal.
//!
//! `connect` runs one ssh as a control master in a private directory. Probe, install and forwards go over it. The remote
//! end is our own binary, so the shell there decides nothing. `--host` selects a runtime directory with forwarded sockets.

#![forbid(unsafe_code)]
// All terminal output goes through `console`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
pub mod console;

mod approvals;
mod approve;
mod approver;
mod ask;
mod attach;
mod audit;
mod background;
mod columns;
pub mod config;
mod config_commands;
mod connect;
mod daemon_command;
mod doctor;
pub mod flags;
mod fullscreen;
mod generate;
mod hosts;
mod install_guard;
mod install_service;
mod lifecycle;
pub mod listen;
pub mod log;
mod logs;
mod mcp;
pub mod paths;
pub mod prompt;
mod ps;
mod reconnect;
pub mod redact;
pub mod remote_bootstrap;
mod run;
mod sessions;
mod status;
mod stop;
mod token;
mod top;
pub mod tty;
mod view;

pub use daemon_command::{AppServer, DaemonCommand, ServeOptions, WorkerArgs};
pub use doctor::KERNEL_MIN;

use clap::{Parser, Subcommand};
use outpost_control::client::{CallError, Client};
use outpost_control::wire;
use outpost_sys::connect::untrusted;
use paths::{Dirs, Paths, untrusted_message};
use std::io::{Error, ErrorKind};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

/// Runs processes for agents and their users, and keeps them across restarts of the daemon
#[derive(Parser)]
#[command(name = "outpost", version, arg_required_else_help = true)]
struct Cli {
    #[command(flatten)]
    dirs: Dirs,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    #[command(flatten)]
    Daemon(DaemonCommand),
    /// Run one command after an approver allows it, as root by default
    Ask(ask::Ask),
    /// MCP server on standard input and output: commands that run after an approver allows them
    Mcp(mcp::Mcp),
    /// Check this host and the daemon, with the effect and the fix of each problem; fails on errors
    Doctor(doctor::Doctor),
    Run(run::Run),
    Exec(run::Exec),
    Attach(attach::Attach),
    Logs(logs::Logs),
    Ps(ps::Ps),
    Top(top::Top),
    /// Stop a process and its descendants
    Kill(lifecycle::Kill),
    /// Approve or deny pending questions, on a full screen
    Approve(approve::Approve),
    /// Approve or deny pending questions, from scripts
    Approvals(approvals::Approvals),
    /// Verify and read the audit log of requests, decisions and commands
    Audit(audit::Audit),
    /// Work with agent sessions: list, create, send, watch, interrupt, destroy
    Sessions(sessions::Sessions),
    /// Create, list and revoke tokens for remote clients of the sessions face
    Token(token::Token),
    /// Show the state of the daemon: listeners, processes, sessions, pending approvals
    Status(status::Status),
    /// Check the configuration file, or show the effective settings and their sources
    Config(config_commands::Config),
    /// Reload the configuration file; no connection or process is dropped
    Reload,
    /// Install a systemd unit that starts the daemon at boot
    InstallService(install_service::InstallService),
    /// Replace the binary of the running daemon; all processes keep running
    Upgrade(lifecycle::UpgradeTo),
    Stop(stop::Stop),
    Connect(connect::Connect),
    /// Stop an `outpost connect`; the remote daemon and its processes keep running
    Disconnect(connect::Disconnect),
    /// Print a shell completion script
    Completions(generate::Completions),
    /// Write manual pages to a directory
    Man(generate::Man),
}

/// An exit code, or an error message for standard error. Its `hint:` line names the next step.
pub type Outcome = Result<ExitCode, String>;

/// The exit code of a command that ran here, or a command for the binary, with the paths of its daemon.
pub type Invocation = ControlFlow<ExitCode, (DaemonCommand, Paths)>;

/// Parses the command line of this process and runs its command, unless it is one of the daemon.
pub fn run() -> Invocation {
    let cli = Cli::parse();
    log::init(match cli.command {
        // MCP clients show standard error as a failure.
        Command::Mcp(_) => "warn",
        _ => log_level(),
    });
    let invocation = cli.dirs.resolve().and_then(|paths| dispatch(cli.command, &paths));
    invocation.unwrap_or_else(|reason| Invocation::Break(finish(Err(reason))))
}

/// The exit code of a command. Prints an error message on standard error.
pub fn finish(outcome: Outcome) -> ExitCode {
    outcome.unwrap_or_else(|reason| {
        console::print_error(&redact::text(&reason));
        ExitCode::FAILURE
    })
}

/// Follows the variable of the daemon that the relay face replaces.
fn log_level() -> &'static str {
    match std::env::var("CLAUSTRUM_LOG_LEVEL").as_deref() {
        Ok("debug") => "debug",
        Ok("warn" | "warning") => "warn",
        Ok("error") => "error",
        _ => "info",
    }
}

/// How a command works with `--host`.
enum RemoteSupport {
    /// Runs here and uses the forwarded sockets.
    OverForwardedSockets,
    /// Runs on the remote host, because it needs files there.
    RunRemotely,
    /// The reason why `--host` does not apply.
    Unsupported(&'static str),
}

fn remote_support(command: &Command) -> RemoteSupport {
    use Command::*;
    match command {
        Ask(_) | Mcp(_) | Run(_) | Exec(_) | Attach(_) | Logs(_) | Ps(_) | Kill(_) | Approve(_)
        | Approvals(_) | Sessions(_) | Status(_) | Stop(_) | Top(_) => RemoteSupport::OverForwardedSockets,
        Doctor(_) | Audit(_) | Config(_) | Reload | InstallService(_) | Upgrade(_) => {
            RemoteSupport::RunRemotely
        }
        Token(_) => RemoteSupport::Unsupported("it prints a secret, which the remote daemon would record"),
        Daemon(DaemonCommand::Serve(_)) | Connect(_) | Disconnect(_) => {
            RemoteSupport::Unsupported("it manages the daemon of this host")
        }
        Daemon(_) | Completions(_) | Man(_) => RemoteSupport::Unsupported("it uses no daemon"),
    }
}

fn dispatch(command: Command, paths: &Paths) -> Result<Invocation, String> {
    if let Some(host) = &paths.host {
        match remote_support(&command) {
            RemoteSupport::OverForwardedSockets => {}
            RemoteSupport::RunRemotely => {
                return run::run_on_remote_host(paths, host).map(Invocation::Break);
            }
            RemoteSupport::Unsupported(why) => {
                return Err(format!(
                    "this command does not support --host: {why}\nhint: run it on the remote host, over ssh"
                ));
            }
        }
    }
    let outcome = match command {
        Command::Daemon(command) => return Ok(Invocation::Continue((command, paths.clone()))),
        Command::Ask(options) => ask::run(paths, options),
        Command::Mcp(options) => mcp::run(paths, options),
        Command::Doctor(options) => doctor::run(paths, &options),
        Command::Run(options) => run::run(paths, options),
        Command::Exec(options) => run::exec(paths, options),
        Command::Attach(options) => attach::attach(paths, options),
        Command::Logs(options) => logs::logs(paths, &options),
        Command::Ps(ps) => ps::ps(paths, &ps),
        Command::Top(top) => top::top(paths, &top),
        Command::Kill(kill) => lifecycle::kill(paths, &kill),
        Command::Approve(options) => approve::run(paths, &options),
        Command::Approvals(options) => approvals::run(paths, options),
        Command::Audit(options) => audit::run(paths, options),
        Command::Sessions(options) => sessions::run(paths, options),
        Command::Token(options) => token::run(paths, options),
        Command::Status(options) => status::run(paths, &options),
        Command::Config(options) => config_commands::run(paths, &options),
        Command::Reload => config_commands::reload(paths),
        Command::InstallService(options) => install_service::run(paths, &options),
        Command::Upgrade(upgrade) => lifecycle::upgrade(paths, &upgrade),
        Command::Stop(options) => stop::stop(paths, &options),
        Command::Connect(options) => connect::run(paths, options),
        Command::Disconnect(options) => connect::disconnect(paths, options),
        Command::Completions(options) => generate::completions(&options),
        Command::Man(options) => generate::man(&options),
    };
    outcome.map(Invocation::Break)
}

/// Connects to the daemon.
fn connect(paths: &Paths) -> Result<Client, String> {
    let socket = paths.control_socket();
    let connected = Client::connect(&socket).and_then(|mut client| match paths.host {
        None => Ok(client),
        // ssh accepts connections on a forwarded socket even if the remote daemon does not run.
        Some(_) => match client.call::<wire::Status>("status", &()) {
            Err(CallError::Lost(error)) => Err(error),
            _ => Ok(client),
        },
    });
    connected.map_err(|error| match untrusted(&error) {
        Some(reason) => untrusted_message(reason),
        None => unreachable(paths, &socket, &error),
    })
}

/// The error message for a daemon that cannot be reached on this socket.
fn unreachable(paths: &Paths, socket: &Path, error: &Error) -> String {
    let (socket, remedy) = (socket.display(), paths.start_hint());
    match error.kind() {
        ErrorKind::NotFound if paths.host.is_none() => {
            format!("the Outpost daemon is not running (no socket at {socket})\nhint: {remedy}")
        }
        ErrorKind::ConnectionRefused if paths.host.is_none() => {
            format!("the Outpost daemon is not running (no process listens on {socket})\nhint: {remedy}")
        }
        ErrorKind::PermissionDenied => format!(
            "the daemon at {socket} belongs to another user\nhint: run the command as that user, or set OUTPOST_RUNTIME_DIR"
        ),
        _ => format!("cannot reach the Outpost daemon at {socket}: {error}\nhint: {remedy}"),
    }
}

/// The daemon's error message. The daemon may be that of another host, so further lines are indented: they cannot imitate
/// a hint of this program.
fn explain(error: CallError) -> String {
    error.to_string().lines().map(str::trim).collect::<Vec<_>>().join("\n  ")
}

/// Writes to standard output; a write error is the command's failure.
fn print(text: &str) -> Outcome {
    console::try_out(text).map(|()| ExitCode::SUCCESS)
}

fn as_json(value: &(impl serde::Serialize + ?Sized)) -> Result<String, String> {
    let text = serde_json::to_string_pretty(value).map_err(|error| error.to_string())?;
    Ok(console::json(&text).into_owned() + "\n")
}

/// Prints aligned columns; the first row is the heading.
fn print_table<const N: usize>(rows: &[[String; N]]) {
    let rows: Vec<[String; N]> =
        rows.iter().map(|row| row.each_ref().map(|cell| cell.escape_debug().to_string())).collect();
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| columns::width(cell)).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or_default()).collect();
    for row in &rows {
        let cells = row.iter().zip(&widths).map(|(cell, width)| columns::pad_end(cell, *width));
        let line = cells.collect::<Vec<_>>().join("  ");
        outln!("{}", line.trim_end());
    }
}

/// Runs a future on a single-threaded runtime.
fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(work)
}
