//! The N-th system call of the keeper fails, for N = 1, 2, ... until a run passes untouched. Whatever fails, the keeper
//! neither hangs nor panics nor lies: a child that was asked for either failed, and is not there, or ran and ended as it
//! did; and nothing is left, neither zombie nor descriptor.
//!
//! What a failure may cost:
//! - A start may fail with the number that was injected, or cancelled when letting it through failed; asked for again it succeeds.
//! - A signal may be lost (the call said that it was not sent, and the keeper logs it); sent again it arrives.
//! - An embedded keeper may not begin at all, and one whose link cannot be read for another reason than want of memory
//!   ends: the kernel knows no such reason but a link that is broken. The worker sees the link closed.

use crate::kit::{self, Client, Heard, Thread, alone, shell};
use outpost_keeper::{Event, Keeper, LINK_VERSION, OWN_SLOT, Request, Spec, Standing};
use outpost_sys::Errno;
use outpost_sys::epoll::{is_readable, wait_readable};
use outpost_sys::fault::{Fault, arm, disarm};
use outpost_sys::pidfd::How;
use outpost_sys::pipe::pipe;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::Step;
use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

/// The link was closed before the scenario was over.
struct Closed;

/// How the keeper's thread ended.
struct End {
    begun: bool,
    untouched: bool,
}

/// A client that checks that what is said of a slot is never taken back.
struct Checked {
    client: Client,
    last: HashMap<u64, Standing>,
    fault: Fault,
    retries: u32,
}

impl Checked {
    /// The next event; entries come with their standing checked. `None` when there is none within `patience`.
    fn hear(&mut self, patience: Duration) -> Result<Option<Heard>, Closed> {
        let heard = self.client.hear_within(patience);
        match &heard {
            Some(Heard::Closed) => return Err(Closed),
            Some(Heard::Entry(told)) => {
                let before = self.last.insert(told.slot, told.standing);
                let fits = match before {
                    None | Some(Standing::Starting) => true,
                    Some(Standing::Running) => {
                        matches!(told.standing, Standing::Running | Standing::Ended(_))
                    }
                    Some(last) => last == told.standing,
                };
                assert!(fits, "slot {}: {before:?}, then {:?}", told.slot, told.standing);
            }
            _ => {}
        }
        Ok(heard)
    }

    /// Hears until `done` is satisfied with how `slot` stands.
    fn until(&mut self, slot: u64, done: impl Fn(Standing) -> bool) -> Result<Standing, Closed> {
        let deadline = Instant::now() + kit::PATIENCE;
        loop {
            if let Some(standing) = self.last.get(&slot).copied().filter(|standing| done(*standing)) {
                return Ok(standing);
            }
            self.hear(deadline.saturating_duration_since(Instant::now()))?.expect("the keeper says nothing");
        }
    }

    fn retry(&mut self) {
        self.retries += 1;
        assert_eq!(self.retries, 1, "one call failed, so one attempt may");
    }

    /// Starts a child in the slot or, when that fails, in the next.
    fn start(&mut self, mut slot: u64, spec: &Spec) -> Result<(u64, OwnedFd, OwnedFd), Closed> {
        loop {
            let (input, output) = self.client.spawn_piped(slot, spec);
            match self.until(slot, |standing| standing != Standing::Starting)? {
                Standing::Failed(failure) => {
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

    fn ended(&mut self, slot: u64) -> Result<How, Closed> {
        match self.until(slot, |standing| matches!(standing, Standing::Ended(_) | Standing::Failed(_)))? {
            Standing::Ended(exit) => Ok(exit.how),
            other => panic!("{other:?}"),
        }
    }

    /// Greets and returns the slots of the table with the roles held for each.
    fn hello(&mut self) -> Result<Vec<(u64, Vec<u8>)>, Closed> {
        self.client.send(Request::Hello { version: LINK_VERSION }, &[]);
        let mut table = Vec::new();
        loop {
            match self.hear(kit::PATIENCE)?.expect("no table") {
                Heard::Entry(told) => {
                    let ran = told.slot != OWN_SLOT && !matches!(told.standing, Standing::Failed(_));
                    assert_eq!(told.pidfd.is_some(), ran, "{told:?}");
                    table.push((told.slot, told.roles()));
                }
                Heard::Event(Event::TableEnd) => return Ok(table),
                other => panic!("{other:?}"),
            }
        }
    }

    fn scenario(&mut self) -> Result<(), Closed> {
        assert_eq!(self.hello()?, [(OWN_SLOT, vec![])]);
        let (reader, input, output) = self.start(20, &shell("echo out; read line; echo $line; exit 7"))?;
        let (brief, _, silent) = self.start(30, &shell("exit 3"))?;
        let (sleeper, _sleeper_input, sleeping) = self.start(40, &shell("echo up; read line"))?;
        assert_eq!(self.ended(brief)?, How::Code(3));
        assert_eq!(kit::read_to_end(&silent), "");

        let kept = pipe().unwrap();
        self.client.send(Request::Hold { slot: brief, role: 5 }, &[kept.write.as_fd()]);
        drop(kept.write);
        assert_eq!(kit::read(&sleeping), "up\n");
        // One that was not sent is not told either, so it is sent again when nothing happens.
        self.client.signal(sleeper, Signal::KILL, true);
        let deadline = Instant::now() + kit::PATIENCE;
        while !wait_readable(&sleeping, Duration::from_millis(300)).unwrap() {
            assert!(Instant::now() < deadline, "it is not killed");
            self.hear(Duration::ZERO)?;
            self.client.signal(sleeper, Signal::KILL, true);
        }
        assert_eq!(self.ended(sleeper)?, How::Signal(9));

        assert_eq!(kit::read(&output), "out\n");
        assert_eq!(self.last[&reader], Standing::Running);
        kit::write(&input, "line\n");
        assert_eq!(kit::read_to_end(&output), "line\n");
        assert_eq!(self.ended(reader)?, How::Code(7));

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

/// One run in which the `nth` call fails. True when there are not that many.
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
        // An embedded keeper that has ended leaves its children to the program it was embedded in.
        kit::bury_children();
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
