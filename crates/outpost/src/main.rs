//! Entry point of the binary: selects the program to run by its name and first argument.
//!
//! # Theory of operation
//!
//! `serve` becomes the keeper; `serve --detach` starts one in a session of its own and returns when the control socket,
//! the last to answer, does. The supervisor is notified by the keeper, since systemd accepts the main process only. The
//! keeper answers the watchdog itself and kills a worker whose heartbeats stop. With `FDSTORE` the keeper stores the
//! descriptors of children that have lived for a second, so the death of both halves costs no process.
//!
//! `stop --keep-children` stores a marker descriptor in the keeper; the next worker serves the control socket only.
//! `outpost serve` that finds such a daemon replaces its binary if needed, removes the marker and stays in the foreground.

#![forbid(unsafe_code)]
// All terminal output goes through `outpost_cli::console`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

mod askpass;
mod daemon;
mod dropin;
mod failure;
mod port_token;

use daemon::serve::ServeError;
use daemon::{resume_kept, worker};
use dropin::{app_server, codecast, relay, sudo_proxy};
use outpost_cli::paths::Paths;
use outpost_cli::{DaemonCommand, Outcome, ServeOptions, console, errln, finish, remote_bootstrap};
use std::ops::ControlFlow;
use std::path::Path;
use std::process::ExitCode;

/// Exit code of `outpost serve` when a daemon is already running.
const ALREADY_RUNNING: u8 = 3;

fn main() -> ExitCode {
    // The keeper must stay small: it starts before the argument parser, the logger and the runtime.
    let mut arguments = std::env::args();
    if arguments.nth(1).as_deref() == Some("keeper") {
        return keeper(arguments.next().as_deref(), arguments.next().as_deref());
    }
    #[cfg(panic = "unwind")]
    abort_on_panic();
    let mut arguments = std::env::args_os();
    let called = arguments.next().unwrap_or_default();
    if let Some(ended) = askpass::run_if_called(&called) {
        return ended;
    }
    match Path::new(&called).file_name().and_then(|name| name.to_str()) {
        Some("claustrum") => return relay::run(arguments),
        // Its keeper starts the worker under the same name.
        Some(codecast::NAME) if std::env::args_os().nth(1).is_none_or(|first| first != "worker") => {
            return codecast::run(arguments);
        }
        Some("sudo-proxy") => return sudo_proxy::run(arguments),
        _ => {}
    }
    if std::env::args_os().nth(1).is_some_and(|first| first == "relay") {
        return relay::run(arguments.skip(1));
    }
    match outpost_cli::run() {
        ControlFlow::Break(code) => code,
        ControlFlow::Continue((command, paths)) => finish(run(command, &paths)),
    }
}

fn run(command: DaemonCommand, paths: &Paths) -> Outcome {
    match command {
        DaemonCommand::Serve(options) => match resume_kept::serve_or_resume(paths, &options) {
            Ok(code) => Ok(code),
            Err(ServeError::AlreadyRunning(reason)) => {
                console::print_error(&reason);
                Ok(ExitCode::from(ALREADY_RUNNING))
            }
            Err(ServeError::Failed(reason)) => Err(reason),
        },
        DaemonCommand::Relay { flags } => Ok(relay::run(flags.into_iter())),
        DaemonCommand::AppServer(options) => app_server::run(paths, &options),
        DaemonCommand::Worker(args) => Ok(worker::run(paths, &args)),
        DaemonCommand::RemoteBootstrap(options) => match remote_bootstrap::report_running(paths, &options)? {
            Some(code) => Ok(code),
            None => start_in_background(paths).and_then(|()| remote_bootstrap::report_started(paths)),
        },
    }
}

/// Starts a daemon, or resumes one that only keeps its processes.
fn start_in_background(paths: &Paths) -> Result<(), String> {
    let options = ServeOptions { detach: true, ..ServeOptions::default() };
    match resume_kept::serve_or_resume(paths, &options) {
        Ok(_) | Err(ServeError::AlreadyRunning(_)) => Ok(()),
        Err(ServeError::Failed(reason)) => Err(reason),
    }
}

/// A panic ends the process in unwinding builds too. The next worker recovers from disk.
#[cfg(panic = "unwind")]
fn abort_on_panic() {
    let print_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        print_panic(panic);
        std::process::abort();
    }));
}

/// `keeper --state FD` runs the keeper. `keeper --check FD` only checks that this binary can decode that state.
fn keeper(mode: Option<&str>, state: Option<&str>) -> ExitCode {
    let Some(state) = state.and_then(|number| number.parse().ok()) else {
        errln!("outpost: the keeper is started by `outpost serve`, not by hand");
        return ExitCode::from(2);
    };
    match mode {
        Some("--check") if outpost_keeper::check(state) => ExitCode::SUCCESS,
        Some("--state") => match outpost_keeper::Keeper::from_state(state) {
            Ok(keeper) => ExitCode::from(keeper.run()),
            Err(errno) => {
                errln!("outpost keeper: cannot load the state of the previous keeper: {errno}");
                ExitCode::FAILURE
            }
        },
        _ => ExitCode::FAILURE,
    }
}
