//! Who reads, how slowly, and who comes back: the run does not care, and no event is lost or told twice.

use crate::kit::{Host, check, end, kinds, numbers};
use outpost_testkit::Sse;
use serde_json::{Value, json};

#[test]
fn a_stream_has_the_framing_of_the_document() {
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
fn a_hang_up_does_not_touch_the_run_and_what_was_missed_is_returned_once() {
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
    assert_eq!(end(&all, 1)["type"], "result");
    assert_eq!(numbers(&all), (1..=1000).collect::<Vec<u64>>());
    assert_eq!(host.client().buffered(&id), Vec::<Value>::new());
}

#[test]
fn reconnect_in_the_middle_of_a_run_has_neither_gap_nor_double() {
    let host = Host::start();
    let id = host.create();
    let mut stream = host.run(&id, &["init", "count 1 300", "wait @go", "count 301 600", "result"]);
    let mut all = stream.until(|event| event["content"] == "100");
    drop(stream);
    // Without a cursor: what was written to the connection counts as handed over, so only that nothing doubles.
    let missed = host.client().buffered(&id);
    assert!(missed.iter().all(|event| event["seq"].as_u64() > all.last().unwrap()["seq"].as_u64()));
    // With one it is exact.
    let mut attached = host.client().attach(&id, 101);
    all.extend(attached.until(|event| event["content"] == "300"));
    host.touch("go");
    all.extend(attached.rest());
    assert_eq!(end(&all, 1)["type"], "result");
    assert_eq!(numbers(&all), (1..=600).collect::<Vec<u64>>());
}

#[test]
fn whoever_hangs_up_at_once_changes_nothing() {
    let host = Host::start();
    let mut taken = 0;
    for round in 0..100 {
        let id = host.create();
        let message = host.script(&["init", "result"]);
        let sent =
            host.client().begin("session.send", &json!({ "sessionId": id, "message": message })).unwrap();
        drop(sent);
        // Another message comes behind it, whatever became of the first.
        let events = host.client().send(&id, &message).rest();
        assert!(["queued", "system"].contains(&kinds(&events)[0]), "round {round}: {events:?}");
        host.wait_status(&id, "idle");
        // All of it or nothing: it may have gone before it was heard.
        let turns = check(&host.client().attach(&id, 0).rest(), 1);
        assert!(turns == [1, 2] || turns == [1], "round {round}: {turns:?}");
        taken += turns.len() - 1;
    }
    assert!(taken > 0, "none was heard");
}

#[test]
fn nemesis_what_was_asked_for_is_done_though_the_asker_hangs_up() {
    let host = Host::start();
    for _ in 0..30 {
        let id = host.create();
        let mut running = host.run(&id, &["init", "touch @pid", "hang"]);
        running.event();
        let pid = host.wait_file("pid");
        // It may go before it is heard; once it was, all of it is done.
        host.wait("it is gone from the list", || {
            drop(host.client().begin("session.destroy", &json!({ "sessionId": id })).unwrap());
            host.listed(&id).is_null().then_some(())
        });
        host.wait("its CLI is ended", || (!crate::kit::runs(&pid)).then_some(()));
        std::fs::remove_file(host.path("pid")).unwrap();
        host.wait("its files are gone", || (!host.path("state/sessions").join(&id).exists()).then_some(()));
    }
    host.daemon().kill(outpost_testkit::Which::Worker);
    let listed = host.client().result("session.list", json!({}));
    assert_eq!(listed["sessions"], json!([]), "none is back");
}

#[test]
fn any_cursor_gives_exactly_what_follows() {
    let host = Host::start();
    let id = host.create();
    let mut all = host.run(&id, &["init", "count 1 50", "result"]).rest();
    all.extend(host.run(&id, &["init", "count 51 60", "exit 3"]).rest());
    assert_eq!(check(&all, 1), [1, 2]);
    for cursor in 0..=all.len() {
        assert_eq!(host.client().attach(&id, cursor as u64).rest(), all[cursor..], "after {cursor}");
    }
    // One from the future has seen everything.
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
    assert_eq!(end(&all, 1)["type"], "result");
    assert_eq!(numbers(&all), (1..=3000).collect::<Vec<u64>>());
}

#[test]
fn readers_that_do_not_read_keep_nobody_waiting() {
    let host = Host::start();
    let (id, other) = (host.create(), host.create());
    let script = ["init", "long 30000000", "count 1 100000", "touch @written", "result"];
    let never = host.run(&id, &script);
    let also_never = host.client().attach(&id, 0);
    // The CLI gets rid of everything, though nobody has read a thing.
    host.wait_file("written");
    host.wait_status(&id, "idle");
    assert_eq!(kinds(&host.run(&other, &["init", "result"]).rest()), ["system", "result"]);
    let mut third = host.client().attach(&id, 0);
    assert_eq!(numbers(&third.rest()).len(), 100_000);
    // A slow one has all of it in the end.
    let mut slow = never;
    let all = slow.rest();
    assert_eq!(end(&all, 1)["type"], "result");
    assert_eq!(numbers(&all), (1..=100_000).collect::<Vec<u64>>());
    drop(also_never);
}

#[test]
fn two_clients_see_the_same() {
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
    assert_eq!(end(&seen, 1)["type"], "result");
}

#[test]
fn answers_that_are_not_kept_any_more_are_told_as_a_gap() {
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
    check(&all[1..], first);
    assert_eq!(host.client().attach(&id, first - 1).rest(), all[1..]);
}
