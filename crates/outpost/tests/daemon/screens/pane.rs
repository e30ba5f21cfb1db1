//! Shells in tmux panes of a fixed size: typing into them and reading their screens.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::{Duration, Instant};

pub(super) const COLUMNS: usize = 100;
const ROWS: usize = 40;

/// Longer than any command takes on a busy host.
pub(super) const TIMEOUT: Duration = Duration::from_secs(60);

/// The exit code of the previous command, and the prompt.
const PROMPT: &str = "[$?]\n$ ";

/// The screen of a shell before any input.
const FRESH: &str = "[0]\n$";

/// A tmux server with its panes, killed at the end of the test.
pub(super) struct Tmux {
    socket: PathBuf,
    panes: usize,
}

impl Tmux {
    pub(super) fn new(socket: PathBuf) -> Tmux {
        Tmux { socket, panes: 0 }
    }

    /// Starts a shell with exactly this environment and waits for its first prompt.
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
        run_tmux(&self.socket, &new.into_iter().chain(shell).collect::<Vec<_>>());
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

fn run_tmux(socket: &Path, arguments: &[&str]) -> String {
    let output = tmux(socket).args(arguments).output().expect("tmux, which scripts/setup-tests installs");
    assert!(output.status.success(), "{arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(super) struct Pane {
    socket: PathBuf,
    session: String,
}

impl Pane {
    /// Types these characters, without Enter.
    pub(super) fn types(&self, text: &str) {
        run_tmux(&self.socket, &["send-keys", "-t", &self.session, "-l", "--", text]);
    }

    /// Presses a key, by its name in tmux.
    pub(super) fn presses(&self, key: &str) {
        run_tmux(&self.socket, &["send-keys", "-t", &self.session, key]);
    }

    /// Types a line and presses Enter.
    pub(super) fn enters(&self, line: &str) {
        self.types(line);
        self.presses("Enter");
    }

    /// The whole output so far, including the scrollback. Wrapped lines are joined.
    pub(super) fn seen(&self) -> String {
        self.captured(&["-J"])
    }

    /// The same with colours and other attributes as escape sequences.
    pub(super) fn seen_with_looks(&self) -> String {
        self.captured(&["-J", "-e"])
    }

    fn captured(&self, how: &[&str]) -> String {
        let seen =
            run_tmux(&self.socket, &[&["capture-pane", "-p", "-S", "-", "-t", &self.session], how].concat());
        let rows: Vec<&str> = seen.lines().map(str::trim_end).collect();
        rows.join("\n").trim_end().to_owned()
    }

    pub(super) fn wait(&self, what: &str, is_there: impl Fn(&str) -> bool) -> String {
        let started = Instant::now();
        loop {
            let seen = self.seen();
            if is_there(&seen) {
                return seen;
            }
            assert!(started.elapsed() < TIMEOUT, "no {what} within {TIMEOUT:?} on this screen:\n{seen}");
            outpost_testkit::pause();
        }
    }

    pub(super) fn wait_seen(&self, text: &str) -> String {
        self.wait(text, |seen| seen.contains(text))
    }

    /// Waits until the entered command has ended.
    pub(super) fn wait_prompt(&self) -> String {
        self.wait("prompt", |seen| seen != FRESH && seen.ends_with("]\n$"))
    }
}
