//! Signals through the keeper.

use crate::kit::{self, command, greeted, read, shell};
use outpost_keeper::Standing;
use outpost_sys::epoll::is_readable;
use outpost_sys::pidfd::How;
use outpost_sys::signal::Signal;

/// A leader and another, who lives until the input ends; both hold the output.
const TWO: &str = "exec 5<&0; cat <&5 & echo started; wait";

#[test]
fn a_signal_to_the_leader_reaches_it_alone() {
    let (mut client, _keeper) = greeted();
    let (input, output) = client.spawn_piped(20, &shell(TWO));
    assert_eq!(read(&output), "started\n");
    client.signal(20, Signal::KILL, false);
    assert_eq!(client.ended(20), How::Signal(9));
    assert!(!is_readable(&output), "the other one lives");
    drop(input);
    assert_eq!(read(&output), "");
}

#[test]
fn a_signal_to_the_group_reaches_all() {
    let (mut client, _keeper) = greeted();
    let (_input, output) = client.spawn_piped(20, &shell(TWO));
    assert_eq!(read(&output), "started\n");
    client.signal(20, Signal::TERM, true);
    assert_eq!(client.ended(20), How::Signal(15));
    assert_eq!(read(&output), "");
}

#[test]
fn a_signal_to_one_that_is_only_starting_is_not_lost() {
    let (mut client, _keeper) = greeted();
    for slot in 100..200 {
        client.spawn_quiet(slot, &command("/bin/sleep", &["1000"]));
        client.signal(slot, Signal::TERM, slot % 2 == 0);
    }
    for slot in 100..200 {
        assert_eq!(client.ended(slot), How::Signal(15), "{slot}");
    }
}

#[test]
fn a_signal_to_nobody_is_no_harm() {
    let (mut client, _keeper) = greeted();
    client.spawn_quiet(20, &shell("exit 0"));
    assert_eq!(client.ended(20), How::Code(0));
    for slot in [0, 1, 20, 21, u64::MAX] {
        client.signal(slot, Signal::KILL, true);
        client.signal(slot, Signal::KILL, false);
    }
    let (input, output) = client.spawn_piped(22, &shell("read line; echo $line"));
    assert_eq!(client.told(22).standing, Standing::Running);
    kit::write(&input, "alive\n");
    assert_eq!(read(&output), "alive\n");
}
