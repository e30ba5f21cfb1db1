//! A keeper that starts from a state and starts workers: shells, which can send `Stop`.
//!
//! The keeper is a thread of the test. Other threads do not block signals, so the keeper gets none and relies on its
//! pidfds.

use crate::kit::{self, Client, Received, Thread, alone, null};
use outpost_keeper::state::{Running, SerializedEntry, State};
use outpost_keeper::{Component, Event, Keeper, NOTIFY_ROLE, OWN_SLOT, ProcessState};
use outpost_sys::Errno;
use outpost_sys::epoll::wait_readable;
use outpost_sys::fault::{Fault, arm, disarm};
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::{self, ExitCause};
use outpost_sys::pipe::pipe;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Executable, Started};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixDatagram;
use std::path::PathBuf;
use std::time::{Duration, Instant};

/// A file with a line for every worker that was started; removed in the end.
pub(crate) struct Log(PathBuf);

impl Log {
    pub(crate) fn new(name: &str) -> Log {
        Log(std::env::temp_dir().join(format!("outpost-keeper-test-{}-{name}", kit::me())))
    }

    /// A worker that adds its line and then does `then`. `Stop` is one byte.
    pub(crate) fn worker(&self, then: &str) -> Vec<CString> {
        let script = format!("stop() {{ printf '\\n' >&3; }}; echo >>$0; count=$(wc -l <$0); {then}");
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
    State {
        binary: file::into_inherited(shell).unwrap(),
        arguments,
        worker: None,
        replaced: false,
        entries: Vec::new(),
    }
}

pub(crate) fn inherited(state: &State) -> i32 {
    file::into_inherited(file::sealed_memory("state", &state.encode()).unwrap()).unwrap()
}

pub(crate) fn sleeper(output: BorrowedFd<'_>) -> Started {
    shell(c"echo ready; exec sleep 1000", output)
}

pub(crate) fn shell(script: &CStr, output: BorrowedFd<'_>) -> Started {
    let null = null();
    spawn::spawn(&Child::new(
        Executable::Path(c"/bin/sh"),
        &[c"sh", c"-c", script],
        &[c"PATH=/usr/bin:/bin"],
        spawn::SessionKind::Group,
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
        // From the tenth on with a pause, which prevents a fork storm.
        assert!(begin.elapsed() > 9 * Duration::from_millis(100), "{:?}", begin.elapsed());
    });
}

/// Without a worker to do so the log would grow until the disk is full.
#[test]
fn a_keeper_whose_workers_fail_writes_few_lines_and_rotates_its_log_file() {
    let test = "daemon::a_keeper_whose_workers_fail_writes_few_lines_and_rotates_its_log_file";
    let output = alone(test, || {
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
    let lines = output.map(|text| text.matches("outpost keeper: ").count());
    assert!(lines.is_none_or(|count| (1..=10).contains(&count)), "{lines:?}");
}

/// The daemon's own entry, with a supervisor's socket. Returns the supervisor's end.
fn supervised(state: &mut State) -> UnixDatagram {
    let (ours, its) = UnixDatagram::pair().unwrap();
    ours.set_read_timeout(Some(kit::TIMEOUT)).unwrap();
    let held = vec![(NOTIFY_ROLE, file::into_inherited(OwnedFd::from(its)).unwrap())];
    let own = ProcessState::Running;
    let entry = SerializedEntry { slot: OWN_SLOT, pid: 0, state: own, pidfd: -1, held, exec_status: -1 };
    state.entries.push(entry);
    ours
}

fn received(supervisor: &UnixDatagram) -> String {
    let mut bytes = [0; 4096];
    let len = supervisor.recv(&mut bytes).unwrap();
    String::from_utf8_lossy(&bytes[..len]).into_owned()
}

#[test]
fn a_keeper_with_a_child_never_gives_up_and_notifies_its_supervisor() {
    alone("daemon::a_keeper_with_a_child_never_gives_up_and_notifies_its_supervisor", || {
        let (log, output) = (Log::new("failing"), pipe().unwrap());
        let child = sleeper(output.write.as_fd());
        let mut state = state(log.worker("[ $count -ge 6 ] && { printf '\\002' >&3; stop; }; exit 1"));
        let supervisor = supervised(&mut state);
        state.entries.push(SerializedEntry {
            slot: 20,
            pid: child.pid,
            state: ProcessState::Running,
            pidfd: file::into_inherited(child.pidfd).unwrap(),
            held: Vec::new(),
            exec_status: -1,
        });
        let keeper = Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run());
        let status = received(&supervisor);
        assert!(status.starts_with("STATUS=no worker serves (since 0 s): "), "{status}");
        assert!(status.contains("Code(1)") && status.ends_with("trying again in 1000 ms"), "{status}");
        assert_eq!(received(&supervisor), "STATUS=serving");
        assert_eq!(keeper.join(), 0);
        assert_eq!(log.lines(), 6);
    });
}

#[test]
fn a_new_keeper_answers_the_watchdog_before_any_heartbeat_and_replaces_a_stopped_worker() {
    let test = "daemon::a_new_keeper_answers_the_watchdog_before_any_heartbeat_and_replaces_a_stopped_worker";
    alone(test, || {
        let (log, output) = (Log::new("watchdog"), pipe().unwrap());
        let worker = sleeper(output.write.as_fd());
        let (_client, link) = Client::pair();
        let mut state = state(log.worker("stop; exec sleep 1000"));
        state.arguments.push(c"--watchdog-ms=100".into());
        let supervisor = supervised(&mut state);
        let (pidfd, link) =
            (file::into_inherited(worker.pidfd).unwrap(), file::into_inherited(link).unwrap());
        state.worker = Some(Running { pid: worker.pid, pidfd, link, served: true });
        let keeper = Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run());
        assert_eq!(received(&supervisor), "WATCHDOG=1");
        assert_eq!(received(&supervisor), "WATCHDOG=1");
        // The worker never sends a heartbeat, so it is killed. The next one stops the keeper.
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
fn a_keeper_that_replaces_another_continues_with_worker_and_children() {
    alone("daemon::a_keeper_that_replaces_another_continues_with_worker_and_children", || {
        let (log, output, held) = (Log::new("place"), pipe().unwrap(), pipe().unwrap());
        let (child, worker) = (sleeper(output.write.as_fd()), sleeper(output.write.as_fd()));
        let (mut client, link) = Client::pair();
        let (child_copy, worker_copy) =
            (file::duplicate(&child.pidfd).unwrap(), file::duplicate(&worker.pidfd).unwrap());
        let mut state = state(log.worker("stop; exec sleep 1000"));
        let link = file::into_inherited(link).unwrap();
        state.worker = Some(Running {
            pid: worker.pid,
            pidfd: file::into_inherited(worker.pidfd).unwrap(),
            link,
            served: true,
        });
        state.replaced = true;
        state.entries = vec![SerializedEntry {
            slot: 20,
            pid: child.pid,
            state: ProcessState::Running,
            pidfd: file::into_inherited(child.pidfd).unwrap(),
            held: vec![(4, file::into_inherited(held.write).unwrap())],
            exec_status: -1,
        }];
        let keeper = Thread::start(move || Keeper::from_state(inherited(&state)).unwrap().run());
        assert!(matches!(client.receive(), Received::Event(Event::Replaced(Component::Keeper))));
        assert_eq!(client.hello()[1].roles(), [4]);
        while kit::read(&output.read).lines().count() < 1 {}
        client.signal(20, Signal::KILL, true);
        assert_eq!(client.ended(20), ExitCause::Signal(9));
        assert_eq!(pidfd::reap(&child_copy), Err(Errno::CHILD), "reaped");
        // The worker closes its link and is killed. Then another one is started.
        client.die();
        assert!(wait_readable(&worker_copy, kit::TIMEOUT).unwrap());
        assert_eq!(keeper.join(), 0);
        assert_eq!(log.lines(), 1);
        assert_eq!(kit::read_to_end(&held.read), "", "still held");
    });
}

/// Whatever call fails while workers are started and die, the keeper starts a worker in the end.
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
        // A keeper that could not start reaps no worker.
        kit::kill_and_reap_children();
        match code {
            Ok(code) => {
                assert_eq!((code, log.lines()), (0, 3), "call {nth}");
                assert_eq!(kit::open_descriptors(), before, "call {nth}");
            }
            // The keeper could not start, and returned the error.
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
