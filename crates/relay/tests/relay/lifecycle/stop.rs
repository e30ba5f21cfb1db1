//! Graceful shutdown by `-stop`, request and signal: removed files, ended processes, and what must stay.

use super::{
    Follower, assert_exits, assert_silent, daemon_pidfds, is_alive, spawn_sh, stop, stop_with, text,
    wait_until,
};
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_testkit::{Relay, TOKEN};
use std::fs;
use std::os::unix::fs::FileTypeExt;
use std::os::unix::net::UnixListener;

#[test]
fn stopping_without_a_daemon_is_silent() {
    let relay = Relay::prepare();
    assert_silent(&stop_with(&relay, TOKEN));
    assert_silent(&relay.run(&["-stop", "-socket", "/no/such/directory/rpc.sock"]));
    drop(UnixListener::bind(relay.socket()).unwrap());
    assert_silent(&stop_with(&relay, TOKEN));
    assert!(relay.socket().exists(), "a socket of unknown origin is not removed");
}

#[test]
fn a_wrong_token_stops_nothing_and_the_reply_is_printed() {
    let relay = Relay::start();
    let line = "{\"jsonrpc\":\"2.0\",\"id\":1,\"error\":{\"code\":-32001,\
                \"message\":\"Unauthorized: invalid or missing auth token\"}}\n";
    for token in ["wrong", "", "a token with spaces "] {
        let output = stop_with(&relay, token);
        let outcome = (output.status.code(), text(&output.stdout), text(&output.stderr));
        assert_eq!(outcome, (Some(0), line, ""), "{token:?}");
    }
    assert_eq!(relay.connect().call("server.ping", ""), r#""result":{"pong":true}"#);
}

#[test]
fn a_stop_removes_only_its_own_files_and_processes() {
    let relay = Relay::start();
    let mut client = relay.connect();
    fs::write(relay.path("mine"), "mine").unwrap();
    let script = "setsid sh -c 'echo $$; exec sleep 1000' & (sh -c 'echo $$; exec sleep 1000' &) ; \
                  trap '' TERM INT HUP; while :; do sleep 1; done";
    let child = spawn_sh(&mut client, "p", script);
    let mut follower = Follower::new(&relay.socket(), "p");
    follower.read_while(|bytes| bytes.iter().filter(|byte| **byte == b'\n').count() < 2);
    let tree: Vec<i32> = follower.text().lines().map(|line| line.parse().unwrap()).chain([child]).collect();
    let ended = tree.iter().map(|pid| outpost_testkit::process(*pid).unwrap()).collect::<Vec<_>>();
    let parts = daemon_pidfds(&relay);
    stop(&relay);
    assert!(!relay.socket().exists() && !relay.path("daemon.token").exists());
    let frames: Vec<String> = std::iter::from_fn(|| client.try_line()).collect();
    assert!(frames.len() <= 2 && !frames.iter().any(|frame| frame.contains("exit")), "{frames:?}");
    parts.iter().for_each(|part| assert_exits(part, "the daemon"));
    ended.iter().for_each(|part| assert_exits(part, "a process of the tree"));
    assert_eq!(fs::read(relay.path("mine")).unwrap(), b"mine");
    assert!(relay.path("remote-server.log").exists(), "the log is kept after shutdown");
    relay.serve(&[]);
    let known = relay.connect().call("process.reattach", r#"{"id":"p"}"#);
    let nothing = r#""result":{"found":false,"running":false,"firstSeq":0,"lastSeq":0,"stdinApplied":0}"#;
    assert_eq!(known, nothing);
}

#[test]
fn a_graceful_stop_deletes_the_records_of_ended_processes() {
    for how in ["-stop", "TERM", "INT"] {
        let relay = Relay::start();
        spawn_sh(&mut relay.connect(), "p", "echo secret; exit 0");
        assert_eq!(Follower::new(&relay.socket(), "p").read_to_exit(), 0);
        let parts = daemon_pidfds(&relay);
        match Signal::from_name(how) {
            Some(signal) => pidfd::signal(&parts[0], signal).unwrap(),
            None => stop(&relay),
        }
        parts.iter().for_each(|part| assert_exits(part, how));
        relay.serve(&[]);
        let known = relay.connect().call("process.reattach", r#"{"id":"p"}"#);
        assert!(known.contains(r#""found":false"#), "{how}: {known}");
    }
}

#[test]
fn a_replaced_socket_and_token_survive_the_stop() {
    for signal in [Signal::TERM, Signal::INT] {
        let relay = Relay::start();
        let parts = daemon_pidfds(&relay);
        // Another program has taken the path.
        fs::remove_file(relay.socket()).unwrap();
        let other = UnixListener::bind(relay.socket()).unwrap();
        fs::write(relay.path("daemon.token"), "another").unwrap();
        pidfd::signal(&parts[0], signal).unwrap();
        parts.iter().for_each(|part| assert_exits(part, "the daemon"));
        assert!(fs::symlink_metadata(relay.socket()).unwrap().file_type().is_socket());
        assert_eq!(fs::read(relay.path("daemon.token")).unwrap(), b"another");
        drop(other);
    }
}

#[test]
fn a_shutdown_request_closes_every_connection_without_a_reply() {
    let relay = Relay::start();
    let (mut asking, mut watching) = (relay.connect(), relay.connect());
    let child = spawn_sh(&mut watching, "p", "echo ready; exec sleep 1000");
    let ready = watching.line();
    assert!(ready.contains(r#""stream":"stdout","seq":1"#), "{ready}");
    let (parts, child) = (daemon_pidfds(&relay), outpost_testkit::process(child).unwrap());
    asking.request("server.shutdown", "");
    assert_eq!((asking.try_line(), watching.try_line()), (None, None));
    assert!(!relay.socket().exists(), "the socket is removed before the connections are closed");
    assert_exits(&child, "the child");
    parts.iter().for_each(|part| assert_exits(part, "the daemon"));
}

#[test]
fn a_shutdown_without_the_token_is_refused() {
    let relay = Relay::start();
    let mut client = relay.connect().with_token("wrong");
    assert!(client.call("server.shutdown", "").contains("-32001"));
    assert_eq!(relay.connect().call("server.ping", ""), r#""result":{"pong":true}"#);
}

#[test]
fn signals_to_the_keeper_stop_the_daemon_gracefully() {
    for signal in [Signal::TERM, Signal::INT] {
        let relay = Relay::start();
        let mut client = relay.connect();
        let child = spawn_sh(&mut client, "p", "trap '' TERM INT; setsid sleep 1000 & exec sleep 1000");
        let mut silent = relay.connect();
        let parts = daemon_pidfds(&relay);
        pidfd::signal(&parts[0], signal).unwrap();
        parts.iter().for_each(|part| assert_exits(part, "the daemon"));
        assert_eq!((client.try_line(), silent.try_line()), (None, None));
        assert!(!relay.socket().exists() && !relay.path("daemon.token").exists());
        wait_until("the process tree is gone", || !is_alive(child));
        let marker = format!("OUTPOST_TEST_DAEMON={}", relay.dir().display());
        let left = || {
            let alive = outpost_sys::procfs::all().into_iter().filter(|stat| stat.state != b'Z');
            alive.filter(|stat| outpost_sys::procfs::has_environment(stat.pid, marker.as_bytes())).count()
        };
        wait_until("no process of the daemon is left", || left() == 0);
        relay.serve(&[]);
        assert!(relay.connect().call("process.reattach", r#"{"id":"p"}"#).contains(r#""found":false"#));
    }
}
