//! `outpost approvals`: decisions from scripts, and who may make them.

use crate::desk::{Desk, answer, text};
use outpost_testkit::require;
use serde_json::{Value, json};

fn id(question: &Value) -> &str {
    question["id"].as_str().unwrap()
}

#[test]
fn what_was_asked_is_listed_shown_and_runs_once_it_is_allowed() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    let file = desk.path("made");
    let mut client = desk.ask("one", &["touch", file.to_str().unwrap()]);
    let question = watcher.asked();
    let id = id(&question);
    let listed = desk.decide(&["list"]);
    assert!(listed.contains(id) && listed.contains(&format!("touch {}", file.display())), "{listed}");
    let shown = desk.decide(&["show", &id[..4]]);
    assert!(shown.contains(&format!("id       {id}")) && shown.contains("not checked by anybody"), "{shown}");
    let json: Value = serde_json::from_str(&desk.decide(&["show", "--json", id])).unwrap();
    assert_eq!(json, question);
    assert!(!file.exists());
    assert_eq!(desk.decide(&["allow", &id[..6]]), format!("approved {id}\n"));
    assert_eq!(answer(&mut client)["status"], "ok");
    assert!(file.exists());
    let settled = watcher.settled();
    assert_eq!((&settled["id"], &settled["allow"]), (&question["id"], &json!(true)));
    assert!(settled["by"].as_str().unwrap().contains("with outpost approvals"), "{settled}");
    assert_eq!(desk.decide(&["list", "--json"]), "[]\n");
}

#[test]
fn a_denial_brings_its_note_to_whoever_asked() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    let file = desk.path("made");
    let mut client = desk.ask("one", &["touch", file.to_str().unwrap()]);
    let question = watcher.asked();
    desk.decide(&["deny", id(&question), "--note", "not on a Friday"]);
    let denied = answer(&mut client);
    assert_eq!(
        (denied["status"].as_str(), denied["message"].as_str()),
        (Some("denied"), Some("not on a Friday"))
    );
    assert!(!file.exists());
}

#[test]
fn what_is_allowed_is_what_has_the_digest_that_was_shown() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    let mut client = desk.ask("one", &["true"]);
    let question = watcher.asked();
    let (id, digest) = (id(&question), question["digest"].as_str().unwrap());
    let wrong = digest.replace(|_: char| true, "0");
    let refused = desk.approvals(&["--secret-file", "secret", "allow", id, "--digest", &wrong]);
    assert_eq!(refused.status.code(), Some(1));
    assert!(text(&refused.stderr).contains("has another digest"), "{refused:?}");
    desk.decide(&["allow", id, "--digest", digest]);
    assert_eq!(answer(&mut client)["decision"], "human");
}

#[test]
fn an_id_that_is_unknown_short_or_of_several_decides_nothing() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    let _client = desk.ask("one", &["true"]);
    let question = watcher.asked();
    let fails = |arguments: &[&str], why: &str| {
        let done = desk.approvals(&[&["--secret-file", "secret"], arguments].concat());
        assert_eq!(done.status.code(), Some(1), "{arguments:?}: {done:?}");
        assert!(text(&done.stderr).contains(why) && done.stdout.is_empty(), "{arguments:?}: {done:?}");
    };
    fails(&["allow", &id(&question)[..3]], "at least 4 characters");
    fails(&["allow", "zzzz"], "there is no question zzzz");
    fails(&["show", "00000000-0000-4000-8000-000000000000"], "no question 00000000");
    fails(&["deny", "\u{1b}[2J\u{1b}[2J"], "\\u{1b}[2J");
    fails(&["revoke", "00000000-0000-4000-8000-000000000000"], "there is no grant");
    assert!(desk.decide(&["list"]).contains(id(&question)));
}

#[test]
fn what_is_remembered_runs_unasked_as_often_as_was_said_and_not_once_it_is_revoked() {
    let desk = Desk::enrolled();
    let mut watcher = desk.watch();
    let mut client = desk.ask("one", &["true"]);
    let question = watcher.asked();
    desk.decide(&["allow", id(&question), "--times", "2"]);
    assert_eq!(answer(&mut client)["decision"], "human");
    watcher.settled();
    assert_eq!(answer(&mut desk.ask("two", &["true"]))["decision"], "grant");
    let grants: Value = serde_json::from_str(&desk.decide(&["grants", "--json"])).unwrap();
    assert_eq!((&grants[0]["times_left"], &grants[0]["digest"]), (&json!(1), &question["digest"]));
    let grant = grants[0]["id"].as_str().unwrap();
    let listed = desk.decide(&["grants"]);
    assert!(listed.contains(grant) && listed.contains("1 time "), "{listed}");
    assert_eq!(desk.decide(&["revoke", &grant[..8]]), format!("revoked {grant}\n"));
    let mut client = desk.ask("three", &["true"]);
    desk.decide(&["deny", id(&watcher.asked())]);
    assert_eq!(answer(&mut client)["status"], "denied");
    assert_eq!(desk.decide(&["grants", "--json"]), "[]\n");
}

#[test]
fn the_user_who_may_be_asking_decides_nothing_without_the_secret() {
    let desk = Desk::own();
    let refused = |arguments: &[&str], why: &str| {
        let done = desk.approvals(arguments);
        assert_eq!(done.status.code(), Some(1), "{arguments:?}: {done:?}");
        assert!(text(&done.stderr).contains(why) && done.stdout.is_empty(), "{arguments:?}: {done:?}");
    };
    refused(&["list"], "there is no approver's secret yet");
    let secret = desk.approvals(&["enroll"]).stdout;
    assert_eq!(text(&secret).trim().len(), 32);
    refused(&["list"], "name the file that has it with --secret-file");
    refused(&["enroll"], "there is an approver's secret already");
    desk.write_secret("wrong", "0123456789abcdef0123456789abcdef\n");
    refused(&["list", "--secret-file", "wrong"], "this is not the approver's secret");
    refused(&["list", "--secret-file", "missing"], "cannot read the secret in missing");
    desk.write_secret("empty", " \n");
    refused(&["list", "--secret-file", "empty"], "there is no secret in empty");
    desk.write_secret("secret", &secret);
    desk.decide(&["list"]);
    std::fs::set_permissions(desk.path("secret"), std::os::unix::fs::PermissionsExt::from_mode(0o640))
        .unwrap();
    refused(&["list", "--secret-file", "secret"], "others can read the secret");
}

#[test]
fn a_new_secret_makes_the_old_one_void() {
    let desk = Desk::enrolled();
    let newer = desk.decide(&["enroll"]);
    let refused = desk.approvals(&["list", "--secret-file", "secret"]);
    assert!(text(&refused.stderr).contains("not the approver's secret"), "{refused:?}");
    desk.write_secret("secret", newer);
    desk.decide(&["list"]);
}

#[test]
fn root_decides_for_another_users_daemon_by_the_kernels_word() {
    let desk = require!(Desk::of_nobody());
    let mut watcher = desk.watch();
    let mut client = desk.ask("one", &["id", "-u"]);
    let question = watcher.asked();
    desk.decide(&["allow", id(&question)]);
    let done = answer(&mut client);
    assert_eq!((&done["status"], &done["stdout"]), (&"ok".into(), &"NjU1MzQK".into()), "{done}");
    assert!(done["approved_by"].as_str().unwrap().starts_with("uid 0 pid "), "{done}");
}

#[test]
fn who_has_no_daemon_is_told_how_to_start_one() {
    let desk = Desk::own();
    let done = desk.approvals(&["list", "--socket", "nowhere.sock"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        text(&done.stderr).contains("nowhere.sock") && text(&done.stderr).contains("outpost serve"),
        "{done:?}"
    );
}
