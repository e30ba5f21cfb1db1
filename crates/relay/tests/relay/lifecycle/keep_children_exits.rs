//! `-keep-children` and exits: before the stop, while a process is kept, and of the last kept process.

use super::keep_children::{StopMethod, stop_keeping};
use super::{Follower, Gate, assert_exits, daemon_pidfds, is_keeping, spawn_sh, stop, wait_until};
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_testkit::{Relay, TOKEN};

const FLAGS: &[&str] = &["-keep-children"];

fn lines(count: usize) -> String {
    (0..count).map(|i| format!("line {i} of unread output\n")).collect()
}

/// Blocks on the gate, writes more than a pipe holds, and exits.
const SCRIPT: &str = "echo started; read x < gate; \
    i=0; while [ $i -lt 5000 ]; do echo line $i of unread output; i=$((i+1)); done; exit 9";

fn expected() -> String {
    format!("started\n{}", lines(5000))
}

#[test]
fn a_process_that_exits_while_kept_is_replayed_completely() {
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
    stop_keeping(&relay, StopMethod::Stop, TOKEN);
    gate.open();
    assert_exits(&ending, "the process that exits");
    assert!(super::is_alive(staying) && is_keeping(&relay));
    relay.serve(FLAGS);
    reader.use_token(TOKEN);
    assert_eq!(reader.read_to_exit(), 9);
    assert!(reader.text() == expected(), "{} bytes", reader.bytes.len());
    let mut before = Follower::new(&relay.socket(), "before");
    assert_eq!((before.read_to_exit(), before.text()), (2, "over\n"));
    super::write_stdin(&mut relay.connect(), "stays", b"still\n");
    let mut stays = Follower::new(&relay.socket(), "stays");
    assert_eq!((stays.read_to_exit(), stays.text()), (1, "still\n"));
}

#[test]
fn the_daemon_exits_with_the_last_kept_process_and_the_next_one_finds_its_record() {
    let relay = Relay::prepare();
    let mut gate = Gate::new(&relay.path("gate"));
    relay.serve(FLAGS);
    spawn_sh(&mut relay.connect(), "p", SCRIPT);
    let mut reader = Follower::new(&relay.socket(), "p");
    reader.read_until("started\n");
    stop_keeping(&relay, StopMethod::Signal(Signal::TERM), TOKEN);
    let parts = daemon_pidfds(&relay);
    gate.open();
    parts.iter().for_each(|part| assert_exits(part, "a daemon without kept processes"));
    assert!(relay.status().is_none());
    relay.serve(FLAGS);
    reader.use_token(TOKEN);
    assert_eq!(reader.read_to_exit(), 9);
    assert!(reader.text() == expected(), "{} bytes", reader.bytes.len());
}

#[test]
fn the_daemon_exits_with_the_last_kept_process_also_after_crashes_nemesis() {
    let relay = Relay::prepare();
    let mut gate = Gate::new(&relay.path("gate"));
    relay.serve(FLAGS);
    spawn_sh(&mut relay.connect(), "p", SCRIPT);
    stop_keeping(&relay, StopMethod::Stop, TOKEN);
    relay.kill(outpost_testkit::Half::Worker);
    relay.kill(outpost_testkit::Half::Keeper);
    let parts = daemon_pidfds(&relay);
    gate.open();
    parts.iter().for_each(|part| assert_exits(part, "a daemon without kept processes"));
    relay.serve(FLAGS);
    let mut reader = Follower::new(&relay.socket(), "p");
    assert_eq!(reader.read_to_exit(), 9);
    assert!(reader.text() == expected(), "{} bytes", reader.bytes.len());
}

#[test]
fn without_children_to_keep_it_exits_at_once() {
    for method in ["-stop", "TERM"] {
        let relay = Relay::prepare();
        relay.serve(FLAGS);
        spawn_sh(&mut relay.connect(), "p", "exit 0");
        assert_eq!(Follower::new(&relay.socket(), "p").read_to_exit(), 0);
        let parts = daemon_pidfds(&relay);
        match Signal::from_name(method) {
            Some(signal) => pidfd::signal(&parts[0], signal).unwrap(),
            None => stop(&relay),
        }
        parts.iter().for_each(|part| assert_exits(part, "a daemon without children to keep"));
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
    stop_keeping(&relay, StopMethod::Stop, TOKEN);
    assert!(tree.iter().all(|pid| super::is_alive(*pid)));
    relay.serve(&[]);
    assert!(tree.iter().all(|pid| super::is_alive(*pid)));
    // The next daemon can kill the adopted process with its whole tree.
    let died = relay.connect().call("process.killAndWait", r#"{"id":"p","signal":"KILL"}"#);
    assert!(died.contains(r#""died":true"#), "{died}");
    stop(&relay);
    pidfds.iter().for_each(|pidfd| assert_exits(pidfd, "a process of the tree"));
}

#[test]
fn a_signal_to_the_keeper_ends_a_kept_process() {
    let relay = Relay::prepare();
    relay.serve(FLAGS);
    let child = spawn_sh(&mut relay.connect(), "p", "trap '' TERM; echo here; while :; do sleep 1; done");
    stop_keeping(&relay, StopMethod::Stop, TOKEN);
    let (child, parts) = (outpost_testkit::process(child).unwrap(), daemon_pidfds(&relay));
    pidfd::signal(&parts[0], Signal::TERM).unwrap();
    parts.iter().for_each(|part| assert_exits(part, "the daemon"));
    assert_exits(&child, "the kept process");
    wait_until("the daemon is gone", || relay.status().is_none());
    relay.serve(&[]);
    assert_eq!(relay.connect().call("server.ping", ""), r#""result":{"pong":true}"#);
}
