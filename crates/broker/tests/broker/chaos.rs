//! A randomized test: many clients, random decisions, and a worker that is killed repeatedly. No request runs twice or
//! unrecorded, and every waiting client gets a response.

use base64::Engine as _;
use outpost_ledger::audit;
use outpost_testkit::approver::hello;
use outpost_testkit::{ApproverKey, Daemon, Half, Noise, stamp};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

const CLIENTS: usize = 64;
const REQUESTS: usize = 1000;

/// Time limit for one request, including kills.
const TIMEOUT: Duration = Duration::from_secs(60);

/// The last response that a client got.
#[derive(Clone, Debug, PartialEq, Eq)]
enum ClientResult {
    /// It disconnected before the response.
    None,
    Answer {
        status: String,
        message: String,
        stdout: String,
    },
}

struct Shared {
    broker: PathBuf,
    approvals: PathBuf,
    runs: PathBuf,
    next: AtomicUsize,
    over: AtomicBool,
    results: Mutex<BTreeMap<String, ClientResult>>,
}

fn line(stream: &UnixStream) -> Option<String> {
    let mut line = String::new();
    stream.set_read_timeout(Some(TIMEOUT)).unwrap();
    match BufReader::new(stream).read_line(&mut line) {
        Ok(0) => None,
        Ok(_) => Some(line),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer for a minute"),
        Err(_) => None,
    }
}

/// Sends requests. After a lost connection it repeats a request with the same id, so that it cannot run twice.
fn client(shared: &Shared, seed: u64) {
    let mut noise = Noise::new(seed);
    loop {
        let number = shared.next.fetch_add(1, Ordering::Relaxed);
        if number >= REQUESTS {
            return;
        }
        let id = format!("request-{number}");
        // Pass the directory, not the file: the broker pins the file arguments of a shell, and this file changes.
        let script = "echo \"$1\" >> \"$2/runs\"; echo ran \"$1\"";
        let runs = shared.runs.parent().unwrap().to_str().unwrap();
        let request = json!({
            "id": id, "time": stamp(0), "session": format!("client-{}", seed % 7), "reason": "chaos",
            "privileged": number.is_multiple_of(2), "pipeline": [["sh", "-c", script, "x", id, runs]],
        });
        let disconnects = noise.below(4) == 0;
        let result = ask(shared, &request, disconnects.then(|| Duration::from_millis(noise.below(60))));
        if result != ClientResult::None && noise.below(4) == 0 {
            replay(shared, &request);
        }
        shared.results.lock().unwrap().insert(id, result);
    }
}

/// Replays a request byte for byte. The broker must refuse it.
fn replay(shared: &Shared, request: &Value) {
    let ClientResult::Answer { message, .. } = ask(shared, request, None) else {
        panic!("{request} got no response")
    };
    let refused = message.starts_with("duplicate request id") || message.starts_with("request too old");
    assert!(refused, "{request} was accepted again: {message}");
}

fn ask(shared: &Shared, request: &Value, disconnect_after: Option<Duration>) -> ClientResult {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < TIMEOUT, "no response to {request}");
        let Ok(mut stream) = outpost_testkit::connect(&shared.broker) else {
            outpost_testkit::pause();
            continue;
        };
        if stream.write_all(format!("{request}\n").as_bytes()).is_err() {
            continue;
        }
        if let Some(wait) = disconnect_after {
            stream.set_read_timeout(Some(wait.max(Duration::from_millis(1)))).unwrap();
            let mut answer = String::new();
            if BufReader::new(&stream).read_line(&mut answer).is_err() {
                return ClientResult::None;
            }
            if !answer.is_empty() && !answer.contains("server busy") {
                return parse(&answer);
            }
            continue;
        }
        match line(&stream) {
            // Commands of disconnected clients still run and count as in flight.
            Some(answer) if answer.contains("server busy") => outpost_testkit::pause(),
            Some(answer) => return parse(&answer),
            // The worker was killed before it recorded the request.
            None => continue,
        }
    }
}

fn parse(answer: &str) -> ClientResult {
    let answer: Value = serde_json::from_str(answer).unwrap();
    let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
    let stdout = base64::engine::general_purpose::STANDARD.decode(text("stdout")).unwrap();
    let stdout = String::from_utf8(stdout).unwrap();
    ClientResult::Answer { status: text("status"), message: text("message"), stdout }
}

/// Approves, denies or ignores each question at random.
fn approver(shared: &Shared, key: &ApproverKey, seed: u64) {
    let mut noise = Noise::new(seed);
    while !shared.over.load(Ordering::Relaxed) {
        let Ok(stream) = outpost_testkit::connect(&shared.approvals) else { continue };
        let send = |request: Value| -> Option<Value> {
            (&stream).write_all(format!("{request}\n").as_bytes()).ok()?;
            serde_json::from_str(&line(&stream)?).ok()
        };
        let Some(host) = send(hello()) else { continue };
        while !shared.over.load(Ordering::Relaxed) {
            let Some(answer) = send(json!({"do": "list"})) else { break };
            for question in answer["questions"].as_array().unwrap() {
                let choice = noise.below(10);
                if choice == 9 {
                    continue;
                }
                if send(key.decision(&host, question, &json!({ "allow": choice < 7 }))).is_none() {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_thousand_requests_run_at_most_once_across_worker_kills() {
    outpost_testkit::require!(crate::kit::deviation_tests());
    let seed = u64::from_ne_bytes(outpost_sys::random::bytes().unwrap());
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("outpost.toml");
    std::fs::write(&config, "[broker]\nask_timeout_s = 5\nrequests_per_minute = 0\npending_max = 0\npause_max_s = 0\ndenied_for_s = 0\n").unwrap();
    let daemon = Daemon::start_with(&crate::kit::binary(), &["--config", config.to_str().unwrap()]);
    let shared = Arc::new(Shared {
        broker: daemon.dir().join("run/broker.sock"),
        approvals: daemon.dir().join("run/approvals.sock"),
        runs: dir.path().join("runs"),
        next: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        results: Mutex::default(),
    });
    let key = Arc::new(enroll(&shared.approvals));
    let mut noise = Noise::new(seed);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (shared, key) = (shared.clone(), key.clone());
            scope.spawn(move || approver(&shared, &key, seed ^ (number + 1000)));
        }
        let clients: Vec<_> = (0..CLIENTS as u64)
            .map(|number| {
                let shared = shared.clone();
                scope.spawn(move || client(&shared, seed ^ number))
            })
            .collect();
        let mut kills = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            // Pace the kills by finished requests, not by time.
            let target = shared.results.lock().unwrap().len() + noise.below(40) as usize + 5;
            while shared.results.lock().unwrap().len() < target
                && clients.iter().any(|client| !client.is_finished())
            {
                outpost_testkit::pause();
            }
            if kills < 25 && clients.iter().any(|client| !client.is_finished()) {
                daemon.kill(Half::Worker);
                kills += 1;
            }
        }
        shared.over.store(true, Ordering::Relaxed);
        assert!(kills >= 10, "only {kills} kills");
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    wait_idle(&daemon);
    check(&shared, &daemon);
}

fn enroll(socket: &Path) -> ApproverKey {
    let stream = outpost_testkit::connect(socket).unwrap();
    let send = |request: Value| -> Value {
        (&stream).write_all(format!("{request}\n").as_bytes()).unwrap();
        serde_json::from_str(&line(&stream).unwrap()).unwrap()
    };
    let key = ApproverKey::random();
    let host = send(hello());
    assert_eq!(send(key.enrollment(&host))["is"], "key_changed");
    key
}

/// Waits until the broker has no processes. All audit records are written then.
fn wait_idle(daemon: &Daemon) {
    let begun = Instant::now();
    while daemon.list().iter().any(|process| process.face == "broker") {
        assert!(begun.elapsed() < TIMEOUT, "still running: {:?}", daemon.list());
        outpost_testkit::pause();
    }
}

fn check(shared: &Shared, daemon: &Daemon) {
    let runs = std::fs::read_to_string(&shared.runs).unwrap_or_default();
    let all: Vec<&str> = runs.lines().collect();
    let ran: BTreeSet<&str> = all.iter().copied().collect();
    assert_eq!(ran.len(), all.len(), "a request ran twice");
    let results = shared.results.lock().unwrap();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (id, result) in results.iter() {
        let ClientResult::Answer { status, message, stdout } = result else { continue };
        *counts.entry(status).or_default() += 1;
        match status.as_str() {
            "ok" => {
                assert!(ran.contains(id.as_str()), "{id} got `ok` but did not run");
                assert_eq!(*stdout, format!("ran {id}\n"));
            }
            "denied" | "timeout" => assert!(!ran.contains(id.as_str()), "{id} was {status} and ran"),
            // The worker was killed during the start, or the client repeated the request after a lost connection.
            _ => assert!(
                message.starts_with("the daemon was restarted")
                    || message.starts_with("duplicate request id"),
                "{id}: {message}"
            ),
        }
    }
    assert!(counts.get("ok").copied().unwrap_or_default() > 100, "{counts:?}");
    assert!(counts.get("denied").copied().unwrap_or_default() > 20, "{counts:?}");
    let chain = daemon.dir().join("state/approvals/audit");
    check_chain(&chain, &ran);
    check_flips(&chain);
}

/// Every run has its audit records in order, and each request starts at most once.
fn check_chain(chain: &Path, ran: &BTreeSet<&str>) {
    audit::verify(chain, None).unwrap();
    let mut records: Vec<_> =
        audit::read(chain, audit::Filter::default()).unwrap().map(Result::unwrap).collect();
    // Records of transactions that a killed worker did not commit.
    let voided = records.iter().filter(|record| record.event == "voided");
    let voided: BTreeSet<u64> = voided
        .flat_map(|record| record.data["from"].as_u64().unwrap()..=record.data["to"].as_u64().unwrap())
        .collect();
    records.retain(|record| !voided.contains(&record.seq));
    let mut requests: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    let mut by_question: BTreeMap<String, String> = BTreeMap::new();
    let mut ids: BTreeMap<String, String> = BTreeMap::new();
    for record in &records {
        let text = |name: &str| record.data[name].as_str().map(str::to_owned);
        if record.event == "received" {
            let key = text("request").unwrap();
            by_question.insert(text("question").unwrap(), key.clone());
            ids.insert(text("id").unwrap(), key);
        }
        let key = text("request").or_else(|| by_question.get(&text("question")?).cloned());
        if let Some(key) = key {
            requests.entry(key).or_default().push(&record.event);
        }
    }
    let withdrawn =
        records.iter().filter(|record| record.event == "ended" && record.data["status"] == "withdrawn");
    let withdrawn: BTreeSet<&str> =
        withdrawn.map(|record| record.data["request"].as_str().unwrap()).collect();
    for (key, events) in &requests {
        let count = |wanted: &str| events.iter().filter(|event| **event == wanted).count();
        assert_eq!((count("received"), count("ended")), (1, 1), "{key}: {events:?}");
        assert!(count("decided") <= 1 && count("started") <= 1, "{key}: {events:?}");
        assert_eq!((events.first(), events.last()), (Some(&"received"), Some(&"ended")), "{key}: {events:?}");
        assert_eq!(count("withdrawn"), usize::from(withdrawn.contains(key.as_str())), "{key}: {events:?}");
        let position = |wanted: &str| events.iter().position(|event| *event == wanted);
        if let Some(started) = position("started") {
            assert!(position("decided").is_some_and(|decided| decided < started), "{key}: {events:?}");
        }
    }
    for id in ran {
        let events = ids.get(*id).and_then(|key| requests.get(key));
        assert!(events.is_some_and(|events| events.contains(&"started")), "{id} ran unrecorded: {events:?}");
    }
}

/// The verification detects a flipped bit, at a hundred positions of the file.
fn check_flips(chain: &Path) {
    let file = chain.join("audit.jsonl");
    let good = std::fs::read(&file).unwrap();
    let copy = tempfile::tempdir().unwrap();
    for number in 0..100 {
        let mut bad = good.clone();
        let at = number * good.len() / 100;
        bad[at] ^= 1 << (number % 8);
        std::fs::write(copy.path().join("audit.jsonl"), &bad).unwrap();
        assert!(audit::verify(copy.path(), None).is_err(), "byte {at}");
    }
}
