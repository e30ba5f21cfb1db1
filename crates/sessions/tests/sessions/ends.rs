//! The daemon stops in order: each open stream has its terminal event and `[DONE]` before its connection is closed.

use crate::kit::{Host, PATIENCE, check, kinds, message, runs};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use serde_json::{Value, json};
use std::time::Duration;

/// A way to stop the daemon in order.
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
        let told: Vec<Value> = std::iter::once(first).chain(sender.rest()).collect();
        assert_eq!(check(&told, 1), [1], "{name}");
        assert_eq!(kinds(&told), ["system", "error"], "{name}: {told:?}");
        assert!(message(&told[1]).contains("the daemon was stopped"), "{name}: {told:?}");
        assert_eq!(second.rest(), told[1..], "{name}");
        assert!(wait_readable(&keeper, PATIENCE).unwrap(), "{name}: the keeper still runs");
        // It stands in the record, too.
        host.restart();
        assert_eq!(host.client().attach(&id, 0).rest(), told, "{name}");
        assert!(!runs(&pid), "{name}");
    }
}

#[test]
fn nemesis_a_message_that_waits_at_a_stop_is_not_told_as_failed() {
    let mut host = Host::start();
    let id = host.create();
    let mut stream = host.run(&id, &["init", "hang"]);
    stream.event();
    host.run(&id, &["init", "text after", "result"]).rest();
    by_command(&host);
    assert_eq!(kinds(&stream.rest()), ["error"], "of the turn that ran");
    host.restart();
    let answered = host.client().attach(&id, 2).rest();
    assert_eq!(kinds(&answered), ["system", "text", "result"], "{answered:?}");
}

/// The turn goes on without the face, so its record has no end yet; the stream says so and ends.
#[test]
fn nemesis_a_stop_that_keeps_processes_ends_streams_too() {
    let host = Host::start();
    let id = host.create();
    let mut stream = host.run(&id, &["init", "touch @pid", "hang"]);
    stream.event();
    let pid = host.wait_file("pid");
    let kept = host.outpost(&["stop", "--keep-children"]);
    assert!(kept.status.success(), "{kept:?}");
    let told = stream.rest();
    assert_eq!(kinds(&told), ["error"], "{told:?}");
    assert!(message(&told[0]).contains("reconnect"), "{told:?}");
    assert_eq!((&told[0]["turn"], told[0].get("seq")), (&json!(1), None), "it is not in the record");
    assert!(runs(&pid));
}

/// A client that does not read must not hold up the stop.
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
