//! Many clients that come and go, approvers that say this and that, and a worker that is killed all the time: nothing
//! runs twice, nothing runs unrecorded, and every client that waits is answered.

use base64::Engine as _;
use outpost_approvals::audit;
use outpost_testkit::approver::hello;
use outpost_testkit::{ApproverKey, Daemon, Noise, Which, stamp};
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

/// How long one request may take, kills and all.
const PATIENCE: Duration = Duration::from_secs(60);

/// What a client was told of its request, last.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Told {
    /// It left before it was told anything.
    Nothing,
    Answer {
        status: String,
        message: String,
        stdout: String,
    },
}

struct Site {
    broker: PathBuf,
    approvals: PathBuf,
    runs: PathBuf,
    next: AtomicUsize,
    over: AtomicBool,
    told: Mutex<BTreeMap<String, Told>>,
}

fn line(stream: &UnixStream) -> Option<String> {
    let mut line = String::new();
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    match BufReader::new(stream).read_line(&mut line) {
        Ok(0) => None,
        Ok(_) => Some(line),
        Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => panic!("no answer for a minute"),
        Err(_) => None,
    }
}

/// Asks until somebody answers; the same id every time, so that it cannot run twice.
fn client(site: &Site, seed: u64) {
    let mut noise = Noise::new(seed);
    loop {
        let number = site.next.fetch_add(1, Ordering::Relaxed);
        if number >= REQUESTS {
            return;
        }
        let id = format!("request-{number}");
        // Not the file itself: what a shell is given is compared before it runs.
        let script = "echo \"$1\" >> \"$2/runs\"; echo ran \"$1\"";
        let runs = site.runs.parent().unwrap().to_str().unwrap();
        let request = json!({
            "id": id, "time": stamp(0), "session": format!("client-{}", seed % 7), "reason": "chaos",
            "privileged": number.is_multiple_of(2), "pipeline": [["sh", "-c", script, "x", id, runs]],
        });
        let leaves = noise.below(4) == 0;
        let told = ask(site, &request, leaves.then(|| Duration::from_millis(noise.below(60))));
        if told != Told::Nothing && noise.below(4) == 0 {
            replay(site, &request);
        }
        site.told.lock().unwrap().insert(id, told);
    }
}

/// Whoever has heard a request can send it again, byte for byte: it does not become another one.
fn replay(site: &Site, request: &Value) {
    let Told::Answer { message, .. } = ask(site, request, None) else { panic!("{request} is not answered") };
    let refused = message.starts_with("duplicate request id") || message.starts_with("request too old");
    assert!(refused, "{request} was taken for a new one: {message}");
}

fn ask(site: &Site, request: &Value, leave_after: Option<Duration>) -> Told {
    let begun = Instant::now();
    loop {
        assert!(begun.elapsed() < PATIENCE, "nobody answers {request}");
        let Ok(mut stream) = outpost_testkit::connect(&site.broker) else {
            outpost_testkit::pause();
            continue;
        };
        if stream.write_all(format!("{request}\n").as_bytes()).is_err() {
            continue;
        }
        if let Some(wait) = leave_after {
            stream.set_read_timeout(Some(wait.max(Duration::from_millis(1)))).unwrap();
            let mut answer = String::new();
            if BufReader::new(&stream).read_line(&mut answer).is_err() {
                return Told::Nothing;
            }
            if !answer.is_empty() && !answer.contains("server busy") {
                return read(&answer);
            }
            continue;
        }
        match line(&stream) {
            // Commands whose clients have left run on.
            Some(answer) if answer.contains("server busy") => outpost_testkit::pause(),
            Some(answer) => return read(&answer),
            // The worker was killed before it had written the request down.
            None => continue,
        }
    }
}

fn read(answer: &str) -> Told {
    let answer: Value = serde_json::from_str(answer).unwrap();
    let text = |name: &str| answer[name].as_str().unwrap_or_default().to_owned();
    let stdout = base64::engine::general_purpose::STANDARD.decode(text("stdout")).unwrap();
    let stdout = String::from_utf8(stdout).unwrap();
    Told::Answer { status: text("status"), message: text("message"), stdout }
}

/// Decides about everything it sees, one way or the other, or leaves it to time.
fn approver(site: &Site, key: &ApproverKey, seed: u64) {
    let mut noise = Noise::new(seed);
    while !site.over.load(Ordering::Relaxed) {
        let Ok(stream) = outpost_testkit::connect(&site.approvals) else { continue };
        let say = |request: Value| -> Option<Value> {
            (&stream).write_all(format!("{request}\n").as_bytes()).ok()?;
            serde_json::from_str(&line(&stream)?).ok()
        };
        let Some(host) = say(hello()) else { continue };
        while !site.over.load(Ordering::Relaxed) {
            let Some(answer) = say(json!({"do": "list"})) else { break };
            for question in answer["questions"].as_array().unwrap() {
                let choice = noise.below(10);
                if choice == 9 {
                    continue;
                }
                if say(key.decision(&host, question, &json!({ "allow": choice < 7 }))).is_none() {
                    break;
                }
            }
        }
    }
}

#[test]
fn a_thousand_requests_run_at_most_once_whatever_dies() {
    outpost_testkit::require!(crate::kit::ours());
    let seed = u64::from_ne_bytes(outpost_sys::limits::random().unwrap());
    println!("seed {seed}");
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("outpost.toml");
    std::fs::write(&config, "[broker]\nask_timeout_s = 5\nrequests_per_minute = 0\npending_max = 0\npause_max_s = 0\ndenied_for_s = 0\n").unwrap();
    let daemon = Daemon::start_with(&crate::kit::binary(), &["--config", config.to_str().unwrap()]);
    let site = Arc::new(Site {
        broker: daemon.dir().join("run/broker.sock"),
        approvals: daemon.dir().join("run/approvals.sock"),
        runs: dir.path().join("runs"),
        next: AtomicUsize::new(0),
        over: AtomicBool::new(false),
        told: Mutex::default(),
    });
    let key = Arc::new(enroll(&site.approvals));
    let mut noise = Noise::new(seed);
    std::thread::scope(|scope| {
        for number in 0..2 {
            let (site, key) = (site.clone(), key.clone());
            scope.spawn(move || approver(&site, &key, seed ^ (number + 1000)));
        }
        let clients: Vec<_> = (0..CLIENTS as u64)
            .map(|number| {
                let site = site.clone();
                scope.spawn(move || client(&site, seed ^ number))
            })
            .collect();
        let mut kills = 0;
        while clients.iter().any(|client| !client.is_finished()) {
            // As many requests later, not so much time later.
            let target = site.told.lock().unwrap().len() + noise.below(40) as usize + 5;
            while site.told.lock().unwrap().len() < target
                && clients.iter().any(|client| !client.is_finished())
            {
                outpost_testkit::pause();
            }
            if kills < 25 && clients.iter().any(|client| !client.is_finished()) {
                daemon.kill(Which::Worker);
                kills += 1;
            }
        }
        site.over.store(true, Ordering::Relaxed);
        assert!(kills >= 10, "only {kills} kills");
        clients.into_iter().for_each(|client| client.join().unwrap());
    });
    settle(&daemon);
    check(&site, &daemon);
}

fn enroll(socket: &Path) -> ApproverKey {
    let stream = outpost_testkit::connect(socket).unwrap();
    let say = |request: Value| -> Value {
        (&stream).write_all(format!("{request}\n").as_bytes()).unwrap();
        serde_json::from_str(&line(&stream).unwrap()).unwrap()
    };
    let key = ApproverKey::random();
    let host = say(hello());
    assert_eq!(say(key.enrolment(&host))["is"], "key_changed");
    key
}

/// Until nothing of the broker is under way any more: every record is written then.
fn settle(daemon: &Daemon) {
    let begun = Instant::now();
    while daemon.list().iter().any(|process| process.face == "broker") {
        assert!(begun.elapsed() < PATIENCE, "still there: {:?}", daemon.list());
        outpost_testkit::pause();
    }
}

fn check(site: &Site, daemon: &Daemon) {
    let runs = std::fs::read_to_string(&site.runs).unwrap_or_default();
    let all: Vec<&str> = runs.lines().collect();
    let ran: BTreeSet<&str> = all.iter().copied().collect();
    assert_eq!(ran.len(), all.len(), "something ran twice");
    let told = site.told.lock().unwrap();
    let mut counts: BTreeMap<&str, usize> = BTreeMap::new();
    for (id, told) in told.iter() {
        let Told::Answer { status, message, stdout } = told else { continue };
        *counts.entry(status).or_default() += 1;
        match status.as_str() {
            "ok" => {
                assert!(ran.contains(id.as_str()), "{id} was told to have run");
                assert_eq!(*stdout, format!("ran {id}\n"));
            }
            "denied" | "timeout" => assert!(!ran.contains(id.as_str()), "{id} was {status} and ran"),
            // Cut off in the middle of its start, or asked again after its first connection was lost.
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

/// Every run has its records, in order, and each request begins once at most.
fn check_chain(chain: &Path, ran: &BTreeSet<&str>) {
    audit::verify(chain, None).unwrap();
    let mut records: Vec<_> =
        audit::read(chain, audit::Filter::default()).unwrap().map(Result::unwrap).collect();
    // What a killed worker had written down and not done.
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
    let left =
        records.iter().filter(|record| record.event == "ended" && record.data["status"] == "withdrawn");
    let left: BTreeSet<&str> = left.map(|record| record.data["request"].as_str().unwrap()).collect();
    for (key, events) in &requests {
        let of = |wanted: &str| events.iter().filter(|event| **event == wanted).count();
        assert_eq!((of("received"), of("ended")), (1, 1), "{key}: {events:?}");
        assert!(of("decided") <= 1 && of("started") <= 1, "{key}: {events:?}");
        assert_eq!((events.first(), events.last()), (Some(&"received"), Some(&"ended")), "{key}: {events:?}");
        assert_eq!(of("withdrawn"), usize::from(left.contains(key.as_str())), "{key}: {events:?}");
        let place = |wanted: &str| events.iter().position(|event| *event == wanted);
        if let Some(started) = place("started") {
            assert!(place("decided").is_some_and(|decided| decided < started), "{key}: {events:?}");
        }
    }
    for id in ran {
        let events = ids.get(*id).and_then(|key| requests.get(key));
        assert!(events.is_some_and(|events| events.contains(&"started")), "{id} ran unrecorded: {events:?}");
    }
}

/// One byte, anywhere: a hundred places of what is a large file by now.
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
