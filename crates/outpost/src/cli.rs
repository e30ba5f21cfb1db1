//! The command line.

mod approvals;
mod approve;
mod approver;
mod arrive;
mod ask;
mod attach;
mod audit;
mod background;
mod config;
mod connect;
mod doctor;
mod fullscreen;
mod generate;
mod install_guard;
mod install_service;
mod list;
mod logs;
mod manage;
mod mcp;
mod patience;
mod run;
mod sessions;
mod status;
mod stop;
mod token;
mod top;
mod view;

use crate::console;
use crate::paths::{Dirs, Paths, distrust};
use crate::serve::NotServing;
use crate::{app_server, log, redact, serve, serve_again, worker};
use clap::{Parser, Subcommand};
use outpost_control::client::{CallError, Client};
use outpost_control::wire;
use outpost_sys::connect::untrusted;
use std::process::ExitCode;

/// Runs things on this host for agents and their humans, and loses none of them.
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
    /// Run the daemon, in the foreground or in the background; exits with 3 where one runs already
    Serve(serve::Options),
    /// The relay face: -serve, -bridge, -stop, -version, -install, with the flags of the daemon it replaces
    #[command(disable_help_flag = true)]
    Relay {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<std::ffi::OsString>,
    },
    /// The exec face on standard input and output: sandboxed commands, as `codex app-server` runs them
    AppServer(app_server::AppServer),
    /// Run one command, as root unless told otherwise, once a human has approved it
    Ask(ask::Ask),
    /// An MCP server on standard input and output: commands that run once a human has approved them
    Mcp(mcp::Mcp),
    /// Say what this host has and what it lacks, what that means, and what mends it; fails when something needed is missing
    Doctor(doctor::Doctor),
    /// Started by the keeper
    #[command(hide = true)]
    Worker(worker::Given),
    Run(run::Run),
    Exec(run::Exec),
    Attach(attach::Attach),
    Logs(logs::Logs),
    Ps(list::Ps),
    Top(top::Top),
    /// End a process and everything it started
    Kill(manage::Kill),
    /// Decide about what waits for a human, on a full screen
    Approve(approve::Approve),
    /// Decide about what waits for a human, from scripts
    Approvals(approvals::Approvals),
    /// Check and read the records of what was asked, decided and run
    Audit(audit::Audit),
    /// Talk with agents: list, create, send, watch, interrupt, destroy
    Sessions(sessions::Sessions),
    /// Make, list and revoke the tokens that the sessions face wants from elsewhere
    Token(token::Token),
    /// Say how the daemon is: where it listens, what it has, what waits
    Status(status::Status),
    /// Check the configuration file, or show what is in force and where it comes from
    Config(config::Config),
    /// Have the daemon read its configuration again, without dropping anything
    Reload,
    /// Write units for systemd, so that the daemon runs from boot on
    InstallService(install_service::InstallService),
    /// Continue with another binary, without losing a process
    Upgrade(manage::UpgradeTo),
    Stop(stop::Stop),
    Connect(connect::Connect),
    /// End an `outpost connect`; the daemon there and its processes go on
    Disconnect(connect::Disconnect),
    /// Started by `outpost connect`, on the host that it connects to
    #[command(hide = true)]
    Arrive(arrive::Arrive),
    /// Print what a shell needs to complete these commands
    Completions(generate::Completions),
    /// Write manual pages
    Man(generate::Man),
}

/// There is a daemon already.
const TAKEN: u8 = 3;

/// What went wrong, for standard error; the exit code says that it did.
type Outcome = Result<ExitCode, String>;

pub(crate) fn run() -> ExitCode {
    let cli = Cli::parse();
    log::begin(match cli.command {
        // Its client shows what it says as if it were a failure.
        Command::Mcp(_) => "warn",
        _ => log_level(),
    });
    let outcome = cli.dirs.resolve().and_then(|paths| dispatch(cli.command, &paths));
    outcome.unwrap_or_else(|reason| {
        console::complain(&redact::text(&reason));
        ExitCode::FAILURE
    })
}

/// As the daemon that the relay face replaces is told.
fn log_level() -> &'static str {
    match std::env::var("CLAUSTRUM_LOG_LEVEL").as_deref() {
        Ok("debug") => "debug",
        Ok("warn" | "warning") => "warn",
        Ok("error") => "error",
        _ => "info",
    }
}

/// How a command is carried out for another host.
enum Elsewhere {
    /// From here: it needs nothing but the daemon's sockets.
    FromHere,
    /// There: it is about files of that host.
    There,
    Not(&'static str),
}

fn elsewhere(command: &Command) -> Elsewhere {
    use Command::*;
    match command {
        Ask(_) | Mcp(_) | Run(_) | Exec(_) | Attach(_) | Logs(_) | Ps(_) | Kill(_) | Approve(_)
        | Approvals(_) | Sessions(_) | Status(_) | Stop(_) | Top(_) => Elsewhere::FromHere,
        Doctor(_) | Audit(_) | Config(_) | Reload | InstallService(_) | Upgrade(_) => Elsewhere::There,
        Token(_) => Elsewhere::Not("what it prints is a secret, and the daemon there would record it"),
        Serve(_) | Connect(_) | Disconnect(_) => Elsewhere::Not("it is about this host's own daemon"),
        Relay { .. } | AppServer(_) | Worker(_) | Arrive(_) | Completions(_) | Man(_) => {
            Elsewhere::Not("it has nothing to do with a daemon")
        }
    }
}

fn dispatch(command: Command, paths: &Paths) -> Outcome {
    if let Some(host) = &paths.host {
        match elsewhere(&command) {
            Elsewhere::FromHere => {}
            Elsewhere::There => return run::this_program_there(paths, host),
            Elsewhere::Not(why) => {
                return Err(format!("--host is not for this command: {why}; run it there, over ssh"));
            }
        }
    }
    match command {
        Command::Serve(options) => match serve_again::serve(paths, &options) {
            Ok(code) => Ok(code),
            Err(NotServing::Taken(reason)) => {
                errln!("outpost: {reason}");
                Ok(ExitCode::from(TAKEN))
            }
            Err(NotServing::Failed(reason)) => Err(reason),
        },
        Command::Relay { flags } => Ok(crate::relay::run(flags.into_iter())),
        Command::AppServer(options) => app_server::run(paths, &options),
        Command::Ask(options) => ask::run(paths, options),
        Command::Mcp(options) => mcp::run(paths, options),
        Command::Doctor(options) => doctor::run(paths, &options),
        Command::Worker(given) => Ok(worker::run(paths, &given)),
        Command::Run(options) => run::run(paths, options),
        Command::Exec(options) => run::exec(paths, options),
        Command::Attach(options) => attach::attach(paths, options),
        Command::Logs(options) => logs::logs(paths, &options),
        Command::Ps(ps) => list::ps(paths, &ps),
        Command::Top(top) => top::top(paths, &top),
        Command::Kill(kill) => manage::kill(paths, &kill),
        Command::Approve(options) => approve::run(paths, &options),
        Command::Approvals(options) => approvals::run(paths, options),
        Command::Audit(options) => audit::run(paths, options),
        Command::Sessions(options) => sessions::run(paths, options),
        Command::Token(options) => token::run(paths, options),
        Command::Status(options) => status::run(paths, &options),
        Command::Config(options) => config::run(paths, &options),
        Command::Reload => config::reload(paths),
        Command::InstallService(options) => install_service::run(paths, &options),
        Command::Upgrade(upgrade) => manage::upgrade(paths, &upgrade),
        Command::Stop(options) => stop::stop(paths, &options),
        Command::Connect(options) => connect::run(paths, options),
        Command::Disconnect(options) => connect::disconnect(paths, options),
        Command::Arrive(options) => arrive::run(paths, &options),
        Command::Completions(options) => generate::completions(&options),
        Command::Man(options) => generate::man(&options),
    }
}

/// A connection to the daemon, or what to do to have one.
fn connect(paths: &Paths) -> Result<Client, String> {
    let socket = paths.control_socket();
    let connected = Client::connect(&socket).and_then(|mut client| match paths.host {
        None => Ok(client),
        // There ssh listens, whether the daemon does or not.
        Some(_) => match client.call::<wire::Status>("status", &()) {
            Err(CallError::Lost(error)) => Err(error),
            _ => Ok(client),
        },
    });
    connected.map_err(|error| match untrusted(&error) {
        Some(reason) => distrust(reason),
        None => format!("no daemon answers on {} ({error}); {}", socket.display(), paths.remedy()),
    })
}

/// What the daemon said, which may be that of another host: one line, among ours.
fn explain(error: CallError) -> String {
    console::line(&error.to_string()).into_owned()
}

/// Writes to standard output.
fn print(text: &str) -> Outcome {
    match console::try_out(text) {
        Err(error) => Err(format!("cannot write to standard output: {error}")),
        Ok(()) => Ok(ExitCode::SUCCESS),
    }
}

fn as_json(value: &(impl serde::Serialize + ?Sized)) -> Result<String, String> {
    let text = serde_json::to_string_pretty(value).map_err(|error| error.to_string())?;
    Ok(console::json(&text).into_owned() + "\n")
}

/// Columns as wide as they have to be; the first row has their names.
fn print_table<const N: usize>(rows: &[[String; N]]) {
    let width =
        |column: usize| rows.iter().filter_map(|row| row.get(column)).map(|cell| cell.chars().count()).max();
    let widths: Vec<usize> = (0..N).map(|column| width(column).unwrap_or_default()).collect();
    for row in rows {
        let cells = row
            .iter()
            .zip(&widths)
            .map(|(cell, width)| format!("{:<width$}", cell.escape_debug().to_string()));
        let line = cells.collect::<Vec<_>>().join("  ");
        outln!("{}", line.trim_end());
    }
}

/// Runs what waits for the daemon, on this thread.
fn block_on<T>(work: impl Future<Output = Result<T, String>>) -> Result<T, String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(work)
}
