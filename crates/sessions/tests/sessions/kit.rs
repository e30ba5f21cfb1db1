//! A daemon with fake agents, and with a home and a project directory of its own.

use outpost_sys::procfs;
use outpost_testkit::{Daemon, EventReader, SessionsClient, binary_beside, install_fake_clis};
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) const CLIS: [&str; 4] = ["claude", "codex", "gemini", "opencode"];

pub(crate) struct Host {
    daemon: Option<Daemon>,
    variables: Vec<(String, String)>,
    /// The last field, so that it is dropped after the daemon that works in it.
    dir: TempDir,
}

pub(crate) fn outpost() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // Tests are in `deps`; the programs are one directory up.
    binary_beside(&test.parent().unwrap().parent().unwrap().join("tests"), "outpost")
}

impl Host {
    pub(crate) fn start() -> Host {
        Host::start_with("", &[])
    }

    /// With this content of `outpost.toml`, and these variables in the daemon's environment.
    pub(crate) fn start_with(config: &str, variables: &[(&str, &str)]) -> Host {
        let mut host = Host::prepare(config, variables);
        host.start_daemon(Command::new(outpost()), &[]);
        host
    }

    /// With a command that execs the daemon, and more flags for it.
    pub(crate) fn start_by(serve: Command, flags: &[&str]) -> Host {
        let mut host = Host::prepare("", &[]);
        host.start_daemon(serve, flags);
        host
    }

    fn prepare(config: &str, variables: &[(&str, &str)]) -> Host {
        let dir = tempfile::Builder::new().prefix("outpost-sessions-").tempdir().unwrap();
        install_fake_clis(&dir.path().join("bin"), &CLIS);
        for name in ["home/Projects/named", "project", "config/outpost"] {
            std::fs::create_dir_all(dir.path().join(name)).unwrap();
        }
        std::fs::write(dir.path().join("config/outpost/outpost.toml"), config).unwrap();
        let own = |(name, value): &(&str, &str)| ((*name).to_owned(), (*value).to_owned());
        Host { daemon: None, variables: variables.iter().map(own).collect(), dir }
    }

    fn start_daemon(&mut self, mut serve: Command, flags: &[&str]) {
        let bin = self.path("bin").display().to_string();
        serve.env("HOME", self.path("home")).env("PATH", format!("{bin}:/usr/bin:/bin:/usr/sbin:/sbin"));
        serve.envs(self.variables.iter().cloned());
        self.daemon = Some(Daemon::start_by_in(serve, self.dir.path(), flags));
    }

    /// Stops the daemon and starts it again.
    pub(crate) fn restart(&mut self) {
        drop(self.daemon.take());
        self.start_daemon(Command::new(outpost()), &[]);
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        self.daemon.as_ref().unwrap()
    }

    pub(crate) fn client(&self) -> SessionsClient {
        self.daemon().sessions()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).display().to_string()
    }

    /// Creates a claude session in the project.
    pub(crate) fn create(&self) -> String {
        self.create_with(json!({}))
    }

    pub(crate) fn create_with(&self, more: Value) -> String {
        let mut params = json!({ "path": self.path("project") });
        params.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        let result = self.client().result("session.create", params);
        result["sessionId"].as_str().unwrap().to_owned()
    }

    /// A script for the fake, one step per line. `@` is replaced by the host's directory.
    pub(crate) fn script(&self, steps: &[&str]) -> String {
        let at = format!("{}/", self.dir.path().display());
        format!("do:{}", steps.join("\n").replace('@', &at))
    }

    pub(crate) fn run(&self, session: &str, steps: &[&str]) -> EventReader {
        self.client().send(session, &self.script(steps))
    }

    /// Creates the file that a step `wait` waits for.
    pub(crate) fn touch(&self, name: &str) {
        std::fs::write(self.path(name), "").unwrap();
    }

    /// Waits for a file and returns its content.
    pub(crate) fn wait_file(&self, name: &str) -> String {
        self.wait(&format!("no file {name}"), || std::fs::read_to_string(self.path(name)).ok())
    }

    pub(crate) fn wait_record(&self, name: &str) -> Value {
        serde_json::from_str(&self.wait_file(name)).unwrap()
    }

    pub(crate) fn wait<T>(&self, failure: &str, mut condition: impl FnMut() -> Option<T>) -> T {
        let begun = Instant::now();
        loop {
            if let Some(found) = condition() {
                return found;
            }
            assert!(begun.elapsed() < TIMEOUT, "{failure}; log: {}", self.daemon().log());
            outpost_testkit::pause();
        }
    }

    /// The queue statistics of a session.
    pub(crate) fn stats(&self, session: &str) -> Value {
        self.client().result("session.queue_stats", json!({ "sessionId": session }))
    }

    /// The session's entry in `session.list`, or null.
    pub(crate) fn listed(&self, session: &str) -> Value {
        let mut all = self.client().result("session.list", json!({}));
        let all = all["sessions"].as_array_mut().unwrap();
        all.iter().find(|listed| listed["sessionId"] == session).cloned().unwrap_or(Value::Null)
    }

    pub(crate) fn wait_status(&self, session: &str, status: &str) {
        self.wait(status, || (self.listed(session)["status"] == status).then_some(()));
    }

    /// `outpost` with these arguments, for this daemon.
    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(outpost());
        command.args(["--state-dir", "state", "--runtime-dir", "run"]).args(arguments);
        command.env("XDG_CONFIG_HOME", self.path("config"));
        command.current_dir(self.dir.path()).stdin(Stdio::null());
        command
    }

    pub(crate) fn outpost(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }
}

pub(crate) fn is_running(pid: &str) -> bool {
    let stat = procfs::stat(pid.trim().parse().unwrap());
    stat.is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'))
}

pub(crate) fn kinds(events: &[Value]) -> Vec<&str> {
    events.iter().map(|event| event["type"].as_str().unwrap()).collect()
}

pub(crate) fn is_terminal(event: &Value) -> bool {
    ["result", "error", "interrupted"].contains(&event["type"].as_str().unwrap())
}

/// The numbers in all deltas.
pub(crate) fn delta_numbers(events: &[Value]) -> Vec<u64> {
    let partials = events.iter().filter(|event| event["type"] == "partial");
    partials.map(|event| event["content"].as_str().unwrap().parse().unwrap()).collect()
}

/// Asserts that events are numbered from `first` on without gaps, and that each turn has one terminal event, its last.
/// Returns the turns.
#[track_caller]
pub(crate) fn check_turns(events: &[Value], first: u64) -> Vec<u64> {
    let mut turns: Vec<u64> = Vec::new();
    let mut is_open = false;
    for (event, seq) in events.iter().zip(first..) {
        assert_eq!(event["seq"], seq, "{event:.500}");
        let turn = event["turn"].as_u64().unwrap();
        if turns.last() != Some(&turn) {
            assert!(!is_open, "turn {turn} begins within another");
            assert!(turns.last().is_none_or(|last| *last < turn), "turn {turn} after {turns:?}");
            turns.push(turn);
            is_open = true;
        }
        assert!(is_open, "something follows the end: {event:.500}");
        is_open = !is_terminal(event);
    }
    assert!(!is_open, "no terminal event: {:.500}", events.last().unwrap_or(&Value::Null));
    turns
}

/// The terminal event of a single turn whose first event has this number.
#[track_caller]
pub(crate) fn terminal_event(events: &[Value], first: u64) -> &Value {
    assert_eq!(check_turns(events, first).len(), 1, "{events:?}");
    events.last().unwrap()
}

pub(crate) fn message(event: &Value) -> &str {
    event["message"].as_str().unwrap_or_default()
}

/// The canonical path, for comparison.
pub(crate) fn canonical(path: &Path) -> String {
    path.canonicalize().unwrap().display().to_string()
}
