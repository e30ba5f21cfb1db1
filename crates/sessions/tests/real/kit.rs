//! A daemon whose agents use a fake model, and a client for it.

use outpost_control::wire::ProcessInfo;
use outpost_sys::epoll::wait_readable;
use outpost_sys::procfs;
use outpost_testkit::{AgentHome, Daemon, Lack, Model, binary_beside};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// Time limit of each wait. opencode computes for six seconds before its first request, and the host may be busy.
const TIMEOUT: Duration = Duration::from_secs(120);

pub(crate) struct World {
    pub(crate) daemon: Daemon,
    pub(crate) model: Model,
    cli: &'static str,
    url: String,
    agent: ureq::Agent,
    /// Dropped after the daemon, which works in it.
    home: AgentHome,
}

/// The daemon's program. Tests are in `deps`; the programs are one directory up.
fn outpost() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    binary_beside(&test.parent().unwrap().parent().unwrap().join("tests"), "outpost")
}

impl World {
    pub(crate) fn new(cli: &'static str) -> Result<World, Lack> {
        World::with(cli, "", &[])
    }

    /// With more content of `outpost.toml`, whose first lines belong to `[sessions]`, and with these variables for the
    /// agent. `IS_SANDBOX` is unset unless given.
    pub(crate) fn with(cli: &'static str, config: &str, env: &[(&str, &str)]) -> Result<World, Lack> {
        AgentHome::cli(cli)?;
        let model = Model::start();
        let home = AgentHome::new(&model);
        let dir = tempfile::tempdir().unwrap();
        let xdg = home.home().join(".config");
        // The daemon's own configuration directory is another one.
        let mut text = format!("[sessions]\n{config}\n[sessions.{cli}.env]\nXDG_CONFIG_HOME = {xdg:?}\n");
        for (name, value) in env {
            text.push_str(&format!("{name} = {value:?}\n"));
        }
        let file = dir.path().join("outpost.toml");
        std::fs::write(&file, text).unwrap();
        let mut command = Command::new(outpost());
        command.env_clear().envs(home.env().iter().cloned()).env_remove("IS_SANDBOX");
        let flags = ["--config", file.to_str().unwrap(), "--sessions-listen", "127.0.0.1:0"];
        let daemon = Daemon::start_by(command, dir, &flags);
        let port = std::fs::read_to_string(daemon.dir().join("run/sessions.port")).unwrap();
        let url = format!("http://127.0.0.1:{}/rpc", port.trim());
        let config = ureq::Agent::config_builder().proxy(None).timeout_global(Some(TIMEOUT)).build();
        Ok(World { daemon, model, cli, url, agent: config.into(), home })
    }

    pub(crate) fn work(&self) -> PathBuf {
        self.home.work()
    }

    pub(crate) fn home(&self) -> PathBuf {
        self.home.home()
    }

    pub(crate) fn cli(&self) -> &'static str {
        self.cli
    }

    /// Whether a file exists in the agent's working directory.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.work().join(name).exists()
    }

    fn post(&self, method: &str, params: &Value) -> ureq::Body {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params }).to_string();
        // A daemon of root requires a token.
        let token = std::fs::read_to_string(self.daemon.dir().join("run/sessions.token")).unwrap();
        let request = self.agent.post(&self.url).header("content-type", "application/json");
        let request = request.header("authorization", format!("Bearer {token}"));
        let answer =
            request.send(body).unwrap_or_else(|error| panic!("{method}: {error}; {}", self.daemon.log()));
        answer.into_body()
    }

    pub(crate) fn call(&self, method: &str, params: &Value) -> Value {
        let text = self.post(method, params).read_to_string().unwrap();
        let answer: Value = serde_json::from_str(&text).unwrap();
        assert!(answer.get("error").is_none(), "{method} {params}: {text}");
        answer["result"].clone()
    }

    pub(crate) fn create(&self, mode: &str) -> String {
        let params = json!({ "path": self.work(), "mode": mode, "cli_type": self.cli });
        self.call("session.create", &params)["sessionId"].as_str().unwrap().to_owned()
    }

    pub(crate) fn create_confined(&self, mode: &str, sandbox: &Value) -> String {
        let params = json!({ "path": self.work(), "mode": mode, "cli_type": self.cli, "sandbox": sandbox });
        self.call("session.create", &params)["sessionId"].as_str().unwrap().to_owned()
    }

    pub(crate) fn set_mode(&self, session: &str, mode: &str) {
        self.call("session.set_mode", &json!({ "sessionId": session, "mode": mode }));
    }

    pub(crate) fn interrupt(&self, session: &str) {
        let done = self.call("session.interrupt", &json!({ "sessionId": session }));
        assert_eq!(done, json!({ "ok": true, "interrupted": true }));
    }

    /// Sends a message and returns its stream.
    pub(crate) fn open(&self, session: &str, message: &str) -> Stream {
        let body = self.post("session.send", &json!({ "sessionId": session, "message": message }));
        Stream { lines: BufReader::new(Box::new(body.into_reader())), events: Vec::new() }
    }

    /// Sends a message and reads its stream to the end.
    pub(crate) fn send(&self, session: &str, message: &str) -> Events {
        self.open(session, message).rest()
    }

    /// Pids of running agents: all processes with our marker variable except the daemon's own.
    fn agents(&self) -> Vec<i32> {
        let marker = format!("OUTPOST_TEST_AGENTS={}", self.home.home().parent().unwrap().display());
        let ours = outpost().canonicalize().unwrap();
        let alive = procfs::all().into_iter().filter(|stat| !matches!(stat.state, b'Z' | b'X'));
        let marked = alive.filter(|stat| procfs::has_environment(stat.pid, marker.as_bytes()));
        let theirs = marked.filter(|stat| {
            let program = std::fs::read_link(format!("/proc/{}/exe", stat.pid));
            program.is_ok_and(|program| program != ours)
        });
        theirs.map(|stat| stat.pid).collect()
    }

    /// Waits until all processes of agents have exited.
    pub(crate) fn assert_nothing_left(&self) {
        let begun = Instant::now();
        loop {
            let left = self.agents();
            let Some(first) = left.first() else { break };
            let command = std::fs::read_to_string(format!("/proc/{first}/cmdline")).unwrap_or_default();
            if let Ok(process) = outpost_testkit::process(*first) {
                let is_over = wait_readable(&process, Duration::from_secs(20)).unwrap();
                assert!(is_over && begun.elapsed() < TIMEOUT, "{left:?} are left: {command:?}");
            }
        }
        // The daemon learns of an exit slightly later than this test.
        let lives = |process: &ProcessInfo| process.face == "sessions" && process.exit.is_none();
        while self.daemon.list().iter().any(lives) {
            assert!(begun.elapsed() < TIMEOUT, "{:?}", self.daemon.list());
            outpost_testkit::pause();
        }
    }

    /// Decides with `outpost approvals`. The first call creates the key.
    pub(crate) fn decide(&self, arguments: &[&str]) {
        if !self.daemon.dir().join("state/approver.key").exists() {
            self.approvals(&["enroll", "--no-passphrase"]);
        }
        self.approvals(arguments);
    }

    fn approvals(&self, arguments: &[&str]) -> Vec<u8> {
        let mut command = Command::new(outpost());
        command.args(["--state-dir", "state", "--runtime-dir", "run", "approvals"]).args(arguments);
        let done = command.current_dir(self.daemon.dir()).stdin(Stdio::null()).output().unwrap();
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        done.stdout
    }
}

/// The events of a stream, as they arrive.
pub(crate) struct Stream {
    lines: BufReader<Box<dyn std::io::Read>>,
    events: Vec<Value>,
}

impl Stream {
    /// The next event, without pings. `None` after the last one.
    fn next(&mut self) -> Option<Value> {
        loop {
            let mut line = String::new();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "no [DONE] after {:#?}", self.events);
            let Some(data) = line.trim_end().strip_prefix("data: ") else { continue };
            if data == "[DONE]" {
                return None;
            }
            let event: Value = serde_json::from_str(data).unwrap();
            if event["type"] != "ping" {
                self.events.push(event.clone());
                return Some(event);
            }
        }
    }

    /// Reads up to the next event of this type.
    pub(crate) fn until(&mut self, kind: &str) -> Value {
        loop {
            let next = self.next();
            let next = next.unwrap_or_else(|| panic!("no {kind} in {:#?}", self.events));
            if next["type"] == kind {
                return next;
            }
        }
    }

    pub(crate) fn rest(mut self) -> Events {
        while self.next().is_some() {}
        Events(self.events)
    }
}

/// All events of a turn. Exactly one is terminal, the last.
#[derive(Debug)]
pub(crate) struct Events(pub(crate) Vec<Value>);

impl Events {
    pub(crate) fn last(&self) -> &Value {
        let is_terminal =
            |event: &&Value| matches!(event["type"].as_str(), Some("result" | "error" | "interrupted"));
        let terminal = self.0.iter().filter(is_terminal).count();
        let last = self.0.last().unwrap();
        assert!(terminal == 1 && is_terminal(&last), "{:#?}", self.0);
        last
    }

    /// Asserts the type of the terminal event.
    pub(crate) fn ends(self, kind: &str) -> Events {
        assert_eq!(self.last()["type"], kind, "{:#?}", self.0);
        self
    }

    /// The conversation id, which the first and the last event report.
    pub(crate) fn conversation(&self) -> String {
        let begun =
            self.0.iter().find(|event| event["subtype"] == "init").unwrap_or_else(|| panic!("{self:#?}"));
        assert_eq!(begun["session_id"], self.last()["session_id"], "{self:#?}");
        begun["session_id"].as_str().unwrap().to_owned()
    }

    fn contents_of(&self, kind: &str) -> Vec<&str> {
        let of_kind = self.0.iter().filter(|event| event["type"] == kind);
        of_kind.map(|event| event["content"].as_str().unwrap()).collect()
    }

    /// The text of all deltas, and their number.
    pub(crate) fn partial(&self) -> (String, usize) {
        let deltas = self.contents_of("partial");
        (deltas.concat(), deltas.len())
    }

    pub(crate) fn text(&self) -> String {
        self.contents_of("text").join("\n")
    }

    /// Tool calls and their results: the tool, its input, and its output.
    pub(crate) fn tools(&self) -> Vec<(&str, Option<&Value>, Option<&str>)> {
        let uses = self.0.iter().filter(|event| event["type"] == "tool_use");
        uses.map(|event| {
            (
                event["tool"].as_str().unwrap(),
                event.get("input"),
                event.get("message").and_then(Value::as_str),
            )
        })
        .filter(|(_, input, message)| input.is_some() || message.is_some())
        .collect()
    }

    /// Asserts an `error` with the CLI's name and these texts.
    pub(crate) fn fails(self, cli: &str, words: &[&str]) -> Events {
        let events = self.ends("error");
        let last = events.last();
        let message = last["message"].as_str().unwrap();
        for word in words {
            assert!(message.contains(word), "no {word:?} in {message:?}: {last:#}");
        }
        assert_eq!(last["cli"], cli, "{last:#}");
        events
    }
}

/// Waits for a file that an agent's tool creates.
pub(crate) fn wait_for(path: &Path) {
    let begun = Instant::now();
    while !path.exists() {
        assert!(begun.elapsed() < TIMEOUT, "{} was never made", path.display());
        outpost_testkit::pause();
    }
}
