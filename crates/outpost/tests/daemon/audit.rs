//! `outpost audit`: the records of real requests, checked and printed.

use crate::approval_fixture::{ApprovalFixture, answer, text};
use serde_json::Value;

/// Makes one approved and one denied request. Returns both questions.
fn history(fixture: &ApprovalFixture) -> (Value, Value) {
    let mut watcher = fixture.watch();
    let mut client = fixture.ask("one", &["echo", "\u{e9}"]);
    let allowed = watcher.asked();
    fixture.decide(&["approve", allowed["id"].as_str().unwrap()]);
    assert_eq!(answer(&mut client)["status"], "ok");
    watcher.settled();
    let mut client = fixture.ask("two", &["true"]);
    let denied = watcher.asked();
    fixture.decide(&["deny", denied["id"].as_str().unwrap(), "--note", "no"]);
    assert_eq!(answer(&mut client)["status"], "denied");
    (allowed, denied)
}

fn lines(fixture: &ApprovalFixture, arguments: &[&str]) -> Vec<String> {
    let done = fixture.run(&[&["audit"], arguments].concat());
    assert!(done.status.success(), "{arguments:?}: {done:?}");
    text(&done.stdout).lines().map(str::to_owned).collect()
}

/// Waits until this many ends of requests are recorded.
fn wait_ended(fixture: &ApprovalFixture, events: usize) {
    let started = std::time::Instant::now();
    while lines(fixture, &["show", "--event", "ended"]).len() < events {
        assert!(started.elapsed() < std::time::Duration::from_secs(60), "{:?}", lines(fixture, &["show"]));
        outpost_testkit::pause();
    }
}

#[test]
fn a_request_can_be_followed_from_its_arrival_to_its_end() {
    let fixture = ApprovalFixture::enrolled();
    let (allowed, _) = history(&fixture);
    wait_ended(&fixture, 2);
    let question = allowed["id"].as_str().unwrap();
    let story = lines(&fixture, &["show", "--request", question]);
    let events: Vec<&str> = story.iter().map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    assert_eq!(events, ["received", "shown", "decided", "started", "ended"], "{story:?}");
    assert!(story[0].contains("with own rights echo '\\u{e9}'"), "{story:?}");
    assert!(story[2].contains("approved") && story[2].contains("with outpost approvals"), "{story:?}");
    assert!(story[4].contains("status ok exit 0"), "{story:?}");
    assert!(story.iter().all(|line| line.bytes().all(|byte| (b' '..=b'~').contains(&byte))), "{story:?}");
    let key = story[0].split_whitespace().skip_while(|word| *word != "request").nth(1).unwrap();
    assert_eq!(lines(&fixture, &["show", "--request", key]), story);
    assert_eq!(lines(&fixture, &["show", "--request", "one"]), story);
    let decided = lines(&fixture, &["show", "--event", "decided", "--since", "1h"]);
    assert!(
        decided.last().unwrap().contains("denied") && decided.last().unwrap().contains("note no"),
        "{decided:?}"
    );
    assert!(lines(&fixture, &["show", "--since", "2999-01-01"]).is_empty());
}

#[test]
fn the_export_equals_the_file() {
    let fixture = ApprovalFixture::enrolled();
    history(&fixture);
    wait_ended(&fixture, 2);
    let exported = fixture.run(&["audit", "export"]).stdout;
    assert_eq!(exported, std::fs::read(fixture.path("state/approvals/audit/audit.jsonl")).unwrap());
    assert_eq!(lines(&fixture, &["show", "--json"]).join("\n") + "\n", text(&exported));
}

#[test]
fn a_changed_byte_and_a_truncated_end_are_detected() {
    let fixture = ApprovalFixture::enrolled();
    history(&fixture);
    wait_ended(&fixture, 2);
    let holds = lines(&fixture, &["verify"]);
    assert!(
        holds[0].starts_with("the chain is intact: ") && holds[0].ends_with("in 1 file, from number 1"),
        "{holds:?}"
    );
    let head = holds[1].strip_prefix("head ").unwrap().to_owned();
    lines(&fixture, &["verify", "--head", &head]);
    let fails = |dir: &str, arguments: &[&str], why: &str| {
        let done = fixture.run(&[&["audit", "verify", "--dir", dir], arguments].concat());
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        assert!(text(&done.stderr).contains(why) && done.stdout.is_empty(), "{done:?}");
    };
    let original = std::fs::read(fixture.path("state/approvals/audit/audit.jsonl")).unwrap();
    std::fs::create_dir(fixture.path("copy")).unwrap();
    let copy = |bytes: &[u8]| std::fs::write(fixture.path("copy/audit.jsonl"), bytes).unwrap();
    let mut changed = original.clone();
    let third = original.split(|byte| *byte == b'\n').take(2).map(|line| line.len() + 1).sum::<usize>();
    changed[third + 30] ^= 1;
    copy(&changed);
    fails("copy", &[], "copy/audit.jsonl:3: ");
    let without_last = original[..original.len() - 1].iter().rposition(|byte| *byte == b'\n').unwrap();
    copy(&original[..=without_last]);
    fails("copy", &["--head", &head], "is missing");
    fails("nowhere", &[], "nowhere");
}

/// `outpost ask` first probes the broker's capabilities. That is no request for a command.
#[test]
fn the_capability_probe_of_ask_leaves_no_refusal_record() {
    let fixture = ApprovalFixture::enrolled();
    let mut watcher = fixture.watch();
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| fixture.run(&["ask", "--unprivileged", "--", "true"]));
        let question = watcher.asked();
        fixture.decide(&["approve", question["id"].as_str().unwrap()]);
        asking.join().unwrap()
    });
    assert!(asked.status.success(), "{asked:?}");
    assert_eq!(lines(&fixture, &["show", "--event", "refused"]), Vec::<String>::new());
    // A refused request is recorded with its command.
    assert!(!fixture.run(&["ask", "--unprivileged", "--", "/no/such/program"]).status.success());
    let refused = lines(&fixture, &["show", "--event", "refused"]);
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].contains("with own rights /no/such/program because"), "{refused:?}");
}
