//! `outpost audit`: the records of real requests, checked and printed.

use crate::desk::{Desk, answer, text};
use serde_json::Value;

/// One request that was allowed and one that was denied; the keys of both.
fn history(desk: &Desk) -> (Value, Value) {
    let mut watcher = desk.watch();
    let mut client = desk.ask("one", &["echo", "\u{e9}"]);
    let allowed = watcher.asked();
    desk.decide(&["allow", allowed["id"].as_str().unwrap()]);
    assert_eq!(answer(&mut client)["status"], "ok");
    watcher.settled();
    let mut client = desk.ask("two", &["true"]);
    let denied = watcher.asked();
    desk.decide(&["deny", denied["id"].as_str().unwrap(), "--note", "no"]);
    assert_eq!(answer(&mut client)["status"], "denied");
    (allowed, denied)
}

fn lines(desk: &Desk, arguments: &[&str]) -> Vec<String> {
    let done = desk.run(&[&["audit"], arguments].concat());
    assert!(done.status.success(), "{arguments:?}: {done:?}");
    text(&done.stdout).lines().map(str::to_owned).collect()
}

/// Until the end of the first request is recorded, which nobody waits for.
fn wait_ended(desk: &Desk, events: usize) {
    let begun = std::time::Instant::now();
    while lines(desk, &["show", "--event", "ended"]).len() < events {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "{:?}", lines(desk, &["show"]));
        outpost_testkit::pause();
    }
}

#[test]
fn a_request_can_be_followed_from_its_arrival_to_its_end() {
    let desk = Desk::enrolled();
    let (allowed, _) = history(&desk);
    wait_ended(&desk, 2);
    let question = allowed["id"].as_str().unwrap();
    let story = lines(&desk, &["show", "--request", question]);
    let events: Vec<&str> = story.iter().map(|line| line.split_whitespace().nth(2).unwrap()).collect();
    assert_eq!(events, ["received", "shown", "decided", "started", "ended"], "{story:?}");
    assert!(story[0].contains("with own rights echo '\\u{e9}'"), "{story:?}");
    assert!(story[2].contains("approved") && story[2].contains("with outpost approvals"), "{story:?}");
    assert!(story[4].contains("status ok exit 0"), "{story:?}");
    assert!(story.iter().all(|line| line.bytes().all(|byte| (b' '..=b'~').contains(&byte))), "{story:?}");
    let key = story[0].split_whitespace().skip_while(|word| *word != "request").nth(1).unwrap();
    assert_eq!(lines(&desk, &["show", "--request", key]), story);
    assert_eq!(lines(&desk, &["show", "--request", "one"]), story);
    let decided = lines(&desk, &["show", "--event", "decided", "--since", "1h"]);
    assert!(
        decided.last().unwrap().contains("denied") && decided.last().unwrap().contains("note no"),
        "{decided:?}"
    );
    assert!(lines(&desk, &["show", "--since", "2999-01-01"]).is_empty());
}

#[test]
fn every_record_is_exported_as_it_stands_in_the_file() {
    let desk = Desk::enrolled();
    history(&desk);
    wait_ended(&desk, 2);
    let exported = desk.run(&["audit", "export"]).stdout;
    assert_eq!(exported, std::fs::read(desk.path("state/approvals/audit/audit.jsonl")).unwrap());
    assert_eq!(lines(&desk, &["show", "--json"]).join("\n") + "\n", text(&exported));
}

#[test]
fn a_byte_that_was_changed_is_found_and_so_is_an_end_that_was_cut_off() {
    let desk = Desk::enrolled();
    history(&desk);
    wait_ended(&desk, 2);
    let holds = lines(&desk, &["verify"]);
    assert!(
        holds[0].starts_with("the chain holds: ") && holds[0].ends_with("in 1 file, from number 1"),
        "{holds:?}"
    );
    let head = holds[1].strip_prefix("head ").unwrap().to_owned();
    lines(&desk, &["verify", "--head", &head]);
    let fails = |dir: &str, arguments: &[&str], why: &str| {
        let done = desk.run(&[&["audit", "verify", "--dir", dir], arguments].concat());
        assert_eq!(done.status.code(), Some(1), "{done:?}");
        assert!(text(&done.stderr).contains(why) && done.stdout.is_empty(), "{done:?}");
    };
    let original = std::fs::read(desk.path("state/approvals/audit/audit.jsonl")).unwrap();
    std::fs::create_dir(desk.path("copy")).unwrap();
    let copy = |bytes: &[u8]| std::fs::write(desk.path("copy/audit.jsonl"), bytes).unwrap();
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

/// `outpost ask` first learns what the broker understands. That is no request for a command.
#[test]
fn asking_leaves_no_refusal_behind_where_nothing_was_refused() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    let asked = std::thread::scope(|scope| {
        let asking = scope.spawn(|| desk.run(&["ask", "--unprivileged", "--", "true"]));
        let question = watcher.asked();
        desk.decide(&["allow", question["id"].as_str().unwrap()]);
        asking.join().unwrap()
    });
    assert!(asked.status.success(), "{asked:?}");
    assert_eq!(lines(&desk, &["show", "--event", "refused"]), Vec::<String>::new());
    // One that is refused is recorded, with what it was about.
    assert!(!desk.run(&["ask", "--unprivileged", "--", "/no/such/program"]).status.success());
    let refused = lines(&desk, &["show", "--event", "refused"]);
    assert_eq!(refused.len(), 1, "{refused:?}");
    assert!(refused[0].contains("with own rights /no/such/program because"), "{refused:?}");
}
