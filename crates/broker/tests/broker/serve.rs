//! The broker in the daemon: questions that outlive the worker, rules, notices, limits, and who may decide.

use crate::kit::{binary, decoded};
use outpost_testkit::approver::{self, hello};
use outpost_testkit::{ApproverKey, Daemon, Which, stamp};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(20);

struct Site {
    daemon: Daemon,
    dir: tempfile::TempDir,
}

/// A connection of JSON lines.
struct Lines {
    reader: BufReader<UnixStream>,
    /// Of one that decides.
    key: Option<Arc<ApproverKey>>,
}

impl Lines {
    fn connect(socket: &Path) -> Lines {
        let stream = outpost_testkit::connect(socket).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        Lines { reader: BufReader::new(stream), key: None }
    }

    fn send(&mut self, request: &Value) {
        self.reader.get_mut().write_all(format!("{request}\n").as_bytes()).unwrap();
    }

    fn receive(&mut self) -> Value {
        let mut line = String::new();
        self.reader.read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|error| panic!("{line:?}: {error}"))
    }

    fn ask(&mut self, request: Value) -> Value {
        self.send(&request);
        self.receive()
    }
}

impl Site {
    fn new(config: &str, rules: &str) -> Site {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("outpost.toml"), config).unwrap();
        if !rules.is_empty() {
            std::fs::write(path("rules.toml"), rules).unwrap();
        }
        let flags = ["--config", &path("outpost.toml"), "--rules", &path("rules.toml")];
        Site { daemon: Daemon::start_with(&binary(), &flags), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// A connection with a key that is enrolled, and the key.
    fn approver(&self) -> (Lines, Arc<ApproverKey>) {
        let key = Arc::new(ApproverKey::random());
        let mut lines = self.connect(&key);
        let host = lines.ask(hello());
        assert_eq!(lines.ask(key.enrolment(&host))["is"], "key_changed");
        (lines, key)
    }

    /// A connection with this key.
    fn connect(&self, key: &Arc<ApproverKey>) -> Lines {
        let mut lines = Lines::connect(&self.daemon.dir().join("run/approvals.sock"));
        lines.key = Some(key.clone());
        lines
    }

    fn send(&self, id: &str, pipeline: Value) -> Lines {
        let mut lines = Lines::connect(&self.daemon.dir().join("run/broker.sock"));
        lines.send(&json!({"id": id, "time": stamp(0), "pipeline": pipeline, "privileged": false}));
        lines
    }

    fn run(&self, id: &str, pipeline: Value) -> Value {
        self.send(id, pipeline).receive()
    }
}

/// The only question that waits, as soon as there is one.
fn question(approver: &mut Lines) -> Value {
    let begun = Instant::now();
    loop {
        let answer = approver.ask(json!({"do": "list"}));
        if let Some(question) = answer["questions"].as_array().unwrap().first() {
            return question.clone();
        }
        assert!(begun.elapsed() < PATIENCE, "nothing is asked");
        outpost_testkit::pause();
    }
}

fn decide(approver: &mut Lines, question: &Value, allow: bool) -> Value {
    let host = approver.ask(hello());
    let request = approver.key.as_ref().unwrap().decision(&host, question, &json!({ "allow": allow }));
    approver.ask(request)
}

#[test]
fn a_question_outlives_the_worker_with_its_id_and_its_deadline_and_the_client_is_answered() {
    outpost_testkit::require!(crate::kit::ours());
    let site = Site::new("", "");
    let (mut approver, key) = site.approver();
    let mut client = site.send("a", json!([["echo", "still here"]]));
    let before = question(&mut approver);
    for _ in 0..3 {
        site.daemon.kill(Which::Worker);
        let after = question(&mut site.connect(&key));
        assert_eq!(after, before);
    }
    assert_eq!(decide(&mut site.connect(&key), &before, true)["is"], "decided");
    let answer = client.receive();
    assert_eq!(
        (answer["status"].as_str(), decoded(&answer["stdout"])),
        (Some("ok"), b"still here\n".to_vec())
    );
    assert_eq!(answer["decision"], "human");
    // Its id was used, and is known to be after another kill.
    site.daemon.kill(Which::Worker);
    assert_eq!(site.run("a", json!([["true"]]))["message"], "duplicate request id: a");
}

#[test]
fn a_command_outlives_the_worker_and_its_client_is_answered() {
    outpost_testkit::require!(crate::kit::ours());
    let site = Site::new("", "");
    let (mut approver, _) = site.approver();
    let fifo = site.path("gate");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let script = "echo before; read line < \"$0\"; echo after $line; exit 7";
    let mut client = site.send("a", json!([["sh", "-c", script, fifo]]));
    let asked = question(&mut approver);
    decide(&mut approver, &asked, true);
    // Opened when the command runs.
    let mut gate = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    site.daemon.kill(Which::Worker);
    gate.write_all(b"the kill\n").unwrap();
    drop(gate);
    let answer = client.receive();
    assert_eq!(decoded(&answer["stdout"]), b"before\nafter the kill\n");
    assert_eq!((answer["stages"][0]["exit_code"].as_i64(), answer["status"].as_str()), (Some(7), Some("ok")));
}

#[test]
fn a_client_that_leaves_while_the_worker_is_dead_has_withdrawn() {
    outpost_testkit::require!(crate::kit::ours());
    let site = Site::new("", "");
    let (mut approver, key) = site.approver();
    let file = site.path("ran");
    let client = site.send("a", json!([["touch", file]]));
    let asked = question(&mut approver);
    site.daemon.kill(Which::Worker);
    drop(client);
    let mut approver = site.connect(&key);
    let begun = Instant::now();
    while decide(&mut approver, &asked, true)["is"] != "failed" {
        assert!(begun.elapsed() < PATIENCE);
        outpost_testkit::pause();
    }
    assert!(!file.exists());
}

const RULES: &str = r#"
[[rule]]
name = "greet"
decision = "allow"
command = ["/usr/bin/echo", "hello"]
privileged = false

[[rule]]
name = "never"
decision = "deny"
command = ["/usr/bin/touch", { rest = true }]
"#;

#[test]
fn rules_allow_and_deny_without_a_human_and_a_broken_file_denies_all() {
    outpost_testkit::require!(crate::kit::ours());
    let site = Site::new("", RULES);
    let answer = site.run("a", json!([["echo", "hello"]]));
    assert_eq!((answer["status"].as_str(), answer["decision"].as_str()), (Some("ok"), Some("rule:greet")));
    let file = site.path("ran");
    let answer = site.run("b", json!([["echo", "hello"], ["touch", file]]));
    assert_eq!(answer["status"], "denied");
    assert_eq!(answer["message"], "denied by rule never");
    assert!(!file.exists());
    // One more argument is another command: it is asked about.
    let (mut approver, _) = site.approver();
    let mut client = site.send("c", json!([["echo", "hello", "world"]]));
    let asked = question(&mut approver);
    decide(&mut approver, &asked, false);
    assert_eq!(client.receive()["status"], "denied");
    std::fs::write(site.path("rules.toml"), format!("{RULES}\n[[rule]]\nnmae = \"x\"\n")).unwrap();
    let answer = site.run("d", json!([["echo", "hello"]]));
    assert_eq!(answer["status"], "denied");
    let told = answer["message"].as_str().unwrap();
    assert!(told.contains("line 14, column 1") && told.contains("every request is denied"), "{told}");
    std::fs::write(site.path("rules.toml"), RULES).unwrap();
    assert_eq!(site.run("e", json!([["echo", "hello"]]))["status"], "ok");
}

#[test]
fn a_notice_program_is_told_and_cannot_decide() {
    outpost_testkit::require!(crate::kit::ours());
    let dir = tempfile::tempdir().unwrap();
    let told = dir.path().join("told");
    let notify = format!(
        "[approvals]\nnotify = [\"/bin/sh\", \"-c\", 'printf \"%s|%s|%s\" \"$1\" \"$2\" \"$3\" > {0}.new; mv {0}.new {0}; exit 0', \"x\", \"{{id}}\", \"{{title}}\", \"{{count}}\"]\n",
        told.display()
    );
    let site = Site::new(&notify, "");
    let (mut approver, _) = site.approver();
    let mut client = site.send("a", json!([["echo", "$(id)"]]));
    let asked = question(&mut approver);
    let begun = Instant::now();
    while !told.exists() {
        assert!(begun.elapsed() < PATIENCE, "nobody was told: {}", site.daemon.log());
        outpost_testkit::pause();
    }
    let text = std::fs::read_to_string(&told).unwrap();
    assert_eq!(text, format!("{}|echo '$(id)'|1", asked["id"].as_str().unwrap()));
    assert_eq!(question(&mut approver)["id"], asked["id"], "it still waits");
    decide(&mut approver, &asked, false);
    assert_eq!(client.receive()["status"], "denied");
}

#[test]
fn a_client_that_floods_or_was_denied_waits() {
    outpost_testkit::require!(crate::kit::ours());
    let limits = "[broker]\npending_max = 2\nrequests_per_minute = 6\npause_max_s = 60\ndenied_for_s = 60\n";
    let site = Site::new(limits, "");
    let (mut approver, _) = site.approver();
    let mut waiting = [site.send("a", json!([["true"]])), site.send("b", json!([["false"]]))];
    wait_questions(&mut approver, 2);
    let told = site.run("c", json!([["id"]]));
    assert!(told["message"].as_str().unwrap().starts_with("rate limited: 2 requests"), "{told}");
    for client in &mut waiting {
        let asked = question(&mut approver);
        decide(&mut approver, &asked, false);
        let _either = client;
    }
    waiting.iter_mut().for_each(|client| assert_eq!(client.receive()["status"], "denied"));
    let told = site.run("d", json!([["true"]]));
    assert!(told["message"].as_str().unwrap().contains("exactly this was denied"), "{told}");
    let mut client = site.send("e", json!([["id", "-u"]]));
    let asked = question(&mut approver);
    decide(&mut approver, &asked, false);
    assert_eq!(client.receive()["status"], "denied");
    let told = site.run("f", json!([["id", "-g"]]));
    assert!(told["message"].as_str().unwrap().starts_with("rate limited, retry after"), "{told}");
}

#[test]
fn commands_have_the_limits_that_the_operator_set_and_write_no_core() {
    outpost_testkit::require!(crate::kit::ours());
    let limits = "cpu_seconds_max = 77\nmemory_bytes_max = 4294967296\nfile_bytes_max = 1048576\n";
    let site = Site::new(&format!("[broker]\n{limits}"), "");
    let (mut approver, _) = site.approver();
    let print = "ulimit -c; ulimit -t; ulimit -v; ulimit -f; ulimit -H -t";
    let mut client = site.send("a", json!([["sh", "-c", print]]));
    let asked = question(&mut approver);
    decide(&mut approver, &asked, true);
    // The shell counts memory in KiB and files in blocks of 512 bytes.
    assert_eq!(decoded(&client.receive()["stdout"]), b"0\n77\n4194304\n2048\n77\n");
}

/// Waits until this many questions are open.
fn wait_questions(approver: &mut Lines, count: usize) {
    let begun = Instant::now();
    while approver.ask(json!({"do": "list"}))["questions"].as_array().unwrap().len() < count {
        assert!(begun.elapsed() < PATIENCE, "never {count} questions");
        outpost_testkit::pause();
    }
}

/// So many requests wait for an answer; one more is told this, before and after a kill.
fn check_full(config: &str, count: usize, told: &str) {
    let site = Site::new(config, "");
    let (mut approver, key) = site.approver();
    let _clients: Vec<Lines> =
        (0..count).map(|number| site.send(&number.to_string(), json!([["true"]]))).collect();
    wait_questions(&mut approver, count);
    assert_eq!(site.run("before", json!([["true"]]))["message"], told);
    site.daemon.kill(Which::Worker);
    let questions = site.connect(&key).ask(json!({"do": "list"}));
    assert_eq!(questions["questions"].as_array().unwrap().len(), count);
    assert_eq!(site.run("after", json!([["true"]]))["message"], told);
}

#[test]
fn what_a_killed_worker_had_under_way_still_counts() {
    outpost_testkit::require!(crate::kit::ours());
    let unlimited = "[broker]\npending_max = 0\nrequests_per_minute = 0\n";
    check_full(unlimited, 64, "server busy: too many in-flight requests");
    let told = "rate limited: 2 requests of this client wait for an answer already";
    check_full("[broker]\npending_max = 2\n", 2, told);
}

#[test]
fn a_user_that_may_be_the_one_that_asks_decides_nothing_without_an_enrolled_key() {
    outpost_testkit::require!(crate::kit::ours());
    let site = Site::new("", "");
    let (mut approver, key) = site.approver();
    let mut client = site.send("a", json!([["true"]]));
    let asked = question(&mut approver);
    let host = approver.ask(hello());
    let stranger = ApproverKey::random();
    let allow = json!({ "allow": true });
    let unsigned = approver::statement(&host, &asked, &allow);
    let unsigned =
        json!({"do": "decide", "statement": outpost_approvals::signing::base64(&unsigned.encode())});
    let mut late = approver::statement(&host, &asked, &allow);
    (late.issued_ms, late.expires_ms) = (late.issued_ms - 700_000, late.issued_ms - 100_000);
    let mut unknown_head = approver::statement(&host, &asked, &allow);
    unknown_head.head.hash[0] ^= 1;
    let mut other_host = approver::statement(&host, &asked, &allow);
    *other_host.host.last_mut().unwrap() ^= 1;
    let mut seen_otherwise = asked.clone();
    seen_otherwise["title"] = json!("something harmless");
    let cut = {
        let mut request = key.decision(&host, &asked, &allow);
        request["statement"] = json!(&request["statement"].as_str().unwrap()[4..]);
        request
    };
    for (request, why) in [
        (unsigned, "needs an approver's signature"),
        (stranger.decision(&host, &asked, &allow), "is not an approver's here"),
        (stranger.enrolment(&host), "is not an approver's here"),
        (key.signed_decision(&late), "has expired"),
        (key.signed_decision(&unknown_head), "an audit record that this host does not have"),
        (key.signed_decision(&other_host), "for another host"),
        (key.decision(&host, &seen_otherwise, &allow), "something else than what was decided"),
        (key.decision(&host, &json_with(&asked, "digest", "0".repeat(64)), &allow), "something else"),
        (cut, "the statement"),
        (json!({"do": "decide", "id": asked["id"], "digest": asked["digest"], "allow": true}), "no request"),
        (json!({"do": "enroll"}), "the approver's secret is not used any more"),
        (json!({"do": "prove", "secret": "0".repeat(32)}), "hint: `outpost approvals enroll`"),
    ] {
        // Each on a connection of its own: after three that do not count, the daemon ends one.
        let answer = Lines::connect(&site.daemon.dir().join("run/approvals.sock")).ask(request.clone());
        assert_eq!(answer["is"], "failed", "{request}: {answer}");
        assert!(answer["why"].as_str().unwrap().contains(why), "{why}: {answer}");
    }
    assert_eq!(decide(&mut site.connect(&key), &asked, true)["is"], "decided");
    assert_eq!(decide(&mut approver, &asked, false)["is"], "failed", "the first answer stands");
    assert_eq!(client.receive()["status"], "ok");
}

fn json_with(value: &Value, name: &str, other: String) -> Value {
    let mut value = value.clone();
    value[name] = json!(other);
    value
}

/// An answer that got lost is asked for again, also from the next worker.
#[test]
fn the_same_statement_gets_the_same_receipt_and_another_one_gets_none() {
    outpost_testkit::require!(crate::kit::ours());
    let site = Site::new("", "");
    let (mut approver, key) = site.approver();
    let mut client = site.send("a", json!([["true"]]));
    let asked = question(&mut approver);
    let host = approver.ask(hello());
    let request = key.decision(&host, &asked, &json!({ "allow": true }));
    let decided = approver.ask(request.clone());
    assert_eq!(decided["is"], "decided", "{decided}");
    assert_eq!(client.receive()["status"], "ok");
    assert_eq!(approver.ask(request.clone()), decided);
    site.daemon.kill(Which::Worker);
    assert_eq!(site.connect(&key).ask(request), decided);
    let other = key.decision(&host, &asked, &json!({ "allow": false }));
    assert_eq!(site.connect(&key).ask(other)["is"], "failed");
}
