//! Rows about pkexec and polkit: empty argument vectors, and callers that disconnected.

use crate::fixture::{Fixture, FixtureOptions, Sent, send_as};
use crate::kit::{decoded, plain, with};
use outpost_testkit::{require, stamp};
use serde_json::json;
use std::os::unix::fs::PermissionsExt;

/// A command needs a name. Neither the argument nor the environment vector is read beyond its end.
#[test]
fn pkexec_cve_2021_4034_argc_zero() {
    let mut fixture = Fixture::start();
    let file = fixture.path("ran");
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
            // An overread of the argument vector would reach the environment.
            let more = json!({"privileged": privileged, "env": {"LANG": "C", "TERM": "xterm"}});
            fixture.refused(&with(plain(&id, pipeline.clone()), more));
        }
    }
    assert!(!file.exists());
    // The shortest valid vectors, with an empty value.
    let request = with(plain("a", json!([["env"]])), json!({"env": {"LC_ALL": ""}}));
    let answer = fixture.run(&request);
    let text = String::from_utf8(decoded(&answer["stdout"])).unwrap();
    assert!(text.lines().any(|line| line == "LC_ALL="), "{text}");
    assert_eq!(text.lines().count(), 5, "{text}");
}

/// A disconnected caller is never taken for root or for another process. Its request is withdrawn and does not run.
#[test]
fn polkit_cve_2021_3560_caller_gone_is_taken_for_root() {
    let mut fixture = Fixture::start();
    let file = fixture.path("ran");
    let request =
        |id: &str| json!({"id": id, "time": stamp(0), "pipeline": [["touch", file]], "session": id});
    // The caller disconnects directly after the last byte, during the question, and during the decision.
    for number in 0..8 {
        drop(fixture.send(&request(&format!("at once {number}"))));
    }
    let (sent, question) = fixture.ask_in_session("asked", &request("asked"));
    let Sent::Direct(client) = sent else { panic!("not a direct connection") };
    drop(client);
    fixture.approver().wait_settled(&question);
    let reply = fixture.approver().decide(&question, json!({"allow": true}));
    assert_eq!(reply["is"], "failed", "{reply}");
    let text = String::from_utf8(fixture.audit()).unwrap();
    let own = format!("\"uid\":{}", outpost_sys::process::effective_uid());
    for received in text.lines().filter(|line| line.contains("\"event\":\"received\"")) {
        assert!(received.contains(&own), "{received}");
    }
    // All requests are settled, and none has run.
    let mut pending = fixture.approver().request(&json!({"do": "list"}));
    let begun = std::time::Instant::now();
    while pending["questions"].as_array().is_none_or(|questions| !questions.is_empty()) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "{pending}");
        outpost_testkit::pause();
        pending = fixture.approver().request(&json!({"do": "list"}));
    }
    assert!(!file.exists());
    assert!(!text.contains("\"event\":\"started\""), "{text}");
}

/// The broker socket serves only the daemon's user, and not even root. The approvals socket refuses other users.
#[test]
fn polkit_cve_2021_3560_another_user_is_refused() {
    require!(outpost_testkit::root());
    const OWN: u32 = 65_534;
    const OTHER: u32 = 65_533;
    let mut fixture = Fixture::with(FixtureOptions { uid: Some(OWN), ..FixtureOptions::default() });
    // Remove all file system permissions that would prevent the connection.
    let run = fixture.daemon().dir().join("run");
    let [broker, approvals] = ["broker.sock", "approvals.sock"].map(|name| run.join(name));
    for (path, mode) in
        [(fixture.daemon().dir(), 0o755), (&run, 0o755), (&broker, 0o666), (&approvals, 0o666)]
    {
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
    // No question was asked, and the id is unused.
    let answer = fixture.run(&plain("a", json!([["id", "-u"]])));
    assert_eq!(decoded(&answer["stdout"]), format!("{OWN}\n").as_bytes(), "{answer}");
}
