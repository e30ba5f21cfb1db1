//! The test fixture: a daemon (`outpost serve`), an agent at its broker socket, and an approver at its approvals socket.

use outpost_testkit::approver::hello;
use outpost_testkit::{ApproverKey, BrokerClient, Daemon, binary_beside};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;
use tempfile::TempDir;

/// Time limit for every wait.
const TIMEOUT: Duration = Duration::from_secs(30);

pub(crate) struct Fixture {
    approver: Approver,
    daemon: Daemon,
    /// The agent's user. None: the user of the test.
    uid: Option<u32>,
    /// Scratch directory of the test.
    work: TempDir,
}

/// The options of a fixture.
#[derive(Default)]
pub(crate) struct FixtureOptions {
    pub(crate) rules: Option<String>,
    /// The configuration names the rules file, not a flag.
    pub(crate) rules_by_configuration: bool,
    pub(crate) config: Option<String>,
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// The user of the daemon and of the agent, if not the user of the test.
    pub(crate) uid: Option<u32>,
    /// A shell script that runs before the daemon, in the daemon's own mount namespace. `{approver}` is replaced by the
    /// approver's public key.
    pub(crate) before: Option<String>,
    pub(crate) flags: Vec<String>,
}

impl Fixture {
    pub(crate) fn start() -> Fixture {
        Fixture::with(FixtureOptions::default())
    }

    /// With these operator's rules.
    pub(crate) fn with_rules(rules: &str) -> Fixture {
        Fixture::with(FixtureOptions { rules: Some(rules.to_owned()), ..FixtureOptions::default() })
    }

    pub(crate) fn with(options: FixtureOptions) -> Fixture {
        let key = ApproverKey::random();
        let work = tempfile::Builder::new().prefix("outpost-test-").tempdir().unwrap();
        let dir = tempfile::Builder::new().prefix("outpost-test-").tempdir().unwrap();
        let mut flags = options.flags.clone();
        for (name, text) in
            [("rules", options.rules.unwrap_or_default()), ("config", options.config.unwrap_or_default())]
        {
            let file = dir.path().join(format!("{name}.toml"));
            // Without rules the file is absent, since an empty file is a different case.
            if !text.is_empty() || name == "config" {
                std::fs::write(&file, text).unwrap();
            }
            let by_configuration = name == "rules" && options.rules_by_configuration;
            if !by_configuration && !flags.iter().any(|flag| flag.starts_with(&format!("--{name}"))) {
                flags.push(format!("--{name}={}", file.display()));
            }
            if let Some(uid) = options.uid.filter(|_| file.exists()) {
                std::os::unix::fs::chown(&file, Some(uid), Some(uid)).unwrap();
            }
        }
        flags.push(format!("--ask-timeout={}", TIMEOUT.as_secs()));
        let mut words: Vec<String> = Vec::new();
        if let Some(uid) = options.uid {
            for path in [dir.path(), work.path()] {
                std::os::unix::fs::chown(path, Some(uid), Some(uid)).unwrap();
            }
            words.extend([
                "setpriv".into(),
                format!("--reuid={uid}"),
                format!("--regid={uid}"),
                "--clear-groups".into(),
            ]);
        }
        words.push(binary().display().to_string());
        let mut command = match &options.before {
            Some(script) => {
                let script = script.replace("{approver}", &key.public());
                let mut command = Command::new("unshare");
                command.args(["-m", "sh", "-e", "-c", &format!("{script}\nexec \"$@\""), "sh"]).args(&words);
                command
            }
            None => {
                let mut command = Command::new(words.first().unwrap());
                command.args(words.get(1..).unwrap());
                command
            }
        };
        // Isolate the daemon from the environment and the home directory of the test's user.
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", dir.path());
        command.envs(options.env);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let daemon = Daemon::start_by(command, dir, &flags);
        let approver = Approver::start(&daemon.dir().join("run/approvals.sock"), key);
        Fixture { approver, daemon, uid: options.uid, work }
    }

    /// Reconnects the approver, after the worker was killed.
    pub(crate) fn reconnect_approver(mut self) -> Fixture {
        let key = self.approver.key.take();
        self.approver = Approver::connect(&self.daemon.dir().join("run/approvals.sock"));
        self.approver.key = key;
        assert_eq!(self.approver.request(&json!({"do": "watch"}))["is"], "questions");
        self
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// The path of the operator's rules. The file may be absent.
    pub(crate) fn rules(&self) -> PathBuf {
        self.daemon.dir().join("rules.toml")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.daemon.dir().join("run/broker.sock")
    }

    pub(crate) fn approver(&mut self) -> &mut Approver {
        &mut self.approver
    }

    /// Sends a request of the agent.
    pub(crate) fn send(&self, request: &Value) -> Sent {
        self.send_line(&request.to_string())
    }

    pub(crate) fn send_line(&self, line: &str) -> Sent {
        match self.uid {
            None => {
                let mut client = BrokerClient::connect(&self.socket());
                client.send(format!("{line}\n"));
                Sent::Direct(client)
            }
            Some(uid) => Sent::AsUser(send_as(uid, &self.socket(), line)),
        }
    }

    /// The response to a request that must not cause a question.
    #[track_caller]
    pub(crate) fn answer_unasked(&mut self, request: &Value) -> Value {
        let answer = self.send(request).answer();
        let asked = self.approver.pending_questions();
        assert!(asked.is_empty(), "{request:.300} caused a question: {asked:?}");
        answer
    }

    /// The error message of a request that is refused without a question.
    #[track_caller]
    pub(crate) fn refused(&mut self, request: &Value) -> String {
        let answer = self.answer_unasked(request);
        assert_eq!(answer["status"], "error", "{request:.300}: {answer:.600}");
        answer["message"].as_str().unwrap().to_owned()
    }

    /// Sends a request and waits for its question.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: &Value) -> (Sent, Value) {
        let sent = self.send(request);
        let question = self.approver.question();
        (sent, question)
    }

    /// Like `ask`, while other questions arrive: selects the question by its session.
    #[track_caller]
    pub(crate) fn ask_in_session(&mut self, session: &str, request: &Value) -> (Sent, Value) {
        let sent = self.send(request);
        let matches = |event: &Value| {
            event["is"] == "asked" && lines(&event["question"], "Claimed").contains(&("session", session))
        };
        let question = self.approver.event(&matches)["question"].clone();
        (sent, question)
    }

    /// The response to a request that the approver allows.
    #[track_caller]
    pub(crate) fn run(&mut self, request: &Value) -> Value {
        let (sent, question) = self.ask(request);
        self.approver.allow(&question);
        sent.answer()
    }

    /// Sends a request, waits for its question, and disconnects.
    #[track_caller]
    pub(crate) fn ask_and_withdraw(&mut self, request: &Value) -> Value {
        let (sent, question) = self.ask(request);
        drop(sent);
        self.approver.wait_settled(&question);
        question
    }

    /// The content of the audit chain.
    pub(crate) fn audit(&self) -> Vec<u8> {
        std::fs::read(self.daemon.dir().join("state/approvals/audit/audit.jsonl")).unwrap()
    }
}

/// The binary under test.
pub(crate) fn binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // Tests are in `deps`, binaries in its parent.
    binary_beside(&test.parent().unwrap().parent().unwrap().join("tests"), "outpost")
}

/// An agent's connection with a sent request. The variant names the sending process.
pub(crate) enum Sent {
    Direct(BrokerClient),
    AsUser(Child),
}

impl Sent {
    #[track_caller]
    pub(crate) fn answer(self) -> Value {
        let line = match self {
            Sent::Direct(mut client) => client.answer(),
            Sent::AsUser(child) => String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap(),
        };
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }
}

/// Sends a line from a process of another user, since the daemon checks the peer credentials.
pub(crate) fn send_as(uid: u32, socket: &Path, line: &str) -> Child {
    let script = "use IO::Socket::UNIX; my $s = IO::Socket::UNIX->new(Peer => $ARGV[0]) or die \"no way in: $!\"; \
                  print $s <STDIN>; $s->flush; print <$s>;";
    let mut child = Command::new("setpriv")
        .args([&format!("--reuid={uid}"), &format!("--regid={uid}"), "--clear-groups", "perl", "-e", script])
        .arg(socket)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
    child
}

/// A client of the approvals socket that decides.
pub(crate) struct Approver {
    lines: BufReader<UnixStream>,
    events: VecDeque<Value>,
    key: Option<ApproverKey>,
}

impl Approver {
    /// Connects, enrolls the key, and subscribes to events.
    fn start(socket: &Path, key: ApproverKey) -> Approver {
        let mut approver = Approver::connect(socket);
        let host = approver.request(&hello());
        // With an approvers file, root has enrolled the key.
        if host["approvers_file"].is_null() {
            let enrolled = approver.request(&key.enrollment(&host));
            assert_eq!(enrolled["is"], "key_changed", "{enrolled}");
        }
        approver.key = Some(key);
        assert_eq!(approver.request(&json!({"do": "watch"}))["is"], "questions");
        approver
    }

    /// Only connects.
    pub(crate) fn connect(socket: &Path) -> Approver {
        let stream = outpost_testkit::connect(socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
        Approver { lines: BufReader::new(stream), events: VecDeque::new(), key: None }
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// Sends a request and returns its reply. Queues events that arrive before it.
    pub(crate) fn request(&mut self, request: &Value) -> Value {
        self.lines.get_mut().write_all(format!("{request}\n").as_bytes()).unwrap();
        loop {
            let answer = self.receive();
            match answer["is"].as_str() {
                Some("asked" | "settled") => self.events.push_back(answer),
                _ => return answer,
            }
        }
    }

    fn event(&mut self, wanted: &dyn Fn(&Value) -> bool) -> Value {
        if let Some(at) = self.events.iter().position(wanted) {
            return self.events.remove(at).unwrap();
        }
        loop {
            let event = self.receive();
            if wanted(&event) {
                return event;
            }
            self.events.push_back(event);
        }
    }

    /// The next question.
    pub(crate) fn question(&mut self) -> Value {
        self.event(&|event| event["is"] == "asked")["question"].clone()
    }

    /// Waits until a question is settled.
    pub(crate) fn wait_settled(&mut self, question: &Value) -> Value {
        let id = question["id"].clone();
        self.event(&move |event| event["is"] == "settled" && event["id"] == id)
    }

    /// Received questions that no test code has consumed.
    fn pending_questions(&mut self) -> Vec<Value> {
        let _questions = self.request(&json!({"do": "list"}));
        self.events.iter().filter(|event| event["is"] == "asked").cloned().collect()
    }

    #[track_caller]
    pub(crate) fn allow(&mut self, question: &Value) {
        let reply = self.decide(question, json!({"allow": true}));
        assert_eq!(reply["is"], "decided", "{reply}");
    }

    /// Allows a request and `times` repetitions of it.
    #[track_caller]
    pub(crate) fn allow_times(&mut self, question: &Value, times: u32) {
        let reply = self.decide(question, json!({"allow": true, "remember": {"times": times}}));
        assert_eq!(reply["is"], "decided", "{reply}");
    }

    pub(crate) fn decide(&mut self, question: &Value, more: Value) -> Value {
        let host = self.request(&hello());
        let request = self.key.as_ref().unwrap().decision(&host, question, &more);
        self.request(&request)
    }

    /// The approver's key.
    pub(crate) fn key(&self) -> &ApproverKey {
        self.key.as_ref().unwrap()
    }
}

/// The lines of a question under headings with this prefix.
pub(crate) fn lines<'q>(question: &'q Value, heading: &str) -> Vec<(&'q str, &'q str)> {
    let sections = question["sections"].as_array().unwrap().iter();
    let sections = sections.filter(|section| section["heading"].as_str().unwrap().starts_with(heading));
    let lines = sections.flat_map(|section| section["lines"].as_array().unwrap());
    lines.map(|line| (line["name"].as_str().unwrap_or_default(), line["value"].as_str().unwrap())).collect()
}

/// The value of a named line.
#[track_caller]
pub(crate) fn line<'q>(question: &'q Value, heading: &str, name: &str) -> &'q str {
    let found = lines(question, heading).into_iter().find(|(known, _)| *known == name);
    found.unwrap_or_else(|| panic!("no line {name} under {heading}: {question:#}")).1
}

pub(crate) fn warnings(question: &Value) -> String {
    question["warnings"]
        .as_array()
        .unwrap()
        .iter()
        .map(|warning| format!("{}\n", warning.as_str().unwrap()))
        .collect()
}
