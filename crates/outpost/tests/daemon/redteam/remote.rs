//! A hostile host between an approver's client and a real host, which tries to obtain a decision for the real host.

use super::{Outcome, promised, table};
use crate::approval_fixture::ApprovalFixture;
use crate::support::until;
use outpost_approvals::signing::{self, HOST_NAMESPACE, Signer};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;

/// Clears the screen in 7 and 8 bits, reverses the text direction, and forges a line.
const ESCAPES: &str = "x\u{1b}[2J\u{9b}2J\u{202e}\r\noutpost: approved";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Lie {
    /// It proves its own key and forwards decisions.
    OwnKey,
    /// The same, but the client knows another key for this address.
    KnownName,
    /// It replays a greeting of the real host.
    RecordedGreeting,
    /// It changes the text of the question.
    OtherText,
    Escapes,
}

const LIES: [(&str, Lie); 5] = [
    ("passes a decision that was made for it on to another host", Lie::OwnKey),
    ("takes the place of a host whose key the client knows", Lie::KnownName),
    ("poses as another host with a recorded greeting", Lie::RecordedGreeting),
    ("relays a question of another host with another text", Lie::OtherText),
    ("writes escape sequences to the approver's terminal", Lie::Escapes),
];

struct Hostile {
    lie: Lie,
    real: PathBuf,
    signer: Signer,
}

impl Hostile {
    /// Forwards each line to the real host and returns the manipulated reply.
    fn serve(&self, client: UnixStream) {
        let mut out = client.try_clone().unwrap();
        let mut real = BufReader::new(outpost_testkit::connect(&self.real).unwrap());
        for line in BufReader::new(client).lines().map_while(Result::ok) {
            let request: Value = serde_json::from_str(&line).unwrap();
            let mut sent = request.clone();
            if self.lie == Lie::RecordedGreeting && request["do"] == "hello" {
                sent["nonce"] = json!("another");
            }
            writeln!(real.get_mut(), "{sent}").unwrap();
            let mut answer = String::new();
            real.read_line(&mut answer).unwrap();
            let answer = self.twisted(&request, serde_json::from_str(&answer).unwrap());
            let _gone = writeln!(out, "{answer}");
        }
    }

    fn twisted(&self, request: &Value, mut answer: Value) -> Value {
        match (self.lie, answer["is"].as_str().unwrap()) {
            (Lie::OwnKey | Lie::KnownName, "hello") => {
                let head = answer["head"].as_str().unwrap().parse().unwrap();
                let greeting = signing::hello_message(request["nonce"].as_str().unwrap(), &head);
                answer["host"] = json!(self.signer.key().to_openssh().unwrap());
                let signature = self.signer.sign(HOST_NAMESPACE, &greeting).unwrap();
                answer["signature"] = json!(signing::base64(&signature));
            }
            (Lie::OtherText, "question") => answer["question"]["title"] = json!("date"),
            (Lie::Escapes, is) if is != "hello" => return json!({ "is": "failed", "why": ESCAPES }),
            _ => {}
        }
        answer
    }
}

fn attempt(lie: Lie) -> Outcome {
    let fixture = ApprovalFixture::enrolled();
    let mut watcher = fixture.watch();
    let _waiting = fixture.ask("one", &["true"]);
    let question = watcher.asked();
    let dir = fixture.path("hostile");
    std::fs::create_dir(&dir).unwrap();
    std::fs::set_permissions(&dir, PermissionsExt::from_mode(0o700)).unwrap();
    let socket = dir.join("approvals.sock");
    let listener = UnixListener::bind(&socket).unwrap();
    let real = fixture.path("run/approvals.sock");
    let hostile = Arc::new(Hostile { lie, real, signer: Signer::random().unwrap() });
    std::thread::spawn(move || {
        for client in listener.incoming().map_while(Result::ok) {
            hostile.serve(client);
        }
    });
    if lie == Lie::KnownName {
        let known = std::fs::read_to_string(fixture.path("state/known_hosts")).unwrap();
        let (_, key) = known.lines().next().unwrap().split_once(' ').unwrap();
        std::fs::write(fixture.path("state/known_hosts"), format!("{} {key}\n", socket.display())).unwrap();
    }
    let id = question["id"].as_str().unwrap();
    let done = fixture.approvals(&["approve", id, "--socket", socket.to_str().unwrap()]);
    let shown = String::from_utf8([done.stdout, done.stderr].concat()).unwrap();
    eprintln!("{lie:?}: {shown}");
    let acts = |character: char| (character.is_control() && character != '\n') || character == '\u{202e}';
    let questions = || fixture.daemon.status().faces.waiting.unwrap().questions;
    let is_open = questions() == 0
        || shown.contains(acts)
        || shown.lines().any(|line| line.starts_with("outpost: approved"));
    // The same client can decide on the real host, so only the lie caused the refusal.
    if !is_open {
        fixture.decide(&["approve", id]);
        until("it is decided", || questions() == 0);
    }
    if is_open { Outcome::Open } else { Outcome::Held }
}

#[test]
fn a_hostile_host_gets_no_decision_for_another_one() {
    let rows = table("A hostile host");
    let names: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(names, LIES.map(|(name, _)| name), "the rows are the attempts");
    for ((name, lie), row) in LIES.iter().zip(&rows) {
        assert_eq!(Some(attempt(*lie)), promised(&row[1]), "{name}");
    }
}
