//! The death of the keeper at certain moments. The test plays the keeper.

use crate::support::{TIMEOUT, shell, within};
use outpost_engine::{Config, Engine, Lifecycle, OnTaken, Spawn};
use outpost_keeper::{Event, FdRoles, MESSAGE_BYTES_MAX, OWN_SLOT, ProcessState, Request};
use outpost_sys::epoll::wait_readable;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::{self, ExitCause};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Executable, Failure, Started, Step};
use outpost_sys::{Errno, message};
use std::os::fd::{AsFd, OwnedFd};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_dies_while_it_sends_its_table_loses_only_what_it_has_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, its) = message::pair().unwrap();
    let keeper = std::thread::spawn(move || {
        assert!(wait_readable(&ours, TIMEOUT).unwrap());
        let mut bytes = [0; MESSAGE_BYTES_MAX];
        let len = message::receive(&ours, &mut bytes, &mut Vec::new()).unwrap().unwrap();
        assert!(matches!(Request::decode(&bytes[..len]), Some(Request::Hello { .. })));
        let lock = file::sealed_memory("lock", b"held").unwrap();
        let held = FdRoles::new([7]).unwrap();
        let own = Event::Entry { slot: OWN_SLOT, pid: 0, state: ProcessState::Running, pidfd: false, held };
        message::send(&ours, &own.encode(), &[std::os::fd::AsFd::as_fd(&lock)]).unwrap();
        // It dies before `TableEnd`.
    });
    // A binary that is no keeper: the worker continues without one.
    let binary = file::open("/bin/false", Open::Program).unwrap();
    let lifecycle = Lifecycle::Daemon { binary, arguments: vec![c"outpost".into(), c"worker".into()] };
    // Without cgroups, since this test could not remove them.
    let config = Config { cgroups: false, ..Config::new(dir.path()) };
    let (engine, own) = Engine::start(config, its, lifecycle, |_, _| ()).unwrap();
    keeper.join().unwrap();
    assert_eq!(own.keys().copied().collect::<Vec<_>>(), [7]);
    assert_eq!(within("the list", engine.list()).await.len(), 0);
    // No keeper can be started, and the engine still replies.
    within("an answer", engine.hold(9, file::sealed_memory("more", b"").unwrap())).await.unwrap();
}

fn receive(link: &OwnedFd) -> Request {
    assert!(wait_readable(link, TIMEOUT).unwrap());
    let mut bytes = [0; MESSAGE_BYTES_MAX];
    let len = message::receive(link, &mut bytes, &mut Vec::new()).unwrap().unwrap();
    Request::decode(&bytes[..len]).unwrap()
}

/// The slot of the next spawn request.
fn requested_slot(keeper: &OwnedFd) -> u64 {
    loop {
        if let Request::Spawn { slot, .. } = receive(keeper) {
            return slot;
        }
    }
}

fn sleeper() -> Started {
    let null = file::open("/dev/null", Open::ReadWrite).unwrap();
    let descriptors = [0, 1, 2].map(|number| (null.as_fd(), number));
    let program = Executable::Path(c"/bin/sleep");
    spawn::spawn(&Child::new(program, &[c"sleep", c"1000"], &[], spawn::SessionKind::Group, &descriptors))
        .unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_is_replaced_while_it_starts_does_not_run_on_unlisted() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, its) = message::pair().unwrap();
    message::send(&keeper, &Event::TableEnd.encode(), &[]).unwrap();
    let config = Config { cgroups: false, ..Config::new(dir.path()) };
    let (engine, _) = Engine::start(config, its, Lifecycle::Embedded, |_, _| ()).unwrap();
    let start = |on_taken| {
        let engine = engine.clone();
        tokio::spawn(async move { engine.spawn(Spawn { on_taken, ..shell("p", "exit 0") }).await })
    };
    let first = start(OnTaken::Refuse);
    let first_slot = requested_slot(&keeper);
    let second = start(OnTaken::Replace);
    let second_slot = requested_slot(&keeper);
    let confirm = |slot| {
        let child = sleeper();
        let (state, held) = (ProcessState::Running, FdRoles::EMPTY);
        let entry = Event::Entry { slot, pid: child.pid, state, pidfd: true, held };
        message::send(&keeper, &entry.encode(), &[child.pidfd.as_fd()]).unwrap();
        child
    };
    let kept = confirm(second_slot);
    within("the second start", second).await.unwrap().unwrap();
    let replaced = confirm(first_slot);
    let has_ended = wait_readable(&replaced.pidfd, TIMEOUT).unwrap();
    for child in [kept, replaced] {
        let _ended_already = pidfd::signal(&child.pidfd, Signal::KILL);
        wait_readable(&child.pidfd, TIMEOUT).unwrap();
        let _reaped = pidfd::reap(&child.pidfd);
    }
    first.abort();
    assert!(has_ended, "the process runs on, and no client can find it");
    assert_eq!(engine.list().await.len(), 1);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_process_that_the_keeper_lost_after_its_start_is_killed_and_keeps_its_record() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, its) = message::pair().unwrap();
    message::send(&keeper, &Event::TableEnd.encode(), &[]).unwrap();
    let config = Config { cgroups: false, ..Config::new(dir.path()) };
    let (engine, _) = Engine::start(config, its, Lifecycle::Embedded, |_, _| ()).unwrap();
    let spawning = tokio::spawn({
        let engine = engine.clone();
        async move { engine.spawn(shell("lost", "exit 0")).await.unwrap() }
    });
    let slot = requested_slot(&keeper);
    let child = sleeper();
    let entry = |state, pidfd| Event::Entry { slot, pid: child.pid, state, pidfd, held: FdRoles::EMPTY };
    message::send(&keeper, &entry(ProcessState::Running, true).encode(), &[child.pidfd.as_fd()]).unwrap();
    let process = within("the start", spawning).await.unwrap();
    let lost = ProcessState::Failed(Failure::at(Step::Gate, Errno::CHILD));
    message::send(&keeper, &entry(lost, false).encode(), &[]).unwrap();
    assert!(wait_readable(&child.pidfd, TIMEOUT).unwrap(), "the process runs on");
    within("the end", process.finished()).await.unwrap();
    assert_eq!(process.status().exit().map(|exit| exit.cause), Some(ExitCause::Unknown));
    assert_eq!(engine.list().await.len(), 1, "its record stays");
}
