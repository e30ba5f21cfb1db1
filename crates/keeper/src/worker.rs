//! The worker as the keeper sees it: how it is started, and when it is not started again.

use crate::{LINK_FD, state};
use outpost_sys::pidfd::{Exit, How};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Failure, Program, Standing, Step};
use outpost_sys::{Errno, message};
use std::ffi::{CStr, CString, OsString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

pub(crate) struct Worker {
    pub(crate) pid: i32,
    pub(crate) pidfd: OwnedFd,
    pub(crate) link: OwnedFd,
    /// It has asked for the table, so it may be told things.
    pub(crate) listens: bool,
    pub(crate) served: bool,
    /// Its end of the link is closed.
    pub(crate) unlinked: bool,
    /// The link was full: we wait until it can be written again.
    pub(crate) choked: bool,
    /// Nothing tells us of its requests and its end, so we have to ask.
    pub(crate) unwatched: bool,
}

impl Worker {
    /// Starts a worker from an open binary.
    pub(crate) fn start(binary: &OwnedFd, arguments: &[CString]) -> Result<Worker, Failure> {
        let prepare = |errno| Failure { step: Step::Prepare, errno };
        let (link, its_end) = message::pair().map_err(prepare)?;
        let arguments: Vec<&CStr> = arguments.iter().map(CString::as_c_str).collect();
        let environment = environment();
        let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
        let (stdin, stdout, stderr) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let started = spawn::spawn(&Child {
            program: Program::Open(binary.as_fd()),
            arguments: &arguments,
            environment: &environment,
            directory: None,
            // Away from the terminal's signals: they are for the keeper to pass on.
            standing: Standing::Group,
            descriptors: &[
                (stdin.as_fd(), 0),
                (stdout.as_fd(), 1),
                (stderr.as_fd(), 2),
                (its_end.as_fd(), LINK_FD),
            ],
            limits: &[],
            umask: None,
            oom_score: None,
            cgroup: None,
            gate: None,
        })?;
        Ok(Worker {
            pid: started.pid,
            pidfd: started.pidfd,
            link,
            listens: false,
            served: false,
            unlinked: false,
            choked: false,
            unwatched: false,
        })
    }

    /// The worker that runs already when a keeper begins.
    pub(crate) fn inherited(running: &state::Running) -> Result<Worker, Errno> {
        Ok(Worker {
            pid: running.pid,
            pidfd: outpost_sys::file::inherited(running.pidfd)?,
            link: outpost_sys::file::inherited(running.link)?,
            listens: true,
            served: running.served,
            unlinked: false,
            choked: false,
            unwatched: false,
        })
    }

    pub(crate) fn stored(&self) -> state::Running {
        let (pidfd, link) = (self.pidfd.as_raw_fd(), self.link.as_raw_fd());
        state::Running { pid: self.pid, pidfd, link, served: self.served }
    }
}

/// Our environment, which workers inherit.
pub(crate) fn environment() -> Vec<CString> {
    std::env::vars_os()
        .filter_map(|(name, value)| {
            let mut entry: OsString = name;
            entry.push("=");
            entry.push(value);
            CString::new(entry.into_vec()).ok()
        })
        .collect()
}

/// Counts workers that ended by their own fault before they did anything for anybody.
#[derive(Default)]
pub(crate) struct Restarts {
    failures: u32,
}

impl Restarts {
    /// This many in a row, and starting another would change nothing.
    const FAILURES_MAX: u32 = 5;

    /// Notes an end; says whether to start another.
    pub(crate) fn another(&mut self, served: bool, exit: Exit) -> bool {
        match served || killed_from_outside(exit) {
            true => self.failures = 0,
            false => self.failures = self.failures.saturating_add(1),
        }
        self.failures < Self::FAILURES_MAX
    }

    pub(crate) fn forget(&mut self) {
        self.failures = 0;
    }
}

/// Signals that a program brings upon itself are the others.
fn killed_from_outside(exit: Exit) -> bool {
    let outside = [Signal::KILL, Signal::TERM, Signal::INT, Signal::HUP, Signal::QUIT].map(Signal::number);
    match exit.how {
        How::Signal(signal) => outside.contains(&signal),
        How::Code(_) => false,
        How::Unknown => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(how: How) -> Exit {
        Exit { how, ..Exit::UNKNOWN }
    }

    #[test]
    fn five_crashes_in_a_row_stop_the_restarts() {
        let mut restarts = Restarts::default();
        for _ in 0..4 {
            assert!(restarts.another(false, ended(How::Code(1))));
        }
        assert!(!restarts.another(false, ended(How::Signal(6))));
        restarts.forget();
        assert!(restarts.another(false, ended(How::Code(1))));
    }

    #[test]
    fn a_worker_killed_from_outside_or_that_served_is_always_restarted() {
        let mut restarts = Restarts::default();
        for round in 0..100 {
            assert!(restarts.another(false, ended(How::Signal(9))), "{round}");
            assert!(restarts.another(true, ended(How::Signal(11))), "{round}");
            assert!(restarts.another(false, ended(How::Code(1))), "{round}");
        }
    }
}
