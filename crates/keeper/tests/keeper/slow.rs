//! Children that are slow to start or to end, because their cgroup is frozen.

use crate::kit::{self, Client, Thread, command, null, read_to_end, shell};
use outpost_keeper::{Keeper, LINK_VERSION, ProcessState, Request};
use outpost_sys::cgroup::{Group, Parent};
use outpost_sys::pidfd::ExitCause;
use outpost_sys::pipe::pipe;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{Failure, Step};
use outpost_sys::{Errno, file};
use outpost_testkit::{Lack, no_cgroups, require};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::PathBuf;
use std::time::Instant;

/// A frozen cgroup. Dropping it thaws, kills and removes it.
struct Ice {
    parent: Parent,
    group: Group,
    dir: OwnedFd,
}

impl Ice {
    fn new(test: &str) -> Result<Ice, Lack> {
        let parent =
            Parent::detect(&format!("outpost-test-{}-{test}", kit::me())).unwrap().ok_or_else(no_cgroups)?;
        let group = parent.group("ice");
        let dir = group.create().unwrap();
        let ice = Ice { parent, group, dir };
        ice.freeze(true);
        Ok(ice)
    }

    fn freeze(&self, frozen: bool) {
        let path = format!("/proc/self/fd/{}/cgroup.freeze", self.dir.as_raw_fd());
        std::fs::write(path, if frozen { "1" } else { "0" }).unwrap();
    }
}

impl Drop for Ice {
    fn drop(&mut self) {
        self.freeze(false);
        let _left = self.group.destroy(kit::TIMEOUT);
        let removed = self.parent.remove();
        assert!(removed.is_ok() || std::thread::panicking(), "{removed:?}");
    }
}

/// A keeper, and the directory of its thread in /proc.
fn watched() -> (Client, Thread<u8>, PathBuf) {
    let (mut client, its_end) = Client::pair();
    let (sender, receiver) = std::sync::mpsc::channel();
    let keeper = Keeper::embedded(its_end).unwrap();
    let thread = Thread::start(move || {
        sender.send(PathBuf::from("/proc").join(std::fs::read_link("/proc/thread-self").unwrap())).unwrap();
        keeper.run()
    });
    client.hello();
    (client, thread, receiver.recv_timeout(kit::TIMEOUT).unwrap())
}

/// Whether a thread is asleep in many polls in a row, which a thread in a busy loop never is.
fn sleeps(thread: &std::path::Path) -> bool {
    let (deadline, mut asleep) = (Instant::now() + kit::TIMEOUT / 3, 0);
    while asleep < 200 && Instant::now() < deadline {
        let stat = std::fs::read_to_string(thread.join("stat")).unwrap();
        let state = stat.rsplit_once(") ").unwrap().1.as_bytes()[0];
        asleep = if state == b'S' { asleep + 1 } else { 0 };
        std::thread::park_timeout(std::time::Duration::from_millis(1));
    }
    asleep == 200
}

#[test]
fn a_child_that_does_not_reach_exec_delays_no_other() {
    let ice = require!(Ice::new("start"));
    let (mut client, _keeper, thread) = watched();
    let (output, null) = (pipe().unwrap(), null());
    let given = [(null.as_fd(), 0), (output.write.as_fd(), 1), (null.as_fd(), 2)];
    client.spawn_with(20, &shell("echo thawed; exit 8"), &[], &given, Some(&ice.dir));
    client.spawn_quiet(21, &shell("exit 3"));
    assert_eq!(client.ended(21), ExitCause::Code(3));
    let table = client.hello();
    assert_eq!((table[1].slot, table[1].state), (20, ProcessState::Starting));
    assert!(table[1].pidfd.is_some());
    client.send(Request::Forget { slot: 20 }, &[]);
    assert_eq!(client.hello().len(), 3, "a starting child is not forgotten");
    assert!(sleeps(&thread));
    drop(output.write);
    ice.freeze(false);
    assert_eq!(read_to_end(&output.read), "thawed\n");
    assert_eq!(client.ended(20), ExitCause::Code(8));
    assert!(sleeps(&thread));
}

#[test]
fn a_child_that_is_killed_before_exec_has_ended_and_not_failed() {
    let ice = require!(Ice::new("killed"));
    for group in [false, true] {
        let (mut client, _keeper, thread) = watched();
        let null = null();
        let given = [(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2)];
        client.spawn_with(20, &command("/missing", &[]), &[], &given, Some(&ice.dir));
        client.signal(20, Signal::KILL, group);
        assert_eq!(client.ended(20), ExitCause::Signal(9));
        assert!(sleeps(&thread));
    }
}

/// The worker has the pidfd of a child that then fails. The same open file description stays readable.
#[test]
fn a_child_that_fails_after_it_was_reported_leaves_no_busy_loop() {
    let ice = require!(Ice::new("failed"));
    let (mut client, _keeper, thread) = watched();
    let null = null();
    let given = [(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2)];
    client.spawn_with(20, &command("/missing", &[]), &[], &given, Some(&ice.dir));
    let starting = client.hello().remove(1);
    assert_eq!(starting.state, ProcessState::Starting);
    let _kept = starting.pidfd.unwrap();
    ice.freeze(false);
    let failed = client.next_entry(20);
    assert_eq!(failed.state, ProcessState::Failed(Failure::at(Step::Exec, Errno::NOENT)));
    assert!(sleeps(&thread));
    client.send(Request::Forget { slot: 20 }, &[]);
    assert_eq!(client.hello().len(), 1);
    assert!(sleeps(&thread));
}

#[test]
fn the_keeper_sleeps_while_the_worker_does_not_receive() {
    let (mut client, _keeper, thread) = watched();
    // Every hello is answered with two messages, and none is received until the keeper waits for room.
    for _ in 0..1000 {
        client.send(Request::Hello { version: LINK_VERSION }, &[]);
    }
    let memory = file::sealed_memory("marker", b"x").unwrap();
    client.send(Request::Hold { slot: 0, role: 1 }, &[memory.as_fd()]);
    assert!(sleeps(&thread));
    // The last answer is the current table.
    while client.hello()[0].roles() != [1] {}
}
