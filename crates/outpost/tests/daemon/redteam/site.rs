//! The host under attack: a user's daemon with an enrolled key, a pending question, root's policy and, in guard mode, the
//! guard.

use super::Mode;
use crate::support::{outpost, until};
use outpost_approvals::signing::{Statement, base64};
use outpost_testkit::approver::{self, hello};
use outpost_testkit::{ANN, ApproverKey, BrokerClient, Daemon, Guard, broker_request, pause};
use serde_json::{Value, json};
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tempfile::TempDir;

/// The command of the pending question. No attacker may get it run.
const COMMAND: [&str; 1] = ["true"];

pub(crate) struct Site {
    mode: Mode,
    guard: Option<Guard>,
    daemon: Daemon,
    dir: TempDir,
    waiting: Option<BrokerClient>,
    /// The attacker's knowledge: all paths, pids and public data.
    pub(crate) known: Value,
}

/// Gives a program a private `/etc`, so that the tests do not write root's policy to the host's `/etc`.
const VIEW: &str = "mount --bind \"$1\" /etc && shift && exec \"$@\"";

/// The command prefix that runs a program as this user.
fn switch_to(uid: u32) -> [String; 4] {
    ["setpriv".into(), format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()]
}

/// A program of this user in the mount namespace of the tests.
fn as_uid(uid: u32) -> Command {
    let [program, arguments @ ..] = switch_to(uid);
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null());
    command
}

/// Root's `approvers.toml` with this approver.
fn approvers(key: &ApproverKey) -> String {
    format!("[[approver]]\nname = \"desk\"\nkey = \"{}\"\nroot = true\n", key.public())
}

/// Creates an `/etc` with a policy of root.
fn make_etc(etc: &Path, key: &ApproverKey) {
    fs::create_dir_all(etc.join("outpost")).unwrap();
    for name in ["passwd", "group"] {
        fs::copy(Path::new("/etc").join(name), etc.join(name)).unwrap();
    }
    fs::write(etc.join("outpost/rules.toml"), "").unwrap();
    fs::write(etc.join("outpost/approvers.toml"), approvers(key)).unwrap();
}

/// Sends one line to the approver socket and returns the reply.
fn ask(socket: &Path, request: &Value) -> Value {
    let mut stream = outpost_testkit::connect(socket).unwrap();
    writeln!(stream, "{request}").unwrap();
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    serde_json::from_str(&line).unwrap_or_else(|error| panic!("{request}: {line:?}: {error}"))
}

impl Site {
    pub(crate) fn start(mode: Mode) -> Site {
        let key = ApproverKey::random();
        let guard = (mode == Mode::Guard).then(|| {
            let mut guard = Guard::prepare(outpost(), "");
            let list = format!("trusted_users = [\"root\"]\n{}", approvers(&key));
            fs::write(guard.root().join("etc/outpost/approvers.toml"), list).unwrap();
            guard.serve();
            guard
        });
        // The attacker's sandbox can write to /tmp.
        let dir = tempfile::tempdir_in("/var/tmp").unwrap();
        for name in ["", "home", "home/.claude", "project", "relay", "root"] {
            fs::create_dir_all(dir.path().join(name)).unwrap();
            chown(dir.path().join(name), Some(ANN), Some(ANN)).unwrap();
        }
        fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let mut serve = match mode {
            Mode::Policy => {
                make_etc(&dir.path().join("etc"), &key);
                let mut serve = Command::new("unshare");
                serve.args(["--mount", "sh", "-c", VIEW, "sh", "etc"]).args(switch_to(ANN)).arg(outpost());
                serve
            }
            Mode::Personal | Mode::Guard => {
                let own = || dir.path().join("root");
                let stands_for_root = guard.as_ref().map_or_else(own, |guard| guard.root().to_owned());
                let mut serve = as_uid(ANN);
                serve.arg(outpost()).arg("--guard-root").arg(stands_for_root);
                serve
            }
        };
        serve.env("HOME", dir.path().join("home"));
        let daemon = Daemon::start_by_in(serve, dir.path(), &["--metrics-listen=127.0.0.1:0"]);
        let mut site = Site { mode, guard, daemon, dir, waiting: None, known: Value::Null };
        site.start_relay();
        site.ask_the_question(&key);
        site
    }

    pub(crate) fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A program of this user in the project directory, in the mount namespace of the user's daemon.
    pub(crate) fn as_uid(&self, uid: u32) -> Command {
        let mut command = Command::new("nsenter");
        command.arg(format!("--mount=/proc/{}/ns/mnt", self.daemon.status().keeper_pid));
        command.args(["env", "--chdir"]).arg(self.path("project")).args(switch_to(uid)).stdin(Stdio::null());
        command
    }

    /// The daemon that decides: the guard, or the user's own.
    pub(crate) fn decider(&self) -> &Daemon {
        self.guard.as_deref().unwrap_or(&self.daemon)
    }

    /// The runtime directory of the deciding daemon.
    fn runtime(&self) -> PathBuf {
        match &self.guard {
            Some(guard) => guard.root().join("run/outpost-guard"),
            None => self.path("run"),
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn relay(&self, arguments: &[&str]) -> Command {
        let mut relay = as_uid(ANN);
        relay.arg(outpost()).arg("relay").args(arguments).args(["-socket", "relay/rpc.sock"]);
        relay.env("OUTPOST_STATE_DIR", self.path("state")).env("CLAUDE_RPC_TOKEN", "sesame");
        relay.env("HOME", self.path("home")).current_dir(self.dir.path());
        relay
    }

    fn start_relay(&self) {
        let mut serve = self.relay(&["-serve", "-token-fd", "0", "-metrics-addr", "none"]);
        let mut serve = serve.stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        serve.stdin.take().unwrap().write_all(b"sesame").unwrap();
        assert!(serve.wait().unwrap().success());
    }

    /// Decides a first question with the approver's key, asks a second one, and collects the attacker's knowledge.
    fn ask_the_question(&mut self, key: &ApproverKey) {
        let approvals = self.runtime().join("approvals.sock");
        let host = ask(&approvals, &hello());
        if self.mode == Mode::Personal {
            assert_eq!(ask(&approvals, &key.enrollment(&host))["is"], "key_changed");
        }
        let allow = json!({ "allow": true });
        let mut first = self.send("first", &["id"]);
        let earlier = key.decision(&host, &self.only_question(&approvals), &allow);
        assert_eq!(ask(&approvals, &earlier)["is"], "decided");
        first.rest();
        self.waiting = Some(self.send("waiting", &COMMAND));
        let question = self.only_question(&approvals);
        self.known = self.known_to_attackers(key, &host, &question, &earlier);
    }

    fn known_to_attackers(
        &self,
        key: &ApproverKey,
        host: &Value,
        question: &Value,
        earlier: &Value,
    ) -> Value {
        let runtime = self.runtime();
        let unenrolled = ApproverKey::random();
        let allow = json!({ "allow": true });
        let statement = |allow: &Value| approver::statement(host, question, allow);
        let decide = |statement: &Statement, signature: &Value| json!({ "do": "decide", "statement": base64(&statement.encode()), "signature": signature });
        let mut elsewhere = statement(&allow);
        *elsewhere.host.last_mut().unwrap() ^= 1;
        let mut late = statement(&allow);
        (late.issued_ms, late.expires_ms) = (late.issued_ms - 700_000, late.issued_ms - 100_000);
        let granting = statement(&json!({ "allow": true, "remember": { "times": 9 } }));
        let mut proof = unenrolled.signed_decision(&granting);
        proof.as_object_mut().unwrap().remove("do");
        let old_secret = json!({ "do": "prove", "secret": "0".repeat(32) });
        let requests = json!({
            "unsigned": [decide(&statement(&allow), &json!("")), old_secret],
            "unenrolled_key": [unenrolled.decision(host, question, &allow)],
            "replay": [earlier, decide(&statement(&allow), &earlier["signature"])],
            "elsewhere": [key.signed_decision(&elsewhere)],
            "late": [key.signed_decision(&late)],
            "enrollment": [unenrolled.enrollment(host), unenrolled.decision(host, question, &allow)],
        });
        let status = self.decider().status();
        let (etc, state) = match &self.guard {
            Some(guard) => (guard.root().join("etc/outpost"), guard.root().join("var/lib/outpost-guard")),
            None => (self.path("config/outpost"), self.path("state")),
        };
        // With a policy of root, the user's own rules must not count.
        let mut rules = vec![self.path("config/outpost/rules.toml")];
        match self.mode {
            Mode::Personal => {}
            Mode::Policy => rules.push("/etc/outpost/rules.toml".into()),
            Mode::Guard => rules.push(etc.join("rules.toml")),
        }
        let (config, mut approvers, reload) = match &self.guard {
            Some(guard) => (
                etc.join("guard.toml"),
                etc.join("approvers.toml"),
                vec![outpost().into(), "--guard".into(), "--guard-root".into(), guard.root().to_owned()],
            ),
            None => (
                etc.join("outpost.toml"),
                state.join("approvals/approvers.jsonl"),
                vec![
                    outpost().into(),
                    "--state-dir".into(),
                    state.clone(),
                    "--runtime-dir".into(),
                    runtime.clone(),
                ],
            ),
        };
        if self.mode == Mode::Policy {
            approvers = "/etc/outpost/approvers.toml".into();
        }
        let reload: Vec<PathBuf> = reload.into_iter().chain([PathBuf::from("reload")]).collect();
        let sockets = [
            "run/control.sock",
            "run/exec.sock",
            "run/broker.sock",
            "run/approvals.sock",
            "run/sessions.sock",
            "relay/rpc.sock",
        ];
        let sockets = sockets.map(|name| self.path(name)).into_iter().chain([runtime.join("control.sock")]);
        let tokens =
            ["run/sessions.token", "state/metrics.token", "relay/daemon.token"].map(|name| self.path(name));
        let settings = ["home/.claude/settings.json", "project/.claude/settings.json", "project/.mcp.json"];
        let settings = settings.map(|name| self.path(name));
        json!({
            "approvals": runtime.join("approvals.sock"), "broker": runtime.join("broker.sock"),
            "state": state, "rules": rules, "config": config, "approvers": approvers,
            "reload": reload, "worker": status.worker_pid, "keeper": status.keeper_pid,
            "question": question["id"], "digest": question["digest"], "uid": ANN,
            "grant": granting.id(), "proof": proof, "requests": requests,
            "project": self.path("project"), "sockets": sockets.collect::<Vec<_>>(),
            "ports": self.ports(),
            "tokens": tokens, "settings": settings,
        })
    }

    /// The loopback ports of the user's daemon.
    fn ports(&self) -> Vec<u16> {
        let listening = self.daemon.status().faces.listening;
        let port = |address: &str| address.strip_prefix("http://127.0.0.1:")?.split('/').next()?.parse().ok();
        let ports: Vec<u16> = listening.iter().filter_map(|row| port(&row.address)).collect();
        assert_eq!(ports.len(), 2, "sessions and metrics: {listening:?}");
        ports
    }

    fn send(&self, id: &str, command: &[&str]) -> BrokerClient {
        let mut client = BrokerClient::connect_as(&self.runtime().join("broker.sock"), ANN);
        assert!(client.send(format!("{}\n", broker_request(id, false, command))));
        client
    }

    fn questions(&self) -> usize {
        self.decider().status().faces.waiting.unwrap().questions
    }

    fn only_question(&self, approvals: &Path) -> Value {
        until("a question waits", || self.questions() == 1);
        ask(approvals, &json!({ "do": "list" }))["questions"][0].clone()
    }

    /// Whether the command ran without the approver's key: that of the pending question, or of a new request.
    pub(crate) fn has_run(&mut self) -> bool {
        if self.questions() == 0 {
            return self.waiting.as_mut().unwrap().answer().contains("\"status\":\"ok\"");
        }
        let again = self.send(&format!("again {:?}", std::time::Instant::now()), &COMMAND);
        while !again.has_answer(std::time::Duration::ZERO) {
            if self.questions() == 2 {
                drop(again);
                until("it is withdrawn", || self.questions() == 1);
                return false;
            }
            pause();
        }
        { again }.answer().contains("\"status\":\"ok\"")
    }
}

impl Drop for Site {
    fn drop(&mut self) {
        let _stopped = self.relay(&["-stop"]).output();
    }
}
