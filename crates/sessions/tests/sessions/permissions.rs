//! Ask mode: permission requests of agents appear in the approval queue, and decisions reach the agent.

use crate::kit::{Host, check_turns, kinds, terminal_event};
use outpost_testkit::{Half, Noise, Sse};
use serde_json::{Value, json};
use std::sync::atomic::{AtomicBool, Ordering};

const ASK: &str = r#"ask q1 Bash {"command":"rm -rf build"}"#;

struct AskSession {
    host: Host,
    id: String,
}

impl AskSession {
    fn start(config: &str) -> AskSession {
        let host = Host::start_with(config, &[]);
        let enrolled = host.outpost(&["approvals", "enroll", "--no-passphrase"]);
        assert!(enrolled.status.success(), "{enrolled:?}");
        let id = host.create_with(json!({ "mode": "ask" }));
        AskSession { host, id }
    }

    fn decide(&self, arguments: &[&str]) -> String {
        let done = self.host.outpost(&[&["approvals"], arguments].concat());
        assert!(done.status.success(), "{arguments:?}: {done:?}");
        String::from_utf8(done.stdout).unwrap()
    }

    /// Allows all pending questions. The worker may die before or after a decision.
    fn allow_all(&self) {
        let with = |arguments: &[&str]| self.host.outpost(&[&["approvals"], arguments].concat()).stdout;
        let waiting: Vec<Value> = serde_json::from_slice(&with(&["list", "--json"])).unwrap_or_default();
        for question in waiting {
            with(&["allow", question["id"].as_str().unwrap()]);
        }
    }

    /// Asserts that these events withdraw the question and then end the turn.
    #[track_caller]
    fn assert_withdrawn(&self, events: &[Value], end: &str) {
        assert_eq!(kinds(events), ["approval", end], "{events:?}");
        assert_eq!((&events[0]["state"], &events[0]["tool"]), (&json!("withdrawn"), &json!("Bash")));
        assert_eq!(self.questions(), Vec::<Value>::new());
    }

    fn questions(&self) -> Vec<Value> {
        serde_json::from_str(&self.decide(&["list", "--json"])).unwrap()
    }
}

#[test]
fn a_question_is_queued_and_its_approval_reaches_the_agent() {
    let session = AskSession::start("");
    let mut stream = session.host.run(&session.id, &["init", ASK, "await q1", "result"]);
    let mut all = stream.until(|event| event["type"] == "approval");
    let asked = all.last().unwrap().clone();
    assert_eq!((&asked["state"], &asked["tool"]), (&json!("asked"), &json!("Bash")));
    assert_eq!(asked["input"], json!({ "command": "rm -rf build" }));
    let questions = session.questions();
    assert_eq!(questions.len(), 1);
    let id = questions[0]["id"].as_str().unwrap();
    assert_eq!(asked["approval"], id);
    let shown = session.decide(&["show", id]);
    for part in ["Claude wants to use Bash", "rm -rf build", &session.id, &session.host.text("project")] {
        assert!(shown.contains(part), "{part}: {shown}");
    }
    session.decide(&["allow", id]);
    all.extend(stream.rest());
    assert_eq!(kinds(&all), ["system", "approval", "approval", "text", "result"]);
    assert_eq!((&all[2]["state"], &all[2]["approval"]), (&json!("allowed"), &json!(id)));
    let answer = all[3]["content"].as_str().unwrap();
    let answer: Value = serde_json::from_str(answer.strip_prefix("answer q1: ").unwrap()).unwrap();
    assert_eq!(answer, json!({ "behavior": "allow", "updatedInput": { "command": "rm -rf build" } }));
    terminal_event(&all, 1);
    assert_eq!(session.questions(), Vec::<Value>::new());
}

#[test]
fn a_denial_reaches_the_agent_with_its_note() {
    let session = AskSession::start("");
    let mut stream = session.host.run(&session.id, &[ASK, "await q1", "result"]);
    let id = stream.event()["approval"].as_str().unwrap().to_owned();
    session.decide(&["deny", &id, "--note", "use make clean"]);
    let all = stream.rest();
    assert_eq!((&all[0]["state"], &all[0]["message"]), (&json!("denied"), &json!("use make clean")));
    assert_eq!(all[1]["content"], r#"answer q1: {"behavior":"deny","message":"use make clean"}"#);
    assert_eq!(all[2]["type"], "result");
}

#[test]
fn an_unanswered_question_is_denied_at_its_timeout() {
    let session = AskSession::start("[sessions]\nask_timeout_s = 1\n");
    let all = session.host.run(&session.id, &[ASK, "await q1", "result"]).rest();
    assert_eq!(kinds(&all), ["approval", "approval", "text", "result"]);
    assert_eq!(all[1]["state"], "expired");
    assert!(all[2]["content"].as_str().unwrap().contains("\"deny\""), "{}", all[2]);
    assert_eq!(session.questions(), Vec::<Value>::new());
}

#[test]
fn an_interrupt_withdraws_the_question() {
    let session = AskSession::start("");
    let mut stream = session.host.run(&session.id, &[ASK, "await q1", "result"]);
    stream.event();
    assert_eq!(session.questions().len(), 1);
    session.host.client().result("session.interrupt", json!({ "sessionId": session.id }));
    session.assert_withdrawn(&stream.rest(), "interrupted");
}

#[test]
fn destroying_a_session_withdraws_its_question() {
    let session = AskSession::start("");
    let mut stream = session.host.run(&session.id, &[ASK, "await q1", "result"]);
    stream.event();
    session.host.client().result("session.destroy", json!({ "sessionId": session.id }));
    session.assert_withdrawn(&stream.rest(), "interrupted");
}

#[test]
fn the_exit_of_the_agent_withdraws_its_question() {
    let session = AskSession::start("");
    let mut stream = session.host.run(&session.id, &[ASK, "wait @go", "exit 2"]);
    stream.event();
    assert_eq!(session.questions().len(), 1);
    session.host.touch("go");
    session.assert_withdrawn(&stream.rest(), "error");
}

#[test]
fn an_agent_can_cancel_its_question() {
    let session = AskSession::start("");
    let cancel = r#"line {"type":"control_cancel_request","request_id":"q1"}"#;
    let mut stream = session.host.run(&session.id, &[ASK, "wait @go", cancel, "wait @end", "result"]);
    stream.event();
    session.host.touch("go");
    let event = stream.event();
    assert_eq!((&event["type"], &event["state"]), (&json!("approval"), &json!("withdrawn")));
    assert_eq!(session.questions(), Vec::<Value>::new());
    session.host.touch("end");
    assert_eq!(kinds(&stream.rest()), ["result"]);
}

/// A question of 7 MB would exceed what an approver's client can show.
#[test]
fn an_oversized_question_is_denied_with_its_size_and_hash() {
    let session = AskSession::start("");
    let steps = ["init", ASK, "ask-large q2 7000000", "await q2", "await q1", "result"];
    let mut stream = session.host.run(&session.id, &steps);
    let mut all = stream.until(|event| event["type"] == "text");
    let denied = &all[2];
    assert_eq!((&denied["type"], &denied["state"]), (&json!("approval"), &json!("denied")), "{denied}");
    let input = json!({ "file_path": "large", "content": "x".repeat(7_000_000) }).to_string();
    let digest = outpost_ledger::hex(&<sha2::Sha256 as sha2::Digest>::digest(&input));
    let message = denied["message"].as_str().unwrap();
    assert!(message.contains(&format!("{} bytes", input.len())) && message.contains(&digest), "{message}");
    assert!(all[3]["content"].as_str().unwrap().contains(&digest), "the agent gets the reason: {}", all[3]);
    let questions = session.questions();
    assert_eq!(questions.len(), 1, "the oversized one is not queued");
    session.decide(&["allow", questions[0]["id"].as_str().unwrap()]);
    all.extend(stream.rest());
    terminal_event(&all, 1);
}

#[test]
fn a_flood_of_questions_is_denied_beyond_the_quota() {
    let session = AskSession::start("");
    let mut stream = session.host.run(&session.id, &["init", "ask-many 20000", "await n20000", "hang"]);
    let events = stream.until(|event| event["type"] == "text");
    let with = |state: &str| events.iter().filter(|event| event["state"] == state).count();
    assert_eq!((with("asked"), with("denied")), (32, 20_000 - 32));
    let questions = session.questions();
    assert_eq!(questions.len(), 32);
    // A decision makes room for another question and does not affect the others.
    session.decide(&["deny", questions[7]["id"].as_str().unwrap()]);
    assert_eq!(stream.event()["state"], "denied");
    session.host.client().result("session.interrupt", json!({ "sessionId": session.id }));
    let rest = stream.rest();
    assert_eq!(rest.len(), 32, "{rest:?}");
    assert!(rest[..31].iter().all(|event| event["state"] == "withdrawn"), "{rest:?}");
    assert_eq!(rest[31]["type"], "interrupted");
    assert_eq!(session.questions(), Vec::<Value>::new());
}

#[test]
fn several_questions_are_pending_at_once() {
    let session = AskSession::start("");
    let second = r#"ask q2 Write {"file_path":"x"}"#;
    let steps = ["init", ASK, second, "await q2", "await q1", "result"];
    let mut stream = session.host.run(&session.id, &steps);
    stream.event();
    let [one, two] = [(); 2].map(|()| stream.event()["approval"].as_str().unwrap().to_owned());
    session.decide(&["allow", &two]);
    session.decide(&["deny", &one]);
    let all = stream.rest();
    assert_eq!(kinds(&all), ["approval", "text", "approval", "text", "result"]);
    let texts = [&all[1], &all[3]].map(|event| event["content"].as_str().unwrap());
    assert!(texts[0].contains("q2: {\"behavior\":\"allow\""), "{}", texts[0]);
    assert!(texts[1].contains("q1: {\"behavior\":\"deny\""), "{}", texts[1]);
}

#[test]
fn nemesis_a_question_survives_the_worker() {
    let session = AskSession::start("");
    let host = &session.host;
    let mut stream = host.run(&session.id, &["init", ASK, "await q1", "result"]);
    let mut all = stream.until(|event| event["type"] == "approval");
    drop(stream);
    for _ in 0..3 {
        host.daemon().kill(Half::Worker);
    }
    let questions = host
        .wait("no question after the restart", || Some(session.questions()).filter(|all| !all.is_empty()));
    assert_eq!(questions.len(), 1);
    assert_eq!(questions[0]["id"], all[1]["approval"], "the same question");
    session.decide(&["allow", questions[0]["id"].as_str().unwrap()]);
    host.daemon().kill(Half::Worker);
    let begun = std::time::Instant::now();
    loop {
        assert!(begun.elapsed() < crate::kit::TIMEOUT, "{all:?}");
        let params = json!({ "sessionId": session.id, "cursor": all.len() });
        let Ok(mut stream) = host.client().try_stream("session.reconnect", &params) else {
            outpost_testkit::pause();
            continue;
        };
        let (events, end) = stream.rest_or_lost();
        all.extend(events);
        if end.is_ok() {
            break;
        }
    }
    assert_eq!(check_turns(&all, 1), [1]);
    assert_eq!(kinds(&all), ["system", "approval", "approval", "text", "result"]);
    assert!(all[3]["content"].as_str().unwrap().contains("\"allow\""));
    assert_eq!(session.questions(), Vec::<Value>::new());
}

#[test]
fn nemesis_questions_are_asked_and_answered_once_wherever_the_worker_dies() {
    let session = AskSession::start("");
    let host = &session.host;
    let asks: Vec<String> =
        (1..=6).map(|n| format!("ask q{n} Bash {{\"command\":\"echo {n}\"}}\nawait q{n}")).collect();
    let mut steps = vec!["init"];
    steps.extend(asks.iter().map(String::as_str));
    steps.push("result");
    drop(host.run(&session.id, &steps));
    let mut all: Vec<Value> = Vec::new();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let begun = std::time::Instant::now();
            while !over.load(Ordering::Acquire) && begun.elapsed() < crate::kit::TIMEOUT {
                session.allow_all();
                outpost_testkit::pause();
            }
        });
        let killing = scope.spawn(|| {
            let mut noise = Noise::new(7);
            for _ in 0..8 {
                (0..noise.below(60)).for_each(|_| drop(host.daemon().status()));
                host.daemon().kill(Half::Worker);
            }
        });
        let begun = std::time::Instant::now();
        let mut is_done = false;
        while !is_done {
            assert!(begun.elapsed() < crate::kit::TIMEOUT, "{all:?}; {}", host.daemon().log());
            let params = json!({ "sessionId": session.id, "cursor": all.len() });
            let Ok(mut stream) = host.client().try_stream("session.reconnect", &params) else {
                outpost_testkit::pause();
                continue;
            };
            loop {
                match stream.try_next() {
                    Ok(Some(Sse::Event(event))) if event["type"] == "ping" => {}
                    Ok(Some(Sse::Event(event))) => all.push(event),
                    other => {
                        is_done = matches!(other, Ok(Some(Sse::Done)));
                        break;
                    }
                }
            }
        }
        over.store(true, Ordering::Release);
        killing.join().unwrap();
    });
    terminal_event(&all, 1);
    let texts: Vec<&str> = all.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(texts.len(), 6, "{texts:?}");
    for (text, number) in texts.iter().zip(1..) {
        assert!(text.starts_with(&format!("answer q{number}: {{\"behavior\":\"allow\"")), "{text}");
    }
    let states =
        all.iter().filter(|event| event["type"] == "approval").map(|event| event["state"].as_str().unwrap());
    assert_eq!(states.collect::<Vec<_>>(), ["asked", "allowed"].repeat(6));
    assert_eq!(session.questions(), Vec::<Value>::new());
}

#[test]
fn a_warm_process_asks_in_every_turn() {
    let session = AskSession::start("[sessions]\nclaude_keep_s = 600\n");
    for (turn, stay) in [(1, "stay"), (2, ""), (3, "")] {
        let mut stream = session.host.run(&session.id, &["touch @pid", ASK, "await q1", "result", stay]);
        stream.until(|event| event["type"] == "approval");
        session.allow_all();
        let rest = stream.rest();
        assert_eq!(kinds(&rest), ["approval", "text", "result"], "turn {turn}: {rest:?}");
        assert!(rest[1]["content"].as_str().unwrap().contains("allow"), "{rest:?}");
    }
    let processes: Vec<Value> = session.host.daemon().ask("list", &());
    assert_eq!(processes.len(), 1, "{processes:?}");
    assert_eq!(processes[0]["pid"].to_string(), session.host.wait_file("pid"));
}
