//! A scenario: a home with the binary, tmux panes and an optional daemon, and the recorded screens.

use super::pane::{Pane, TIMEOUT, Tmux};
use super::rules::{self, Rule};
use crate::support::outpost;
use outpost_testkit::kill_marked;
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;
use tempfile::TempDir;

/// A variable in the environment of all processes of a scenario.
const MARK: &str = "OUTPOST_TEST_SCREENS";

/// If set, snapshots are written instead of compared.
const WRITE: &str = "OUTPOST_WRITE_SCREENS";

/// Starts the caption line of each screen, before the entered command.
pub(super) const CAPTION: &str = "──── ";

pub(super) struct Scenario {
    // Declared before `dir`, which it has open.
    tmux: Tmux,
    /// Texts that vary between runs, and their replacements.
    substitutions: Vec<(String, String)>,
    screens: String,
    /// The host lacks a requirement.
    is_skipped: bool,
    dir: TempDir,
}

impl Scenario {
    pub(super) fn start() -> Scenario {
        // The path has a fixed length regardless of TMPDIR, because it affects table widths and line breaks.
        let dir = tempfile::Builder::new().prefix("screens-").tempdir_in("/tmp").unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["bin", "run", "home/.config/outpost", "home/project"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        std::os::unix::fs::symlink(outpost(), at("bin/outpost")).unwrap();
        let mut scenario = Scenario {
            tmux: Tmux::new(at("tmux")),
            substitutions: Vec::new(),
            screens: String::new(),
            is_skipped: false,
            dir,
        };
        scenario.configure("");
        let binary = fs::canonicalize(outpost()).unwrap().display().to_string();
        scenario.substitute(&binary, "/usr/bin/outpost");
        let own = scenario.dir.path().display().to_string();
        scenario.substitute(&own, "/tmp/screens-XXXXXX");
        scenario
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the configuration file. The port is a free one, so that scenarios can run in parallel.
    pub(super) fn configure(&self, more: &str) {
        let text = format!("[sessions]\nlisten = \"127.0.0.1:0\"\n{more}");
        let file = self.path("home/.config/outpost/outpost.toml");
        fs::write(&file, text).unwrap();
        // The daemon refuses a file that others can write, whatever the umask of the tests is.
        fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    }

    /// Replaces this text in all later screens.
    pub(super) fn substitute(&mut self, seen: &str, shown: &str) {
        self.substitutions.push((seen.to_owned(), shown.to_owned()));
    }

    fn environment(&self) -> [(&'static str, String); 6] {
        let at = |name: &str| self.path(name).display().to_string();
        [
            ("PATH", format!("{}:/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin", at("bin"))),
            ("HOME", at("home")),
            ("XDG_RUNTIME_DIR", at("run")),
            ("TERM", "screen-256color".into()),
            ("LANG", "C.UTF-8".into()),
            (MARK, self.dir.path().display().to_string()),
        ]
    }

    /// `outpost` in the scenario's environment, without a pane.
    pub(super) fn outpost(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("outpost");
        command.args(arguments).env_clear().envs(self.environment());
        command.current_dir(self.path("home/project")).stdin(Stdio::null());
        command
    }

    /// Runs `outpost`, which must succeed, and returns its standard output.
    pub(super) fn stdout_of(&self, arguments: &[&str]) -> String {
        let output = self.outpost(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// Runs `outpost` and parses its standard output as JSON.
    pub(super) fn json_of(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.stdout_of(arguments)).unwrap()
    }

    /// Polls until the condition holds.
    pub(super) fn wait(&self, what: &str, condition: impl Fn(&Scenario) -> bool) {
        let started = Instant::now();
        while !condition(self) {
            assert!(started.elapsed() < TIMEOUT, "no {what} within {TIMEOUT:?}");
            outpost_testkit::pause();
        }
    }

    /// Starts a daemon, which is stopped at the end of the scenario.
    pub(super) fn serve(&self) {
        self.stdout_of(&["serve", "--detach"]);
    }

    pub(super) fn pane(&mut self) -> Pane {
        let (directory, environment) = (self.path("home/project"), self.environment());
        self.tmux.pane(&directory, &environment)
    }

    /// Enters a line and records the screen when the command has ended.
    pub(super) fn shows(&mut self, line: &str) {
        self.shows_with(line, &[]);
    }

    /// The same with additional rules.
    pub(super) fn shows_with(&mut self, line: &str, rules: &[Rule]) {
        let pane = self.pane();
        pane.enters(line);
        let seen = pane.wait_prompt();
        self.record(line, &seen, rules);
    }

    /// Records a screen.
    pub(super) fn record(&mut self, line: &str, seen: &str, rules: &[Rule]) {
        let line = self.normalized(line, &[]);
        let text = self.normalized(seen.strip_prefix("[0]\n").unwrap_or(seen), rules);
        self.screens += &format!("{CAPTION}{line}\n{}\n", rules::wrapped(&text));
    }

    fn normalized(&self, text: &str, rules: &[Rule]) -> String {
        let text =
            self.substitutions.iter().fold(text.to_owned(), |text, (seen, shown)| text.replace(seen, shown));
        rules.iter().chain(rules::ALWAYS).fold(text, |text, rule| rule(&text))
    }

    /// Skips the comparison. The caller has reported what the host lacks.
    pub(super) fn skip(&mut self) {
        self.is_skipped = true;
    }

    pub(super) fn compare(&self, name: &str) {
        if self.is_skipped {
            return;
        }
        let file = screen_file(name);
        if std::env::var_os(WRITE).is_some() {
            fs::write(file, &self.screens).unwrap();
            return;
        }
        let expected = fs::read_to_string(&file).unwrap_or_default();
        let differ = differences(&expected, &self.screens);
        assert!(
            differ.is_empty(),
            "{differ}\n- is in {}, + is the actual screen; {WRITE}=1 writes the snapshots anew",
            file.display()
        );
    }
}

impl Drop for Scenario {
    fn drop(&mut self) {
        let _not_running = self.outpost(&["stop"]).output();
        kill_marked(&format!("{MARK}={}", self.dir.path().display()));
    }
}

/// The snapshot file of a scenario.
pub(super) fn screen_file(name: &str) -> PathBuf {
    folder().join(format!("{name}.txt"))
}

pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon/screens")
}

/// A line diff of all screens that differ; empty if none does.
fn differences(expected: &str, actual: &str) -> String {
    let screens = |text: &str| -> Vec<String> {
        text.split(CAPTION).skip(1).map(|screen| format!("{CAPTION}{screen}")).collect()
    };
    let (expected, actual) = (screens(expected), screens(actual));
    let none = String::new();
    let pairs = (0..expected.len().max(actual.len()))
        .map(|at| (expected.get(at).unwrap_or(&none), actual.get(at).unwrap_or(&none)));
    pairs.filter(|(expected, actual)| expected != actual).map(|(one, other)| difference(one, other)).collect()
}

/// A line diff by the longest common subsequence.
fn difference(expected: &str, actual: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), actual.lines().collect());
    // Lengths of the longest common subsequences of the remaining lines.
    let mut common = vec![vec![0; new.len() + 1]; old.len() + 1];
    for at in (0..old.len()).rev() {
        for there in (0..new.len()).rev() {
            common[at][there] = match old[at] == new[there] {
                true => common[at + 1][there + 1] + 1,
                false => common[at + 1][there].max(common[at][there + 1]),
            };
        }
    }
    let mut text = String::new();
    let (mut at, mut there) = (0, 0);
    while at < old.len() || there < new.len() {
        if at < old.len() && there < new.len() && old[at] == new[there] {
            text += &format!("  {}\n", old[at]);
            (at, there) = (at + 1, there + 1);
        } else if there == new.len() || (at < old.len() && common[at + 1][there] >= common[at][there + 1]) {
            text += &format!("- {}\n", old[at]);
            at += 1;
        } else {
            text += &format!("+ {}\n", new[there]);
            there += 1;
        }
    }
    text
}

#[test]
fn screens_that_differ_are_shown_line_by_line() {
    let screen = |lines: &[&str]| format!("{CAPTION}{}\n", lines.join("\n"));
    let (same, old) = (screen(&["ps", "x"]), screen(&["run", "a", "b", "c"]));
    assert_eq!(differences(&format!("{same}{old}"), &format!("{same}{old}")), "");
    let new = screen(&["run", "a", "B", "c", "d"]);
    let shown = format!("  {CAPTION}run\n  a\n- b\n+ B\n  c\n+ d\n");
    assert_eq!(differences(&format!("{same}{old}"), &format!("{same}{new}")), shown);
    assert_eq!(differences(&same, ""), format!("- {CAPTION}ps\n- x\n"));
}
