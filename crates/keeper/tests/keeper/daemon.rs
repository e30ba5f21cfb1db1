//! A keeper that begins from a state and starts its workers: shells, which can say `Stop` in the keeper's language.
//!
//! The keeper is a thread of the test here, and other threads do not block signals, so it gets none: what it does it
//! does by its pidfds.

use crate::kit::{self, Client, Heard, Thread, alone, null};
use outpost_keeper::state::{Running, State, StoredEntry};
use outpost_keeper::{Event, Keeper, NOTIFY_ROLE, OWN_SLOT, Request, Roles, Standing, What};
use outpost_sys::Errno;
use outpost_sys::epoll::wait_readable;
use outpost_sys::fault::{Fault, arm, disarm, lack_group_signals};
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::{self, How, Pidfd};
use outpost_sys::pipe::pipe;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Program, Started};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, IntoRawFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A file with a line for every worker that was started; removed in the end.
pub(crate) struct Log(PathBuf);

impl Log {
    pub(crate) fn new(name: &str) -> Log {
        Log(std::env::temp_dir().join(format!("outpost-keeper-test-{}-{name}", kit::me())))
    }

    /// A worker that adds its line and then does `then`. Stop is one byte and any 79 others.
    pub(crate) fn worker(&self, then: &str) -> Vec<CString> {
        let script = format!("stop() {{ printf '\\n%079d' 0 >&3; }}; echo >>$0; count=$(wc -l <$0); {then}");
        let path = self.0.to_str().unwrap();
        ["sh", "-c", &script, path].map(|text| CString::new(text).unwrap()).to_vec()
    }

    pub(crate) fn lines(&self) -> usize {
        std::fs::read_to_string(&self.0).unwrap_or_default().lines().count()
    }
}

impl Drop for Log {
    fn drop(&mut self) {
        let _missing = std::fs::remove_file(&self.0);
    }
}

pub(crate) fn state(arguments: Vec<CString>) -> State {
    let shell = file::open(std::fs::canonicalize("/bin/sh").unwrap(), Open::Program).unwrap();
    State { binary: shell.into_raw_fd(), arguments, worker: None, replaced: false, entries: Vec::new() }
}

pub(crate) fn inherited(state: &State) -> i32 {
    file::sealed_memory("state", &state.encode()).unwrap().into_raw_fd()
}

pub(crate) fn sleeper(output: BorrowedFd<'_>) -> Started {
    shell(c"echo ready; exec sleep 1000", output)
}

pub(crate) fn shell(script: &CStr, output: BorrowedFd<'_>) -> Started {
    let null = null();
    spawn::spawn(&Child::new(
        Program::Path(c"/bin/sh"),
        &[c"sh", c"-c", script],
        &[c"PATH=/usr/bin:/bin"],
        spawn::Standing::Group,
        &[(null.as_fd(), 0), (output, 1), (null.as_fd(), 2)],
    ))
    .unwrap()
}

#[test]
fn a_killed_worker_is_started_again_and_again() {
    alone("daemon::a_killed_worker_is_started_again_and_again", || {
        let log = Log::new("killed");
        let state = state(log.worker("[ $count -ge 20 ] && stop; kill -9 $$"));
        let keeper = Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run());
        let begin = Instant::now();
        assert_eq!(keeper.join(), 0);
        assert_eq!(log.lines(), 20);
        // From the tenth on with a pause, so that who is killed at once is no storm of forks.
        assert!(begin.elapsed() > 9 * Duration::from_millis(100), "{:?}", begin.elapsed());
    });
}

/// Without a worker to do so the log would grow until the disk is full.
#[test]
fn a_keeper_whose_workers_fail_writes_few_lines_and_begins_its_log_file_anew() {
    let test = "daemon::a_keeper_whose_workers_fail_writes_few_lines_and_begins_its_log_file_anew";
    let said = alone(test, || {
        let (log, file) = (Log::new("log"), Log::new("file.log"));
        std::fs::File::create(&file.0).unwrap().set_len(17 * 1024 * 1024).unwrap();
        let mut state = state(log.worker("[ $count -ge 20 ] && stop; kill -9 $$"));
        state.arguments.push(CString::new(format!("--log-file={}", file.0.display())).unwrap());
        let keeper = Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run());
        assert_eq!(keeper.join(), 0);
        assert_eq!(file.0.metadata().unwrap().len(), 0);
        let before = file.0.with_extension("log.1");
        assert_eq!(before.metadata().unwrap().len(), 17 * 1024 * 1024);
        std::fs::remove_file(before).unwrap();
    });
    let lines = said.map(|text| text.matches("outpost keeper: ").count());
    assert!(lines.is_none_or(|count| (1..=10).contains(&count)), "{lines:?}");
}

/// The daemon's own entry, with a supervisor's socket. Returns the supervisor's end.
fn supervised(state: &mut State) -> UnixDatagram {
    let (ours, its) = UnixDatagram::pair().unwrap();
    ours.set_read_timeout(Some(kit::PATIENCE)).unwrap();
    let held = vec![(NOTIFY_ROLE, OwnedFd::from(its).into_raw_fd())];
    let (slot, standing) = (OWN_SLOT, Standing::Running);
    state.entries.push(StoredEntry { slot, pid: 0, standing, pidfd: -1, held, report: -1 });
    ours
}

fn heard(supervisor: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let len = supervisor.recv(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[test]
fn a_keeper_with_a_child_never_gives_up_and_tells_its_supervisor() {
    alone("daemon::a_keeper_with_a_child_never_gives_up_and_tells_its_supervisor", || {
        let (log, output) = (Log::new("failing"), pipe().unwrap());
        let child = sleeper(output.write.as_fd());
        let mut state = state(log.worker("[ $count -ge 6 ] && { printf '\\002%079d' 0 >&3; stop; }; exit 1"));
        let supervisor = supervised(&mut state);
        state.entries.push(StoredEntry {
            slot: 20,
            pid: child.pid,
            standing: Standing::Running,
            pidfd: child.pidfd.into_raw_fd(),
            held: Vec::new(),
            report: -1,
        });
        let keeper = Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run());
        let status = heard(&supervisor);
        assert!(status.starts_with("STATUS=no worker serves (since 0 s): "), "{status}");
        assert!(status.contains("Code(1)") && status.ends_with("trying again in 1000 ms"), "{status}");
        assert_eq!(heard(&supervisor), "STATUS=serving");
        assert_eq!(keeper.join(), 0);
        assert_eq!(log.lines(), 6);
    });
}

#[test]
fn a_new_keeper_answers_the_watchdog_before_any_pulse_and_replaces_a_worker_that_is_stopped() {
    let test =
        "daemon::a_new_keeper_answers_the_watchdog_before_any_pulse_and_replaces_a_worker_that_is_stopped";
    alone(test, || {
        let (log, output) = (Log::new("watchdog"), pipe().unwrap());
        let worker = sleeper(output.write.as_fd());
        let (_client, link) = Client::pair();
        let mut state = state(log.worker("stop; exec sleep 1000"));
        state.arguments.push(c"--watchdog-ms=100".into());
        let supervisor = supervised(&mut state);
        let (pidfd, link) = (worker.pidfd.into_raw_fd(), link.into_raw_fd());
        state.worker = Some(Running { pid: worker.pid, pidfd, link, served: true });
        let keeper = Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run());
        assert_eq!(heard(&supervisor), "WATCHDOG=1");
        assert_eq!(heard(&supervisor), "WATCHDOG=1");
        // The worker never sends a pulse, so it is killed for another one, which ends the keeper.
        assert_eq!(keeper.join(), 0);
        assert_eq!(log.lines(), 1);
    });
}

#[test]
fn a_keeper_without_children_whose_workers_never_served_ends() {
    alone("daemon::a_keeper_without_children_whose_workers_never_served_ends", || {
        let log = Log::new("final");
        let state = state(log.worker("exit 1"));
        let keeper = Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run());
        assert_eq!((keeper.join(), log.lines()), (1, 5));
    });
}

#[test]
fn a_keeper_put_in_place_goes_on_with_worker_and_children() {
    alone("daemon::a_keeper_put_in_place_goes_on_with_worker_and_children", || {
        let (log, output, held) = (Log::new("place"), pipe().unwrap(), pipe().unwrap());
        let (child, worker) = (sleeper(output.write.as_fd()), sleeper(output.write.as_fd()));
        let (mut client, link) = Client::pair();
        let (child_copy, worker_copy) =
            (file::duplicate(&child.pidfd).unwrap(), file::duplicate(&worker.pidfd).unwrap());
        let mut state = state(log.worker("stop; exec sleep 1000"));
        let link = link.into_raw_fd();
        state.worker =
            Some(Running { pid: worker.pid, pidfd: worker.pidfd.into_raw_fd(), link, served: true });
        state.replaced = true;
        state.entries = vec![StoredEntry {
            slot: 20,
            pid: child.pid,
            standing: Standing::Running,
            pidfd: child.pidfd.into_raw_fd(),
            held: vec![(4, held.write.into_raw_fd())],
            report: -1,
        }];
        let keeper = Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run());
        assert!(matches!(client.hear(), Heard::Event(Event::Replaced(What::Keeper))));
        assert_eq!(client.hello()[1].roles(), [4]);
        while kit::read(&output.read).lines().count() < 1 {}
        client.signal(20, Signal::KILL, true);
        assert_eq!(client.ended(20), How::Signal(9));
        assert_eq!(pidfd::reap(&child_copy), Err(Errno::CHILD), "reaped");
        // The worker closes its link and is killed for it; then there is another.
        client.die();
        assert!(wait_readable(&worker_copy, kit::PATIENCE).unwrap());
        assert_eq!(keeper.join(), 0);
        assert_eq!(log.lines(), 1);
        assert_eq!(kit::read_to_end(&held.read), "", "nobody holds it any more");
    });
}

/// Ends what a test that failed has left of a child's group.
struct Group(Pidfd);

impl Group {
    fn of(leader: &Started) -> Group {
        Group(Pidfd::received(leader.pid, file::duplicate(&leader.pidfd).unwrap()))
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _nobody_left = pidfd::signal_group(&self.0, Signal::KILL);
    }
}

/// A keeper that has a worker, whose end of the link is ours, and a child that waits under slot 20.
fn with_one_ahead(log: &Log, waiting: Started) -> (Client, Thread<u8>) {
    with_one_ahead_on(log, waiting, || {})
}

/// The same, where `prepare` runs first on the keeper's thread.
fn with_one_ahead_on(log: &Log, waiting: Started, prepare: fn()) -> (Client, Thread<u8>) {
    let output = pipe().unwrap();
    let worker = sleeper(output.write.as_fd());
    // Or it would find nobody who reads that, later.
    while kit::read(&output.read).lines().count() < 1 {}
    let (mut client, link) = Client::pair();
    let mut state = state(log.worker("stop; exec sleep 1000"));
    let (pidfd, link) = (worker.pidfd.into_raw_fd(), link.into_raw_fd());
    state.worker = Some(Running { pid: worker.pid, pidfd, link, served: true });
    state.entries = vec![StoredEntry {
        slot: 20,
        pid: waiting.pid,
        standing: Standing::Waiting,
        pidfd: waiting.pidfd.into_raw_fd(),
        held: Vec::new(),
        report: -1,
    }];
    let keeper = Thread::start(move || {
        prepare();
        Keeper::from_state(inherited(&state)).unwrap().run()
    });
    assert_eq!(client.hello()[1].standing, Standing::Waiting);
    (client, keeper)
}

#[test]
fn how_one_ended_that_was_forked_ahead_is_told_when_the_worker_has_said_that_it_told_it() {
    alone(
        "daemon::how_one_ended_that_was_forked_ahead_is_told_when_the_worker_has_said_that_it_told_it",
        || {
            let (log, held, gate) = (Log::new("ahead"), pipe().unwrap(), pipe().unwrap());
            let waiting = shell(c"exit 7", gate.write.as_fd());
            let copy = file::duplicate(&waiting.pidfd).unwrap();
            let (mut client, keeper) = with_one_ahead(&log, waiting);
            let begun = Instant::now();
            while pidfd::reap(&copy) != Err(Errno::CHILD) {
                assert!(begun.elapsed() < kit::PATIENCE, "the keeper does not reap it");
                outpost_testkit::pause();
            }
            assert!(client.hear_within(Duration::ZERO).is_none(), "nobody has said that it is one");
            let roles = Roles::new([4]).unwrap();
            client.send(Request::Enlist { slot: 20, held: roles }, &[held.write.as_fd()]);
            assert_eq!(client.ended(20), How::Code(7));
            client.die();
            assert_eq!(keeper.join(), 0);
        },
    );
}

#[test]
fn one_that_was_forked_ahead_ends_with_a_worker_that_has_said_nothing_of_it() {
    alone("daemon::one_that_was_forked_ahead_ends_with_a_worker_that_has_said_nothing_of_it", || {
        let (log, output) = (Log::new("silent"), pipe().unwrap());
        // It has become something already, with a child of its own.
        let waiting = shell(c"sleep 1000 & echo ready; wait", output.write.as_fd());
        let _group = Group::of(&waiting);
        drop(output.write);
        while kit::read(&output.read).lines().count() < 1 {}
        let (client, keeper) = with_one_ahead(&log, waiting);
        client.die();
        assert_eq!(kit::read_to_end(&output.read), "", "nobody of it is left");
        assert_eq!(keeper.join(), 0);
    });
}

/// A child as it is between fork and exec: it leads no group.
#[expect(clippy::zombie_processes, reason = "the keeper reaps it")]
fn ungrouped() -> Started {
    let sleep = std::process::Command::new("sleep").arg("1000").spawn().unwrap();
    let pid = sleep.id().cast_signed();
    Started { pid, pidfd: outpost_testkit::process(pid).unwrap() }
}

#[test]
fn a_child_forked_ahead_that_leads_no_group_yet_is_never_left_alive_before_linux_6_9() {
    alone(
        "daemon::a_child_forked_ahead_that_leads_no_group_yet_is_never_left_alive_before_linux_6_9",
        || {
            let (log, waiting) = (Log::new("old"), ungrouped());
            let copy = file::duplicate(&waiting.pidfd).unwrap();
            let (mut client, keeper) = with_one_ahead_on(&log, waiting, lack_group_signals);
            client.send(Request::Forget { slot: 20 }, &[]);
            assert!(wait_readable(&copy, kit::PATIENCE).unwrap(), "it lives on and is in no table");
            assert_eq!(client.hello().len(), 1);
            let deadline = Instant::now() + kit::PATIENCE;
            while pidfd::reap(&copy) != Err(Errno::CHILD) {
                assert!(Instant::now() < deadline, "it stays a zombie");
                std::thread::park_timeout(Duration::from_millis(2));
            }
            client.die();
            assert_eq!(keeper.join(), 0);
        },
    );
}

#[test]
fn a_child_whose_descriptors_did_not_come_through_is_killed_and_its_end_is_told() {
    alone("daemon::a_child_whose_descriptors_did_not_come_through_is_killed_and_its_end_is_told", || {
        let (log, waiting) = (Log::new("lacking"), ungrouped());
        let (mut client, keeper) = with_one_ahead(&log, waiting);
        let held = Roles::new([4]).unwrap();
        client.send(Request::Enlist { slot: 20, held }, &[]);
        assert_eq!(client.ended(20), How::Signal(9));
        client.die();
        assert_eq!(keeper.join(), 0);
    });
}

/// Whatever fails when workers are started and die, there is a worker in the end.
fn rounds(name: &str, fault: Fault) {
    let mut nth = 1;
    loop {
        let (log, before) = (Log::new(name), kit::open_descriptors());
        let state = state(log.worker("[ $count -ge 3 ] && stop && exit; kill -9 $$"));
        let state = inherited(&state);
        let keeper = Thread::start(move || {
            arm(nth, fault);
            let code = Keeper::from_state(state).map(Keeper::run);
            (code, disarm())
        });
        let (code, untouched) = keeper.join();
        // A keeper that could not begin reaps no worker.
        kit::bury_children();
        match code {
            Ok(code) => {
                assert_eq!((code, log.lines()), (0, 3), "call {nth}");
                assert_eq!(kit::open_descriptors(), before, "call {nth}");
            }
            // It could not even begin, which who started it is told.
            Err(errno) => assert!(!untouched && fault == Fault::Errno(errno), "call {nth}: {errno}"),
        }
        if untouched {
            break;
        }
        nth += 1;
        assert!(nth < 1000, "there is no end of calls");
    }
    assert!(nth > 20, "the scenario has more calls than that");
}

#[test]
fn there_is_a_worker_though_a_call_had_no_memory() {
    alone("daemon::there_is_a_worker_though_a_call_had_no_memory", || {
        rounds("memory", Fault::Errno(Errno::NOMEM))
    });
}

#[test]
fn there_is_a_worker_though_a_call_would_block() {
    alone("daemon::there_is_a_worker_though_a_call_would_block", || {
        rounds("again", Fault::Errno(Errno::AGAIN))
    });
}
