//! A whole daemon, `outpost serve`, with an agent at its broker socket and an approver at the other one.

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

/// Longer than anything takes here; shorter than anybody waits for a test that has failed.
const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) struct Gate {
    approver: Approver,
    daemon: Daemon,
    /// The agent is this user; otherwise it is who we are.
    uid: Option<u32>,
    /// Files of the test.
    work: TempDir,
}

/// How a gate is started.
#[derive(Default)]
pub(crate) struct GateOptions {
    pub(crate) rules: Option<String>,
    /// No flag names the rules.
    pub(crate) rules_by_configuration: bool,
    pub(crate) config: Option<String>,
    pub(crate) env: Vec<(&'static str, OsString)>,
    /// Another user, who has to have the daemon's directory.
    pub(crate) uid: Option<u32>,
    /// A script for `sh`, in a mount namespace of its own, before the daemon starts. `{approver}` stands for the approver's key.
    pub(crate) before: Option<String>,
    pub(crate) flags: Vec<String>,
}

impl Gate {
    pub(crate) fn start() -> Gate {
        Gate::with(GateOptions::default())
    }

    /// With these rules of the operator.
    pub(crate) fn ruled(rules: &str) -> Gate {
        Gate::with(GateOptions { rules: Some(rules.to_owned()), ..GateOptions::default() })
    }

    pub(crate) fn with(options: GateOptions) -> Gate {
        let key = ApproverKey::random();
        let work = tempfile::Builder::new().prefix("outpost-gate-").tempdir().unwrap();
        let dir = tempfile::Builder::new().prefix("outpost-gate-").tempdir().unwrap();
        let mut flags = options.flags.clone();
        for (name, text) in
            [("rules", options.rules.unwrap_or_default()), ("config", options.config.unwrap_or_default())]
        {
            let file = dir.path().join(format!("{name}.toml"));
            // Rules that nobody wrote are rules that are not there, unless a test says where they would be.
            if !text.is_empty() || name == "config" {
                std::fs::write(&file, text).unwrap();
            }
            let is_named = name == "rules" && options.rules_by_configuration;
            if !is_named && !flags.iter().any(|flag| flag.starts_with(&format!("--{name}"))) {
                flags.push(format!("--{name}={}", file.display()));
            }
            if let Some(uid) = options.uid.filter(|_| file.exists()) {
                std::os::unix::fs::chown(&file, Some(uid), Some(uid)).unwrap();
            }
        }
        flags.push(format!("--ask-timeout={}", PATIENCE.as_secs()));
        let mut words: Vec<String> = Vec::new();
        if let Some(uid) = options.uid {
            for place in [dir.path(), work.path()] {
                std::os::unix::fs::chown(place, Some(uid), Some(uid)).unwrap();
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
        // Whoever tests has an environment of their own, and so have their files.
        command.env_clear().env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin").env("HOME", dir.path());
        command.envs(options.env);
        let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
        let daemon = Daemon::start_by(command, dir, &flags);
        let approver = Approver::begin(&daemon.dir().join("run/approvals.sock"), key);
        Gate { approver, daemon, uid: options.uid, work }
    }

    /// With the approver connected anew, after a worker that was killed.
    pub(crate) fn again(mut self) -> Gate {
        let key = self.approver.key.take();
        self.approver = Approver::connect(&self.daemon.dir().join("run/approvals.sock"));
        self.approver.key = key;
        assert_eq!(self.approver.tell(&json!({"do": "watch"}))["is"], "questions");
        self
    }

    pub(crate) fn daemon(&self) -> &Daemon {
        &self.daemon
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.work.path().join(name)
    }

    /// Where the operator's rules are, or would be.
    pub(crate) fn rules(&self) -> PathBuf {
        self.daemon.dir().join("rules.toml")
    }

    pub(crate) fn socket(&self) -> PathBuf {
        self.daemon.dir().join("run/broker.sock")
    }

    pub(crate) fn approver(&mut self) -> &mut Approver {
        &mut self.approver
    }

    /// A request of the agent's.
    pub(crate) fn send(&self, request: &Value) -> Sent {
        self.send_line(&request.to_string())
    }

    pub(crate) fn send_line(&self, line: &str) -> Sent {
        match self.uid {
            None => {
                let mut client = BrokerClient::connect(&self.socket());
                client.send(format!("{line}\n"));
                Sent::Ours(client)
            }
            Some(uid) => Sent::Theirs(send_as(uid, &self.socket(), line)),
        }
    }

    /// The answer to a request that nobody may be asked about.
    #[track_caller]
    pub(crate) fn unasked(&mut self, request: &Value) -> Value {
        let answer = self.send(request).answer();
        let asked = self.approver.asked_so_far();
        assert!(asked.is_empty(), "{request:.300} was asked about: {asked:?}");
        answer
    }

    /// The message of a request that is refused before anybody is asked.
    #[track_caller]
    pub(crate) fn refused(&mut self, request: &Value) -> String {
        let answer = self.unasked(request);
        assert_eq!(answer["status"], "error", "{request:.300}: {answer:.600}");
        answer["message"].as_str().unwrap().to_owned()
    }

    /// Sends a request and waits until the approver is asked about it.
    #[track_caller]
    pub(crate) fn ask(&mut self, request: &Value) -> (Sent, Value) {
        let sent = self.send(request);
        let question = self.approver.question();
        (sent, question)
    }

    /// The same where other questions may come before: this one is known by its session.
    #[track_caller]
    pub(crate) fn ask_for(&mut self, session: &str, request: &Value) -> (Sent, Value) {
        let sent = self.send(request);
        let is_it = |event: &Value| {
            event["is"] == "asked" && lines(&event["question"], "Claimed").contains(&("session", session))
        };
        let question = self.approver.event(&is_it)["question"].clone();
        (sent, question)
    }

    /// The answer to a request that the approver allows.
    #[track_caller]
    pub(crate) fn run(&mut self, request: &Value) -> Value {
        let (sent, question) = self.ask(request);
        self.approver.allow(&question);
        sent.answer()
    }

    /// A request is asked about, and withdrawn.
    #[track_caller]
    pub(crate) fn asks(&mut self, request: &Value) -> Value {
        let (sent, question) = self.ask(request);
        drop(sent);
        self.approver.settled(&question);
        question
    }

    /// Every byte of the audit chain.
    pub(crate) fn audit(&self) -> Vec<u8> {
        std::fs::read(self.daemon.dir().join("state/approvals/audit/audit.jsonl")).unwrap()
    }
}

/// The program under test.
pub(crate) fn binary() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // A test is in `deps`, the programs are one up.
    binary_beside(&test.parent().unwrap().parent().unwrap().join("tests"), "outpost")
}

/// One connection of an agent's, with its request sent.
pub(crate) enum Sent {
    Ours(BrokerClient),
    Theirs(Child),
}

impl Sent {
    #[track_caller]
    pub(crate) fn answer(self) -> Value {
        let line = match self {
            Sent::Ours(mut client) => client.answer(),
            Sent::Theirs(child) => String::from_utf8(child.wait_with_output().unwrap().stdout).unwrap(),
        };
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }
}

/// As another user: the kernel tells who connects, so it has to be a process of that user's.
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

/// Who decides, over the approver socket.
pub(crate) struct Approver {
    lines: BufReader<UnixStream>,
    events: VecDeque<Value>,
    key: Option<ApproverKey>,
}

impl Approver {
    /// Connected, with a key that is enrolled, and watching.
    fn begin(socket: &Path, key: ApproverKey) -> Approver {
        let mut approver = Approver::connect(socket);
        let host = approver.tell(&hello());
        // Otherwise root has enrolled it.
        if host["approvers_file"].is_null() {
            let enrolled = approver.tell(&key.enrolment(&host));
            assert_eq!(enrolled["is"], "key_changed", "{enrolled}");
        }
        approver.key = Some(key);
        assert_eq!(approver.tell(&json!({"do": "watch"}))["is"], "questions");
        approver
    }

    /// Only connected.
    pub(crate) fn connect(socket: &Path) -> Approver {
        let stream = outpost_testkit::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Approver { lines: BufReader::new(stream), events: VecDeque::new(), key: None }
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    /// The answer to a request; events that come in between are kept.
    pub(crate) fn tell(&mut self, request: &Value) -> Value {
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

    /// The next question that is asked.
    pub(crate) fn question(&mut self) -> Value {
        self.event(&|event| event["is"] == "asked")["question"].clone()
    }

    /// Waits for the end of a question.
    pub(crate) fn settled(&mut self, question: &Value) -> Value {
        let id = question["id"].clone();
        self.event(&move |event| event["is"] == "settled" && event["id"] == id)
    }

    /// What was asked and not looked at yet.
    fn asked_so_far(&mut self) -> Vec<Value> {
        let _questions = self.tell(&json!({"do": "list"}));
        self.events.iter().filter(|event| event["is"] == "asked").cloned().collect()
    }

    #[track_caller]
    pub(crate) fn allow(&mut self, question: &Value) {
        let told = self.decide(question, json!({"allow": true}));
        assert_eq!(told["is"], "decided", "{told}");
    }

    /// Allows it, so many times more.
    #[track_caller]
    pub(crate) fn allow_often(&mut self, question: &Value, times: u32) {
        let told = self.decide(question, json!({"allow": true, "remember": {"times": times}}));
        assert_eq!(told["is"], "decided", "{told}");
    }

    pub(crate) fn decide(&mut self, question: &Value, more: Value) -> Value {
        let host = self.tell(&hello());
        let request = self.key.as_ref().unwrap().decision(&host, question, &more);
        self.tell(&request)
    }

    /// The approver's key, signing for another connection.
    pub(crate) fn key(&self) -> &ApproverKey {
        self.key.as_ref().unwrap()
    }
}

/// The lines of a question under a heading that begins so, or under all.
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
