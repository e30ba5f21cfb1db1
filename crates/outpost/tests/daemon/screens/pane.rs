//! Shells at plain prompts, each in a pane of tmux of one size: what is typed there, and what is seen.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) const COLUMNS: usize = 100;
const ROWS: usize = 40;

/// Longer than anything takes on a busy machine.
pub(super) const PATIENCE: Duration = Duration::from_secs(60);

/// How the command before ended, and the prompt.
const PROMPT: &str = "[$?]\n$ ";

/// What a shell shows before anything was typed.
const FRESH: &str = "[0]\n$";

/// One server with its panes, ended with the test.
pub(super) struct Tmux {
    socket: PathBuf,
    panes: usize,
}

impl Tmux {
    pub(super) fn new(socket: PathBuf) -> Tmux {
        Tmux { socket, panes: 0 }
    }

    /// A shell with this environment and no other, at its first prompt.
    pub(super) fn pane(&mut self, directory: &Path, environment: &[(&str, String)]) -> Pane {
        self.panes += 1;
        let pane = Pane { socket: self.socket.clone(), session: format!("pane{}", self.panes) };
        let (columns, rows) = (COLUMNS.to_string(), ROWS.to_string());
        let directory = directory.to_str().unwrap();
        let new = ["new-session", "-d", "-x", &columns, "-y", &rows, "-c", directory, "-s", &pane.session];
        let mut variables: Vec<String> =
            environment.iter().map(|(name, value)| format!("{name}={value}")).collect();
        variables.push(format!("PS1={PROMPT}"));
        let shell = ["--", "env", "-i"].into_iter().chain(variables.iter().map(String::as_str)).chain(["sh"]);
        tell(&self.socket, &new.into_iter().chain(shell).collect::<Vec<_>>());
        pane.wait("prompt", |seen| seen == FRESH);
        pane
    }
}

impl Drop for Tmux {
    fn drop(&mut self) {
        let _not_running = tmux(&self.socket).arg("kill-server").output();
    }
}

fn tmux(socket: &Path) -> Command {
    let mut tmux = Command::new("tmux");
    tmux.arg("-S").arg(socket).args(["-u", "-f", "/dev/null"]).env("LC_ALL", "C.UTF-8").env_remove("TMUX");
    tmux
}

fn tell(socket: &Path, arguments: &[&str]) -> String {
    let output = tmux(socket).args(arguments).output().expect("tmux, which scripts/setup-tests installs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(super) struct Pane {
    socket: PathBuf,
    session: String,
}

impl Pane {
    /// These characters, without Enter.
    pub(super) fn types(&self, text: &str) {
        tell(&self.socket, &["send-keys", "-t", &self.session, "-l", "--", text]);
    }

    /// A key by the name that tmux has for it.
    pub(super) fn presses(&self, key: &str) {
        tell(&self.socket, &["send-keys", "-t", &self.session, key]);
    }

    /// A line at the prompt.
    pub(super) fn enters(&self, line: &str) {
        self.types(line);
        self.presses("Enter");
    }

    /// All that was shown so far, with what has left the screen at its top. A line that did not fit is one line.
    pub(super) fn seen(&self) -> String {
        self.captured(&["-J"])
    }

    /// The same with colours and other attributes, as escape sequences.
    pub(super) fn seen_with_looks(&self) -> String {
        self.captured(&["-J", "-e"])
    }

    fn captured(&self, how: &[&str]) -> String {
        let seen =
            tell(&self.socket, &[&["capture-pane", "-p", "-S", "-", "-t", &self.session], how].concat());
        let rows: Vec<&str> = seen.lines().map(str::trim_end).collect();
        rows.join("\n").trim_end().to_owned()
    }

    pub(super) fn wait(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let begun = Instant::now();
        loop {
            let seen = self.seen();
            if is_there(&seen) {
                return seen;
            }
            assert!(begun.elapsed() < PATIENCE, "no {what} within {PATIENCE:?} on this screen:\n{seen}");
            outpost_testkit::pause();
        }
    }

    pub(super) fn wait_seen(&self, text: &str) -> String {
        self.wait(text, |seen| seen.contains(text))
    }

    /// Until what was entered has ended.
    pub(super) fn wait_prompt(&self) -> String {
        self.wait("prompt", |seen| seen != FRESH && seen.ends_with("]\n$"))
    }
}
