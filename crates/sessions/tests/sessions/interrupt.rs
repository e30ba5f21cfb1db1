//! `session.interrupt` and `session.destroy`: at any time, for the whole process tree, and without delay for other
//! clients.

use crate::kit::{Host, check_turns, is_running, kinds, message, terminal_event};
use serde_json::{Value, json};

fn interrupt(host: &Host, id: &str) -> Value {
    host.client().result("session.interrupt", json!({ "sessionId": id }))
}

fn stopped() -> Value {
    json!({ "ok": true, "interrupted": true })
}

#[test]
fn interrupt_ends_the_turn_with_interrupted() {
    let host = Host::start();
    let id = host.create();
    assert_eq!(interrupt(&host, &id), json!({ "ok": true, "interrupted": false }));
    let mut running = host.run(&id, &["init", "touch @pid", "hang"]);
    running.event();
    assert_eq!(interrupt(&host, &id), stopped());
    assert_eq!(kinds(&running.rest()), ["interrupted"]);
    assert!(host.wait("it was ended", || (!is_running(&host.wait_file("pid"))).then_some(true)));
    assert_eq!(interrupt(&host, &id), json!({ "ok": true, "interrupted": false }));
    assert_eq!(host.listed(&id)["status"], "idle");
    let next = host.run(&id, &["init", "result"]).rest();
    assert_eq!(terminal_event(&next, 3)["type"], "result");
}

#[test]
fn interrupt_works_right_after_send() {
    let host = Host::start();
    for round in 0..30 {
        let id = host.create();
        let client = host.client();
        let message = host.script(&["init", "child leaves @child", "hang"]);
        let begun = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| {
                begun.wait();
                client.send(&id, &message).rest()
            });
            begun.wait();
            // As soon as there is a turn to interrupt.
            host.wait("something to interrupt", || {
                (interrupt(&host, &id)["interrupted"] == true).then_some(())
            });
            let events = sending.join().unwrap();
            assert_eq!(terminal_event(&events, 1)["type"], "interrupted", "round {round}");
        });
        let _never_came = std::fs::remove_file(host.path("child"));
    }
    host.wait("nothing of it runs", || {
        host.daemon().list().iter().all(|process| process.exit.is_some()).then_some(())
    });
}

#[test]
fn interrupt_kills_the_whole_tree_also_if_it_ignores_sigterm() {
    let host = Host::start();
    let id = host.create();
    let steps = ["ignore-term", "init", "child stays @stays", "child leaves @leaves", "touch @pid", "hang"];
    let mut running = host.run(&id, &steps);
    running.event();
    let pids = ["stays", "leaves", "pid"].map(|name| host.wait_file(name));
    assert!(pids.iter().all(|pid| is_running(pid)));
    assert_eq!(interrupt(&host, &id), stopped());
    // The event does not wait for the exit of the CLI.
    assert_eq!(kinds(&running.rest()), ["interrupted"]);
    host.wait("all were ended", || pids.iter().all(|pid| !is_running(pid)).then_some(()));
}

#[test]
fn interrupt_cancels_queued_messages() {
    let host = Host::start();
    let id = host.create();
    let mut running = host.run(&id, &["init", "hang"]);
    running.event();
    for number in 1..=3 {
        let queued = host.run(&id, &[&format!("touch @ran-{number}"), "result"]).rest();
        assert_eq!((&queued[0]["type"], &queued[0]["position"]), (&json!("queued"), &json!(number)));
    }
    assert_eq!(interrupt(&host, &id), stopped());
    assert_eq!(host.stats(&id)["userPending"], 0);
    let events = running.rest();
    assert_eq!(kinds(&events), ["interrupted"; 4], "each message has its end");
    assert_eq!(events.iter().map(|event| event["turn"].as_u64().unwrap()).collect::<Vec<_>>(), [1, 2, 3, 4]);
    assert!((1..=3).all(|number| !host.path(&format!("ran-{number}")).exists()));
    assert_eq!(terminal_event(&host.run(&id, &["result"]).rest(), 6)["type"], "result");
}

#[test]
fn events_before_an_interrupt_are_kept() {
    let host = Host::start();
    let id = host.create();
    let mut running = host.run(&id, &["init", "count 1 500", "touch @events", "hang"]);
    running.event();
    drop(running);
    host.wait_file("events");
    host.client().attach(&id, 0).until(|event| event["content"] == "500");
    interrupt(&host, &id);
    let events = host.client().attach(&id, 0).rest();
    assert_eq!(
        (check_turns(&events, 1).len(), events.last().unwrap()["type"].as_str()),
        (1, Some("interrupted"))
    );
    assert_eq!(events.len(), 502);
}

#[test]
fn destroy_ends_the_whole_tree_and_the_stream() {
    let host = Host::start();
    let id = host.create();
    let steps = ["ignore-term", "init", "child stays @stays", "child leaves @leaves", "touch @pid", "hang"];
    let mut running = host.run(&id, &steps);
    running.event();
    host.run(&id, &["touch @ran", "result"]).rest();
    let pids = ["stays", "leaves", "pid"].map(|name| host.wait_file(name));
    let client = host.client();
    std::thread::scope(|scope| {
        let destroying = scope.spawn(|| client.result("session.destroy", json!({ "sessionId": id })));
        // While `session.destroy` waits for a process that ignores SIGTERM, other requests are served.
        host.wait("it is gone from the list", || host.listed(&id).is_null().then_some(()));
        let mut asked = 0;
        while !destroying.is_finished() {
            assert_eq!(client.result("health.check", json!({}))["ok"], true);
            asked += 1;
        }
        assert!(asked > 10, "only {asked} answers while a session was destroyed");
        assert_eq!(destroying.join().unwrap(), json!({ "ok": true }));
    });
    assert!(pids.iter().all(|pid| !is_running(pid)), "nothing runs once destroy has answered");
    let events = running.rest();
    assert!(!events.is_empty() && kinds(&events).iter().all(|kind| *kind == "interrupted"), "{events:?}");
    assert!(!host.path("ran").exists());
}

#[test]
fn destroy_right_after_send_leaves_nothing_behind() {
    let host = Host::start();
    for _ in 0..20 {
        let id = host.create();
        let client = host.client();
        let script = host.script(&["init", "hang"]);
        std::thread::scope(|scope| {
            let sending = scope.spawn(|| client.send(&id, &script).rest());
            host.wait("busy", || {
                (host.listed(&id)["status"] == "busy" || sending.is_finished()).then_some(())
            });
            assert_eq!(client.result("session.destroy", json!({ "sessionId": id })), json!({ "ok": true }));
            // The message was accepted, or came after the session was destroyed.
            let events = sending.join().unwrap();
            let last = events.last().unwrap();
            assert!(
                last["type"] == "interrupted" || message(last).starts_with("Session not found"),
                "{events:?}"
            );
        });
    }
    assert!(host.daemon().list().iter().all(|process| process.exit.is_some()));
    let left = std::fs::read_dir(host.path("state/sessions")).map_or(0, |left| left.count());
    host.wait(&format!("{left} directories are left"), || {
        std::fs::read_dir(host.path("state/sessions"))
            .is_ok_and(|mut left| left.next().is_none())
            .then_some(())
    });
}
