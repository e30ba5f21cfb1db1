//! `outpost doctor`: what this host can enforce.

use crate::paths::Paths;
use outpost_sandbox::{Host, Namespaces};
use std::process::ExitCode;

/// Fails when confined commands would have less than all layers.
pub(super) fn run(paths: &Paths) -> ExitCode {
    let host = Host::probe(&paths.state);
    print!("sandbox\n{}", indented(&host.to_string()));
    match host.namespaces != Namespaces::None && host.landlock.is_some() && host.seccomp {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}
