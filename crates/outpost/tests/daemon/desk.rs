//! A daemon, those who ask it to run things, and those who decide.

use crate::support::outpost;
use outpost_sys::limits::effective_uid;
use outpost_testkit::{BrokerClient, Daemon, Lack, Terminal, stamp};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Output, Stdio};

/// Who is not root.
pub(crate) const NOBODY: u32 = 65534;

pub(crate) struct Desk {
    pub(crate) daemon: Daemon,
    /// Of who asks: the daemon's user.
    uid: u32,
}

impl Desk {
    /// The daemon's user is the one who decides, too.
    pub(crate) fn own() -> Desk {
        Desk::of(Daemon::start(outpost()))
    }

    /// Before a daemon of this user's.
    pub(crate) fn of(daemon: Daemon) -> Desk {
        Desk { daemon, uid: effective_uid() }
    }

    /// The same, with an approver's key in the state directory.
    pub(crate) fn enrolled() -> Desk {
        let desk = Desk::own();
        desk.enroll();
        desk
    }

    /// The daemon is another user's, and root decides, with a key of its own.
    pub(crate) fn of_nobody() -> Result<Desk, Lack> {
        outpost_testkit::root()?;
        let desk = Desk { daemon: Daemon::start_as(outpost(), NOBODY), uid: NOBODY };
        desk.enroll();
        Ok(desk)
    }

    fn enroll(&self) {
        let enrolled = self.approvals(&["enroll", "--no-passphrase", "--name", "desk"]);
        assert!(enrolled.status.success(), "{enrolled:?}");
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.daemon.dir().join(name)
    }

    /// Makes a key by OpenSSH's program, for this user. The passphrase may be empty.
    pub(crate) fn ssh_key(&self, name: &str, passphrase: &str, uid: u32) -> PathBuf {
        let path = self.path(name);
        let mut keygen = Command::new("ssh-keygen");
        keygen.args(["-q", "-t", "ed25519", "-C", "test", "-N", passphrase, "-f"]).arg(&path);
        assert!(keygen.stdin(Stdio::null()).status().unwrap().success());
        std::os::unix::fs::chown(&path, Some(uid), None).unwrap();
        path
    }

    /// Where clients of ours keep their keys: the directory of another user's daemon is not ours.
    fn own_state(&self) -> &'static str {
        if self.uid == effective_uid() { "state" } else { "mine" }
    }

    /// The socket's name, for a daemon of another user.
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

    /// The program with these arguments, beside the daemon.
    pub(crate) fn run(&self, arguments: &[&str]) -> Output {
        self.command(arguments).output().unwrap()
    }

    /// `outpost approvals`, whatever comes of it.
    pub(crate) fn approvals(&self, arguments: &[&str]) -> Output {
        self.run(&[&["approvals"], self.socket(), arguments].concat())
    }

    /// `outpost approvals` of an approver: must succeed.
    pub(crate) fn decide(&self, arguments: &[&str]) -> String {
        let done = self.approvals(arguments);
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// A request of now without privileges. The answer comes on the connection.
    pub(crate) fn ask(&self, id: &str, command: &[&str]) -> BrokerClient {
        self.ask_with(id, command, json!({}))
    }

    /// With other fields over it.
    pub(crate) fn ask_with(&self, id: &str, command: &[&str], more: Value) -> BrokerClient {
        let mut request = json!({ "id": id, "time": stamp(0), "pipeline": [command], "privileged": false, "session": "test" });
        for (name, value) in more.as_object().unwrap() {
            request[name] = value.clone();
        }
        let mut client = BrokerClient::connect_as(&self.path("run/broker.sock"), self.uid);
        assert!(client.send(format!("{request}\n")));
        client
    }

    /// Events from now on, of one that watches.
    pub(crate) fn watch(&self) -> Watcher {
        let mut command = self.command(&[&["approvals", "watch", "--json"], self.socket()].concat());
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut watcher = Watcher { child, lines };
        assert_eq!(watcher.next()["is"], "questions");
        watcher
    }

    /// `outpost approve` on a terminal.
    pub(crate) fn approve(&self, rows: u16, columns: u16) -> Terminal {
        self.full_screen(&[], self.own_state(), self.socket(), rows, columns)
    }

    /// The same with more arguments.
    pub(crate) fn approve_with(&self, arguments: &[&str], rows: u16, columns: u16) -> Terminal {
        self.full_screen(&[], self.own_state(), arguments, rows, columns)
    }

    /// The same by nobody.
    pub(crate) fn approve_as_nobody(&self) -> Terminal {
        let (uid, gid) = (format!("--reuid={NOBODY}"), format!("--regid={NOBODY}"));
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

/// Who sees what is asked and how it ends.
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

    /// The question that comes next.
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

/// The answer that comes on a connection.
pub(crate) fn answer(client: &mut BrokerClient) -> Value {
    serde_json::from_str(&client.answer()).unwrap()
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}
