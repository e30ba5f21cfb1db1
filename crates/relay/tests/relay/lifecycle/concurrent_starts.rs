//! Concurrent starts, and starts during a shutdown: exactly one daemon runs.

use super::{assert_exits, daemon_pidfds, spawn_sh, stop, text, wait_until};
use outpost_sys::procfs;
use outpost_testkit::Relay;
use serde_json::json;
use std::fs;
use std::process::{Child, Stdio};

/// The number of keepers with this relay's marker variable.
fn keepers(relay: &Relay) -> usize {
    let marker = format!("OUTPOST_TEST_DAEMON={}", relay.dir().display());
    let is_keeper = |pid: i32| {
        let line = fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"keeper")
    };
    let alive = procfs::all().into_iter().filter(|stat| !matches!(stat.state, b'Z' | b'X'));
    alive.filter(|stat| is_keeper(stat.pid) && procfs::has_environment(stat.pid, marker.as_bytes())).count()
}

#[test]
fn of_eight_concurrent_starts_one_serves() {
    let relay = Relay::prepare();
    for round in 0..5 {
        let socket = relay.socket();
        let starters: Vec<Child> = (0..8)
            .map(|number| {
                let token = relay.path(&format!("token-{number}"));
                fs::write(&token, format!("token {number}")).unwrap();
                let flags =
                    ["-serve", "-socket", socket.to_str().unwrap(), "-token-file", token.to_str().unwrap()];
                relay.command(&flags).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
            })
            .collect();
        let outputs: Vec<_> = starters.into_iter().map(|child| child.wait_with_output().unwrap()).collect();
        let winners: Vec<usize> = (0..8).filter(|number| outputs[*number].status.success()).collect();
        assert_eq!(winners.len(), 1, "round {round}: {outputs:?}");
        let winner = format!("token {}", winners[0]);
        for output in outputs.iter().filter(|output| !output.status.success()) {
            assert_eq!(output.status.code(), Some(1));
            let reason =
                format!("listen unix: listen unix {}: bind: address already in use", socket.display());
            assert_eq!(text(&output.stderr), format!("claustrum: {reason}\n"));
        }
        let mut client = relay.connect().with_token(&winner);
        assert_eq!(client.call("server.ping", ""), r#""result":{"pong":true}"#);
        assert_eq!(fs::read_to_string(relay.path("daemon.token")).unwrap(), winner);
        assert_eq!(keepers(&relay), 1);
        let parts = daemon_pidfds(&relay);
        assert_eq!(super::stop_with(&relay, &winner).stdout, b"");
        parts.iter().for_each(|part| assert_exits(part, "the winner"));
        assert_eq!(keepers(&relay), 0);
    }
}

#[test]
fn a_start_directly_after_a_stop_always_succeeds() {
    let relay = Relay::start();
    for round in 0..20 {
        let mut client = relay.connect();
        // The process is slow to end, and the next daemon must not see its record.
        let script = "setsid sleep 1000 & trap '' TERM; while :; do sleep 1; done";
        spawn_sh(&mut client, &format!("p{round}"), script);
        stop(&relay);
        assert!(!relay.socket().exists(), "round {round}");
        relay.serve(&[]);
        let known = relay.connect().call("process.reattach", &json!({"id": format!("p{round}")}).to_string());
        assert!(known.contains(r#""found":false"#), "round {round}: {known}");
    }
    wait_until("only one keeper is left", || keepers(&relay) == 1);
}

#[test]
fn a_daemon_that_deletes_its_records_keeps_those_of_the_next() {
    let relay = Relay::start();
    spawn_sh(&mut relay.connect(), "p", "exit 0");
    // Many files, so that the deletion takes a while.
    let state = fs::read_dir(relay.path("state/relay")).unwrap().next().unwrap().unwrap().path();
    let more = state.join("processes/more");
    fs::create_dir(&more).unwrap();
    (0..50_000).for_each(|number| drop(fs::File::create(more.join(number.to_string())).unwrap()));
    let before = daemon_pidfds(&relay);
    stop(&relay);
    relay.serve(&[]);
    before.iter().for_each(|part| assert_exits(part, "the previous daemon"));
    // The deletion did not affect the new daemon.
    spawn_sh(&mut relay.connect(), "q", "echo first; read line; echo $line; exit 8");
    super::write_stdin(&mut relay.connect(), "q", b"second\n");
    let mut follower = super::Follower::new(&relay.socket(), "q");
    assert_eq!((follower.read_to_exit(), follower.text()), (8, "first\nsecond\n"));
    relay.kill(outpost_testkit::Half::Worker);
    let mut follower = super::Follower::new(&relay.socket(), "q");
    assert_eq!(
        (follower.read_to_exit(), follower.text()),
        (8, "first\nsecond\n"),
        "replayed from the journal"
    );
    let known = relay.connect().call("process.reattach", r#"{"id":"p"}"#);
    assert!(known.contains(r#""found":false"#), "{known}");
}

#[test]
fn a_start_while_the_last_kept_process_exits_always_succeeds() {
    let relay = Relay::prepare();
    relay.serve(&["-keep-children"]);
    for round in 0..20 {
        let pid = spawn_sh(&mut relay.connect(), "p", "echo here; exec sleep 1000");
        super::Follower::new(&relay.socket(), "p").read_until("here\n");
        stop(&relay);
        wait_until("the process is kept", || super::is_keeping(&relay));
        let child = outpost_testkit::process(pid).unwrap();
        let mut serve = relay.serve_command(outpost_testkit::TOKEN, &["-keep-children"]);
        let starter = serve.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        // A delay that grows with each round, so that the kill hits different moments of the start.
        (0..round * 2).for_each(|_| drop(relay.status()));
        let _already_exited = outpost_sys::pidfd::signal(&child, outpost_sys::signal::Signal::KILL);
        let output = starter.wait_with_output().unwrap();
        assert!(output.status.success(), "round {round}: {output:?}; log: {}", relay.log());
        let mut follower = super::Follower::new(&relay.socket(), "p");
        assert_eq!((follower.read_to_exit(), follower.text()), (-1, "here\n"), "round {round}");
    }
}
