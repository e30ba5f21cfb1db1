//! Rows about pkexec and polkit: empty vectors, and callers that are gone.

use crate::gate::{Gate, GateOptions, Sent, send_as};
use crate::kit::{decoded, plain, with};
use outpost_testkit::{require, stamp};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

/// There is no command without a name, and neither vector is ever read beyond its end.
#[test]
fn pkexec_cve_2021_4034_argc_zero() {
    let mut gate = Gate::start();
    let file = gate.path("ran");
    let tail = json!(["touch", file]);
    for (number, pipeline) in [
        json!([]),
        json!([[]]),
        json!([[], tail]),
        json!([tail, []]),
        json!([[""]]),
        json!([["", "x"]]),
        json!([tail, [""]]),
    ]
    .into_iter()
    .enumerate()
    {
        for privileged in [true, false] {
            let id = format!("{number} {privileged}");
            // What would be read as arguments, were it read at all.
            let more = json!({"privileged": privileged, "env": {"LANG": "C", "TERM": "xterm"}});
            gate.refused(&with(plain(&id, pipeline.clone()), more));
        }
    }
    assert!(!file.exists());
    // Vectors that are shortest and emptiest, but whole.
    let request = with(plain("a", json!([["env"]])), json!({"env": {"LC_ALL": ""}}));
    let answer = gate.run(&request);
    let text = String::from_utf8(decoded(&answer["stdout"])).unwrap();
    assert!(text.lines().any(|line| line == "LC_ALL="), "{text}");
    assert_eq!(text.lines().count(), 5, "{text}");
}

/// A caller that is gone is nobody: not root, not the next one; what it asked for is withdrawn and never run.
#[test]
fn polkit_cve_2021_3560_caller_gone_is_taken_for_root() {
    let mut gate = Gate::start();
    let file = gate.path("ran");
    let request =
        |id: &str| json!({"id": id, "time": stamp(0), "pipeline": [["touch", file]], "session": id});
    // At once after the last byte, while it is asked about, and while somebody decides.
    for number in 0..8 {
        drop(gate.send(&request(&format!("at once {number}"))));
    }
    let (sent, question) = gate.ask_for("asked", &request("asked"));
    let Sent::Ours(client) = sent else { panic!("it is ours") };
    drop(client);
    gate.approver().settled(&question);
    let told = gate.approver().decide(&question, json!({"allow": true}));
    assert_eq!(told["is"], "failed", "{told}");
    let text = String::from_utf8(gate.audit()).unwrap();
    let own = format!("\"uid\":{}", outpost_sys::limits::effective_uid());
    for received in text.lines().filter(|line| line.contains("\"event\":\"received\"")) {
        assert!(received.contains(&own), "{received}");
    }
    // All of them are over, and none has run.
    let mut left = gate.approver().tell(&json!({"do": "list"}));
    let begun = std::time::Instant::now();
    while left["questions"].as_array().is_none_or(|questions| !questions.is_empty()) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{left}");
        outpost_testkit::pause();
        left = gate.approver().tell(&json!({"do": "list"}));
    }
    assert!(!file.exists());
    assert!(!text.contains("\"event\":\"started\""), "{text}");
}

/// Who is not the daemon's user is nobody on the agent's socket, root included; who may not decide, on the approver's.
#[test]
fn polkit_cve_2021_3560_another_user_is_nobody() {
    require!(outpost_testkit::root());
    const OWN: u32 = 65_534;
    const OTHER: u32 = 65_533;
    let mut gate = Gate::with(GateOptions { uid: Some(OWN), ..GateOptions::default() });
    // With everything that the file system could say against it taken away.
    let run = gate.daemon().dir().join("run");
    let [broker, approvals] = ["broker.sock", "approvals.sock"].map(|name| run.join(name));
    for (path, mode) in [(gate.daemon().dir(), 0o755), (&run, 0o755), (&broker, 0o666), (&approvals, 0o666)] {
        std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
    }
    let line = plain("a", json!([["true"]])).to_string();
    let got = |sent: std::process::Child| String::from_utf8(sent.wait_with_output().unwrap().stdout).unwrap();
    for uid in [0, OTHER] {
        assert_eq!(got(send_as(uid, &broker, &line)), "", "uid {uid}");
    }
    for request in [json!({"do": "enroll"}), json!({"do": "list"}), json!({"do": "prove", "secret": ""})] {
        assert_eq!(got(send_as(OTHER, &approvals, &request.to_string())), "");
    }
    // Nobody was asked, and no id was used up.
    let answer = gate.run(&plain("a", json!([["id", "-u"]])));
    assert_eq!(decoded(&answer["stdout"]), format!("{OWN}\n").as_bytes(), "{answer}");
}
