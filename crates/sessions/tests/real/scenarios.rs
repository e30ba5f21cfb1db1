//! Scenarios that every agent must pass.

use crate::kit::{Events, World, wait_for};
use serde_json::{Value, json};

/// A tool that never exits, and creates a file when it starts.
const ENDLESS: &str = "[[sh: touch begun; tail -f /dev/null]]";

/// A text that takes minutes.
const LONG: &str = "[[slow: 5000 0.05]]";

/// A turn with text, one with a tool, and one that remembers both.
pub(crate) fn answers_uses_tools_and_remembers(world: &World, mode: &str) {
    let session = world.create(mode);
    let first = world.send(&session, "hello there").ends("result");
    let (text, deltas) = first.partial();
    assert!(text == "You wrote: hello there" && deltas > 1, "{first:#?}");
    assert_eq!(first.text(), "You wrote: hello there");

    let second = world.send(&session, "[[sh: echo hi > made.txt; echo o''ut]]").ends("result");
    let tools = second.tools();
    let [(tool, Some(input), None), (same, None, Some(output))] = tools.as_slice() else {
        panic!("{second:#?}")
    };
    assert!(tool == same && tool.to_lowercase() == "bash", "{second:#?}");
    assert_eq!(input["command"], "echo hi > made.txt; echo o''ut");
    assert_eq!(output.trim(), "out");
    assert!(world.has("made.txt"));

    let third = world.send(&session, "[[history]]").ends("result");
    assert_eq!(third.text(), "I saw 3 prompts; the first was: hello there");
    let all = [first, second, third].map(|events| events.conversation());
    assert!(all.iter().all(|id| *id == all[0]), "{all:?}");
    // No process stays between turns.
    world.assert_nothing_left();
}

/// A sandboxed agent answers, uses tools and remembers. It cannot write its own settings.
pub(crate) fn works_in_a_sandbox(world: &World, settings: &[&str]) {
    let paths: Vec<_> = settings.iter().map(|name| world.home().join(name)).collect();
    let read = || paths.iter().map(|path| std::fs::read_to_string(path).ok()).collect::<Vec<_>>();
    let attack = paths.iter().map(|path| format!("echo planted >> {0}; mv {0} {0}.old; ", path.display()));
    let project = ".claude/settings.json .mcp.json .gemini/settings.json opencode.json";
    let attack = format!(
        "{} for f in {project}; do mkdir -p .claude .gemini; echo x > $f; done",
        attack.collect::<String>()
    );
    for kind in ["workspaceWrite", "readOnly"] {
        let session = world.create_confined("auto", &json!({ "type": kind }));
        let first = world.send(&session, "hello there").ends("result");
        assert_eq!(first.text(), "You wrote: hello there", "{kind}");
        let before = read();
        let made = format!("[[sh: echo hi > made-{kind}.txt; {attack}; echo o''ut]]");
        let second = world.send(&session, &made).ends("result");
        let output = second.tools().last().and_then(|(_, _, output)| output.map(str::to_owned));
        assert!(output.is_some_and(|output| output.contains("out")), "{second:#?}");
        assert_eq!(world.has(&format!("made-{kind}.txt")), kind == "workspaceWrite");
        assert_eq!(read(), before, "{kind}: its settings are the same");
        for name in project.split(' ') {
            let text = std::fs::read_to_string(world.work().join(name)).unwrap_or_default();
            assert!(!text.contains('x'), "{kind}: {name}: {text}");
        }
        let third = world.send(&session, "[[history]]").ends("result");
        assert_eq!(third.text(), "I saw 3 prompts; the first was: hello there", "{kind}");
        assert_eq!(third.conversation(), first.conversation(), "{kind}");
    }
    world.assert_nothing_left();
}

/// In plan mode no tool writes. After a change of the mode, the same session does.
pub(crate) fn plan_only_reads(world: &World) {
    let session = world.create("plan");
    let file = world.work().join("planned.txt");
    let both = format!("[[write: {0} | hi]] [[sh: touch {0}]]", file.display());
    world.send(&session, &both).ends("result");
    assert!(!file.exists());
    world.set_mode(&session, "code");
    world.send(&session, &format!("[[write: {} | hi]]", file.display())).ends("result");
    assert!(file.exists());
}

/// The agent obeys the decisions on its permission requests.
pub(crate) fn obeys_decisions(world: &World) -> String {
    let session = world.create("ask");
    let allowed = asked(world, &session, "[[sh: echo hi > allowed.txt]]", &["allow"]);
    assert_eq!(allowed.last()["type"], "result", "{allowed:#?}");
    assert!(world.has("allowed.txt"));
    let denied = asked(world, &session, "[[sh: echo hi > denied.txt]]", &["deny", "--note", "not that one"]);
    assert_eq!(denied.last()["type"], "result", "{denied:#?}");
    assert!(!world.has("denied.txt"));
    session
}

/// Sends a message with one permission request and decides it.
fn asked(world: &World, session: &str, message: &str, decision: &[&str]) -> Events {
    let mut stream = world.open(session, message);
    let question = stream.until("approval");
    let command = question["input"]["command"].as_str().unwrap();
    assert!(message.contains(command), "{question}");
    let id = question["approval"].as_str().unwrap();
    world.decide(&[&decision[..1], &[id], &decision[1..]].concat());
    let events = stream.rest();
    let states: Vec<&Value> = events.0.iter().filter_map(|event| event.get("state")).collect();
    let answered = if decision[0] == "allow" { "allowed" } else { "denied" };
    assert_eq!(states, ["asked", answered], "{events:#?}");
    events
}

/// An interrupt ends the turn and all of its processes. The conversation continues afterwards.
pub(crate) fn is_interrupted_in_text(world: &World, mode: &str) {
    let session = world.create(mode);
    let mut stream = world.open(&session, LONG);
    let begun = stream.until("system");
    stream.until("partial");
    world.interrupt(&session);
    stream.rest().ends("interrupted");
    world.assert_nothing_left();
    let next = world.send(&session, "[[history]]").ends("result");
    assert_eq!(next.text(), format!("I saw 2 prompts; the first was: {LONG}"));
    assert_eq!(next.conversation(), begun["session_id"]);
}

pub(crate) fn is_interrupted_in_a_tool(world: &World, mode: &str) {
    let session = world.create(mode);
    let stream = world.open(&session, ENDLESS);
    wait_for(&world.work().join("begun"));
    world.interrupt(&session);
    stream.rest().ends("interrupted");
    world.assert_nothing_left();
}

/// An interrupt withdraws a pending question, and the tool does not run.
pub(crate) fn is_interrupted_in_a_question(world: &World) {
    let session = world.create("ask");
    let mut stream = world.open(&session, "[[sh: echo hi > asked.txt]]");
    stream.until("approval");
    world.interrupt(&session);
    stream.rest().ends("interrupted");
    world.assert_nothing_left();
    assert!(!world.has("asked.txt"));
}

/// A missing conversation is an error with a hint, and the next message starts a new one.
pub(crate) fn replaces_a_missing_conversation(world: &World, session: &str) {
    let cli = world.cli();
    world.send(session, "[[history]]").fails(cli, &["Hint: the conversation to resume is not on this host"]);
    let next = world.send(session, "[[history]]").ends("result");
    assert_eq!(next.text(), "I saw 1 prompts; the first was: [[history]]");
    next.conversation();
}
