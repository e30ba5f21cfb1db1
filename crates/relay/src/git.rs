//! Runs the `git` program: never with a prompt, a hook or a terminal, never longer than it may, and never with an
//! argument of a client's that it could take for an option.

mod filters;

use crate::helper::{self, Limits};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// How long a question to git may take.
const PATIENCE: Duration = Duration::from_secs(60);
/// A checkout writes a whole tree.
const CHECKOUT_PATIENCE: Duration = Duration::from_secs(600);
/// What git may print before it is stopped.
const OUTPUT_MAX: usize = 32 * 1024 * 1024;

/// Variables that would lead git to another repository than the one that was asked about.
const MISLEADING: [&str; 9] = [
    "GIT_DIR",
    "GIT_WORK_TREE",
    "GIT_INDEX_FILE",
    "GIT_OBJECT_DIRECTORY",
    "GIT_ALTERNATE_OBJECT_DIRECTORIES",
    "GIT_COMMON_DIR",
    "GIT_NAMESPACE",
    "GIT_PREFIX",
    "GIT_EXTERNAL_DIFF",
];

/// git in a directory.
pub(crate) struct Git {
    dir: PathBuf,
    environment: Vec<(OsString, OsString)>,
}

/// What git is run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    Look,
    /// Writes a tree. It may fetch objects and run filters, and what it prints is one text.
    Checkout,
}

/// What git printed and whether it succeeded.
pub(crate) struct Printed {
    pub(crate) succeeded: bool,
    /// Without the newlines at its end. With what went to stderr where that was asked for.
    pub(crate) stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl Printed {
    /// Why it failed, for people.
    pub(crate) fn text(&self) -> String {
        let text = if self.stderr.is_empty() { &self.stdout } else { &self.stderr };
        String::from_utf8_lossy(text.trim_ascii()).into_owned()
    }
}

impl Git {
    pub(crate) fn new(dir: &str, environment: Vec<(OsString, OsString)>) -> Git {
        Git { dir: dir.into(), environment }
    }

    /// The same git in another directory.
    fn at(&self, dir: &Path) -> Git {
        Git { dir: dir.to_owned(), environment: self.environment.clone() }
    }

    /// The top of the work tree; none when the directory is in none.
    pub(crate) fn root(&self) -> Option<Vec<u8>> {
        let answer = self.ask(&["rev-parse", "--is-inside-work-tree", "--show-toplevel"])?;
        answer.strip_prefix(b"true\n").map(<[u8]>::to_vec)
    }

    /// What git answers; none when it fails.
    pub(crate) fn ask(&self, arguments: &[&str]) -> Option<Vec<u8>> {
        let printed = self.run(arguments);
        printed.succeeded.then_some(printed.stdout)
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> Printed {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        self.execute(&arguments, Task::Look)
    }

    /// The status, without running a filter that the repository or a submodule configures: `git status` passes files whose
    /// times have changed through the filters that attributes name.
    pub(crate) fn status(&self) -> Result<Printed, String> {
        let settings = filters::off(self)?;
        let overridden = settings.iter().flat_map(|setting| [OsStr::new("-c"), setting.as_os_str()]);
        let asked = ["status", "--porcelain"].map(OsStr::new);
        let arguments: Vec<&OsStr> = overridden.chain(asked).collect();
        Ok(self.execute(&arguments, Task::Look))
    }

    /// Adds a worktree with a new branch. A branch that an attempt left behind is removed again.
    pub(crate) fn add_worktree(&self, branch: &str, path: &str, source: &[u8]) -> Result<(), Vec<u8>> {
        // What git says of one. It would pass this one on to `git branch` first, as an option: -D deletes the source.
        if branch.starts_with('-') {
            return Err(format!("fatal: '{branch}' is not a valid branch name").into_bytes());
        }
        // git before 2.40 passes the source on in the same way. A lone hyphen is the branch that was checked out before.
        if source.starts_with(b"-") && source != b"-" {
            return Err([b"fatal: invalid reference: ", source].concat());
        }
        let reference = format!("refs/heads/{branch}");
        let existed = self.ask(&["show-ref", "--verify", "--quiet", &reference]).is_some();
        let mut arguments: Vec<&OsStr> =
            ["worktree", "add", "-b", branch, "--", path].map(OsStr::new).to_vec();
        if !source.is_empty() {
            arguments.push(OsStr::from_bytes(source));
        }
        let added = self.execute(&arguments, Task::Checkout);
        if added.succeeded {
            return Ok(());
        }
        if !existed {
            self.run(&["update-ref", "-d", &reference]);
        }
        Err(added.stdout)
    }

    fn execute(&self, arguments: &[&OsStr], task: Task) -> Printed {
        self.try_execute(arguments, task).unwrap_or_else(|error| Printed {
            succeeded: false,
            stdout: format!("git: {error}").into_bytes(),
            stderr: Vec::new(),
        })
    }

    fn try_execute(&self, arguments: &[&OsStr], task: Task) -> io::Result<Printed> {
        let mut command = self.command(arguments);
        let (patience, together) = match task {
            Task::Look => (PATIENCE, false),
            Task::Checkout => (CHECKOUT_PATIENCE, true),
        };
        if task == Task::Look {
            // A partial clone would fetch what it lacks, by a transport program of its own choice. The empty list of
            // transports does the same for git before 2.45.
            command.env("GIT_NO_LAZY_FETCH", "1").env("GIT_ALLOW_PROTOCOL", "");
        }
        let limits = Limits { patience, output_bytes: OUTPUT_MAX, together };
        let mut ended = helper::run(&mut command, &limits, |_| false)?;
        while ended.stdout.last() == Some(&b'\n') {
            ended.stdout.pop();
        }
        if ended.stopped && ended.stdout.is_empty() {
            let seconds = patience.as_secs();
            ended.stdout =
                format!("git did not finish within {seconds} s, or printed too much, and was stopped").into();
        }
        Ok(Printed { succeeded: ended.succeeded, stdout: ended.stdout, stderr: ended.stderr })
    }

    fn command(&self, arguments: &[&OsStr]) -> Command {
        let kept = self.environment.iter().filter(|(name, _)| !MISLEADING.iter().any(|known| name == known));
        let mut command = Command::new("git");
        command
            // A repository may name programs in its configuration; those that a look at it would start are off.
            .args(["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-C"])
            .arg(&self.dir)
            .args(arguments)
            .env_clear()
            .envs(kept.map(|(name, value)| (name, value)))
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "true")
            .env("SSH_ASKPASS", "true")
            // An agent's own git must not find the index locked because we looked.
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("LC_ALL", "C");
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// git before 2.40 would take it for an option of `git branch`, whatever stands before it.
    #[test]
    fn a_source_that_begins_with_a_hyphen_never_reaches_git() {
        let dir = tempfile::tempdir().unwrap();
        let (program, seen) = (dir.path().join("git"), dir.path().join("seen"));
        std::fs::write(&program, format!("#!/bin/sh\necho \"$@\" >> '{}'\n", seen.display())).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        let git = Git::new("/", vec![("PATH".into(), path.into())]);
        for source in ["-D", "--delete", "--"] {
            git.add_worktree("dev", "new", source.as_bytes()).unwrap_err();
        }
        assert!(!seen.exists());
        git.add_worktree("dev", "new", b"-").unwrap();
        assert!(std::fs::read_to_string(&seen).unwrap().contains("worktree add -b dev -- new -\n"));
    }
}
