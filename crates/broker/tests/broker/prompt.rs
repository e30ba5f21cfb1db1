//! The terminal prompt: one at a time, answered by one key, with the whole request on the screen.

use crate::kit::{broker, denied, deny, ok, plain, same, sh, timeout, with};
use outpost_testkit::{Broker, BrokerOptions, stamp};
use serde_json::json;
use std::time::{Duration, Instant};

#[test]
fn the_prompt_shows_the_command_and_the_client() {
    let mut broker = broker();
    let request = json!({
        "id": "some-id", "host": "some.host", "session": "some-session", "time": stamp(0),
        "pipeline": [["printf", "some-argument"], ["cat", "-"]], "reason": "some-reason", "privileged": false,
        "env": {"TZ": "Europe/Berlin"}
    });
    let mut client = broker.send(&request);
    broker.wait_prompt();
    let screen = broker.screen();
    for text in
        ["some.host", "some-session", "some-reason", "printf", "some-argument", "cat", "TZ", "Europe/Berlin"]
    {
        assert!(screen.contains(text), "{text} is not on the screen: {screen}");
    }
    broker.approve();
    same(&client.answer(), &ok("some-id", &[(0, ""), (0, "")], "some-argument"));
}

#[test]
fn only_a_privileged_prompt_mentions_root() {
    let mut broker = broker();
    for (id, privileged) in [("a", true), ("b", false)] {
        let mut client = broker.send(&with(plain(id, json!([["true"]])), json!({"privileged": privileged})));
        broker.wait_prompt();
        assert_eq!(broker.unread().contains("as root?"), privileged, "{}", broker.unread());
        broker.deny();
        same(&client.answer(), &denied(id));
    }
}

#[test]
fn either_case_of_y_approves() {
    let mut broker = broker();
    for key in ["y", "Y"] {
        let mut client = broker.send(&sh(key, "echo x"));
        broker.answer_prompt(key.as_bytes(), "Approved");
        same(&client.answer(), &ok(key, &[(0, "")], "x\n"));
    }
}

#[test]
fn either_case_of_n_denies() {
    let mut broker = broker();
    for key in ["n", "N"] {
        let mut client = broker.send(&sh(key, "echo x"));
        broker.answer_prompt(key.as_bytes(), "Denied");
        same(&client.answer(), &denied(key));
    }
}

#[test]
fn no_other_key_approves() {
    let mut broker = broker();
    for (number, key) in ["\r", "\n", " ", "x", "1", "\t", "\x7f", "j", "\x1b"].into_iter().enumerate() {
        let id = number.to_string();
        let file = broker.path(&id);
        let mut client = broker.send(&plain(&id, json!([["touch", file]])));
        broker.wait_prompt();
        let begun = Instant::now();
        // The original denies. Outpost may wait for a valid key, after the initial time in which it ignores keys.
        while begun.elapsed() < Duration::from_millis(1_000) && !client.has_answer(Duration::from_millis(100))
        {
            broker.key(key.as_bytes());
        }
        if client.has_answer(Duration::ZERO) {
            broker.wait_screen("Denied");
            broker.skip_screen();
        } else {
            assert!(!Broker::is_original());
            broker.deny();
        }
        same(&client.answer(), &denied(&id));
        assert!(!file.exists(), "{key:?}");
    }
}

#[test]
fn keys_typed_before_the_prompt_approve_nothing() {
    let mut broker = broker();
    broker.key(b"yyyy");
    let file = broker.path("ran");
    deny(&mut broker, &plain("a", json!([["touch", file]])));
    assert!(!file.exists());
}

#[test]
fn prompts_are_shown_one_at_a_time() {
    let mut broker = broker();
    let mut clients: Vec<_> = (0..5).map(|number| broker.send(&sh(&number.to_string(), "echo x"))).collect();
    for _ in 0..5 {
        broker.wait_prompt();
        let prompts = broker.unread().matches("[y/N").count();
        assert_eq!(prompts, 1, "{}", broker.unread());
        broker.approve();
    }
    for (number, client) in clients.iter_mut().enumerate() {
        same(&client.answer(), &ok(&number.to_string(), &[(0, "")], "x\n"));
    }
}

/// A timeout means that the prompt was shown and not answered. A queued request's time starts when it is shown.
#[test]
fn a_queued_request_gets_its_full_timeout() {
    let mut broker = Broker::start(&BrokerOptions::default().flag("--ask-timeout").flag("3"));
    let mut first = broker.send(&sh("first", "echo x"));
    broker.wait_prompt();
    let mut second = broker.send(&sh("second", "echo y"));
    same(&first.answer(), &timeout("first"));
    broker.wait_prompt();
    assert!(broker.unread().contains("(3s timeout"), "{}", broker.unread());
    broker.approve();
    same(&second.answer(), &ok("second", &[(0, "")], "y\n"));
}

#[test]
fn a_key_decides_the_request_on_the_screen() {
    let mut broker = broker();
    let mut first = broker.send(&sh("first", "echo x"));
    broker.wait_prompt();
    let mut second = broker.send(&sh("second", "echo y"));
    broker.deny();
    same(&first.answer(), &denied("first"));
    broker.approve();
    same(&second.answer(), &ok("second", &[(0, "")], "y\n"));
}

#[test]
fn a_long_unprivileged_command_does_not_block_other_prompts() {
    let mut broker = broker();
    let fifo = broker.path("go");
    assert!(std::process::Command::new("mkfifo").arg(&fifo).status().unwrap().success());
    let mut slow = broker.send(&plain("slow", json!([["cat", fifo]])));
    broker.approve();
    same(&broker.run(&sh("quick", "echo x")), &ok("quick", &[(0, "")], "x\n"));
    assert!(!slow.has_answer(Duration::ZERO));
    std::fs::write(&fifo, "go").unwrap();
    same(&slow.answer(), &ok("slow", &[(0, "")], "go"));
}

#[test]
fn without_eligibility_there_is_no_auto_approval() {
    let mut broker = broker();
    let mut client = broker.send(&sh("a", "echo x"));
    broker.wait_prompt();
    assert!(!broker.unread().contains("[y/N/a]"));
    if Broker::is_original() {
        // The original treats the key as `y`.
        broker.answer_prompt(b"a", "Approved");
    } else {
        broker.key(b"a");
        broker.approve();
    }
    same(&client.answer(), &ok("a", &[(0, "")], "x\n"));
    deny(&mut broker, &sh("b", "echo x"));
}

#[test]
fn the_auto_approval_covers_only_unprivileged_commands() {
    let mut broker = Broker::start(&BrokerOptions::default().flag("--unattended-eligible"));
    let mut client = broker.send(&sh("a", "echo a"));
    broker.wait_screen("[y/N/a]");
    broker.answer_prompt(b"a", "Approved");
    same(&client.answer(), &ok("a", &[(0, "")], "a\n"));
    same(&broker.request(&sh("b", "echo b")), &ok("b", &[(0, "")], "b\n"));
    assert!(!broker.has_prompt());
    // The screen shows commands that ran without a prompt.
    broker.wait_screen("echo b");
    deny(&mut broker, &with(sh("c", "echo c"), json!({"privileged": true})));
}

#[test]
fn the_auto_approval_ends_with_the_daemon() {
    let mut broker = Broker::start(&BrokerOptions::default().flag("--unattended-eligible"));
    let mut client = broker.send(&sh("a", "echo a"));
    broker.answer_prompt(b"a", "Approved");
    same(&client.answer(), &ok("a", &[(0, "")], "a\n"));
    broker.restart();
    deny(&mut broker, &sh("b", "echo b"));
}

#[test]
fn a_privileged_prompt_never_offers_the_auto_approval() {
    let mut broker = Broker::start(&BrokerOptions::default().flag("--unattended-eligible"));
    let mut client = broker.send(&with(sh("a", "echo a"), json!({"privileged": true})));
    broker.wait_prompt();
    assert!(!broker.unread().contains("[y/N/a]"), "{}", broker.unread());
    if Broker::is_original() {
        broker.answer_prompt(b"a", "Denied");
    } else {
        broker.key(b"a");
        broker.deny();
    }
    same(&client.answer(), &denied("a"));
}
