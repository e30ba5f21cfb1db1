//! The end of a keeper: a server's keeper kills everything, a daemon's keeper leaves the children alive.

use crate::daemon::{Log, inherited, shell, sleeper, state};
use crate::kit::{self, Client, Thread, alone, null};
use outpost_keeper::state::{Running, SerializedEntry};
use outpost_keeper::{Keeper, ProcessState, Request};
use outpost_sys::epoll::{is_readable, wait_readable};
use outpost_sys::pidfd::{self, Pidfd};
use outpost_sys::pipe::pipe;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::Started;
use outpost_sys::{file, procfs};
use outpost_testkit::{require, root};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};

/// A keeper with these arguments, a worker whose end of the link the test has, and a child in slot 20.
fn with_child(arguments: Vec<CString>, child: &Started, child_state: ProcessState) -> (Client, Thread<u8>) {
    let null = null();
    let worker = shell(c"exec sleep 1000", null.as_fd());
    let (client, link) = Client::pair();
    let mut state = state(arguments);
    let (pidfd, link) = (file::into_inherited(worker.pidfd).unwrap(), file::into_inherited(link).unwrap());
    state.worker = Some(Running { pid: worker.pid, pidfd, link, served: true });
    let pidfd = file::into_inherited(file::duplicate(&child.pidfd).unwrap()).unwrap();
    let held = Vec::new();
    state.entries =
        vec![SerializedEntry { slot: 20, pid: child.pid, state: child_state, pidfd, held, exec_status: -1 }];
    (client, Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run()))
}

/// The process whose pid a shell has printed.
fn printed(output: &OwnedFd) -> Pidfd {
    outpost_testkit::process(kit::read(output).trim().parse().unwrap()).unwrap()
}

#[test]
fn the_keeper_of_a_server_kills_every_descendant() {
    alone("teardown::the_keeper_of_a_server_kills_every_descendant", || {
        let output = pipe().unwrap();
        let script = c"setsid sleep 1000 & echo $!; wait";
        let child = shell(script, output.write.as_fd());
        let escaped = printed(&output.read);
        let (mut client, keeper) = with_child(Vec::new(), &child, ProcessState::Running);
        client.send(Request::Stop, &[]);
        assert_eq!(keeper.join(), 0);
        assert!(wait_readable(&child.pidfd, kit::TIMEOUT).unwrap(), "the child lives");
        assert!(wait_readable(&escaped, kit::TIMEOUT).unwrap(), "a descendant that left its session lives");
        client.die();
    });
}

#[test]
fn the_keeper_of_a_daemon_leaves_its_children_alive() {
    alone("teardown::the_keeper_of_a_daemon_leaves_its_children_alive", || {
        let (log, output) = (Log::new("leaves"), pipe().unwrap());
        let child = sleeper(output.write.as_fd());
        let (mut client, keeper) = with_child(log.worker("exit 0"), &child, ProcessState::Running);
        client.send(Request::Stop, &[]);
        assert_eq!(keeper.join(), 0);
        assert!(!is_readable(&child.pidfd));
        assert!(procfs::stat(child.pid).is_some_and(|stat| stat.state != b'Z'));
        client.die();
    });
}

/// The entry comes from another keeper and has no record of a confinement.
#[test]
fn the_first_process_of_a_confined_command_ends_last_also_under_a_later_keeper() {
    require!(root());
    alone("teardown::the_first_process_of_a_confined_command_ends_last_also_under_a_later_keeper", || {
        let output = pipe().unwrap();
        let script = c"unshare --pid --fork sh -c 'echo ready; exec sleep 1000' & wait; echo cleared";
        let child = shell(script, output.write.as_fd());
        drop(output.write);
        assert_eq!(kit::read(&output.read), "ready\n");
        let (mut client, keeper) = with_child(Vec::new(), &child, ProcessState::Running);
        client.send(Request::Stop, &[]);
        assert_eq!(keeper.join(), 0);
        assert_eq!(kit::read_to_end(&output.read), "cleared\n");
        client.die();
    });
}

/// More requests than the keeper handles in one turn. The last one is `Stop`, so no worker is started.
#[test]
fn requests_of_a_dead_worker_are_handled() {
    alone("teardown::requests_of_a_dead_worker_are_handled", || {
        let (log, null) = (Log::new("last"), null());
        let worker = shell(c"exec sleep 1000", null.as_fd());
        let (mut client, link) = Client::pair();
        for _ in 0..100 {
            client.send(Request::Release { slot: 20, role: 1 }, &[]);
        }
        client.send(Request::Stop, &[]);
        pidfd::signal(&worker.pidfd, Signal::KILL).unwrap();
        assert!(wait_readable(&worker.pidfd, kit::TIMEOUT).unwrap());
        let mut state = state(log.worker("stop; exec sleep 1000"));
        let (pidfd, link) =
            (file::into_inherited(worker.pidfd).unwrap(), file::into_inherited(link).unwrap());
        state.worker = Some(Running { pid: worker.pid, pidfd, link, served: true });
        let keeper = Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run());
        assert_eq!(keeper.join(), 0);
        assert_eq!(log.lines(), 0, "another worker was started");
        client.die();
    });
}
