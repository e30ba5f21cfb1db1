//! Tests with the real opencode. Each turn takes six seconds of CPU time, so there are few.

use crate::kit::World;
use crate::scenarios;
use outpost_testkit::require;
use serde_json::json;

#[test]
fn a_conversation_streams_uses_tools_and_remembers() {
    let world = require!(World::new("opencode"));
    scenarios::answers_uses_tools_and_remembers(&world, "auto");
}

#[test]
fn plan_mode_writes_nothing() {
    let world = require!(World::new("opencode"));
    scenarios::plan_only_reads(&world);
}

#[test]
fn ask_mode_obeys_the_decisions() {
    let world = require!(World::new("opencode"));
    scenarios::obeys_decisions(&world);
}

/// opencode retries forever after a server error, without output.
#[test]
fn the_silence_limit_ends_endless_retries() {
    let world = require!(World::with("opencode", "silence_timeout_s = 20", &[]));
    let session = world.create("auto");
    world.send(&session, "[[status: 500]]").fails("opencode", &["wrote no output for too long"]);
    world.assert_nothing_left();
}

/// The same after a cut stream.
#[test]
fn an_interrupt_ends_endless_retries() {
    let world = require!(World::new("opencode"));
    let session = world.create("auto");
    let stream = world.open(&session, "[[cut]]");
    world.model.wait_request(|request| request.body.to_string().contains("[[cut]]"));
    world.interrupt(&session);
    stream.rest().ends("interrupted");
    world.assert_nothing_left();
}

#[test]
fn a_bad_key_is_reported_with_a_hint() {
    let bad = r#"{"provider":{"fake":{"options":{"apiKey":"bad"}}}}"#;
    let world = require!(World::with("opencode", "", &[("OPENCODE_CONFIG_CONTENT", bad)]));
    let session = world.create("auto");
    world.send(&session, "hello").fails("opencode", &["Hint: log in", "opencode auth login"]);
}

#[test]
fn a_missing_conversation_is_reported() {
    let world = require!(World::new("opencode"));
    let session = world.create("auto");
    let unknown = json!({ "sessionId": session, "sdkSessionId": "ses_000000000000000000000000000000" });
    world.call("session.resume", &unknown);
    scenarios::replaces_a_missing_conversation(&world, &session);
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let world = require!(World::new("opencode"));
    scenarios::is_interrupted_in_text(&world, "auto");
    scenarios::is_interrupted_in_a_tool(&world, "auto");
}

#[test]
fn a_sandboxed_agent_works_and_cannot_write_its_settings() {
    let world = require!(World::with("opencode", "", &[]));
    scenarios::works_in_a_sandbox(
        &world,
        &[".config/opencode/package-lock.json", ".config/opencode/opencode.json"],
    );
}
