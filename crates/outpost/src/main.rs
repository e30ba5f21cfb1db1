//! The binary: command line and wiring. Everything of substance is in the crates below.

#![forbid(unsafe_code)]
// `console` writes what people read.
#![deny(clippy::print_stdout, clippy::print_stderr)]

#[macro_use]
mod console;

mod announced;
mod app_server;
mod approvals_desk;
mod askpass;
mod broker_face;
mod cli;
mod codecast;
mod config;
mod detach;
mod exec_face;
mod faces;
mod failure;
mod flags;
mod hosts;
mod listen;
mod log;
mod metrics_face;
mod orders;
mod own_token;
mod paths;
mod place;
mod problems;
mod prompt;
mod redact;
mod relay;
mod relay_face;
mod roles;
mod serve;
mod serve_again;
mod sessions_face;
mod settled;
mod socket;
mod stopping;
mod stored;
mod sudo_proxy;
mod tty;
mod worker;

use std::path::Path;
use std::process::ExitCode;

fn main() -> ExitCode {
    // The keeper must stay small: it never sees the argument parser, the logger or the runtime.
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
        // Its keeper starts its worker under this name too.
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

/// In builds that unwind: what panics ends here too, and its successor goes on from the disk.
#[cfg(panic = "unwind")]
fn abort_on_panic() {
    let tell = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |panic| {
        tell(panic);
        std::process::abort();
    }));
}

/// `keeper --state N` is the keeper itself; `keeper --check N` says whether this binary could take that state over.
fn keeper(how: Option<&str>, state: Option<&str>) -> ExitCode {
    let Some(state) = state.and_then(|number| number.parse().ok()) else {
        errln!("outpost: the keeper is started by `outpost serve`, not by hand");
        return ExitCode::from(2);
    };
    match how {
        Some("--check") if outpost_keeper::check(state) => ExitCode::SUCCESS,
        Some("--state") => match outpost_keeper::Keeper::from_state(state) {
            Ok(keeper) => {
                outpost_sys::memory::forget_program();
                ExitCode::from(keeper.run())
            }
            Err(errno) => {
                errln!("outpost keeper: cannot begin from the state handed over: {errno}");
                ExitCode::FAILURE
            }
        },
        _ => ExitCode::FAILURE,
    }
}
