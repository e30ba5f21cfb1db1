//! The worker is killed at random times: with its cursor, a client sees every event once, in order, with one terminal
//! event.

use crate::kit::{Host, check_turns, delta_numbers, is_running, kinds, terminal_event};
use outpost_testkit::{Half, Noise, Sse};
use serde_json::{Value, json};
use std::time::Instant;

/// Reads a session across deaths of the worker up to `[DONE]`. Like a client, it reconnects with the number of the last
/// event.
fn follow(host: &Host, id: &str, all: &mut Vec<Value>) {
    let begun = Instant::now();
    loop {
        assert!(
            begun.elapsed() < crate::kit::TIMEOUT,
            "no end after {} events: {}",
            all.len(),
            host.daemon().log()
        );
        let params = json!({ "sessionId": id, "cursor": all.len() });
        let Ok(mut stream) = host.client().try_stream("session.reconnect", &params) else {
            outpost_testkit::pause();
            continue;
        };
        loop {
            match stream.try_next() {
                Ok(Some(Sse::Event(event))) if event["type"] == "ping" => {}
                Ok(Some(Sse::Event(event))) => all.push(event),
                Ok(Some(Sse::Done)) => return,
                Ok(None) | Err(_) => break,
            }
        }
    }
}

/// Kills the worker `times` times at random intervals, while `follow` reads.
fn follow_while_killing(host: &Host, seed: u64, times: usize, id: &str) -> Vec<Value> {
    let mut all = Vec::new();
    std::thread::scope(|scope| {
        let killing = scope.spawn(|| {
            let mut noise = Noise::new(seed);
            for _ in 0..times {
                // Status requests serve as a delay.
                (0..noise.below(40)).for_each(|_| drop(host.daemon().status()));
                host.daemon().kill(Half::Worker);
            }
        });
        follow(host, id, &mut all);
        killing.join().unwrap();
    });
    all
}

#[test]
fn nemesis_no_event_is_lost_or_repeated_when_the_worker_is_killed() {
    for seed in 1..=6 {
        let host = Host::start();
        let id = host.create();
        let steps = ["init", "count 1 2000 300", "stderr half", "count 2001 4000", "text end", "result"];
        drop(host.run(&id, &steps));
        let all = follow_while_killing(&host, seed, 5, &id);
        assert_eq!(terminal_event(&all, 1)["type"], "result", "seed {seed}");
        assert_eq!(delta_numbers(&all), (1..=4000).collect::<Vec<u64>>(), "seed {seed}");
        // The log has the same events.
        assert_eq!(host.client().attach(&id, 0).rest(), all);
    }
}

#[test]
fn nemesis_the_death_of_the_keeper_does_not_affect_a_turn() {
    let host = Host::start();
    let id = host.create();
    let mut stream = host.run(&id, &["init", "count 1 1000 300", "wait @go", "count 1001 2000", "result"]);
    let mut all = vec![stream.event()];
    drop(stream);
    (0..3).for_each(|_| host.daemon().kill(Half::Keeper));
    host.daemon().kill(Half::Worker);
    host.touch("go");
    follow(&host, &id, &mut all);
    assert_eq!(terminal_event(&all, 1)["type"], "result", "{:?}; {}", all.last(), host.daemon().log());
    assert_eq!(delta_numbers(&all), (1..=2000).collect::<Vec<u64>>());
}

#[test]
fn nemesis_a_failed_turn_has_one_terminal_event_wherever_the_worker_dies() {
    for (seed, last) in ["exit 3", "signal SIGKILL", "exit 0", "fail no"].into_iter().enumerate() {
        let host = Host::start();
        let id = host.create();
        drop(host.run(&id, &["init", "count 1 600 500", "stderr why", last]));
        let all = follow_while_killing(&host, 100 + seed as u64, 4, &id);
        assert_eq!(terminal_event(&all, 1)["type"], "error", "{last}");
        assert!(terminal_event(&all, 1)["stderr"].as_str().unwrap().contains("why"), "{:?}", all.last());
        assert_eq!(delta_numbers(&all), (1..=600).collect::<Vec<u64>>(), "{last}");
    }
}

#[test]
fn nemesis_queued_messages_run_once_and_in_order() {
    for seed in 1..=3 {
        let host = Host::start();
        let id = host.create();
        let mut running = host.run(&id, &["init", "wait @go", "text 1", "result"]);
        running.event();
        for number in 2..=8 {
            let queued =
                host.run(&id, &["init", "count 1 100 500", &format!("text {number}"), "result"]).rest();
            assert_eq!(kinds(&queued), ["queued"]);
        }
        drop(running);
        host.daemon().kill(Half::Worker);
        assert_eq!(host.stats(&id)["userPending"], 7);
        host.touch("go");
        let all = follow_while_killing(&host, 200 + seed, 5, &id);
        assert_eq!(check_turns(&all, 1), (1..=8).collect::<Vec<u64>>(), "seed {seed}");
        let texts: Vec<&Value> =
            all.iter().filter(|event| event["type"] == "text").map(|event| &event["content"]).collect();
        assert_eq!(texts, ["1", "2", "3", "4", "5", "6", "7", "8"], "seed {seed}");
    }
}

#[test]
fn nemesis_the_message_is_written_to_stdin_once() {
    let host = Host::start();
    let id = host.create();
    let steps = [vec!["record @it", "init", "count 1 200 1000", "result"], vec![""; 150_000]].concat();
    let prompt = host.script(&steps);
    drop(host.client().send(&id, &prompt));
    let all = follow_while_killing(&host, 300, 4, &id);
    assert_eq!(terminal_event(&all, 1)["type"], "result");
    assert_eq!(host.wait_record("it")["stdin"], json!(prompt));
}

#[test]
fn nemesis_the_next_worker_serves_a_finished_turn_at_once() {
    let host = Host::start();
    let id = host.create();
    let events = host.run(&id, &["ignore-term", "touch @pid", "result", "hang"]).rest();
    host.daemon().kill(Half::Worker);
    assert_eq!(host.client().attach(&id, 0).rest(), events);
    assert!(is_running(&host.wait_file("pid")), "the reader must not wait for the exit of the CLI");
    host.wait("its CLI is ended", || (!is_running(&host.wait_file("pid"))).then_some(()));
    let next = host.run(&id, &["result"]).rest();
    assert_eq!(terminal_event(&next, 2)["type"], "result");
}

#[test]
fn nemesis_an_interrupt_survives_the_worker() {
    let host = Host::start();
    let id = host.create();
    let mut running = host.run(&id, &["ignore-term", "init", "touch @pid", "hang"]);
    running.event();
    host.run(&id, &["touch @ran", "result"]).rest();
    host.client().result("session.interrupt", json!({ "sessionId": id }));
    host.daemon().kill(Half::Worker);
    let mut all = Vec::new();
    follow(&host, &id, &mut all);
    assert_eq!(kinds(&all), ["system", "interrupted", "interrupted"]);
    host.wait("its CLI is ended", || (!is_running(&host.wait_file("pid"))).then_some(()));
    assert!(!host.path("ran").exists());
}

#[test]
fn nemesis_destroy_leaves_no_process_though_the_worker_dies() {
    let host = Host::start();
    let id = host.create();
    let mut running = host.run(&id, &["ignore-term", "init", "child leaves @child", "touch @pid", "hang"]);
    running.event();
    let pids = ["pid", "child"].map(|name| host.wait_file(name));
    std::thread::scope(|scope| {
        // The response is lost with the worker.
        let destroying = scope.spawn(|| {
            let stream = host.client().begin("session.destroy", &json!({ "sessionId": id })).unwrap();
            let _lost = std::io::Read::read(&mut &stream, &mut [0; 1]);
        });
        host.wait("it is gone from the list", || host.listed(&id).is_null().then_some(()));
        host.daemon().kill(Half::Worker);
        destroying.join().unwrap();
    });
    host.wait("nothing of it runs", || pids.iter().all(|pid| !is_running(pid)).then_some(()));
    assert!(host.listed(&id).is_null());
    let place = host.path("state/sessions").join(&id);
    host.wait("its files are gone", || (!place.exists()).then_some(()));
}

#[test]
fn nemesis_many_sessions_survive_the_worker() {
    let host = Host::start();
    let ids: Vec<String> = (0..12).map(|_| host.create()).collect();
    for id in &ids {
        drop(host.run(id, &["init", "count 1 400 1000", "result"]));
    }
    for _ in 0..4 {
        host.daemon().kill(Half::Worker);
    }
    for id in &ids {
        let mut all = Vec::new();
        follow(&host, id, &mut all);
        assert_eq!(terminal_event(&all, 1)["type"], "result");
        assert_eq!(delta_numbers(&all), (1..=400).collect::<Vec<u64>>());
    }
}

#[test]
fn nemesis_the_send_command_prints_the_whole_answer() {
    let host = Host::start();
    let id = host.create();
    let script =
        host.script(&["init", "count 1 2000 300", "wait @go", "count 2001 4000", "text end", "result"]);
    let printed = host.path("printed");
    let arguments = ["sessions", "send", &id, &script, "--json"];
    let mut send = host.command(&arguments).stdout(std::fs::File::create(&printed).unwrap()).spawn().unwrap();
    let events = || -> Vec<Value> {
        let text = std::fs::read_to_string(&printed).unwrap();
        text.lines().map_while(|line| serde_json::from_str(line).ok()).collect()
    };
    host.wait("nothing is printed", || (!events().is_empty()).then_some(()));
    // The command must not wait for the next turn.
    let mut other = host.run(&id, &["init", "wait @never"]);
    assert_eq!(other.event()["type"], "queued");
    (0..3).for_each(|_| host.daemon().kill(Half::Worker));
    host.touch("go");
    assert!(send.wait().unwrap().success(), "{}", host.daemon().log());
    let all = events();
    assert_eq!(terminal_event(&all, 1)["type"], "result", "{:?}", all.last());
    assert_eq!(delta_numbers(&all), (1..=4000).collect::<Vec<u64>>());
}
