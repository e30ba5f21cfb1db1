//! Signals through the keeper.

use crate::kit::{self, command, read, shell, subscribed};
use outpost_keeper::ProcessState;
use outpost_sys::epoll::is_readable;
use outpost_sys::pidfd::ExitCause;
use outpost_sys::signal::Signal;

/// A leader and another process, which lives until EOF on stdin. Both hold stdout.
const TWO: &str = "exec 5<&0; cat <&5 & echo started; wait";

#[test]
fn a_signal_to_the_leader_reaches_it_alone() {
    let (mut client, _keeper) = subscribed();
    let (input, output) = client.spawn_piped(20, &shell(TWO));
    assert_eq!(read(&output), "started\n");
    client.signal(20, Signal::KILL, false);
    assert_eq!(client.ended(20), ExitCause::Signal(9));
    assert!(!is_readable(&output), "the other process lives");
    drop(input);
    assert_eq!(read(&output), "");
}

#[test]
fn a_signal_to_the_group_reaches_all() {
    let (mut client, _keeper) = subscribed();
    let (_input, output) = client.spawn_piped(20, &shell(TWO));
    assert_eq!(read(&output), "started\n");
    client.signal(20, Signal::TERM, true);
    assert_eq!(client.ended(20), ExitCause::Signal(15));
    assert_eq!(read(&output), "");
}

#[test]
fn a_signal_to_a_starting_child_is_not_lost() {
    let (mut client, _keeper) = subscribed();
    for slot in 100..200 {
        client.spawn_quiet(slot, &command("/bin/sleep", &["1000"]));
        client.signal(slot, Signal::TERM, slot % 2 == 0);
    }
    for slot in 100..200 {
        assert_eq!(client.ended(slot), ExitCause::Signal(15), "{slot}");
    }
}

#[test]
fn a_signal_to_an_empty_slot_has_no_effect() {
    let (mut client, _keeper) = subscribed();
    client.spawn_quiet(20, &shell("exit 0"));
    assert_eq!(client.ended(20), ExitCause::Code(0));
    for slot in [0, 1, 20, 21, u64::MAX] {
        client.signal(slot, Signal::KILL, true);
        client.signal(slot, Signal::KILL, false);
    }
    let (input, output) = client.spawn_piped(22, &shell("read line; echo $line"));
    assert_eq!(client.next_entry(22).state, ProcessState::Running);
    kit::write(&input, "alive\n");
    assert_eq!(read(&output), "alive\n");
}
