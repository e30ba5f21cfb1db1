//! `-keep-children` when processes end: before the stop, while they are kept, and the last of them.

use super::keep::{Told, stop_keeping};
use super::{Follower, Gate, ends, is_keeping, parts, spawn_sh, stop, until};
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_testkit::{Relay, TOKEN};

const FLAGS: &[&str] = &["-keep-children"];

fn lines(count: usize) -> String {
    (0..count).map(|i| format!("line {i} of what nobody reads yet\n")).collect()
}

/// Waits at the gate, writes more than a pipe holds, and ends.
const SCRIPT: &str = "echo started; read x < gate; \
    i=0; while [ $i -lt 5000 ]; do echo line $i of what nobody reads yet; i=$((i+1)); done; exit 9";

fn expected() -> String {
    format!("started\n{}", lines(5000))
}

#[test]
fn one_that_ends_while_it_is_kept_is_found_ended_with_all_it_wrote() {
    let relay = Relay::prepare();
    let mut gate = Gate::new(&relay.path("gate"));
    relay.serve(FLAGS);
    let mut client = relay.connect();
    let ending = outpost_testkit::process(spawn_sh(&mut client, "ends", SCRIPT)).unwrap();
    spawn_sh(&mut client, "before", "echo over; exit 2");
    assert_eq!(Follower::new(&relay.socket(), "before").read_to_exit(), 2);
    let staying = spawn_sh(&mut client, "stays", "read line; echo $line; exit 1");
    let mut reader = Follower::new(&relay.socket(), "ends");
    reader.read_until("started\n");
    stop_keeping(&relay, Told::Stop, TOKEN);
    gate.open();
    ends(&ending, "the one that ends");
    assert!(super::is_alive(staying) && is_keeping(&relay));
    relay.serve(FLAGS);
    reader.use_token(TOKEN);
    assert_eq!(reader.read_to_exit(), 9);
    assert!(reader.text() == expected(), "{} bytes", reader.bytes.len());
    let mut before = Follower::new(&relay.socket(), "before");
    assert_eq!((before.read_to_exit(), before.text()), (2, "over\n"));
    super::feed(&mut relay.connect(), "stays", b"still\n");
    let mut stays = Follower::new(&relay.socket(), "stays");
    assert_eq!((stays.read_to_exit(), stays.text()), (1, "still\n"));
}

#[test]
fn the_daemon_goes_with_the_last_kept_process_and_the_next_one_finds_its_record() {
    let relay = Relay::prepare();
    let mut gate = Gate::new(&relay.path("gate"));
    relay.serve(FLAGS);
    spawn_sh(&mut relay.connect(), "p", SCRIPT);
    let mut reader = Follower::new(&relay.socket(), "p");
    reader.read_until("started\n");
    stop_keeping(&relay, Told::Signal(Signal::TERM), TOKEN);
    let parts = parts(&relay);
    gate.open();
    parts.iter().for_each(|part| ends(part, "a daemon that keeps nothing"));
    assert!(relay.status().is_none());
    relay.serve(FLAGS);
    reader.use_token(TOKEN);
    assert_eq!(reader.read_to_exit(), 9);
    assert!(reader.text() == expected(), "{} bytes", reader.bytes.len());
}

#[test]
fn the_daemon_goes_with_the_last_kept_process_also_after_deaths_nemesis() {
    let relay = Relay::prepare();
    let mut gate = Gate::new(&relay.path("gate"));
    relay.serve(FLAGS);
    spawn_sh(&mut relay.connect(), "p", SCRIPT);
    stop_keeping(&relay, Told::Stop, TOKEN);
    relay.kill(outpost_testkit::Which::Worker);
    relay.kill(outpost_testkit::Which::Keeper);
    let parts = parts(&relay);
    gate.open();
    parts.iter().for_each(|part| ends(part, "a daemon that keeps nothing"));
    relay.serve(FLAGS);
    let mut reader = Follower::new(&relay.socket(), "p");
    assert_eq!(reader.read_to_exit(), 9);
    assert!(reader.text() == expected(), "{} bytes", reader.bytes.len());
}

#[test]
fn with_nothing_to_keep_it_ends_at_once() {
    for told in ["-stop", "TERM"] {
        let relay = Relay::prepare();
        relay.serve(FLAGS);
        spawn_sh(&mut relay.connect(), "p", "exit 0");
        assert_eq!(Follower::new(&relay.socket(), "p").read_to_exit(), 0);
        let parts = parts(&relay);
        match Signal::from_name(told) {
            Some(signal) => pidfd::signal(&parts[0], signal).unwrap(),
            None => stop(&relay),
        }
        parts.iter().for_each(|part| ends(part, "a daemon with nothing to keep"));
        assert!(!relay.socket().exists() && !relay.log().contains("leaving"), "{}", relay.log());
    }
}

#[test]
fn a_kept_tree_is_kept_whole() {
    let relay = Relay::prepare();
    relay.serve(FLAGS);
    let script =
        "setsid sh -c 'echo $$; exec sleep 1000' & sh -c 'echo $$; exec sleep 1000' & exec sleep 1000";
    let child = spawn_sh(&mut relay.connect(), "p", script);
    let mut follower = Follower::new(&relay.socket(), "p");
    follower.read_while(|bytes| bytes.iter().filter(|byte| **byte == b'\n').count() < 2);
    let tree: Vec<i32> = follower.text().lines().map(|line| line.parse().unwrap()).chain([child]).collect();
    let pidfds: Vec<_> = tree.iter().map(|pid| outpost_testkit::process(*pid).unwrap()).collect();
    stop_keeping(&relay, Told::Stop, TOKEN);
    assert!(tree.iter().all(|pid| super::is_alive(*pid)));
    relay.serve(&[]);
    assert!(tree.iter().all(|pid| super::is_alive(*pid)));
    // Found again, it can be ended again, with all that belongs to it.
    let died = relay.connect().call("process.killAndWait", r#"{"id":"p","signal":"KILL"}"#);
    assert!(died.contains(r#""died":true"#), "{died}");
    stop(&relay);
    pidfds.iter().for_each(|pidfd| ends(pidfd, "a process of the tree"));
}

#[test]
fn a_kept_process_is_ended_by_a_signal_to_the_keeper() {
    let relay = Relay::prepare();
    relay.serve(FLAGS);
    let child = spawn_sh(&mut relay.connect(), "p", "trap '' TERM; echo here; while :; do sleep 1; done");
    stop_keeping(&relay, Told::Stop, TOKEN);
    let (child, parts) = (outpost_testkit::process(child).unwrap(), parts(&relay));
    pidfd::signal(&parts[0], Signal::TERM).unwrap();
    parts.iter().for_each(|part| ends(part, "the daemon"));
    ends(&child, "what it kept");
    until("nobody answers", || relay.status().is_none());
    relay.serve(&[]);
    assert_eq!(relay.connect().call("server.ping", ""), r#""result":{"pong":true}"#);
}
