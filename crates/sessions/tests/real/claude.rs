//! Tests with the real claude.

use crate::kit::World;
use crate::scenarios;
use outpost_control::wire::ProcessInfo;
use outpost_testkit::require;
use serde_json::json;

const SANDBOX: &[(&str, &str)] = &[("IS_SANDBOX", "1")];

#[test]
fn a_conversation_streams_uses_tools_and_remembers() {
    let world = require!(World::new("claude"));
    scenarios::answers_uses_tools_and_remembers(&world, "code");
}

/// One process for all messages of the session.
#[test]
fn a_warm_process_answers_the_next_message_and_remembers() {
    let world = require!(World::with("claude", "claude_keep_s = 600", &[]));
    let session = world.create("code");
    let pids = |text: &str| {
        let begun = std::time::Instant::now();
        world.send(&session, text).ends("result");
        eprintln!("{text}: {:?}", begun.elapsed());
        let processes = world.daemon.ask::<Vec<ProcessInfo>>("list", &());
        let own = processes.into_iter().filter(|process| process.scope == session);
        own.map(|process| process.pid).collect::<Vec<_>>()
    };
    let first = pids("hello there");
    assert_eq!(first.len(), 1);
    world.send(&session, "[[status: 500]]").fails("claude", &["500"]);
    assert_eq!(pids("and again"), first);
    let last = world.send(&session, "[[history]]").ends("result");
    assert!(last.text().ends_with("the first was: hello there"), "{last:#?}");
    world.call("session.destroy", &json!({ "sessionId": session }));
    world.assert_nothing_left();
}

#[test]
fn plan_mode_writes_nothing() {
    let world = require!(World::new("claude"));
    scenarios::plan_only_reads(&world);
}

#[test]
fn auto_mode_does_everything_if_the_operator_declares_a_sandbox() {
    let world = require!(World::with("claude", "", SANDBOX));
    let session = world.create("auto");
    let outside = world.daemon.dir().join("outside.txt");
    world.send(&session, &format!("[[sh: touch {}]]", outside.display())).ends("result");
    assert!(outside.exists());
    world.set_mode(&session, "code");
    let within = world.daemon.dir().join("within.txt");
    world.send(&session, &format!("[[sh: touch {}]]", within.display())).ends("result");
    assert!(!within.exists(), "in code mode it keeps to its directory");
}

#[test]
fn auto_mode_as_root_is_refused_with_a_hint() {
    require!(outpost_testkit::root());
    let world = require!(World::new("claude"));
    let session = world.create("auto");
    let refused =
        world.send(&session, "hello").fails("claude", &["root/sudo privileges", "Hint:", "IS_SANDBOX=1"]);
    assert_eq!(refused.last()["exitCode"], 1);
    world.set_mode(&session, "code");
    world.send(&session, "hello").ends("result");
}

#[test]
fn ask_mode_obeys_the_decisions() {
    let world = require!(World::new("claude"));
    scenarios::obeys_decisions(&world);
    scenarios::is_interrupted_in_a_question(&world);
}

#[test]
fn failures_are_reported_and_the_conversation_survives() {
    let world = require!(World::new("claude"));
    let session = world.create("code");
    world.send(&session, "hello there").ends("result");
    world.send(&session, "[[status: 500]]").fails("claude", &["500"]);
    // claude retries and gets the whole answer.
    let cut = world.send(&session, "[[cut]] once").ends("result");
    assert!(cut.text().contains("once"), "{cut:#?}");
    let params = json!({ "sessionId": session, "model": "no-such-model" });
    world.call("session.set_model", &params);
    world.send(&session, "hello").fails("claude", &["no-such-model"]);
    world.call("session.set_model", &json!({ "sessionId": session, "model": null }));
    let after = world.send(&session, "[[history]]").ends("result");
    assert!(after.text().ends_with("the first was: hello there"), "{after:#?}");
}

#[test]
fn a_bad_key_is_reported_with_a_hint() {
    let world = require!(World::with("claude", "", &[("ANTHROPIC_API_KEY", "bad")]));
    let session = world.create("code");
    world.send(&session, "hello").fails("claude", &["Hint: log in", "ANTHROPIC_API_KEY"]);
}

#[test]
fn an_interrupt_leaves_nothing_behind() {
    let world = require!(World::new("claude"));
    scenarios::is_interrupted_in_text(&world, "code");
    let world = require!(World::with("claude", "", SANDBOX));
    scenarios::is_interrupted_in_a_tool(&world, "auto");
}

#[test]
fn a_missing_conversation_is_reported() {
    let world = require!(World::new("claude"));
    let session = world.create("code");
    world.send(&session, "hello").ends("result");
    std::fs::remove_dir_all(world.home().join(".claude/projects")).unwrap();
    scenarios::replaces_a_missing_conversation(&world, &session);
}

#[test]
fn a_sandboxed_agent_works_and_cannot_write_its_settings() {
    let world = require!(World::with("claude", "", SANDBOX));
    scenarios::works_in_a_sandbox(&world, &[".claude/settings.json", ".claude.json", ".claude/hooks/hook"]);
}
