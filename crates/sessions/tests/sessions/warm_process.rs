//! The warm process of claude: it answers all turns of its session until it has to end.

use crate::kit::{Host, check_turns, delta_numbers, is_running, kinds, terminal_event};
use outpost_testkit::Half;
use serde_json::{Value, json};

const KEEP_ALIVE: &str = "[sessions]\nclaude_keep_s = 600\n";

/// The script of a process that stays: `steps`, then wait for the next message.
fn staying<'a>(steps: &[&'a str]) -> Vec<&'a str> {
    steps.iter().copied().chain(["stay"]).collect()
}

/// The pid of the process that answers the session's next message.
fn pid(host: &Host, id: &str, name: &str) -> String {
    let record = format!("record @{name}");
    let events = host.run(id, &["init", &record, "result"]).rest();
    assert_eq!(kinds(&events), ["system", "result"], "{events:?}");
    host.wait_record(name)["pid"].to_string()
}

fn start_warm(host: &Host, id: &str) -> String {
    let events = host.run(id, &staying(&["init", "record @first", "text one", "result"])).rest();
    assert_eq!(kinds(&events), ["system", "text", "result"], "{events:?}");
    host.wait_record("first")["pid"].to_string()
}

#[test]
fn one_process_answers_all_messages_each_with_its_terminal_event() {
    let host = Host::start_with(KEEP_ALIVE, &[]);
    let id = host.create();
    let first = start_warm(&host, &id);
    let argv = host.wait_record("first")["argv"].to_string();
    assert!(argv.contains("\"--input-format\",\"stream-json\"") && !argv.contains("prompt-tool"), "{argv}");
    let failed = host.run(&id, &["init", "partial x", "fail no more"]).rest();
    assert_eq!(kinds(&failed), ["system", "partial", "error"]);
    assert!(failed[2]["message"].as_str().unwrap().contains("no more"), "{failed:?}");
    assert_eq!(pid(&host, &id, "third"), first);
    let all = host.client().attach(&id, 0).rest();
    assert_eq!(check_turns(&all, 1), [1, 2, 3]);
    assert!(is_running(&first));
}

#[test]
fn queued_messages_go_to_the_same_process_in_order() {
    let host = Host::start_with(KEEP_ALIVE, &[]);
    let id = host.create();
    let mut stream = host.run(&id, &staying(&["init", "touch @pid", "wait @go", "text 1", "result"]));
    stream.event();
    for number in 2..=5 {
        host.run(&id, &[&format!("text {number}"), "touch @pid", "result"]).rest();
    }
    let pid = host.wait_file("pid");
    host.touch("go");
    host.wait_status(&id, "idle");
    let all = host.client().attach(&id, 0).rest();
    let texts: Vec<&str> = all.iter().filter_map(|event| event["content"].as_str()).collect();
    assert_eq!(texts, ["1", "2", "3", "4", "5"], "{all:?}");
    assert_eq!((check_turns(&all, 1), host.wait_file("pid")), (vec![1, 2, 3, 4, 5], pid));
}

/// A warm process may write between turns, for example when a background task finishes.
#[test]
fn output_between_turns_is_no_answer_to_the_next_message() {
    let host = Host::start_with(KEEP_ALIVE, &[]);
    let id = host.create();
    let text = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"late"}]}}"#;
    let result = r#"{"type":"result","subtype":"success","session_id":"fake-session"}"#;
    let late_lines = [text, result].map(|line| format!("line {line}"));
    let written = || host.daemon().ask::<Vec<Value>>("list", &())[0]["outputBytes"].as_u64().unwrap();
    let write_late = |file: &str, lines: &[&str]| {
        let expected = written() + lines.iter().map(|line| line.len() as u64 + 1).sum::<u64>();
        host.touch(file);
        host.wait("the engine has not read the output", || (written() == expected).then_some(()));
    };
    let texts = |steps: &[&str]| -> Vec<String> {
        let events = host.run(&id, steps).rest();
        assert_eq!(events.last().unwrap()["type"], "result", "{events:?}");
        events.iter().filter_map(|event| event["content"].as_str().map(str::to_owned)).collect()
    };
    let steps =
        staying(&["init", "touch @pid", "text one", "result", "wait @whole", &late_lines[0], &late_lines[1]]);
    assert_eq!(texts(&steps), ["one"]);
    let pid = host.wait_file("pid");
    write_late("whole", &[text, result]);
    // Unfinished work: its result could not be events from that of the next message.
    let steps = ["touch @second", "text two", "result", "wait @half", &late_lines[0], "hang"];
    assert_eq!(texts(&steps), ["two"]);
    assert_eq!(host.wait_file("second"), pid);
    write_late("half", &[text]);
    assert_eq!(texts(&staying(&["touch @third", "text three", "result"])), ["three"]);
    assert!(
        !is_running(&pid) && host.wait_file("third") != pid,
        "another process continues the conversation"
    );
}

#[test]
fn changed_settings_start_another_process_that_resumes_the_conversation() {
    let host = Host::start_with(KEEP_ALIVE, &[]);
    let id = host.create();
    let events = host.run(&id, &staying(&["session mine", "init", "record @first", "result"])).rest();
    terminal_event(&events, 1);
    let first_pid = host.wait_record("first")["pid"].to_string();
    host.client().result("session.set_mode", json!({ "sessionId": id, "mode": "plan" }));
    assert_ne!(pid(&host, &id, "second"), first_pid);
    let argv = host.wait_record("second")["argv"].to_string();
    assert!(argv.contains("\"--resume\",\"mine\"") && argv.contains("\"plan\""), "{argv}");
    assert!(!is_running(&first_pid), "the unsuitable process still runs");
}

#[test]
fn an_interrupt_ends_the_process_and_the_next_message_starts_a_new_one() {
    let host = Host::start_with(KEEP_ALIVE, &[]);
    let id = host.create();
    let pid = start_warm(&host, &id);
    let mut stream = host.run(&id, &["init", "hang"]);
    stream.event();
    host.client().result("session.interrupt", json!({ "sessionId": id }));
    assert_eq!(kinds(&stream.rest()), ["interrupted"]);
    host.wait("it is gone", || (!is_running(&pid)).then_some(()));
    assert_ne!(start_warm(&host, &id), pid);
}

#[test]
fn a_process_that_died_while_idle_is_replaced() {
    let host = Host::start_with(KEEP_ALIVE, &[]);
    let id = host.create();
    let pid = start_warm(&host, &id);
    let process = outpost_testkit::process(pid.parse().unwrap()).unwrap();
    outpost_sys::pidfd::signal(&process, outpost_sys::signal::Signal::KILL).unwrap();
    host.wait("it is gone", || (!is_running(&pid)).then_some(()));
    let ended = || host.daemon().ask::<Value>("list", &())[0]["exit"].is_object();
    host.wait("its end is known", || ended().then_some(()));
    assert_ne!(start_warm(&host, &id), pid);
}

#[test]
fn an_idle_process_ends_at_its_timeout_or_with_its_session() {
    let host = Host::start_with("[sessions]\nclaude_keep_s = 1\n", &[]);
    let id = host.create();
    let pid = start_warm(&host, &id);
    host.wait("it has waited long enough", || (!is_running(&pid)).then_some(()));
    let host = Host::start_with(KEEP_ALIVE, &[]);
    let id = host.create();
    let pid = start_warm(&host, &id);
    host.client().result("session.destroy", json!({ "sessionId": id }));
    assert!(!is_running(&pid), "the process runs after destroy has returned");
}

#[test]
fn nemesis_no_event_of_a_later_turn_is_lost_with_the_worker() {
    let host = Host::start_with(KEEP_ALIVE, &[]);
    let id = host.create();
    let pid = start_warm(&host, &id);
    let mut stream = host.run(&id, &["init", "count 1 500", "wait @go", "count 501 1000", "result"]);
    stream.event();
    host.daemon().kill(Half::Worker);
    host.touch("go");
    let seen = host.client().attach(&id, 3).rest();
    assert_eq!(terminal_event(&seen, 4)["type"], "result");
    assert_eq!(delta_numbers(&seen), (1..=1000).collect::<Vec<u64>>());
    assert_eq!(self::pid(&host, &id, "third"), pid, "the process stays");
    // The next worker does not know the idle process.
    host.daemon().kill(Half::Worker);
    host.client().result("health.check", json!({}));
    host.wait("it is gone", || (!is_running(&pid)).then_some(()));
    assert_ne!(start_warm(&host, &id), pid);
}
