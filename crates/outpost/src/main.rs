//! Entry point of the binary: selects the program to run by its name and first argument.
//!
//! # Theory of operation
//!
//! `serve` becomes the keeper; `serve --detach` starts one in a session of its own and returns when the control socket,
//! the last to answer, does. The supervisor is notified by the keeper, since systemd accepts the main process only. The
//! keeper answers the watchdog itself and kills a worker whose pulse stops. With `FDSTORE` the keeper stores the
//! descriptors of children that have lived for a second, so the death of both halves costs no process.
//!
//! `stop --keep-children` leaves a mark with the keeper; the next worker serves the control socket only. `outpost serve`
//! that finds such a daemon replaces its binary if needed, removes the mark and stays in front.
//!
//! The command line's viewer (`run`, `exec`, `attach`, `logs`) is one loop with at most one unconfirmed request of each
//! kind (input by offset, size, signal), which is repeated after a reconnect. A later `attach` renders the last MiB
//! through a terminal emulator and shows the resulting screen: replaying raw bytes would make the terminal answer old
//! queries. The viewer tracks terminal modes and restores them on exit, panic and signal.
//!
//! `connect` runs one ssh as a control master in a private directory. Probe, install and forwards go over it. The remote
//! end is our own binary, so the shell there decides nothing. `--host` selects a runtime directory with forwarded sockets.

#![forbid(unsafe_code)]
// All terminal output goes through `console`.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod console;

mod askpass;
mod cli;
mod columns;
mod config;
mod daemon;
mod dropin;
mod failure;
mod flags;
mod hosts;
mod listen;
mod log;
mod paths;
mod port_token;
mod prompt;
mod redact;
mod tty;

use dropin::{codecast, relay, sudo_proxy};
use std::path::Path;
use std::process::ExitCode;

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
    cli::run()
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
