//! Runs the `git` program with a timeout and without prompts, hooks or a terminal.
//!
//! Invariant: git never parses a client's argument as an option.

mod filters;

use outpost_sys::bounded_command::{self, Limits};
use std::ffi::{OsStr, OsString};
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

const QUERY_TIMEOUT: Duration = Duration::from_secs(60);
/// Longer, because a checkout writes a whole tree.
const CHECKOUT_TIMEOUT: Duration = Duration::from_secs(600);
/// git is killed if it prints more.
const OUTPUT_BYTES_MAX: usize = 32 * 1024 * 1024;

/// Variables that would redirect git to another repository than the requested one.
const REDIRECTING_VARIABLES: [&str; 9] = [
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

/// Runs git in one directory.
pub(crate) struct Git {
    dir: PathBuf,
    environment: Vec<(OsString, OsString)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Task {
    /// Read-only.
    Query,
    /// Writes a tree. git may fetch objects and run filters. Its stderr is merged into stdout.
    Checkout,
}

/// Output and exit status of a git command.
pub(crate) struct GitOutput {
    pub(crate) succeeded: bool,
    /// Without trailing newlines. Includes stderr after a checkout.
    pub(crate) stdout: Vec<u8>,
    stderr: Vec<u8>,
}

impl GitOutput {
    /// The text of an error message.
    pub(crate) fn error_text(&self) -> String {
        let text = if self.stderr.is_empty() { &self.stdout } else { &self.stderr };
        String::from_utf8_lossy(text.trim_ascii()).into_owned()
    }
}

impl Git {
    pub(crate) fn new(dir: &str, environment: Vec<(OsString, OsString)>) -> Git {
        Git { dir: dir.into(), environment }
    }

    /// The same environment in another directory.
    fn at(&self, dir: &Path) -> Git {
        Git { dir: dir.to_owned(), environment: self.environment.clone() }
    }

    /// The top level of the work tree; `None` outside of a work tree.
    pub(crate) fn root(&self) -> Option<Vec<u8>> {
        let stdout = self.query(&["rev-parse", "--is-inside-work-tree", "--show-toplevel"])?;
        stdout.strip_prefix(b"true\n").map(<[u8]>::to_vec)
    }

    /// The stdout of a query; `None` if git fails.
    pub(crate) fn query(&self, arguments: &[&str]) -> Option<Vec<u8>> {
        let output = self.run(arguments);
        output.succeeded.then_some(output.stdout)
    }

    pub(crate) fn run(&self, arguments: &[&str]) -> GitOutput {
        let arguments: Vec<&OsStr> = arguments.iter().map(OsStr::new).collect();
        self.execute(&arguments, Task::Query)
    }

    /// Runs `git status` with the filters of the repository and its submodules disabled. git status would otherwise pass
    /// files with a changed mtime through them, and thus execute programs of the repository's choice.
    pub(crate) fn status(&self) -> Result<GitOutput, filters::FilterError> {
        let settings = filters::disabling_settings(self)?;
        let overrides = settings.iter().flat_map(|setting| [OsStr::new("-c"), setting.as_os_str()]);
        let arguments: Vec<&OsStr> = overrides.chain(["status", "--porcelain"].map(OsStr::new)).collect();
        Ok(self.execute(&arguments, Task::Query))
    }

    /// Adds a worktree with a new branch. Deletes a branch that a failed attempt created.
    pub(crate) fn add_worktree(&self, branch: &str, path: &str, source: &[u8]) -> Result<(), Vec<u8>> {
        // git's own message for an invalid name. git would pass the name to `git branch` as an option: -D deletes the
        // source branch.
        if branch.starts_with('-') {
            return Err(format!("fatal: '{branch}' is not a valid branch name").into_bytes());
        }
        // git before 2.40 passes the source in the same way. A lone hyphen means the previously checked out branch.
        if source.starts_with(b"-") && source != b"-" {
            return Err([b"fatal: invalid reference: ", source].concat());
        }
        let reference = format!("refs/heads/{branch}");
        let existed = self.query(&["show-ref", "--verify", "--quiet", &reference]).is_some();
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

    fn execute(&self, arguments: &[&OsStr], task: Task) -> GitOutput {
        self.try_execute(arguments, task).unwrap_or_else(|error| GitOutput {
            succeeded: false,
            stdout: format!("git: {error}").into_bytes(),
            stderr: Vec::new(),
        })
    }

    fn try_execute(&self, arguments: &[&OsStr], task: Task) -> io::Result<GitOutput> {
        let mut command = self.command(arguments);
        let (timeout, merge_stderr) = match task {
            Task::Query => (QUERY_TIMEOUT, false),
            Task::Checkout => (CHECKOUT_TIMEOUT, true),
        };
        if task == Task::Query {
            // A partial clone would fetch missing objects, with a transport program of the repository's choice. The empty
            // protocol list prevents it for git before 2.45.
            command.env("GIT_NO_LAZY_FETCH", "1").env("GIT_ALLOW_PROTOCOL", "");
        }
        let limits = Limits { timeout, output_bytes_max: OUTPUT_BYTES_MAX, merge_stderr };
        let mut output = bounded_command::run(&mut command, &limits, |_| false)?;
        while output.stdout.last() == Some(&b'\n') {
            output.stdout.pop();
        }
        if output.killed && output.stdout.is_empty() {
            let seconds = timeout.as_secs();
            output.stdout =
                format!("git did not finish within {seconds} s, or printed too much, and was stopped").into();
        }
        Ok(GitOutput { succeeded: output.succeeded, stdout: output.stdout, stderr: output.stderr })
    }

    fn command(&self, arguments: &[&OsStr]) -> Command {
        let is_redirecting = |name: &OsStr| REDIRECTING_VARIABLES.iter().any(|known| name == *known);
        let kept = self.environment.iter().filter(|(name, _)| !is_redirecting(name));
        let mut command = Command::new("git");
        command
            // A repository's configuration can name programs. Disable those that a query would execute.
            .args(["-c", "core.hooksPath=/dev/null", "-c", "core.fsmonitor=false", "-C"])
            .arg(&self.dir)
            .args(arguments)
            .env_clear()
            .envs(kept.map(|(name, value)| (name, value)))
            .env("GIT_TERMINAL_PROMPT", "0")
            .env("GIT_ASKPASS", "true")
            .env("SSH_ASKPASS", "true")
            // A query must not lock the index: it would make a concurrent git command of an agent fail.
            .env("GIT_OPTIONAL_LOCKS", "0")
            .env("LC_ALL", "C");
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    /// git before 2.40 would pass it to `git branch` as an option, in spite of the `--`.
    #[test]
    fn a_source_that_begins_with_a_hyphen_never_reaches_git() {
        let dir = tempfile::tempdir().unwrap();
        let (program, calls) = (dir.path().join("git"), dir.path().join("calls"));
        std::fs::write(&program, format!("#!/bin/sh\necho \"$@\" >> '{}'\n", calls.display())).unwrap();
        std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o755)).unwrap();
        let path = format!("{}:/usr/bin:/bin", dir.path().display());
        let git = Git::new("/", vec![("PATH".into(), path.into())]);
        for source in ["-D", "--delete", "--"] {
            git.add_worktree("dev", "new", source.as_bytes()).unwrap_err();
        }
        assert!(!calls.exists());
        git.add_worktree("dev", "new", b"-").unwrap();
        assert!(std::fs::read_to_string(&calls).unwrap().contains("worktree add -b dev -- new -\n"));
    }
}
