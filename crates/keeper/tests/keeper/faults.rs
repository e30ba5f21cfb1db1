//! The N-th system call of the keeper fails, for N = 1, 2, ... until a run has fewer calls. The keeper neither hangs
//! nor panics nor reports a wrong state: a requested child has either failed and is gone, or has run and ended with its
//! own status. Neither a zombie nor a descriptor is left.
//!
//! A failed call may have these effects:
//! - A start fails with the injected errno, or is cancelled if the exec gate could not be opened. A second request succeeds.
//! - A signal is lost, and the keeper logs that. A second one arrives.
//! - An embedded keeper does not start, or ends if its link cannot be received from for another reason than a lack of memory. The
//!   worker sees the link closed.

use crate::kit::{self, Client, Received, Thread, alone, shell};
use outpost_keeper::state::{Running, State};
use outpost_keeper::{Event, Keeper, LINK_VERSION, OWN_SLOT, ProcessState, Request, Spec};
use outpost_sys::epoll::{is_readable, wait_readable};
use outpost_sys::fault::{Fault, arm, disarm};
use outpost_sys::pidfd::{self, ExitCause};
use outpost_sys::pipe::pipe;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Executable, SessionKind, Started, Step};
use outpost_sys::{Errno, file};
use std::collections::HashMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// The link was closed before the scenario was over.
struct Closed;

/// The end of the keeper's thread.
struct End {
    begun: bool,
    untouched: bool,
}

/// A client that checks that the states of a slot are consistent.
struct Checked {
    client: Client,
    last: HashMap<u64, ProcessState>,
    fault: Fault,
    retries: u32,
}

impl Checked {
    /// The next event, with its state checked. `None` when there is none within `timeout`.
    fn receive(&mut self, timeout: Duration) -> Result<Option<Received>, Closed> {
        let received = self.client.receive_within(timeout);
        match &received {
            Some(Received::Closed) => return Err(Closed),
            Some(Received::Entry(entry)) => {
                let before = self.last.insert(entry.slot, entry.state);
                let fits = match before {
                    None | Some(ProcessState::Starting) => true,
                    Some(ProcessState::Running) => {
                        matches!(entry.state, ProcessState::Running | ProcessState::Ended(_))
                    }
                    Some(last) => last == entry.state,
                };
                assert!(fits, "slot {}: {before:?}, then {:?}", entry.slot, entry.state);
            }
            _ => {}
        }
        Ok(received)
    }

    /// Receives until `done` accepts the state of `slot`.
    fn until(&mut self, slot: u64, done: impl Fn(ProcessState) -> bool) -> Result<ProcessState, Closed> {
        let deadline = Instant::now() + kit::TIMEOUT;
        loop {
            if let Some(state) = self.last.get(&slot).copied().filter(|state| done(*state)) {
                return Ok(state);
            }
            self.receive(deadline.saturating_duration_since(Instant::now()))?
                .expect("no message from the keeper");
        }
    }

    fn retry(&mut self) {
        self.retries += 1;
        assert_eq!(self.retries, 1, "one call failed, so one attempt may");
    }

    /// Starts a child in the slot, or in the next one if that fails.
    fn start(&mut self, mut slot: u64, spec: &Spec) -> Result<(u64, OwnedFd, OwnedFd), Closed> {
        loop {
            let (input, output) = self.client.spawn_piped(slot, spec);
            match self.until(slot, |state| state != ProcessState::Starting)? {
                ProcessState::Failed(failure) => {
                    match failure.step {
                        Step::Prepare | Step::Clone => assert_eq!(Fault::Errno(failure.errno), self.fault),
                        step => assert_eq!((step, failure.errno), (Step::Gate, Errno::CANCELED)),
                    }
                    assert_eq!(kit::read_to_end(&output), "", "it never ran");
                    self.client.send(Request::Forget { slot }, &[]);
                    self.retry();
                    slot += 1;
                }
                _ => return Ok((slot, input, output)),
            }
        }
    }

    fn ended(&mut self, slot: u64) -> Result<ExitCause, Closed> {
        match self.until(slot, |state| matches!(state, ProcessState::Ended(_) | ProcessState::Failed(_)))? {
            ProcessState::Ended(exit) => Ok(exit.cause),
            other => panic!("{other:?}"),
        }
    }

    /// Returns the slots of the table with the held roles.
    fn hello(&mut self) -> Result<Vec<(u64, Vec<u8>)>, Closed> {
        self.client.send(Request::Hello { version: LINK_VERSION }, &[]);
        let mut table = Vec::new();
        loop {
            match self.receive(kit::TIMEOUT)?.expect("no table") {
                Received::Entry(entry) => {
                    let ran = entry.slot != OWN_SLOT && !matches!(entry.state, ProcessState::Failed(_));
                    assert_eq!(entry.pidfd.is_some(), ran, "{entry:?}");
                    table.push((entry.slot, entry.roles()));
                }
                Received::Event(Event::TableEnd) => return Ok(table),
                other => panic!("{other:?}"),
            }
        }
    }

    fn scenario(&mut self) -> Result<(), Closed> {
        assert_eq!(self.hello()?, [(OWN_SLOT, vec![])]);
        let (reader, input, output) = self.start(20, &shell("echo out; read line; echo $line; exit 7"))?;
        let (brief, _, silent) = self.start(30, &shell("exit 3"))?;
        let (sleeper, _sleeper_input, sleeping) = self.start(40, &shell("echo up; read line"))?;
        assert_eq!(self.ended(brief)?, ExitCause::Code(3));
        assert_eq!(kit::read_to_end(&silent), "");

        let kept = pipe().unwrap();
        self.client.send(Request::Hold { slot: brief, role: 5 }, &[kept.write.as_fd()]);
        drop(kept.write);
        assert_eq!(kit::read(&sleeping), "up\n");
        // A signal that was not sent has no effect, so it is sent again.
        self.client.signal(sleeper, Signal::KILL, true);
        let deadline = Instant::now() + kit::TIMEOUT;
        while !wait_readable(&sleeping, Duration::from_millis(300)).unwrap() {
            assert!(Instant::now() < deadline, "it is not killed");
            self.receive(Duration::ZERO)?;
            self.client.signal(sleeper, Signal::KILL, true);
        }
        assert_eq!(self.ended(sleeper)?, ExitCause::Signal(9));

        assert_eq!(kit::read(&output), "out\n");
        assert_eq!(self.last[&reader], ProcessState::Running);
        kit::write(&input, "line\n");
        assert_eq!(kit::read_to_end(&output), "line\n");
        assert_eq!(self.ended(reader)?, ExitCause::Code(7));

        let table = self.hello()?;
        assert_eq!(table, [(OWN_SLOT, vec![]), (reader, vec![]), (brief, vec![5]), (sleeper, vec![])]);
        assert!(!is_readable(&kept.read), "the keeper holds it");
        for slot in [reader, brief, sleeper] {
            self.client.send(Request::Forget { slot }, &[]);
        }
        assert_eq!(kit::read_to_end(&kept.read), "", "forgotten, so closed");
        assert_eq!(self.hello()?, [(OWN_SLOT, vec![])]);
        Ok(())
    }
}

/// One run in which the `nth` call fails. True when there are fewer calls.
fn round(nth: u64, fault: Fault) -> bool {
    assert_no_children();
    let before = kit::open_descriptors();
    let (client, its_end) = Client::pair();
    let keeper = Thread::start(move || {
        arm(nth, fault);
        let begun = Keeper::embedded(its_end).map(Keeper::run).is_ok();
        End { begun, untouched: disarm() }
    });
    let mut checked = Checked { client, last: HashMap::new(), fault, retries: 0 };
    let complete = checked.scenario().is_ok();
    checked.client.die();
    let end = keeper.join();
    assert!(checked.retries == 0 || !end.untouched);
    if !complete {
        let link_broken = ![Errno::INTR, Errno::AGAIN, Errno::NOMEM].map(Fault::Errno).contains(&fault);
        assert!(!end.begun || link_broken && fault != Fault::Short, "the keeper ended by itself");
        // An embedded keeper that has ended leaves its children to the test.
        kit::kill_and_reap_children();
    }
    assert_no_children();
    assert_eq!(kit::open_descriptors(), before, "descriptors are left");
    end.untouched
}

fn assert_no_children() {
    assert!(kit::children().is_empty(), "children are left");
}

fn rounds(fault: Fault) {
    let mut nth = 1;
    while !round(nth, fault) {
        nth += 1;
        assert!(nth < 1000, "there is no end of calls");
    }
    eprintln!("{fault:?}: {nth} rounds");
    assert!(nth > 30, "the scenario has more calls than that");
}

/// The environment variable with the number of the call to fail and the errno, for [`keeper_process`].
const FAULT: &str = "OUTPOST_KEEPER_TEST_FAULT";

/// Exit codes of [`keeper_process`].
const UNTOUCHED: i32 = 10;
const TOUCHED: i32 = 11;
const NOT_STARTED: i32 = 12;

/// The keeper process of [`round_with_process`]. Its state is descriptor 3. Passes when it is run as a test.
#[test]
fn keeper_process() {
    let Ok(fault) = std::env::var(FAULT) else { return };
    let (nth, errno) = fault.split_once(' ').unwrap();
    arm(nth.parse().unwrap(), Fault::Errno(Errno::from_raw_os_error(errno.parse().unwrap())));
    let started = Keeper::from_state(3).map(Keeper::run);
    let untouched = disarm();
    std::process::exit(match started {
        Ok(_) if untouched => UNTOUCHED,
        Ok(_) => TOUCHED,
        Err(_) => NOT_STARTED,
    });
}

/// Starts a keeper process whose `nth` call fails, with a worker whose end of the link the test has.
fn start_keeper_process(nth: u64, errno: Errno, link: OwnedFd, worker: &Started) -> Started {
    let (binary, null) = (std::env::current_exe().unwrap(), kit::null());
    let program = file::open(&binary, file::Open::Program).unwrap();
    let worker_state = Running { pid: worker.pid, pidfd: 6, link: 5, served: true };
    let state = State {
        binary: 4,
        arguments: Vec::new(),
        worker: Some(worker_state),
        replaced: false,
        entries: Vec::new(),
    };
    let state = file::sealed_memory("state", &state.encode()).unwrap();
    let fault = CString::new(format!("{FAULT}={nth} {}", errno.raw_os_error())).unwrap();
    let environment = [spawn::own_environment(), vec![fault]].concat();
    let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
    let arguments = [c"keeper", c"faults::keeper_process", c"--exact", c"--nocapture", c"--test-threads=1"];
    let stderr = std::io::stderr();
    let descriptors = [
        (null.as_fd(), 0),
        (null.as_fd(), 1),
        (stderr.as_fd(), 2),
        (state.as_fd(), 3),
        (program.as_fd(), 4),
        (link.as_fd(), 5),
        (worker.pidfd.as_fd(), 6),
    ];
    let program = Executable::Open(program.as_fd());
    spawn::spawn(&Child::new(program, &arguments, &environment, SessionKind::Session, &descriptors)).unwrap()
}

fn exit_code(process: &Started) -> ExitCause {
    assert!(wait_readable(&process.pidfd, kit::TIMEOUT).unwrap(), "the process does not exit");
    pidfd::reap(&process.pidfd).unwrap().unwrap().cause
}

/// As [`round`] with a keeper process.
fn round_with_process(nth: u64, errno: Errno) -> bool {
    let before = kit::open_descriptors();
    let null = kit::null();
    let worker = crate::daemon::shell(c"exec sleep 1000", null.as_fd());
    let (client, its_end) = Client::pair();
    let keeper = start_keeper_process(nth, errno, its_end, &worker);
    let mut checked = Checked { client, last: HashMap::new(), fault: Fault::Errno(errno), retries: 0 };
    let complete = checked.scenario().is_ok();
    checked.client.send(Request::Stop, &[]);
    checked.client.die();
    let code = exit_code(&keeper);
    let _gone_already = pidfd::signal(&worker.pidfd, Signal::KILL);
    exit_code(&worker);
    assert!(
        complete || code != ExitCause::Code(UNTOUCHED) && code != ExitCause::Code(TOUCHED),
        "call {nth}: {code:?}"
    );
    assert!(matches!(code, ExitCause::Code(UNTOUCHED | TOUCHED | NOT_STARTED)), "call {nth}: {code:?}");
    assert!(checked.retries == 0 || code == ExitCause::Code(TOUCHED), "call {nth}");
    drop((null, worker, keeper));
    assert_eq!(kit::open_descriptors(), before, "descriptors are left");
    code == ExitCause::Code(UNTOUCHED)
}

fn rounds_with_process(errno: Errno) {
    let mut nth = 1;
    while !round_with_process(nth, errno) {
        nth += 1;
        assert!(nth < 1000, "there is no end of calls");
    }
    assert!(nth > 30, "the scenario has more calls than that");
}

#[test]
fn a_call_of_a_keeper_process_without_memory() {
    alone("faults::a_call_of_a_keeper_process_without_memory", || rounds_with_process(Errno::NOMEM));
}

#[test]
fn a_call_of_a_keeper_process_that_would_block() {
    alone("faults::a_call_of_a_keeper_process_that_would_block", || rounds_with_process(Errno::AGAIN));
}

#[test]
fn a_call_that_is_interrupted() {
    alone("faults::a_call_that_is_interrupted", || rounds(Fault::Errno(Errno::INTR)));
}

#[test]
fn a_call_that_would_block() {
    alone("faults::a_call_that_would_block", || rounds(Fault::Errno(Errno::AGAIN)));
}

#[test]
fn a_call_without_space() {
    alone("faults::a_call_without_space", || rounds(Fault::Errno(Errno::NOSPC)));
}

#[test]
fn a_call_without_memory() {
    alone("faults::a_call_without_memory", || rounds(Fault::Errno(Errno::NOMEM)));
}

#[test]
fn a_call_without_descriptors() {
    alone("faults::a_call_without_descriptors", || rounds(Fault::Errno(Errno::MFILE)));
}

#[test]
fn a_call_that_does_only_part() {
    alone("faults::a_call_that_does_only_part", || rounds(Fault::Short));
}
