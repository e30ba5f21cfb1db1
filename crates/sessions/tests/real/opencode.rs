//! opencode. A turn costs it six seconds of computing, so there are few.

use crate::kit::World;
use crate::scenes;
use outpost_testkit::require;
use serde_json::json;

#[test]
fn a_conversation_streams_uses_tools_and_goes_on() {
    let world = require!(World::new("opencode"));
    scenes::talks_works_and_remembers(&world, "auto");
}

#[test]
fn plan_mode_writes_nothing() {
    let world = require!(World::new("opencode"));
    scenes::plan_only_reads(&world);
}

#[test]
fn ask_mode_does_what_a_human_allows() {
    let world = require!(World::new("opencode"));
    scenes::asks_and_obeys(&world);
}

/// After a server error it tries again for ever, and says nothing.
#[test]
fn silence_ends_with_the_operators_limit() {
    let world = require!(World::with("opencode", "silence_timeout_s = 20", &[]));
    let session = world.create("auto");
    world.send(&session, "[[status: 500]]").fails("opencode", &["said nothing for too long"]);
    world.assert_nothing_left();
}

/// After a cut stream, too.
#[test]
fn an_interrupt_ends_tries_without_end() {
    let world = require!(World::new("opencode"));
    let session = world.create("auto");
    let stream = world.open(&session, "[[cut]]");
    world.model.wait_request(|request| request.body.to_string().contains("[[cut]]"));
    world.interrupt(&session);
    stream.rest().ends("interrupted");
    world.assert_nothing_left();
}

#[test]
fn a_bad_key_is_told_with_what_to_do() {
    let bad = r#"{"provider":{"fake":{"options":{"apiKey":"bad"}}}}"#;
    let world = require!(World::with("opencode", "", &[("OPENCODE_CONFIG_CONTENT", bad)]));
    let session = world.create("auto");
    world.send(&session, "hello").fails("opencode", &["Hint: log in", "opencode auth login"]);
}

#[test]
fn a_conversation_that_is_gone_is_said_to_be() {
    let world = require!(World::new("opencode"));
    let session = world.create("auto");
    let unknown = json!({ "sessionId": session, "sdkSessionId": "ses_000000000000000000000000000000" });
    world.call("session.resume", &unknown);
    scenes::begins_anew_after_a_lost_conversation(&world, &session);
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let world = require!(World::new("opencode"));
    scenes::stops_in_text(&world, "auto");
    scenes::stops_in_a_tool(&world, "auto");
}

#[test]
fn it_works_in_a_sandbox_and_cannot_write_its_settings() {
    let world = require!(World::with("opencode", "", &[]));
    scenes::works_in_a_sandbox(
        &world,
        &[".config/opencode/package-lock.json", ".config/opencode/opencode.json"],
    );
}
