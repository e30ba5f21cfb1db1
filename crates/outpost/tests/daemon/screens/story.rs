//! One user's home with a program, a shell and perhaps a daemon, and the screens that the user gets to see there.

use super::pane::{PATIENCE, Pane, Tmux};
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

/// In the environment of everything that is started here.
const MARK: &str = "OUTPOST_TEST_SCREENS";

/// Has what is seen written down instead of compared.
const WRITE: &str = "OUTPOST_WRITE_SCREENS";

/// Before each screen, and behind it what was entered to have it.
pub(super) const CAPTION: &str = "──── ";

pub(super) struct Story {
    // Before its directory, which it has open.
    tmux: Tmux,
    /// Words that differ from run to run, and what stands for them.
    known: Vec<(String, String)>,
    screens: String,
    /// Something that this host lacks.
    is_skipped: bool,
    dir: TempDir,
}

impl Story {
    pub(super) fn begin() -> Story {
        // Always as long, whatever TMPDIR is: paths are in tables, and lines break behind them.
        let dir = tempfile::Builder::new().prefix("screens-").tempdir_in("/tmp").unwrap();
        let at = |name: &str| dir.path().join(name);
        for name in ["bin", "run", "home/.config/outpost", "home/project"] {
            fs::create_dir_all(at(name)).unwrap();
        }
        std::os::unix::fs::symlink(outpost(), at("bin/outpost")).unwrap();
        let mut story = Story {
            tmux: Tmux::new(at("tmux")),
            known: Vec::new(),
            screens: String::new(),
            is_skipped: false,
            dir,
        };
        story.configure("");
        let binary = fs::canonicalize(outpost()).unwrap().display().to_string();
        story.knows(&binary, "/usr/bin/outpost");
        let own = story.dir.path().display().to_string();
        story.knows(&own, "/tmp/screens-XXXXXX");
        story
    }

    pub(super) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Writes the operator's file. Any port will do, so that daemons of other tests have theirs.
    pub(super) fn configure(&self, more: &str) {
        let text = format!("[sessions]\nlisten = \"127.0.0.1:0\"\n{more}");
        let file = self.path("home/.config/outpost/outpost.toml");
        fs::write(&file, text).unwrap();
        // One that others can write is refused, and the umask may be any.
        fs::set_permissions(&file, PermissionsExt::from_mode(0o644)).unwrap();
    }

    /// From now on the one is shown where the other is seen.
    pub(super) fn knows(&mut self, seen: &str, shown: &str) {
        self.known.push((seen.to_owned(), shown.to_owned()));
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

    /// The program as the user has it, without a screen.
    pub(super) fn outpost(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new("outpost");
        command.args(arguments).env_clear().envs(self.environment());
        command.current_dir(self.path("home/project")).stdin(Stdio::null());
        command
    }

    /// What it says, which must be a success.
    pub(super) fn said(&self, arguments: &[&str]) -> String {
        let output = self.outpost(arguments).output().unwrap();
        assert!(output.status.success(), "{arguments:?}: {output:?}");
        String::from_utf8(output.stdout).unwrap()
    }

    /// The same as JSON.
    pub(super) fn told(&self, arguments: &[&str]) -> Value {
        serde_json::from_str(&self.said(arguments)).unwrap()
    }

    /// Looks until it is so.
    pub(super) fn wait(&self, what: &str, is_so: impl Fn(&Story) -> bool) {
        let begun = Instant::now();
        while !is_so(self) {
            assert!(begun.elapsed() < PATIENCE, "no {what} within {PATIENCE:?}");
            outpost_testkit::pause();
        }
    }

    /// A daemon, ended with the story.
    pub(super) fn serve(&self) {
        self.said(&["serve", "--detach"]);
    }

    pub(super) fn pane(&mut self) -> Pane {
        let (directory, environment) = (self.path("home/project"), self.environment());
        self.tmux.pane(&directory, &environment)
    }

    /// Enters a line and has the screen recorded once it is done.
    pub(super) fn shows(&mut self, line: &str) {
        self.shows_with(line, &[]);
    }

    /// The same, with rules besides those for every screen.
    pub(super) fn shows_with(&mut self, line: &str, rules: &[Rule]) {
        let pane = self.pane();
        pane.enters(line);
        let seen = pane.wait_prompt();
        self.record(line, &seen, rules);
    }

    /// A screen as it is now.
    pub(super) fn record(&mut self, line: &str, seen: &str, rules: &[Rule]) {
        let line = self.settled(line, &[]);
        let text = self.settled(seen.strip_prefix("[0]\n").unwrap_or(seen), rules);
        self.screens += &format!("{CAPTION}{line}\n{}\n", rules::wrapped(&text));
    }

    fn settled(&self, text: &str, rules: &[Rule]) -> String {
        let text = self.known.iter().fold(text.to_owned(), |text, (seen, shown)| text.replace(seen, shown));
        rules.iter().chain(rules::ALWAYS).fold(text, |text, rule| rule(&text))
    }

    /// This host cannot show it; the caller has reported why.
    pub(super) fn skip(&mut self) {
        self.is_skipped = true;
    }

    pub(super) fn compare(&self, name: &str) {
        if self.is_skipped {
            return;
        }
        let stored = stored(name);
        if std::env::var_os(WRITE).is_some() {
            fs::write(stored, &self.screens).unwrap();
            return;
        }
        let expected = fs::read_to_string(&stored).unwrap_or_default();
        let differ = differences(&expected, &self.screens);
        assert!(
            differ.is_empty(),
            "{differ}\n- is in {}, + is what was seen; {WRITE}=1 writes down what is seen",
            stored.display()
        );
    }
}

impl Drop for Story {
    fn drop(&mut self) {
        let _not_running = self.outpost(&["stop"]).output();
        kill_marked(&format!("{MARK}={}", self.dir.path().display()));
    }
}

/// Where the screens of a story are.
pub(super) fn stored(name: &str) -> PathBuf {
    folder().join(format!("{name}.txt"))
}

pub(super) fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/daemon/screens")
}

/// Those screens that are not the same, line by line; nothing if all are.
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

/// The longest common lines stay; what is only in the one has a `-`, what is only in the other a `+`.
fn difference(expected: &str, actual: &str) -> String {
    let (old, new): (Vec<&str>, Vec<&str>) = (expected.lines().collect(), actual.lines().collect());
    // How many lines are common from here on.
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
