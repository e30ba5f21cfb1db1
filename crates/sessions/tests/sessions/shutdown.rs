//! Orderly shutdown: each open stream gets a terminal event and `[DONE]` before its connection closes.

use crate::kit::{Host, TIMEOUT, check_turns, is_running, kinds, message};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use serde_json::{Value, json};
use std::time::Duration;

/// A way to stop the daemon.
type Stop = fn(&Host);

fn by_command(host: &Host) {
    let done = host.outpost(&["stop"]);
    assert!(done.status.success(), "{done:?}");
}

fn by_signal(host: &Host) {
    pidfd::signal(host.daemon().keeper(), Signal::TERM).unwrap();
}

#[test]
fn nemesis_a_stop_ends_every_stream_with_a_terminal_event() {
    for (name, stop) in [("command", by_command as Stop), ("signal", by_signal)] {
        let mut host = Host::start();
        let id = host.create();
        let mut sender = host.run(&id, &["init", "touch @pid", "hang"]);
        let first = sender.event();
        let mut second = host.client().attach(&id, 0);
        second.event();
        let (pid, keeper) = (host.wait_file("pid"), host.daemon().keeper());
        stop(&host);
        let events: Vec<Value> = std::iter::once(first).chain(sender.rest()).collect();
        assert_eq!(check_turns(&events, 1), [1], "{name}");
        assert_eq!(kinds(&events), ["system", "error"], "{name}: {events:?}");
        assert!(message(&events[1]).contains("the daemon was stopped"), "{name}: {events:?}");
        assert_eq!(second.rest(), events[1..], "{name}");
        assert!(wait_readable(&keeper, TIMEOUT).unwrap(), "{name}: the keeper still runs");
        // The terminal event is in the log too.
        host.restart();
        assert_eq!(host.client().attach(&id, 0).rest(), events, "{name}");
        assert!(!is_running(&pid), "{name}");
    }
}

#[test]
fn nemesis_a_stop_does_not_fail_a_queued_message() {
    let mut host = Host::start();
    let id = host.create();
    let mut stream = host.run(&id, &["init", "hang"]);
    stream.event();
    host.run(&id, &["init", "text after", "result"]).rest();
    by_command(&host);
    assert_eq!(kinds(&stream.rest()), ["error"], "the running turn");
    host.restart();
    let answered = host.client().attach(&id, 2).rest();
    assert_eq!(kinds(&answered), ["system", "text", "result"], "{answered:?}");
}

/// The process outlives the daemon, so the log has no terminal event yet. The stream ends with an error of its own.
#[test]
fn nemesis_a_stop_that_keeps_processes_ends_streams() {
    let host = Host::start();
    let id = host.create();
    let mut stream = host.run(&id, &["init", "touch @pid", "hang"]);
    stream.event();
    let pid = host.wait_file("pid");
    let kept = host.outpost(&["stop", "--keep-children"]);
    assert!(kept.status.success(), "{kept:?}");
    let events = stream.rest();
    assert_eq!(kinds(&events), ["error"], "{events:?}");
    assert!(message(&events[0]).contains("reconnect"), "{events:?}");
    assert_eq!((&events[0]["turn"], events[0].get("seq")), (&json!(1), None), "it is not in the record");
    assert!(is_running(&pid));
}

/// A client that does not read must not delay the shutdown.
#[test]
fn nemesis_a_stop_does_not_wait_for_a_client_that_does_not_read() {
    let host = Host::start();
    let id = host.create();
    let stuck = host.run(&id, &["init", "long 30000000", "touch @written", "hang"]);
    host.wait_file("written");
    let keeper = host.daemon().keeper();
    by_command(&host);
    assert!(wait_readable(&keeper, Duration::from_secs(20)).unwrap(), "the daemon still runs");
    drop(stuck);
}
