//! Rows about openclaw, its derivatives, and Cursor: the authority to decide, and the scope of a grant.

use crate::fixture::Fixture;
use crate::kit::{plain, script, with};
use outpost_approvals::signing::base64;
use outpost_testkit::approver::{self, hello};
use outpost_testkit::{ApproverKey, stamp};
use serde_json::{Value, json};
use std::fs::OpenOptions;
use std::io::Write;
use std::os::unix::fs::symlink;

/// A grant covers an exact digest. Scripts and interpreters cannot have one.
#[test]
fn openclaw_cve_2026_29607_27183_31993_and_28391_always_stored_for_the_wrapper() {
    let mut fixture = Fixture::start();
    let (shell, own) = (fixture.path("honest"), fixture.path("script"));
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
        // As the only stage and as a later one.
        for (at, pipeline) in [json!([argv]), json!([["true"], argv])].into_iter().enumerate() {
            let session = json!({"session": format!("{id} {at}")});
            let (_sent, question) = fixture.ask(&with(plain(&format!("{id} {at}"), pipeline), session));
            assert_eq!(question["rememberable"], false, "{argv}");
            for remember in [json!({"times": 1}), json!({"minutes": 1})] {
                let reply =
                    fixture.approver().decide(&question, json!({"allow": true, "remember": remember}));
                assert_eq!(reply["is"], "failed", "{argv}: {reply}");
            }
        }
    }
    // A rule cannot allow an interpreter either.
    for program in ["/bin/sh", "/usr/bin/env", "/usr/bin/perl", "/usr/bin/find", shell.to_str().unwrap()] {
        let rule = format!(
            "[[rule]]\nname = \"all\"\ndecision = \"allow\"\ncommand = [\"{program}\", {{ rest = true }}]\nprivileged = false\n"
        );
        std::fs::write(fixture.rules(), rule).unwrap();
        let answer = fixture.answer_unasked(&plain(&format!("rule {program}"), json!([["true"]])));
        assert_eq!(answer["status"], "denied", "{answer}");
        assert!(answer["message"].as_str().unwrap().contains("no rule can allow it"), "{answer}");
    }
}

/// No input of a requester, on either socket, is a decision.
#[test]
fn openclaw_cve_2026_28466_approval_fields_from_the_caller() {
    let mut fixture = Fixture::start();
    let file = fixture.path("ran");
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
    let (sent, question) = fixture.ask(&request("a", &more));
    // An approver's message on the broker socket is an invalid request.
    let decide = json!({"do": "decide", "id": question["id"], "digest": question["digest"], "allow": true});
    assert_eq!(fixture.send(&decide).answer()["status"], "error");
    assert_eq!(fixture.send(&with(decide.clone(), json!({"time": stamp(0)}))).answer()["status"], "error");
    // On the approvals socket, without an approver's key.
    let socket = fixture.daemon().dir().join("run/approvals.sock");
    let host = fixture.approver().request(&hello());
    let allow = json!({"allow": true});
    let own_key = ApproverKey::random();
    let unsigned = base64(&approver::statement(&host, &question, &allow).encode());
    let denial = fixture.approver().key().decision(&host, &question, &json!({"allow": false}));
    for request in [
        decide.clone(),
        with(decide, json!({"signature": "human"})),
        json!({"do": "decide", "statement": unsigned}),
        json!({"do": "decide", "statement": unsigned, "signature": ""}),
        json!({"do": "decide", "statement": unsigned, "signature": "human"}),
        // An approver's signature of another statement.
        json!({"do": "decide", "statement": unsigned, "signature": denial["signature"]}),
        own_key.decision(&host, &question, &allow),
        json!({"do": "revoke", "id": question["id"]}),
        own_key.enrollment(&host),
        json!({"do": "change_key", "statement": unsigned, "signature": denial["signature"]}),
        json!({"do": "enroll"}),
        json!({"do": "enroll", "force": true}),
        json!({"do": "prove"}),
        json!({"do": "prove", "secret": ""}),
    ] {
        let reply = crate::fixture::Approver::connect(&socket).request(&request);
        assert_eq!(reply["is"], "failed", "{request}: {reply}");
        assert!(!reply.to_string().contains("touch"), "the reply reveals the question: {reply}");
    }
    assert!(!file.exists());
    // The approver's decision covers the displayed digest and counts once.
    let other = with(question.clone(), json!({"digest": "0".repeat(64)}));
    assert_eq!(fixture.approver().decide(&other, json!({"allow": true}))["is"], "failed");
    assert_eq!(fixture.approver().decide(&question, json!({"allow": false}))["is"], "decided");
    assert_eq!(fixture.approver().decide(&question, json!({"allow": true}))["is"], "failed");
    assert_eq!(sent.answer()["status"], "denied");
    assert!(!file.exists());
}

/// A grant covers the content. Any change invalidates it.
#[test]
fn cursor_cve_2025_54136_and_54133_approved_entry_changed_later() {
    let mut fixture = Fixture::start();
    let tool = fixture.path("tool");
    std::fs::copy("/usr/bin/printf", &tool).unwrap();
    let request = |id: &str, words: &[&str]| {
        let argv: Vec<&str> = std::iter::once(tool.to_str().unwrap()).chain(words.iter().copied()).collect();
        plain(id, json!([argv]))
    };
    let (sent, question) = fixture.ask(&request("a", &["x", "y"]));
    // The title includes the arguments.
    assert!(question["title"].as_str().unwrap().ends_with("tool x y"), "{question}");
    fixture.approver().allow_times(&question, 100);
    sent.answer();
    assert_eq!(fixture.answer_unasked(&request("b", &["x", "y"]))["decision"], "grant");
    let changed: [&[&str]; 5] = [&["x", "y", ""], &["x", "yz"], &["x"], &["xy"], &["x y"]];
    for (number, words) in changed.into_iter().enumerate() {
        fixture.ask_and_withdraw(&request(&format!("c{number}"), words));
    }
    for (id, more) in [
        ("env", json!({"env": {"LANG": "C"}})),
        ("cwd", json!({"cwd": "/tmp"})),
        ("agent", json!({"forward_agent": true})),
        ("stages", json!({"pipeline": [[tool, "x", "y"], ["cat"]]})),
        ("root", json!({"privileged": true})),
    ] {
        fixture.ask_and_withdraw(&with(request(id, &["x", "y"]), more));
    }
    assert_eq!(fixture.answer_unasked(&request("d", &["x", "y"]))["decision"], "grant");
    // Rewritten in place: same inode, same bytes, other mtime.
    std::fs::write(&tool, std::fs::read("/usr/bin/printf").unwrap()).unwrap();
    fixture.ask_and_withdraw(&request("rewritten", &["x", "y"]));
    // One more byte, which does not change the behaviour.
    OpenOptions::new().append(true).open(&tool).unwrap().write_all(b"\0").unwrap();
    fixture.ask_and_withdraw(&request("e", &["x", "y"]));
    // A new file with the same bytes.
    std::fs::remove_file(&tool).unwrap();
    std::fs::copy("/usr/bin/printf", &tool).unwrap();
    let question = fixture.ask_and_withdraw(&request("f", &["x", "y"]));
    // A revoked grant is gone.
    let grants = fixture.approver().request(&json!({"do": "grants"}));
    for grant in grants["grants"].as_array().unwrap() {
        let reply = fixture.approver().request(&json!({"do": "revoke", "id": grant["id"]}));
        assert_eq!(reply["is"], "revoked", "{reply}");
    }
    assert!(
        fixture.approver().request(&json!({"do": "grants"}))["grants"].as_array().unwrap().is_empty(),
        "{question}"
    );
}
