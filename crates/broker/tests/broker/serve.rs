//! The broker in `outpost serve`: restarts of the worker, rules, notifications, limits, and the authority to decide.

use crate::kit::{binary, decoded};
use outpost_testkit::approver::{self, hello};
use outpost_testkit::{ApproverKey, Daemon, Half, stamp};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

const TIMEOUT: Duration = Duration::from_secs(20);

struct TestDaemon {
    daemon: Daemon,
    dir: tempfile::TempDir,
}

/// A connection of JSON lines.
struct Lines {
    reader: BufReader<UnixStream>,
    /// The key of an approver.
    key: Option<Arc<ApproverKey>>,
}

impl Lines {
    fn connect(socket: &Path) -> Lines {
        let stream = outpost_testkit::connect(socket).unwrap();
        stream.set_read_timeout(Some(TIMEOUT)).unwrap();
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

impl TestDaemon {
    fn new(config: &str, rules: &str) -> TestDaemon {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
        std::fs::write(path("outpost.toml"), config).unwrap();
        if !rules.is_empty() {
            std::fs::write(path("rules.toml"), rules).unwrap();
        }
        let flags = ["--config", &path("outpost.toml"), "--rules", &path("rules.toml")];
        TestDaemon { daemon: Daemon::start_with(&binary(), &flags), dir }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// An approver's connection with its enrolled key.
    fn approver(&self) -> (Lines, Arc<ApproverKey>) {
        let key = Arc::new(ApproverKey::random());
        let mut lines = self.connect(&key);
        let host = lines.ask(hello());
        assert_eq!(lines.ask(key.enrollment(&host))["is"], "key_changed");
        (lines, key)
    }

    /// An approver's connection with this key.
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

/// Waits for the only pending question.
fn question(approver: &mut Lines) -> Value {
    let begun = Instant::now();
    loop {
        let answer = approver.ask(json!({"do": "list"}));
        if let Some(question) = answer["questions"].as_array().unwrap().first() {
            return question.clone();
        }
        assert!(begun.elapsed() < TIMEOUT, "no question");
        outpost_testkit::pause();
    }
}

fn decide(approver: &mut Lines, question: &Value, allow: bool) -> Value {
    let host = approver.ask(hello());
    let request = approver.key.as_ref().unwrap().decision(&host, question, &json!({ "allow": allow }));
    approver.ask(request)
}

#[test]
fn a_question_survives_a_killed_worker_and_its_client_is_answered() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let test = TestDaemon::new("", "");
    let (mut approver, key) = test.approver();
    let mut client = test.send("a", json!([["echo", "still here"]]));
    let before = question(&mut approver);
    for _ in 0..3 {
        test.daemon.kill(Half::Worker);
        let after = question(&mut test.connect(&key));
        assert_eq!(after, before);
    }
    assert_eq!(decide(&mut test.connect(&key), &before, true)["is"], "decided");
    let answer = client.receive();
    assert_eq!(
        (answer["status"].as_str(), decoded(&answer["stdout"])),
        (Some("ok"), b"still here\n".to_vec())
    );
    assert_eq!(answer["decision"], "human");
    // The used id survives another kill.
    test.daemon.kill(Half::Worker);
    assert_eq!(test.run("a", json!([["true"]]))["message"], "duplicate request id: a");
}

#[test]
fn a_command_survives_a_killed_worker_and_its_client_is_answered() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let test = TestDaemon::new("", "");
    let (mut approver, _) = test.approver();
    let fifo = test.path("fifo");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let script = "echo before; read line < \"$0\"; echo after $line; exit 7";
    let mut client = test.send("a", json!([["sh", "-c", script, fifo]]));
    let asked = question(&mut approver);
    decide(&mut approver, &asked, true);
    // The open blocks until the command reads the FIFO.
    let mut writer = std::fs::OpenOptions::new().write(true).open(&fifo).unwrap();
    test.daemon.kill(Half::Worker);
    writer.write_all(b"the kill\n").unwrap();
    drop(writer);
    let answer = client.receive();
    assert_eq!(decoded(&answer["stdout"]), b"before\nafter the kill\n");
    assert_eq!((answer["stages"][0]["exit_code"].as_i64(), answer["status"].as_str()), (Some(7), Some("ok")));
}

#[test]
fn a_disconnect_while_the_worker_is_dead_withdraws_the_request() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let test = TestDaemon::new("", "");
    let (mut approver, key) = test.approver();
    let file = test.path("ran");
    let client = test.send("a", json!([["touch", file]]));
    let asked = question(&mut approver);
    test.daemon.kill(Half::Worker);
    drop(client);
    let mut approver = test.connect(&key);
    let begun = Instant::now();
    while decide(&mut approver, &asked, true)["is"] != "failed" {
        assert!(begun.elapsed() < TIMEOUT);
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
fn rules_allow_and_deny_without_a_human_and_an_invalid_file_denies_all() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let test = TestDaemon::new("", RULES);
    let answer = test.run("a", json!([["echo", "hello"]]));
    assert_eq!((answer["status"].as_str(), answer["decision"].as_str()), (Some("ok"), Some("rule:greet")));
    let file = test.path("ran");
    let answer = test.run("b", json!([["echo", "hello"], ["touch", file]]));
    assert_eq!(answer["status"], "denied");
    assert_eq!(answer["message"], "denied by rule never");
    assert!(!file.exists());
    // With one more argument no rule matches.
    let (mut approver, _) = test.approver();
    let mut client = test.send("c", json!([["echo", "hello", "world"]]));
    let asked = question(&mut approver);
    decide(&mut approver, &asked, false);
    assert_eq!(client.receive()["status"], "denied");
    std::fs::write(test.path("rules.toml"), format!("{RULES}\n[[rule]]\nnmae = \"x\"\n")).unwrap();
    let answer = test.run("d", json!([["echo", "hello"]]));
    assert_eq!(answer["status"], "denied");
    let answer = answer["message"].as_str().unwrap();
    assert!(answer.contains("line 14, column 1") && answer.contains("every request is denied"), "{answer}");
    std::fs::write(test.path("rules.toml"), RULES).unwrap();
    assert_eq!(test.run("e", json!([["echo", "hello"]]))["status"], "ok");
}

#[test]
fn the_notify_program_runs_and_cannot_decide() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let dir = tempfile::tempdir().unwrap();
    let notified = dir.path().join("notified");
    let notify = format!(
        "[approvals]\nnotify = [\"/bin/sh\", \"-c\", 'printf \"%s|%s|%s\" \"$1\" \"$2\" \"$3\" > {0}.new; mv {0}.new {0}; exit 0', \"x\", \"{{id}}\", \"{{title}}\", \"{{count}}\"]\n",
        notified.display()
    );
    let test = TestDaemon::new(&notify, "");
    let (mut approver, _) = test.approver();
    let mut client = test.send("a", json!([["echo", "$(id)"]]));
    let asked = question(&mut approver);
    let begun = Instant::now();
    while !notified.exists() {
        assert!(begun.elapsed() < TIMEOUT, "no notification: {}", test.daemon.log());
        outpost_testkit::pause();
    }
    let text = std::fs::read_to_string(&notified).unwrap();
    assert_eq!(text, format!("{}|echo '$(id)'|1", asked["id"].as_str().unwrap()));
    assert_eq!(question(&mut approver)["id"], asked["id"], "the question must stay pending");
    decide(&mut approver, &asked, false);
    assert_eq!(client.receive()["status"], "denied");
}

#[test]
fn a_flooding_or_denied_client_is_rate_limited() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let limits = "[broker]\npending_max = 2\nrequests_per_minute = 6\npause_max_s = 60\ndenied_for_s = 60\n";
    let test = TestDaemon::new(limits, "");
    let (mut approver, _) = test.approver();
    let mut waiting = [test.send("a", json!([["true"]])), test.send("b", json!([["false"]]))];
    wait_questions(&mut approver, 2);
    let answer = test.run("c", json!([["id"]]));
    assert!(answer["message"].as_str().unwrap().starts_with("rate limited: 2 requests"), "{answer}");
    for client in &mut waiting {
        let asked = question(&mut approver);
        decide(&mut approver, &asked, false);
        let _either = client;
    }
    waiting.iter_mut().for_each(|client| assert_eq!(client.receive()["status"], "denied"));
    let answer = test.run("d", json!([["true"]]));
    assert!(answer["message"].as_str().unwrap().contains("exactly this was denied"), "{answer}");
    let mut client = test.send("e", json!([["id", "-u"]]));
    let asked = question(&mut approver);
    decide(&mut approver, &asked, false);
    assert_eq!(client.receive()["status"], "denied");
    let answer = test.run("f", json!([["id", "-g"]]));
    assert!(answer["message"].as_str().unwrap().starts_with("rate limited, retry after"), "{answer}");
}

#[test]
fn commands_have_the_configured_resource_limits_and_write_no_core() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let limits = "cpu_seconds_max = 77\nmemory_bytes_max = 4294967296\nfile_bytes_max = 1048576\n";
    let test = TestDaemon::new(&format!("[broker]\n{limits}"), "");
    let (mut approver, _) = test.approver();
    let print = "ulimit -c; ulimit -t; ulimit -v; ulimit -f; ulimit -H -t";
    let mut client = test.send("a", json!([["sh", "-c", print]]));
    let asked = question(&mut approver);
    decide(&mut approver, &asked, true);
    // The shell prints memory in KiB and file sizes in blocks of 512 bytes.
    assert_eq!(decoded(&client.receive()["stdout"]), b"0\n77\n4194304\n2048\n77\n");
}

/// Waits until this many questions are pending.
fn wait_questions(approver: &mut Lines, count: usize) {
    let begun = Instant::now();
    while approver.ask(json!({"do": "list"}))["questions"].as_array().unwrap().len() < count {
        assert!(begun.elapsed() < TIMEOUT, "never {count} questions");
        outpost_testkit::pause();
    }
}

/// With `count` pending requests, one more gets this error, before and after a kill of the worker.
fn check_full(config: &str, count: usize, message: &str) {
    let test = TestDaemon::new(config, "");
    let (mut approver, key) = test.approver();
    let _clients: Vec<Lines> =
        (0..count).map(|number| test.send(&number.to_string(), json!([["true"]]))).collect();
    wait_questions(&mut approver, count);
    assert_eq!(test.run("before", json!([["true"]]))["message"], message);
    test.daemon.kill(Half::Worker);
    let questions = test.connect(&key).ask(json!({"do": "list"}));
    assert_eq!(questions["questions"].as_array().unwrap().len(), count);
    assert_eq!(test.run("after", json!([["true"]]))["message"], message);
}

#[test]
fn pending_requests_of_a_killed_worker_still_count() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let unlimited = "[broker]\npending_max = 0\nrequests_per_minute = 0\n";
    check_full(unlimited, 64, "server busy: too many in-flight requests");
    let answer = "rate limited: 2 requests of this client wait for an answer already";
    check_full("[broker]\npending_max = 2\n", 2, answer);
}

#[test]
fn a_decision_needs_a_valid_signature_by_an_enrolled_key() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let test = TestDaemon::new("", "");
    let (mut approver, key) = test.approver();
    let mut client = test.send("a", json!([["true"]]));
    let asked = question(&mut approver);
    let host = approver.ask(hello());
    let unenrolled = ApproverKey::random();
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
    let mut altered_display = asked.clone();
    altered_display["title"] = json!("something harmless");
    let cut = {
        let mut request = key.decision(&host, &asked, &allow);
        request["statement"] = json!(&request["statement"].as_str().unwrap()[4..]);
        request
    };
    for (request, why) in [
        (unsigned, "needs an approver's signature"),
        (unenrolled.decision(&host, &asked, &allow), "is not enrolled as an approver"),
        (unenrolled.enrollment(&host), "is not enrolled as an approver"),
        (key.signed_decision(&late), "has expired"),
        (key.signed_decision(&unknown_head), "an audit record that this host does not have"),
        (key.signed_decision(&other_host), "for another host"),
        (key.decision(&host, &altered_display, &allow), "does not match question"),
        (
            key.decision(&host, &json_with(&asked, "digest", "0".repeat(64)), &allow),
            "does not match question",
        ),
        (cut, "the statement"),
        (
            json!({"do": "decide", "id": asked["id"], "digest": asked["digest"], "allow": true}),
            "malformed request",
        ),
        (json!({"do": "enroll"}), "the approver's secret is not used any more"),
        (json!({"do": "prove", "secret": "0".repeat(32)}), "hint: `outpost approvals enroll`"),
    ] {
        // A new connection for each: the daemon closes a connection after three invalid decisions.
        let answer = Lines::connect(&test.daemon.dir().join("run/approvals.sock")).ask(request.clone());
        assert_eq!(answer["is"], "failed", "{request}: {answer}");
        assert!(answer["why"].as_str().unwrap().contains(why), "{why}: {answer}");
    }
    assert_eq!(decide(&mut test.connect(&key), &asked, true)["is"], "decided");
    assert_eq!(decide(&mut approver, &asked, false)["is"], "failed", "the first decision counts");
    assert_eq!(client.receive()["status"], "ok");
}

fn json_with(value: &Value, name: &str, other: String) -> Value {
    let mut value = value.clone();
    value[name] = json!(other);
    value
}

/// A client that lost the reply may send the same statement again, even to the next worker.
#[test]
fn a_repeated_statement_gets_the_same_receipt_and_a_different_one_fails() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let test = TestDaemon::new("", "");
    let (mut approver, key) = test.approver();
    let mut client = test.send("a", json!([["true"]]));
    let asked = question(&mut approver);
    let host = approver.ask(hello());
    let request = key.decision(&host, &asked, &json!({ "allow": true }));
    let decided = approver.ask(request.clone());
    assert_eq!(decided["is"], "decided", "{decided}");
    assert_eq!(client.receive()["status"], "ok");
    assert_eq!(approver.ask(request.clone()), decided);
    test.daemon.kill(Half::Worker);
    assert_eq!(test.connect(&key).ask(request), decided);
    let other = key.decision(&host, &asked, &json!({ "allow": false }));
    assert_eq!(test.connect(&key).ask(other)["is"], "failed");
}
