//! Descriptors that the keeper holds, and entries that it forgets.

use crate::kit::{command, greeted, read, read_to_end, shell, start, write};
use outpost_keeper::{HELD_MAX, KEPT, OWN_SLOT, Request, Standing};
use outpost_sys::epoll::is_readable;
use outpost_sys::pidfd::How;
use outpost_sys::pipe::pipe;
use outpost_sys::signal::Signal;
use std::os::fd::AsFd;

#[test]
fn held_ends_keep_a_childs_pipes_alive_for_the_next_worker() {
    let (mut client, _keeper) = greeted();
    let (input, output) = (pipe().unwrap(), pipe().unwrap());
    let null = crate::kit::null();
    let held = [(1, input.write.as_fd()), (2, output.read.as_fd())];
    let given = [(input.read.as_fd(), 0), (output.write.as_fd(), 1), (null.as_fd(), 2)];
    client.spawn(20, &command("/bin/cat", &[]), &held, &given);
    let told = client.told(20);
    assert_eq!((told.standing, told.roles()), (Standing::Running, vec![]), "the worker has them already");
    let pidfd = told.pidfd.unwrap();
    drop((input, output));
    assert!(!is_readable(&pidfd), "no end of input, no broken output");
    let mut cat = client.hello().remove(1);
    assert_eq!((cat.slot, cat.standing, cat.roles()), (20, Standing::Running, vec![1, 2]));
    assert!(cat.pidfd.is_some());
    let (input, output) = (cat.take(1), cat.take(2));
    write(&input, "still here\n");
    assert_eq!(read(&output), "still here\n");
    drop(input);
    assert!(!is_readable(&pidfd), "the keeper still holds its input");
    client.send(Request::Release { slot: 20, role: 1 }, &[]);
    assert_eq!(client.ended(20), How::Code(0));
    assert_eq!(client.hello()[1].roles(), [2], "what it wrote can still be read");
}

#[test]
fn one_that_runs_is_not_forgotten() {
    let (mut client, _keeper) = greeted();
    let (input, _output) = client.spawn_piped(20, &shell("read line; exit 5"));
    client.send(Request::Forget { slot: 20 }, &[]);
    assert_eq!(client.told(20).standing, Standing::Running);
    client.send(Request::Forget { slot: 20 }, &[]);
    client.send(Request::Forget { slot: OWN_SLOT }, &[]);
    client.send(Request::Forget { slot: 21 }, &[]);
    assert_eq!(client.hello().len(), 2);
    drop(input);
    assert_eq!(client.ended(20), How::Code(5));
    let again = client.hello().remove(1);
    assert!(
        matches!(again.standing, Standing::Ended(exit) if exit.how == How::Code(5)),
        "an exit is kept: {again:?}"
    );
    client.send(Request::Forget { slot: 20 }, &[]);
    assert_eq!(client.hello().len(), 1);
    // Its slot is free again.
    client.spawn_quiet(20, &shell("exit 6"));
    assert_eq!(client.ended(20), How::Code(6));
}

#[test]
fn to_forget_is_to_close_what_was_held() {
    let (mut client, _keeper) = greeted();
    client.spawn_quiet(20, &shell("exit 0"));
    assert_eq!(client.ended(20), How::Code(0));
    let more = pipe().unwrap();
    client.send(Request::Hold { slot: 20, role: 9 }, &[more.write.as_fd()]);
    drop(more.write);
    assert_eq!(client.hello()[1].roles(), [9]);
    assert!(!is_readable(&more.read), "held, so it has not ended");
    client.send(Request::Forget { slot: 20 }, &[]);
    assert_eq!(read_to_end(&more.read), "");
}

#[test]
fn a_role_is_held_once_and_its_last_descriptor_counts() {
    let (mut client, _keeper) = greeted();
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
fn what_cannot_be_held_does_not_spoil_the_table() {
    let (mut client, _keeper) = greeted();
    let pipe = pipe().unwrap();
    // One more than there is room for, a role that is none, a slot that is none, a message without its descriptor.
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
fn the_end_of_the_keeper_closes_what_it_held() {
    let (mut client, keeper) = start();
    let pipe = pipe().unwrap();
    client.send(Request::Hold { slot: OWN_SLOT, role: 1 }, &[pipe.write.as_fd()]);
    drop(pipe.write);
    drop(client);
    assert_eq!(keeper.join(), 0);
    assert_eq!(read_to_end(&pipe.read), "");
}

#[test]
fn what_is_nobodys_child_is_kept_for_the_next_worker_until_it_is_forgotten() {
    let (mut client, _keeper) = greeted();
    let (kept, gone) = (pipe().unwrap(), pipe().unwrap());
    client.send(Request::Hold { slot: KEPT | 20, role: 7 }, &[kept.write.as_fd()]);
    client.send(Request::Hold { slot: KEPT | 21, role: 7 }, &[gone.write.as_fd()]);
    client.send(Request::Forget { slot: KEPT | 21 }, &[]);
    drop((kept.write, gone.write));
    assert_eq!(read_to_end(&gone.read), "");
    let mut entry = client.hello().remove(1);
    assert_eq!((entry.slot, entry.roles(), entry.pidfd.is_some()), (KEPT | 20, vec![7], false));
    write(&entry.take(7), "for the next");
    assert_eq!(read(&kept.read), "for the next");
    // Nothing can be started or signalled there.
    client.spawn_quiet(KEPT | 22, &shell("exit 0"));
    client.signal(KEPT | 20, Signal::KILL, true);
    assert_eq!(client.hello().len(), 2);
}
