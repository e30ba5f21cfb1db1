//! A process of claude that stays for the next message: one for all turns, until somebody has to end it.

use crate::kit::{Host, check, end, kinds, numbers, runs};
use outpost_testkit::Which;
use serde_json::{Value, json};

const KEPT: &str = "[sessions]\nclaude_keep_s = 600\n";

/// The first message of a process that stays; the script says what it does before.
fn first<'a>(steps: &[&'a str]) -> Vec<&'a str> {
    steps.iter().copied().chain(["stay"]).collect()
}

/// The pid of who answers a session's next message.
fn pid(host: &Host, id: &str, name: &str) -> String {
    let record = format!("record @{name}");
    let told = host.run(id, &["init", &record, "result"]).rest();
    assert_eq!(kinds(&told), ["system", "result"], "{told:?}");
    host.wait_record(name)["pid"].to_string()
}

fn kept(host: &Host, id: &str) -> String {
    let told = host.run(id, &first(&["init", "record @first", "text one", "result"])).rest();
    assert_eq!(kinds(&told), ["system", "text", "result"], "{told:?}");
    host.wait_record("first")["pid"].to_string()
}

#[test]
fn one_process_answers_all_messages_and_each_has_its_end() {
    let host = Host::start_with(KEPT, &[]);
    let id = host.create();
    let first = kept(&host, &id);
    let argv = host.wait_record("first")["argv"].to_string();
    assert!(argv.contains("\"--input-format\",\"stream-json\"") && !argv.contains("prompt-tool"), "{argv}");
    let failed = host.run(&id, &["init", "partial x", "fail no more"]).rest();
    assert_eq!(kinds(&failed), ["system", "partial", "error"]);
    assert!(failed[2]["message"].as_str().unwrap().contains("no more"), "{failed:?}");
    assert_eq!(pid(&host, &id, "third"), first);
    let all = host.client().attach(&id, 0).rest();
    assert_eq!(check(&all, 1), [1, 2, 3]);
    assert!(runs(&first));
}

#[test]
fn messages_that_waited_go_to_the_same_process_in_order() {
    let host = Host::start_with(KEPT, &[]);
    let id = host.create();
    let mut stream = host.run(&id, &first(&["init", "touch @pid", "wait @go", "text 1", "result"]));
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
    assert_eq!((check(&all, 1), host.wait_file("pid")), (vec![1, 2, 3, 4, 5], pid));
}

/// A process that stays may speak while nobody has asked it anything: when a task in its background is done, say.
#[test]
fn what_is_said_between_turns_is_no_answer_to_the_next_message() {
    let host = Host::start_with(KEPT, &[]);
    let id = host.create();
    let text = r#"{"type":"assistant","message":{"content":[{"type":"text","text":"late"}]}}"#;
    let result = r#"{"type":"result","subtype":"success","session_id":"fake-session"}"#;
    let say = [text, result].map(|line| format!("line {line}"));
    let written = || host.daemon().ask::<Vec<Value>>("list", &())[0]["outputBytes"].as_u64().unwrap();
    let speak = |file: &str, lines: &[&str]| {
        let expected = written() + lines.iter().map(|line| line.len() as u64 + 1).sum::<u64>();
        host.touch(file);
        host.wait("nobody has read it", || (written() == expected).then_some(()));
    };
    let texts = |steps: &[&str]| -> Vec<String> {
        let told = host.run(&id, steps).rest();
        assert_eq!(told.last().unwrap()["type"], "result", "{told:?}");
        told.iter().filter_map(|event| event["content"].as_str().map(str::to_owned)).collect()
    };
    let steps = first(&["init", "touch @pid", "text one", "result", "wait @whole", &say[0], &say[1]]);
    assert_eq!(texts(&steps), ["one"]);
    let pid = host.wait_file("pid");
    speak("whole", &[text, result]);
    // It has more to say, so that nobody could tell which result is whose.
    let steps = ["touch @second", "text two", "result", "wait @half", &say[0], "hang"];
    assert_eq!(texts(&steps), ["two"]);
    assert_eq!(host.wait_file("second"), pid);
    speak("half", &[text]);
    assert_eq!(texts(&first(&["touch @third", "text three", "result"])), ["three"]);
    assert!(!runs(&pid) && host.wait_file("third") != pid, "another goes on with the conversation");
}

#[test]
fn other_settings_have_another_process_that_resumes_the_conversation() {
    let host = Host::start_with(KEPT, &[]);
    let id = host.create();
    let told = host.run(&id, &first(&["session mine", "init", "record @first", "result"])).rest();
    end(&told, 1);
    let first_pid = host.wait_record("first")["pid"].to_string();
    host.client().result("session.set_mode", json!({ "sessionId": id, "mode": "plan" }));
    assert_ne!(pid(&host, &id, "second"), first_pid);
    let argv = host.wait_record("second")["argv"].to_string();
    assert!(argv.contains("\"--resume\",\"mine\"") && argv.contains("\"plan\""), "{argv}");
    assert!(!runs(&first_pid), "the one that nobody would speak with any more");
}

#[test]
fn an_interrupt_ends_it_and_the_next_message_has_a_new_one() {
    let host = Host::start_with(KEPT, &[]);
    let id = host.create();
    let pid = kept(&host, &id);
    let mut stream = host.run(&id, &["init", "hang"]);
    stream.event();
    host.client().result("session.interrupt", json!({ "sessionId": id }));
    assert_eq!(kinds(&stream.rest()), ["interrupted"]);
    host.wait("it is gone", || (!runs(&pid)).then_some(()));
    assert_ne!(kept(&host, &id), pid);
}

#[test]
fn one_that_died_while_it_waited_is_replaced() {
    let host = Host::start_with(KEPT, &[]);
    let id = host.create();
    let pid = kept(&host, &id);
    let process = outpost_testkit::process(pid.parse().unwrap()).unwrap();
    outpost_sys::pidfd::signal(&process, outpost_sys::signal::Signal::KILL).unwrap();
    host.wait("it is gone", || (!runs(&pid)).then_some(()));
    let ended = || host.daemon().ask::<Value>("list", &())[0]["exit"].is_object();
    host.wait("its end is known", || ended().then_some(()));
    assert_ne!(kept(&host, &id), pid);
}

#[test]
fn nobody_waits_for_ever_or_longer_than_its_session() {
    let host = Host::start_with("[sessions]\nclaude_keep_s = 1\n", &[]);
    let id = host.create();
    let pid = kept(&host, &id);
    host.wait("it has waited long enough", || (!runs(&pid)).then_some(()));
    let host = Host::start_with(KEPT, &[]);
    let id = host.create();
    let pid = kept(&host, &id);
    host.client().result("session.destroy", json!({ "sessionId": id }));
    assert!(!runs(&pid), "gone when the answer comes");
}

#[test]
fn nemesis_a_worker_that_dies_in_a_later_turn_loses_nothing_of_it() {
    let host = Host::start_with(KEPT, &[]);
    let id = host.create();
    let pid = kept(&host, &id);
    let mut stream = host.run(&id, &["init", "count 1 500", "wait @go", "count 501 1000", "result"]);
    stream.event();
    host.daemon().kill(Which::Worker);
    host.touch("go");
    let seen = host.client().attach(&id, 3).rest();
    assert_eq!(end(&seen, 4)["type"], "result");
    assert_eq!(numbers(&seen), (1..=1000).collect::<Vec<u64>>());
    assert_eq!(self::pid(&host, &id, "third"), pid, "and it stays");
    // One that waits when the worker dies is not known to the next.
    host.daemon().kill(Which::Worker);
    host.client().result("health.check", json!({}));
    host.wait("it is gone", || (!runs(&pid)).then_some(()));
    assert_ne!(kept(&host, &id), pid);
}
