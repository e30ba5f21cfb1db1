//! Daemons as on an older kernel: the program `oldkernel` before theirs.
//!
//! A test names a version where it starts a daemon. `OUTPOST_TEST_KERNEL=6.8` (or 6.1, 5.10) does so for every daemon that
//! the kits of this crate start, to run any part of the suite by hand.

use crate::daemon::binary_beside;
use std::path::Path;

const VARIABLE: &str = "OUTPOST_TEST_KERNEL";

/// What stands before a daemon's command line: nothing, or `oldkernel VERSION`.
pub(crate) fn prefix(kernel: Option<&str>) -> Vec<String> {
    let Some(version) = version(kernel) else { return Vec::new() };
    let test = std::env::current_exe().unwrap();
    // A test is in `deps`, the programs are one up; one of the programs may call this, too.
    let dir = test.parent().unwrap();
    let dir = if dir.ends_with("deps") { dir.parent().unwrap() } else { dir };
    let program = binary_beside(&dir.join("tests"), "oldkernel");
    vec![program.display().to_string(), version]
}

/// A command that starts `program`.
pub(crate) fn command(kernel: Option<&str>, program: &Path) -> std::process::Command {
    let prefix = prefix(kernel);
    let Some((first, rest)) = prefix.split_first() else { return std::process::Command::new(program) };
    let mut command = std::process::Command::new(first);
    command.args(rest).arg(program);
    command
}

/// The older kernel that a daemon is started as on, if any.
pub(crate) fn version(kernel: Option<&str>) -> Option<String> {
    let wanted = || std::env::var(VARIABLE).ok().filter(|version| !version.is_empty());
    kernel.map(str::to_owned).or_else(wanted)
}
