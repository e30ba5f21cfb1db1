//! Streams with slow, absent and returning clients: the turn is not affected, and no event is lost or repeated.

use crate::kit::{Host, check_turns, delta_numbers, kinds, terminal_event};
use outpost_testkit::Sse;
use serde_json::{Value, json};

#[test]
fn a_stream_has_the_framing_of_the_contract() {
    let host = Host::start();
    let id = host.create();
    let mut stream = host.run(&id, &["init", "result"]);
    assert_eq!(stream.header("content-type"), "text/event-stream");
    assert_eq!((stream.header("cache-control"), stream.header("x-accel-buffering")), ("no-cache", "no"));
    // A ping at once, then the events, then [DONE].
    assert_eq!(stream.try_next().unwrap(), Some(Sse::Event(json!({ "type": "ping" }))));
    let mut all = Vec::new();
    while let Some(next) = stream.try_next().unwrap() {
        all.push(next);
    }
    assert_eq!((all.len(), all.last()), (3, Some(&Sse::Done)));
}

#[test]
fn a_disconnect_does_not_affect_the_turn_and_missed_events_are_returned_once() {
    let host = Host::start();
    let id = host.create();
    let mut stream = host.run(&id, &["init", "wait @go", "count 1 1000", "result"]);
    let mut all = vec![stream.event()];
    drop(stream);
    host.wait("the hang-up is seen", || (host.stats(&id)["clientConnected"] == false).then_some(()));
    host.touch("go");
    host.wait_status(&id, "idle");
    assert_eq!(host.stats(&id)["responsePending"], 1001);
    all.extend(host.client().buffered(&id));
    assert_eq!(terminal_event(&all, 1)["type"], "result");
    assert_eq!(delta_numbers(&all), (1..=1000).collect::<Vec<u64>>());
    assert_eq!(host.client().buffered(&id), Vec::<Value>::new());
}

#[test]
fn a_reconnect_during_a_turn_neither_loses_nor_repeats_events() {
    let host = Host::start();
    let id = host.create();
    let mut stream = host.run(&id, &["init", "count 1 300", "wait @go", "count 301 600", "result"]);
    let mut all = stream.until(|event| event["content"] == "100");
    drop(stream);
    // Without a cursor, events written to the socket count as delivered, so only repetition can be checked.
    let missed = host.client().buffered(&id);
    assert!(missed.iter().all(|event| event["seq"].as_u64() > all.last().unwrap()["seq"].as_u64()));
    // With a cursor it is exact.
    let mut attached = host.client().attach(&id, 101);
    all.extend(attached.until(|event| event["content"] == "300"));
    host.touch("go");
    all.extend(attached.rest());
    assert_eq!(terminal_event(&all, 1)["type"], "result");
    assert_eq!(delta_numbers(&all), (1..=600).collect::<Vec<u64>>());
}

#[test]
fn an_immediate_disconnect_changes_nothing() {
    let host = Host::start();
    let mut accepted = 0;
    for round in 0..100 {
        let id = host.create();
        let message = host.script(&["init", "result"]);
        let sent =
            host.client().begin("session.send", &json!({ "sessionId": id, "message": message })).unwrap();
        drop(sent);
        // A second message follows, whether or not the first was accepted.
        let events = host.client().send(&id, &message).rest();
        assert!(["queued", "system"].contains(&kinds(&events)[0]), "round {round}: {events:?}");
        host.wait_status(&id, "idle");
        // The first message was accepted as a whole or not at all: the client may have disconnected before the daemon
        // read it.
        let turns = check_turns(&host.client().attach(&id, 0).rest(), 1);
        assert!(turns == [1, 2] || turns == [1], "round {round}: {turns:?}");
        accepted += turns.len() - 1;
    }
    assert!(accepted > 0, "no message was accepted");
}

#[test]
fn nemesis_a_request_is_carried_out_though_its_client_disconnects() {
    let host = Host::start();
    for _ in 0..30 {
        let id = host.create();
        let mut running = host.run(&id, &["init", "touch @pid", "hang"]);
        running.event();
        let pid = host.wait_file("pid");
        // The client may disconnect before the daemon reads the request. A request that was read is carried out.
        host.wait("it is gone from the list", || {
            drop(host.client().begin("session.destroy", &json!({ "sessionId": id })).unwrap());
            host.listed(&id).is_null().then_some(())
        });
        host.wait("its CLI is ended", || (!crate::kit::is_running(&pid)).then_some(()));
        std::fs::remove_file(host.path("pid")).unwrap();
        host.wait("its files are gone", || (!host.path("state/sessions").join(&id).exists()).then_some(()));
    }
    host.daemon().kill(outpost_testkit::Half::Worker);
    let listed = host.client().result("session.list", json!({}));
    assert_eq!(listed["sessions"], json!([]), "a destroyed session is back");
}

#[test]
fn any_cursor_yields_exactly_the_following_events() {
    let host = Host::start();
    let id = host.create();
    let mut all = host.run(&id, &["init", "count 1 50", "result"]).rest();
    all.extend(host.run(&id, &["init", "count 51 60", "exit 3"]).rest());
    assert_eq!(check_turns(&all, 1), [1, 2]);
    for cursor in 0..=all.len() {
        assert_eq!(host.client().attach(&id, cursor as u64).rest(), all[cursor..], "after {cursor}");
    }
    // A cursor beyond the last event yields nothing.
    assert_eq!(host.client().attach(&id, 10_000).rest(), Vec::<Value>::new());
    assert_eq!(host.client().attach(&host.create(), 0).rest(), Vec::<Value>::new());
}

#[test]
fn a_client_that_comes_and_goes_misses_nothing() {
    let host = Host::start();
    let id = host.create();
    drop(host.run(&id, &["init", "count 1 3000 100", "result"]));
    let mut all: Vec<Value> = Vec::new();
    let mut leave_after = 1;
    loop {
        let mut stream = host.client().attach(&id, all.len() as u64);
        let mut is_done = false;
        for _ in 0..leave_after {
            match stream.try_next().unwrap() {
                Some(Sse::Event(event)) if event["type"] == "ping" => {}
                Some(Sse::Event(event)) => all.push(event),
                _ => {
                    is_done = true;
                    break;
                }
            }
        }
        if is_done {
            break;
        }
        leave_after = leave_after * 7 % 1009 + 1;
    }
    assert_eq!(terminal_event(&all, 1)["type"], "result");
    assert_eq!(delta_numbers(&all), (1..=3000).collect::<Vec<u64>>());
}

#[test]
fn clients_that_do_not_read_delay_no_other_client() {
    let host = Host::start();
    let (id, other) = (host.create(), host.create());
    let script = ["init", "long 30000000", "count 1 100000", "touch @written", "result"];
    let never = host.run(&id, &script);
    let also_never = host.client().attach(&id, 0);
    // The CLI writes all of its output, although no client reads.
    host.wait_file("written");
    host.wait_status(&id, "idle");
    assert_eq!(kinds(&host.run(&other, &["init", "result"]).rest()), ["system", "result"]);
    let mut third = host.client().attach(&id, 0);
    assert_eq!(delta_numbers(&third.rest()).len(), 100_000);
    // A slow client gets everything.
    let mut slow = never;
    let all = slow.rest();
    assert_eq!(terminal_event(&all, 1)["type"], "result");
    assert_eq!(delta_numbers(&all), (1..=100_000).collect::<Vec<u64>>());
    drop(also_never);
}

#[test]
fn two_clients_see_the_same_events() {
    let host = Host::start();
    let id = host.create();
    let mut first = host.run(&id, &["init", "wait @go", "count 1 5000", "result"]);
    let mut seen = vec![first.event()];
    let mut second = host.client().attach(&id, 0);
    host.touch("go");
    let (rest, also) = std::thread::scope(|scope| {
        let reading = scope.spawn(move || first.rest());
        (second.rest(), reading.join().unwrap())
    });
    seen.extend(also);
    assert_eq!(seen, rest);
    assert_eq!(terminal_event(&seen, 1)["type"], "result");
}

#[test]
fn deleted_events_are_reported_as_a_gap() {
    let host = Host::start();
    let id = host.create();
    let mut events = 0;
    for _ in 0..70 {
        events += host.run(&id, &["init", "result"]).rest().len();
    }
    let all = host.client().attach(&id, 0).rest();
    assert!(all.len() < events, "all {events} are kept");
    assert_eq!((&all[0]["type"], &all[0]["subtype"]), (&json!("system"), &json!("gap")), "{}", all[0]);
    let first = all[1]["seq"].as_u64().unwrap();
    assert!(all[0]["message"].as_str().unwrap().contains(&format!("1 to {}", first - 1)), "{}", all[0]);
    check_turns(&all[1..], first);
    assert_eq!(host.client().attach(&id, first - 1).rest(), all[1..]);
}
