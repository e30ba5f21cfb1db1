//! Tests with the real codex.

use crate::kit::World;
use crate::scenarios;
use outpost_testkit::{AgentHome, require};

#[test]
fn a_conversation_streams_uses_tools_and_remembers() {
    let world = require!(World::new("codex"));
    scenarios::answers_uses_tools_and_remembers(&world, "auto");
}

#[test]
fn each_mode_limits_where_codex_writes() {
    let world = require!(World::new("codex"));
    scenarios::plan_only_reads(&world);
    // Not below the temporary directory, which codex may always write.
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
fn ask_mode_obeys_the_decisions() {
    let world = require!(World::new("codex"));
    scenarios::obeys_decisions(&world);
    scenarios::is_interrupted_in_a_question(&world);
}

#[test]
fn ask_mode_shows_and_asks_about_file_changes() {
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
fn failures_are_reported_and_the_conversation_survives() {
    let world = require!(World::new("codex"));
    let session = world.create("auto");
    world.send(&session, "hello there").ends("result");
    world.send(&session, "[[status: 500]]").fails("codex", &["high demand"]);
    world.send(&session, "[[cut]]").fails("codex", &["stream disconnected before completion"]);
    let after = world.send(&session, "[[history]]").ends("result");
    assert!(after.text().ends_with("the first was: hello there"), "{after:#?}");
}

#[test]
fn a_bad_key_is_reported_with_a_hint() {
    let world = require!(World::with("codex", "", &[("FAKE_KEY", "bad")]));
    let session = world.create("auto");
    world.send(&session, "hello").fails("codex", &["401 Unauthorized", "Hint: log in", "codex login"]);
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let world = require!(World::new("codex"));
    scenarios::is_interrupted_in_text(&world, "auto");
    scenarios::is_interrupted_in_a_tool(&world, "auto");
}

#[test]
fn a_missing_conversation_is_reported() {
    let world = require!(World::new("codex"));
    let session = world.create("auto");
    world.send(&session, "hello").ends("result");
    std::fs::remove_dir_all(world.home().join(".codex/sessions")).unwrap();
    scenarios::replaces_a_missing_conversation(&world, &session);
}

/// Without bubblewrap on PATH, codex warns before it has a thread.
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
fn an_api_error_is_reported_as_text() {
    let world = require!(World::new("codex"));
    let session = world.create("auto");
    let failed = world.send(&session, "[[status: 400]]").fails("codex", &["scripted status 400"]);
    for event in &failed.0 {
        let message = event["message"].as_str().unwrap_or_default();
        assert!(!message.contains('{'), "{failed:#?}");
    }
}

#[test]
fn a_sandboxed_agent_works_and_cannot_write_its_settings() {
    let world = require!(World::with("codex", "", &[]));
    scenarios::works_in_a_sandbox(&world, &[".codex/config.toml", ".codex/hooks.json"]);
}
