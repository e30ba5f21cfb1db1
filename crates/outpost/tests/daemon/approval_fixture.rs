//! A daemon with clients that make requests and approvers that decide them.

use crate::support::outpost;
use outpost_sys::process::effective_uid;
use outpost_testkit::{BrokerClient, Daemon, Lack, Terminal, stamp};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// A user other than root.
pub(crate) const UNPRIVILEGED_UID: u32 = 65534;

pub(crate) struct ApprovalFixture {
    pub(crate) daemon: Daemon,
    /// The user that makes requests: the daemon's user.
    uid: u32,
}

impl ApprovalFixture {
    /// Starts a daemon whose user is also the approver.
    pub(crate) fn start() -> ApprovalFixture {
        ApprovalFixture::with_daemon(Daemon::start(outpost()))
    }

    /// Uses a running daemon of this user.
    pub(crate) fn with_daemon(daemon: Daemon) -> ApprovalFixture {
        ApprovalFixture { daemon, uid: effective_uid() }
    }

    /// Starts a daemon and enrolls an approver's key in the state directory.
    pub(crate) fn enrolled() -> ApprovalFixture {
        let fixture = ApprovalFixture::start();
        fixture.enroll();
        fixture
    }

    /// Starts a daemon of another user. Root is the approver, with its own key.
    pub(crate) fn for_other_user() -> Result<ApprovalFixture, Lack> {
        outpost_testkit::root()?;
        let fixture =
            ApprovalFixture { daemon: Daemon::start_as(outpost(), UNPRIVILEGED_UID), uid: UNPRIVILEGED_UID };
        fixture.enroll();
        Ok(fixture)
    }

    fn enroll(&self) {
        let enrolled = self.approvals(&["enroll", "--no-passphrase", "--name", "desk"]);
        assert!(enrolled.status.success(), "{enrolled:?}");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.daemon.dir().join(name)
    }

    /// Generates a key with `ssh-keygen` for this user. The passphrase may be empty.
    pub(crate) fn ssh_key(&self, name: &str, passphrase: &str, uid: u32) -> PathBuf {
        let path = self.path(name);
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-C", "test", "-N", passphrase, "-f"]).arg(&path);
        assert!(keygen.stdin(Stdio::null()).status().unwrap().success());
        std::os::unix::fs::chown(&path, Some(uid), None).unwrap();
        path
    }

    /// The client's state directory. A daemon of another user has a separate one.
    fn own_state(&self) -> &'static str {
        if self.uid == effective_uid() { "state" } else { "mine" }
    }

    /// The flag for the approver socket of another user's daemon.
    fn socket(&self) -> &'static [&'static str] {
        if self.uid == effective_uid() { &[] } else { &["--socket", "run/approvals.sock"] }
    }

    pub(crate) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(outpost());
        command.args(["--state-dir", self.own_state(), "--runtime-dir", "run"]).args(arguments);
        command.env_remove("SSH_AUTH_SOCK");
        command.current_dir(self.daemon.dir()).stdin(Stdio::null());
        command
    }

    /// Runs `outpost` in the daemon's directory.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// Runs `outpost approvals`, which may fail.
    pub(crate) fn approvals(&self, arguments: &[&str]) -> Output {
        self.run(&[&["approvals"], self.socket(), arguments].concat())
    }

    /// Runs `outpost approvals`, which must succeed.
    pub(crate) fn decide(&self, arguments: &[&str]) -> String {
        let done = self.approvals(arguments);
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Sends an unprivileged request. The reply arrives on the returned connection.
    pub(crate) fn ask(&self, id: &str, command: &[&str]) -> BrokerClient {
        self.ask_with(id, command, json!({}))
    }

    /// Sends a request with additional or replaced fields.
    pub(crate) fn ask_with(&self, id: &str, command: &[&str], more: Value) -> BrokerClient {
        let mut request = json!({ "id": id, "time": stamp(0), "pipeline": [command], "privileged": false, "session": "test" });
        for (name, value) in more.as_object().unwrap() {
            request[name] = value.clone();
        }
        let mut client = BrokerClient::connect_as(&self.path("run/broker.sock"), self.uid);
        assert!(client.send(format!("{request}\n")));
        client
    }

    /// Starts `outpost approvals watch`.
    pub(crate) fn watch(&self) -> Watcher {
        let mut command = self.command(&[&["approvals", "watch", "--json"], self.socket()].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut watcher = Watcher { child, lines };
        assert_eq!(watcher.next()["is"], "questions");
        watcher
    }

    /// Starts `outpost approve` on a terminal.
    pub(crate) fn approve(&self, rows: u16, columns: u16) -> Terminal {
        self.full_screen(&[], self.own_state(), self.socket(), rows, columns)
    }

    /// Starts `outpost approve` with these arguments.
    pub(crate) fn approve_with(&self, arguments: &[&str], rows: u16, columns: u16) -> Terminal {
        self.full_screen(&[], self.own_state(), arguments, rows, columns)
    }

    /// Starts `outpost approve` as another user.
    pub(crate) fn approve_as_other_user(&self) -> Terminal {
        let (uid, gid) = (format!("--reuid={UNPRIVILEGED_UID}"), format!("--regid={UNPRIVILEGED_UID}"));
        self.full_screen(&["/usr/bin/env", "setpriv", "--clear-groups", &uid, &gid], "state", &[], 24, 80)
    }

    fn full_screen(&self, by: &[&str], state: &str, more: &[&str], rows: u16, columns: u16) -> Terminal {
        let text = |text: &str| text.to_owned();
        let mut arguments: Vec<String> = by.iter().map(|argument| text(argument)).collect();
        arguments.push(outpost().display().to_string());
        arguments.extend(["--state-dir", state, "--runtime-dir", "run", "approve"].map(text));
        arguments.extend(more.iter().map(|argument| text(argument)));
        let environment = [("TERM", "xterm-256color"), ("NO_COLOR", "1")];
        let environment = environment.map(|(name, value)| (text(name), text(value)));
        Terminal::start_sized(
            &arguments,
            &environment,
            &self.daemon.dir().display().to_string(),
            rows,
            columns,
        )
    }
}

/// Events of the queue: new questions and decisions.
pub(crate) struct Watcher {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Watcher {
    pub(crate) fn next(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// The next question.
    pub(crate) fn asked(&mut self) -> Value {
        let event = self.next();
        assert_eq!(event["is"], "asked", "{event}");
        event["question"].clone()
    }

    pub(crate) fn settled(&mut self) -> Value {
        let event = self.next();
        assert_eq!(event["is"], "settled", "{event}");
        event
    }
}

impl Drop for Watcher {
    fn drop(&mut self) {
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
    }
}

/// The reply on this connection.
pub(crate) fn answer(client: &mut BrokerClient) -> Value {
    serde_json::from_str(&client.answer()).unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
