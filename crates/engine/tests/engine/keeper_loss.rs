//! The keeper's death at bad moments, played by a test that is the keeper.

use crate::support::{PATIENCE, shell, within};
use outpost_engine::{Config, Engine, Lifecycle};
use outpost_keeper::{Event, MESSAGE_BYTES, OWN_SLOT, Request, Roles, Standing};
use outpost_sys::epoll::wait_readable;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::How;
use outpost_sys::spawn::{self, Child, Failure, Program, Step};
use outpost_sys::{Errno, message};
use std::os::fd::{AsFd, OwnedFd};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_keeper_that_dies_in_the_middle_of_the_handover_loses_only_what_it_had_not_sent() {
    let dir = tempfile::tempdir().unwrap();
    let (ours, its) = message::pair().unwrap();
    let keeper = std::thread::spawn(move || {
        assert!(wait_readable(&ours, PATIENCE).unwrap());
        let mut bytes = [0; MESSAGE_BYTES];
        message::receive(&ours, &mut bytes, &mut Vec::new()).unwrap();
        assert!(matches!(Request::decode(&bytes), Some(Request::Hello { .. })));
        let lock = file::sealed_memory("lock", b"held").unwrap();
        let held = Roles::new([7]).unwrap();
        let own = Event::Entry { slot: OWN_SLOT, pid: 0, standing: Standing::Running, pidfd: false, held };
        message::send(&ours, &own.encode(), &[std::os::fd::AsFd::as_fd(&lock)]).unwrap();
        // And is gone before it has said that this was all.
    });
    // A binary that cannot be a keeper: the worker must go on without one.
    let binary = file::open("/bin/false", Open::Program).unwrap();
    let lifecycle = Lifecycle::Daemon { binary, arguments: vec![c"outpost".into(), c"worker".into()] };
    // Nothing here could remove the group again.
    let config = Config { cgroups: false, ..Config::new(dir.path()) };
    let (engine, own) = Engine::start(config, its, lifecycle, |_, _| ()).unwrap();
    keeper.join().unwrap();
    assert_eq!(own.keys().copied().collect::<Vec<_>>(), [7]);
    assert_eq!(within("the list", engine.list()).await.len(), 0);
    // No keeper can be started, and the engine answers all the same.
    within("an answer", engine.hold(9, file::sealed_memory("more", b"").unwrap())).await.unwrap();
}

fn receive(link: &OwnedFd) -> Request {
    assert!(wait_readable(link, PATIENCE).unwrap());
    let mut bytes = [0; MESSAGE_BYTES];
    message::receive(link, &mut bytes, &mut Vec::new()).unwrap();
    Request::decode(&bytes).unwrap()
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
    let slot = loop {
        if let Request::Spawn { slot, .. } = receive(&keeper) {
            break slot;
        }
    };
    let null = file::open("/dev/null", Open::ReadWrite).unwrap();
    let child = spawn::spawn(&Child::new(
        Program::Path(c"/bin/sleep"),
        &[c"sleep", c"1000"],
        &[],
        spawn::Standing::Group,
        &[(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2)],
    ))
    .unwrap();
    let entry = |standing, pidfd| Event::Entry { slot, pid: child.pid, standing, pidfd, held: Roles::EMPTY };
    message::send(&keeper, &entry(Standing::Running, true).encode(), &[child.pidfd.as_fd()]).unwrap();
    let process = within("the start", spawning).await.unwrap();
    let lost = Standing::Failed(Failure::at(Step::Gate, Errno::CHILD));
    message::send(&keeper, &entry(lost, false).encode(), &[]).unwrap();
    assert!(wait_readable(&child.pidfd, PATIENCE).unwrap(), "the process runs on");
    within("the end", process.finished()).await.unwrap();
    assert_eq!(process.status().exit().map(|exit| exit.how), Some(How::Unknown));
    assert_eq!(engine.list().await.len(), 1, "its record stays");
}
