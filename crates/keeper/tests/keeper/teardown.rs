//! What is left of worker and children when a keeper ends: nothing of a server's, everything of a daemon's.

use crate::daemon::{Log, inherited, shell, sleeper, state};
use crate::kit::{self, Client, Thread, alone, null};
use outpost_keeper::state::{Running, StoredEntry};
use outpost_keeper::{Keeper, Request, Standing};
use outpost_sys::epoll::{is_readable, wait_readable};
use outpost_sys::pidfd::{self, Pidfd};
use outpost_sys::pipe::pipe;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::Started;
use outpost_sys::{file, procfs};
use outpost_testkit::{require, root};
use std::ffi::CString;
use std::os::fd::{AsFd, IntoRawFd, OwnedFd};

/// A keeper with these arguments, a worker whose end of the link is ours, and a child in slot 20.
fn with_child(arguments: Vec<CString>, child: &Started, standing: Standing) -> (Client, Thread<u8>) {
    let null = null();
    let worker = shell(c"exec sleep 1000", null.as_fd());
    let (client, link) = Client::pair();
    let mut state = state(arguments);
    let (pidfd, link) = (worker.pidfd.into_raw_fd(), link.into_raw_fd());
    state.worker = Some(Running { pid: worker.pid, pidfd, link, served: true });
    let pidfd = file::duplicate(&child.pidfd).unwrap().into_raw_fd();
    let held = Vec::new();
    state.entries = vec![StoredEntry { slot: 20, pid: child.pid, standing, pidfd, held, report: -1 }];
    (client, Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run()))
}

/// The process whose number a shell has printed.
fn printed(output: &OwnedFd) -> Pidfd {
    outpost_testkit::process(kit::read(output).trim().parse().unwrap()).unwrap()
}

#[test]
fn a_server_that_ends_takes_every_descendant_along() {
    alone("teardown::a_server_that_ends_takes_every_descendant_along", || {
        let output = pipe().unwrap();
        let script = c"setsid sleep 1000 & echo $!; wait";
        let child = shell(script, output.write.as_fd());
        let escaped = printed(&output.read);
        let (mut client, keeper) = with_child(Vec::new(), &child, Standing::Running);
        client.send(Request::Stop, &[]);
        assert_eq!(keeper.join(), 0);
        assert!(wait_readable(&child.pidfd, kit::PATIENCE).unwrap(), "the child lives");
        assert!(wait_readable(&escaped, kit::PATIENCE).unwrap(), "one that left its session lives");
        client.die();
    });
}

#[test]
fn a_daemon_that_ends_leaves_its_children_alive() {
    alone("teardown::a_daemon_that_ends_leaves_its_children_alive", || {
        let (log, output) = (Log::new("leaves"), pipe().unwrap());
        let child = sleeper(output.write.as_fd());
        let (mut client, keeper) = with_child(log.worker("exit 0"), &child, Standing::Running);
        client.send(Request::Stop, &[]);
        assert_eq!(keeper.join(), 0);
        assert!(!is_readable(&child.pidfd));
        assert!(procfs::stat(child.pid).is_some_and(|stat| stat.state != b'Z'));
        client.die();
    });
}

/// The entry comes from another keeper, which says nothing about a confinement.
#[test]
fn the_first_process_of_a_confined_command_sees_the_others_end_also_under_a_later_keeper() {
    require!(root());
    alone(
        "teardown::the_first_process_of_a_confined_command_sees_the_others_end_also_under_a_later_keeper",
        || {
            let output = pipe().unwrap();
            let script = c"unshare --pid --fork sh -c 'echo ready; exec sleep 1000' & wait; echo cleared";
            let child = shell(script, output.write.as_fd());
            drop(output.write);
            assert_eq!(kit::read(&output.read), "ready\n");
            let (mut client, keeper) = with_child(Vec::new(), &child, Standing::Running);
            client.send(Request::Stop, &[]);
            assert_eq!(keeper.join(), 0);
            assert_eq!(kit::read_to_end(&output.read), "cleared\n");
            client.die();
        },
    );
}

/// More than the keeper takes at once, and the last one counts: nothing is to be started again.
#[test]
fn what_a_worker_asked_for_before_it_died_is_done() {
    alone("teardown::what_a_worker_asked_for_before_it_died_is_done", || {
        let (log, null) = (Log::new("last"), null());
        let worker = shell(c"exec sleep 1000", null.as_fd());
        let (mut client, link) = Client::pair();
        for _ in 0..100 {
            client.send(Request::Muster, &[]);
        }
        client.send(Request::Stop, &[]);
        pidfd::signal(&worker.pidfd, Signal::KILL).unwrap();
        assert!(wait_readable(&worker.pidfd, kit::PATIENCE).unwrap());
        let mut state = state(log.worker("stop; exec sleep 1000"));
        let (pidfd, link) = (worker.pidfd.into_raw_fd(), link.into_raw_fd());
        state.worker = Some(Running { pid: worker.pid, pidfd, link, served: true });
        let keeper = Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run());
        assert_eq!(keeper.join(), 0);
        assert_eq!(log.lines(), 0, "another worker was started");
        client.die();
    });
}
