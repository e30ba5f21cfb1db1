//! Descriptors that the keeper holds, and entries that it forgets.

use crate::kit::{command, read, read_to_end, shell, start, subscribed, write};
use outpost_keeper::{FDS_ONLY, HELD_MAX, OWN_SLOT, ProcessState, Request};
use outpost_sys::epoll::is_readable;
use outpost_sys::pidfd::ExitCause;
use outpost_sys::pipe::pipe;
use outpost_sys::signal::Signal;
use std::os::fd::AsFd;

#[test]
fn held_descriptors_keep_a_childs_pipes_open_for_the_next_worker() {
    let (mut client, _keeper) = subscribed();
    let (input, output) = (pipe().unwrap(), pipe().unwrap());
    let null = crate::kit::null();
    let held = [(1, input.write.as_fd()), (2, output.read.as_fd())];
    let given = [(input.read.as_fd(), 0), (output.write.as_fd(), 1), (null.as_fd(), 2)];
    client.spawn(20, &command("/bin/cat", &[]), &held, &given);
    let entry = client.next_entry(20);
    assert_eq!((entry.state, entry.roles()), (ProcessState::Running, vec![]), "the worker has them already");
    let pidfd = entry.pidfd.unwrap();
    drop((input, output));
    assert!(!is_readable(&pidfd), "neither EOF nor SIGPIPE");
    let mut cat = client.hello().remove(1);
    assert_eq!((cat.slot, cat.state, cat.roles()), (20, ProcessState::Running, vec![1, 2]));
    assert!(cat.pidfd.is_some());
    let (input, output) = (cat.take(1), cat.take(2));
    write(&input, "still here\n");
    assert_eq!(read(&output), "still here\n");
    drop(input);
    assert!(!is_readable(&pidfd), "the keeper still holds its input");
    client.send(Request::Release { slot: 20, role: 1 }, &[]);
    assert_eq!(client.ended(20), ExitCause::Code(0));
    assert_eq!(client.hello()[1].roles(), [2], "what it wrote can still be read");
}

#[test]
fn a_running_child_is_not_forgotten() {
    let (mut client, _keeper) = subscribed();
    let (input, _output) = client.spawn_piped(20, &shell("read line; exit 5"));
    client.send(Request::Forget { slot: 20 }, &[]);
    assert_eq!(client.next_entry(20).state, ProcessState::Running);
    client.send(Request::Forget { slot: 20 }, &[]);
    client.send(Request::Forget { slot: OWN_SLOT }, &[]);
    client.send(Request::Forget { slot: 21 }, &[]);
    assert_eq!(client.hello().len(), 2);
    drop(input);
    assert_eq!(client.ended(20), ExitCause::Code(5));
    let again = client.hello().remove(1);
    assert!(
        matches!(again.state, ProcessState::Ended(exit) if exit.cause == ExitCause::Code(5)),
        "an exit is kept: {again:?}"
    );
    client.send(Request::Forget { slot: 20 }, &[]);
    assert_eq!(client.hello().len(), 1);
    // The slot is free again.
    client.spawn_quiet(20, &shell("exit 6"));
    assert_eq!(client.ended(20), ExitCause::Code(6));
}

#[test]
fn forget_closes_held_descriptors() {
    let (mut client, _keeper) = subscribed();
    client.spawn_quiet(20, &shell("exit 0"));
    assert_eq!(client.ended(20), ExitCause::Code(0));
    let more = pipe().unwrap();
    client.send(Request::Hold { slot: 20, role: 9 }, &[more.write.as_fd()]);
    drop(more.write);
    assert_eq!(client.hello()[1].roles(), [9]);
    assert!(!is_readable(&more.read), "held, so there is no EOF");
    client.send(Request::Forget { slot: 20 }, &[]);
    assert_eq!(read_to_end(&more.read), "");
}

#[test]
fn a_second_descriptor_of_a_role_replaces_the_first() {
    let (mut client, _keeper) = subscribed();
    let (first, second) = (pipe().unwrap(), pipe().unwrap());
    client.send(Request::Hold { slot: OWN_SLOT, role: 3 }, &[first.write.as_fd()]);
    client.send(Request::Hold { slot: OWN_SLOT, role: 3 }, &[second.write.as_fd()]);
    drop(first.write);
    assert_eq!(read_to_end(&first.read), "");
    let mut own = client.hello().remove(0);
    assert_eq!(own.roles(), [3]);
    write(&own.take(3), "second");
    assert_eq!(read(&second.read), "second");
}

#[test]
fn a_refused_hold_does_not_change_the_table() {
    let (mut client, _keeper) = subscribed();
    let pipe = pipe().unwrap();
    // One more than fit, an invalid role, an unknown slot, a message without a descriptor.
    for role in 0..=u8::try_from(HELD_MAX).unwrap() {
        client.send(Request::Hold { slot: OWN_SLOT, role }, &[pipe.write.as_fd()]);
    }
    client.send(Request::Release { slot: OWN_SLOT, role: 0 }, &[]);
    client.send(Request::Hold { slot: OWN_SLOT, role: 255 }, &[pipe.write.as_fd()]);
    client.send(Request::Hold { slot: 77, role: 1 }, &[pipe.write.as_fd()]);
    client.send(Request::Hold { slot: OWN_SLOT, role: 200 }, &[]);
    let roles: Vec<u8> = (1..u8::try_from(HELD_MAX).unwrap()).collect();
    assert_eq!(client.hello()[0].roles(), roles);
}

#[test]
fn the_end_of_the_keeper_closes_held_descriptors() {
    let (mut client, keeper) = start();
    let pipe = pipe().unwrap();
    client.send(Request::Hold { slot: OWN_SLOT, role: 1 }, &[pipe.write.as_fd()]);
    drop(pipe.write);
    drop(client);
    assert_eq!(keeper.join(), 0);
    assert_eq!(read_to_end(&pipe.read), "");
}

#[test]
fn descriptors_without_a_child_are_held_until_they_are_forgotten() {
    let (mut client, _keeper) = subscribed();
    let (kept, gone) = (pipe().unwrap(), pipe().unwrap());
    client.send(Request::Hold { slot: FDS_ONLY | 20, role: 7 }, &[kept.write.as_fd()]);
    client.send(Request::Hold { slot: FDS_ONLY | 21, role: 7 }, &[gone.write.as_fd()]);
    client.send(Request::Forget { slot: FDS_ONLY | 21 }, &[]);
    drop((kept.write, gone.write));
    assert_eq!(read_to_end(&gone.read), "");
    let mut entry = client.hello().remove(1);
    assert_eq!((entry.slot, entry.roles(), entry.pidfd.is_some()), (FDS_ONLY | 20, vec![7], false));
    write(&entry.take(7), "for the next");
    assert_eq!(read(&kept.read), "for the next");
    // A child can be neither started nor signalled there.
    client.spawn_quiet(FDS_ONLY | 22, &shell("exit 0"));
    client.signal(FDS_ONLY | 20, Signal::KILL, true);
    assert_eq!(client.hello().len(), 2);
}
