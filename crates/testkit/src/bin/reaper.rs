//! Runs a program below an init that reaps at once: `reaper PROGRAM [ARGUMENT…]`.
//!
//! Every orphan of the program becomes a child of this process, which reaps it as soon as it has exited. The process ends
//! when it has no children left.

#![forbid(unsafe_code)]

use rustix::io::Errno;
use rustix::process::{WaitOptions, wait};
use std::process::{Command, ExitCode};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [program, arguments @ ..] = arguments.as_slice() else {
        eprintln!("usage: reaper PROGRAM [ARGUMENT...]");
        return ExitCode::from(2);
    };
    if let Err(errno) = outpost_sys::process::become_subreaper() {
        eprintln!("error: cannot become the parent of orphans: {errno}");
        return ExitCode::from(125);
    }
    let _reaped_below = match Command::new(program).args(arguments).spawn() {
        Ok(child) => child,
        Err(error) => {
            eprintln!("error: {program}: {error}");
            return ExitCode::from(127);
        }
    };
    while !matches!(wait(WaitOptions::empty()), Err(Errno::CHILD)) {}
    ExitCode::SUCCESS
}
