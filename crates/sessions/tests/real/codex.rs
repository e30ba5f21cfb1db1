//! codex.

use crate::kit::World;
use crate::scenes;
use outpost_testkit::{AgentHome, require};

#[test]
fn a_conversation_streams_uses_tools_and_goes_on() {
    let world = require!(World::new("codex"));
    scenes::talks_works_and_remembers(&world, "auto");
}

#[test]
fn each_mode_lets_it_write_where_it_may() {
    let world = require!(World::new("codex"));
    scenes::plan_only_reads(&world);
    // Not below the directory for temporary files, which it may always write to.
    let outside = world.home().join("outside.txt");
    let touch = format!("[[sh: touch {}]]", outside.display());
    let session = world.create("code");
    world.send(&session, &touch).ends("result");
    assert!(!outside.exists());
    world.set_mode(&session, "auto");
    world.send(&session, &touch).ends("result");
    assert!(outside.exists());
}

#[test]
fn ask_mode_does_what_a_human_allows() {
    let world = require!(World::new("codex"));
    scenes::asks_and_obeys(&world);
    scenes::stops_in_a_question(&world);
}

#[test]
fn in_ask_mode_a_change_of_a_file_is_shown_and_asked_about() {
    let world = require!(World::new("codex"));
    let session = world.create("ask");
    let mut stream = world.open(&session, "[[write: asked.txt | hi]]");
    let question = stream.until("approval");
    assert_eq!(question["tool"], "edit");
    let change = &question["input"]["changes"][0];
    assert!(
        change["path"].as_str().unwrap().ends_with("asked.txt") && change["diff"] == "hi\n",
        "{question}"
    );
    assert!(!world.has("asked.txt"));
    world.decide(&["allow", question["approval"].as_str().unwrap()]);
    stream.rest().ends("result");
    assert!(world.has("asked.txt"));
}

#[test]
fn failures_say_what_failed_and_lose_nothing() {
    let world = require!(World::new("codex"));
    let session = world.create("auto");
    world.send(&session, "hello there").ends("result");
    world.send(&session, "[[status: 500]]").fails("codex", &["high demand"]);
    world.send(&session, "[[cut]]").fails("codex", &["stream disconnected before completion"]);
    let after = world.send(&session, "[[history]]").ends("result");
    assert!(after.text().ends_with("the first was: hello there"), "{after:#?}");
}

#[test]
fn a_bad_key_is_told_with_what_to_do() {
    let world = require!(World::with("codex", "", &[("FAKE_KEY", "bad")]));
    let session = world.create("auto");
    world.send(&session, "hello").fails("codex", &["401 Unauthorized", "Hint: log in", "codex login"]);
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let world = require!(World::new("codex"));
    scenes::stops_in_text(&world, "auto");
    scenes::stops_in_a_tool(&world, "auto");
}

#[test]
fn a_conversation_that_is_gone_is_said_to_be() {
    let world = require!(World::new("codex"));
    let session = world.create("auto");
    world.send(&session, "hello").ends("result");
    std::fs::remove_dir_all(world.home().join(".codex/sessions")).unwrap();
    scenes::begins_anew_after_a_lost_conversation(&world, &session);
}

/// Without it on PATH codex warns before it has a thread.
#[test]
fn a_turn_begins_with_init_with_and_without_bubblewrap_on_the_path() {
    for has_bubblewrap in [false, true] {
        let bin = tempfile::tempdir().unwrap();
        let codex = require!(AgentHome::cli("codex"));
        if has_bubblewrap {
            let bundled = codex.parent().unwrap().parent().unwrap().join("codex-resources/bwrap");
            std::os::unix::fs::symlink(bundled, bin.path().join("bwrap")).unwrap();
        }
        let path = [("PATH", bin.path().to_str().unwrap())];
        let world = require!(World::with("codex", "", &path));
        for mode in ["auto", "code", "ask"] {
            let events = world.send(&world.create(mode), "hello there").ends("result");
            assert_eq!(events.0[0]["subtype"], "init", "{mode}: {events:#?}");
            let messages = events.0.iter().filter_map(|event| event["message"].as_str());
            let messages: Vec<&str> = messages.collect();
            assert!(messages.iter().all(|text| !text.starts_with('{')), "{mode}: {events:#?}");
            let warns = messages.iter().any(|text| text.contains("could not find bubblewrap on PATH"));
            assert_eq!(warns, !has_bubblewrap, "{mode}: {events:#?}");
        }
    }
}

#[test]
fn an_error_of_the_api_is_told_in_its_words() {
    let world = require!(World::new("codex"));
    let session = world.create("auto");
    let failed = world.send(&session, "[[status: 400]]").fails("codex", &["scripted status 400"]);
    for event in &failed.0 {
        let message = event["message"].as_str().unwrap_or_default();
        assert!(!message.contains('{'), "{failed:#?}");
    }
}

#[test]
fn it_works_in_a_sandbox_and_cannot_write_its_settings() {
    let world = require!(World::with("codex", "", &[]));
    scenes::works_in_a_sandbox(&world, &[".codex/config.toml", ".codex/hooks.json"]);
}
