//! Rows about openclaw, its kin, and Cursor: who decides, and what a decision is remembered for.

use crate::gate::Gate;
use crate::kit::{plain, script, with};
use outpost_approvals::signing::base64;
use outpost_testkit::approver::{self, hello};
use outpost_testkit::{ApproverKey, stamp};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::symlink;

/// What is remembered is an exact digest, and never for what runs what it is given.
#[test]
fn openclaw_cve_2026_29607_27183_31993_and_28391_always_stored_for_the_wrapper() {
    let mut gate = Gate::start();
    let (shell, own) = (gate.path("honest"), gate.path("script"));
    symlink("/bin/sh", &shell).unwrap();
    script(&own, "true");
    for (number, argv) in [
        json!(["sh", "-c", "true"]),
        json!(["/bin/dash", "-c", "true"]),
        json!([shell, "-c", "true"]),
        json!([own]),
        json!(["env", "true"]),
        json!(["perl", "-e", "1"]),
        json!(["nice", "true"]),
        json!(["find", "/nowhere"]),
        json!(["xargs", "true"]),
        json!(["timeout", "1", "true"]),
        json!(["setsid", "true"]),
    ]
    .into_iter()
    .enumerate()
    {
        let id = number.to_string();
        // In any stage.
        for (at, pipeline) in [json!([argv]), json!([["true"], argv])].into_iter().enumerate() {
            let session = json!({"session": format!("{id} {at}")});
            let (_sent, question) = gate.ask(&with(plain(&format!("{id} {at}"), pipeline), session));
            assert_eq!(question["rememberable"], false, "{argv}");
            for remember in [json!({"times": 1}), json!({"minutes": 1})] {
                let told = gate.approver().decide(&question, json!({"allow": true, "remember": remember}));
                assert_eq!(told["is"], "failed", "{argv}: {told}");
            }
        }
    }
    // Nor can a rule allow one.
    for program in ["/bin/sh", "/usr/bin/env", "/usr/bin/perl", "/usr/bin/find", shell.to_str().unwrap()] {
        let rule = format!(
            "[[rule]]\nname = \"all\"\ndecision = \"allow\"\ncommand = [\"{program}\", {{ rest = true }}]\nprivileged = false\n"
        );
        std::fs::write(gate.rules(), rule).unwrap();
        let answer = gate.unasked(&plain(&format!("rule {program}"), json!([["true"]])));
        assert_eq!(answer["status"], "denied", "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("no rule can allow it"), "{answer}");
    }
}

/// Nothing that a requester can say, on either socket, is a decision.
#[test]
fn openclaw_cve_2026_28466_approval_fields_from_the_caller() {
    let mut gate = Gate::start();
    let file = gate.path("ran");
    let more = json!({
        "approved": true, "allow": true, "decision": "human", "approved_by": "uid 0", "approval": {"allow": true}, "grant": "all",
        "status": "ok", "ask": "off", "security": "full", "rule": "all", "why": {"decision": "human", "by": "uid 0"},
        "question": "none", "started": true, "remember": {"times": 100}, "unattended": true, "digest": "0"
    });
    let request = |id: &str, more: &Value| {
        with(
            json!({"id": id, "time": stamp(0), "pipeline": [["touch", file]], "privileged": false}),
            more.clone(),
        )
    };
    let (sent, question) = gate.ask(&request("a", &more));
    // What an approver would send, from the agent, on the agent's socket: no request at all.
    let decide = json!({"do": "decide", "id": question["id"], "digest": question["digest"], "allow": true});
    assert_eq!(gate.send(&decide).answer()["status"], "error");
    assert_eq!(gate.send(&with(decide.clone(), json!({"time": stamp(0)}))).answer()["status"], "error");
    // On the approver's, without an approver's key.
    let socket = gate.daemon().dir().join("run/approvals.sock");
    let host = gate.approver().tell(&hello());
    let allow = json!({"allow": true});
    let own_key = ApproverKey::random();
    let unsigned = base64(&approver::statement(&host, &question, &allow).encode());
    let denial = gate.approver().key().decision(&host, &question, &json!({"allow": false}));
    for request in [
        decide.clone(),
        with(decide, json!({"signature": "human"})),
        json!({"do": "decide", "statement": unsigned}),
        json!({"do": "decide", "statement": unsigned, "signature": ""}),
        json!({"do": "decide", "statement": unsigned, "signature": "human"}),
        // An approver's signature, over something else.
        json!({"do": "decide", "statement": unsigned, "signature": denial["signature"]}),
        own_key.decision(&host, &question, &allow),
        json!({"do": "revoke", "id": question["id"]}),
        own_key.enrolment(&host),
        json!({"do": "change_key", "statement": unsigned, "signature": denial["signature"]}),
        json!({"do": "enroll"}),
        json!({"do": "enroll", "force": true}),
        json!({"do": "prove"}),
        json!({"do": "prove", "secret": ""}),
    ] {
        let told = crate::gate::Approver::connect(&socket).tell(&request);
        assert_eq!(told["is"], "failed", "{request}: {told}");
        assert!(!told.to_string().contains("touch"), "it tells what is asked: {told}");
    }
    assert!(!file.exists());
    // The approver's own answer is about the digest that was shown, and stands once.
    let other = with(question.clone(), json!({"digest": "0".repeat(64)}));
    assert_eq!(gate.approver().decide(&other, json!({"allow": true}))["is"], "failed");
    assert_eq!(gate.approver().decide(&question, json!({"allow": false}))["is"], "decided");
    assert_eq!(gate.approver().decide(&question, json!({"allow": true}))["is"], "failed");
    assert_eq!(sent.answer()["status"], "denied");
    assert!(!file.exists());
}

/// An approval is of content, and dies with any change of it.
#[test]
fn cursor_cve_2025_54136_and_54133_approved_entry_changed_later() {
    let mut gate = Gate::start();
    let tool = gate.path("tool");
    std::fs::copy("/usr/bin/printf", &tool).unwrap();
    let request = |id: &str, words: &[&str]| {
        let argv: Vec<&str> = std::iter::once(tool.to_str().unwrap()).chain(words.iter().copied()).collect();
        plain(id, json!([argv]))
    };
    let (sent, question) = gate.ask(&request("a", &["x", "y"]));
    // The arguments are in it.
    assert!(question["title"].as_str().unwrap().ends_with("tool x y"), "{question}");
    gate.approver().allow_often(&question, 100);
    sent.answer();
    assert_eq!(gate.unasked(&request("b", &["x", "y"]))["decision"], "grant");
    let changed: [&[&str]; 5] = [&["x", "y", ""], &["x", "yz"], &["x"], &["xy"], &["x y"]];
    for (number, words) in changed.into_iter().enumerate() {
        gate.asks(&request(&format!("c{number}"), words));
    }
    for (id, more) in [
        ("env", json!({"env": {"LANG": "C"}})),
        ("cwd", json!({"cwd": "/tmp"})),
        ("agent", json!({"forward_agent": true})),
        ("stages", json!({"pipeline": [[tool, "x", "y"], ["cat"]]})),
        ("root", json!({"privileged": true})),
    ] {
        gate.asks(&with(request(id, &["x", "y"]), more));
    }
    assert_eq!(gate.unasked(&request("d", &["x", "y"]))["decision"], "grant");
    // Written anew in its place: the same number, the same bytes, another time.
    std::fs::write(&tool, std::fs::read("/usr/bin/printf").unwrap()).unwrap();
    gate.asks(&request("anew", &["x", "y"]));
    // One byte more in the file, which does not even change what it does.
    OpenOptions::new().append(true).open(&tool).unwrap().write_all(b"\0").unwrap();
    gate.asks(&request("e", &["x", "y"]));
    // And the same bytes again are another file all the same.
    std::fs::remove_file(&tool).unwrap();
    std::fs::copy("/usr/bin/printf", &tool).unwrap();
    let question = gate.asks(&request("f", &["x", "y"]));
    // Revoked is revoked.
    let grants = gate.approver().tell(&json!({"do": "grants"}));
    for grant in grants["grants"].as_array().unwrap() {
        let told = gate.approver().tell(&json!({"do": "revoke", "id": grant["id"]}));
        assert_eq!(told["is"], "revoked", "{told}");
    }
    assert!(
        gate.approver().tell(&json!({"do": "grants"}))["grants"].as_array().unwrap().is_empty(),
        "{question}"
    );
}
