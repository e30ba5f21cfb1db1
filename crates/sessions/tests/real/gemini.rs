//! Tests with the real gemini. Each turn takes two seconds of CPU time, so there are few.

use crate::kit::World;
use crate::scenarios;
use outpost_testkit::require;
use serde_json::json;

#[test]
fn a_conversation_streams_uses_tools_and_remembers() {
    let world = require!(World::new("gemini"));
    scenarios::answers_uses_tools_and_remembers(&world, "auto");
}

#[test]
fn plan_mode_writes_nothing() {
    let world = require!(World::new("gemini"));
    scenarios::plan_only_reads(&world);
}

/// The second turn loads the conversation within the minute of its creation. With the plain id, gemini would corrupt
/// it. The third turn, and one over the other interface, read the result.
#[test]
fn ask_mode_obeys_the_decisions_and_keeps_the_conversation() {
    let world = require!(World::new("gemini"));
    let settings = world.home().join(".gemini/settings.json");
    let mut given: serde_json::Value = serde_json::from_slice(&std::fs::read(&settings).unwrap()).unwrap();
    // A common setting: gemini deletes old or corrupt conversations at each start.
    given["general"]["sessionRetention"] = json!({ "enabled": true, "maxAge": "30d" });
    std::fs::write(&settings, given.to_string()).unwrap();
    let session = scenarios::obeys_decisions(&world);
    let third = world.send(&session, "[[history]]").ends("result");
    assert_eq!(third.text(), "I saw 3 prompts; the first was: [[sh: echo hi > allowed.txt]]");
    world.set_mode(&session, "auto");
    let fourth = world.send(&session, "[[history]]").ends("result");
    assert_eq!(fourth.text(), "I saw 4 prompts; the first was: [[sh: echo hi > allowed.txt]]");
    assert_eq!(third.conversation(), fourth.conversation());
}

#[test]
fn failures_are_reported_and_the_next_message_is_answered() {
    let world = require!(World::new("gemini"));
    let session = world.create("auto");
    world.send(&session, "[[cut]]").fails("gemini", &["terminated"]);
    world.send(&session, "hello").ends("result");
    world.send(&session, "[[status: 500]]").fails("gemini", &["scripted status 500"]);
    let after = world.send(&session, "[[history]]").ends("result");
    assert!(after.text().ends_with("the first was: hello"), "{after:#?}");
}

#[test]
fn a_bad_key_and_a_missing_conversation_are_reported_with_a_hint() {
    let world = require!(World::with("gemini", "", &[("GEMINI_API_KEY", "bad")]));
    let session = world.create("auto");
    world.send(&session, "hello").fails("gemini", &["Hint: log in", "GEMINI_API_KEY"]);
    let unknown = json!({ "sessionId": session, "sdkSessionId": "00000000-0000-4000-8000-000000000000" });
    world.call("session.resume", &unknown);
    world.send(&session, "hello").fails("gemini", &["Hint: the conversation to resume is not on this host"]);
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let world = require!(World::new("gemini"));
    scenarios::is_interrupted_in_text(&world, "auto");
    scenarios::is_interrupted_in_a_tool(&world, "auto");
}

#[test]
fn an_interrupt_in_a_question_leaves_nothing_behind() {
    let world = require!(World::new("gemini"));
    scenarios::is_interrupted_in_a_question(&world);
}

#[test]
fn a_sandboxed_agent_works_and_cannot_write_its_settings() {
    let world = require!(World::with("gemini", "", &[]));
    scenarios::works_in_a_sandbox(&world, &[".gemini/settings.json"]);
}
