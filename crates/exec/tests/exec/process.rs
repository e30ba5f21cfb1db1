//! Processes that a test watches, by pidfd and /proc.

use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd::Pidfd;
use outpost_sys::procfs;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// Looks again and again, for what cannot be waited for otherwise.
pub(crate) fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !condition() {
        assert!(begun.elapsed() < TIMEOUT, "never happened: {what}");
        outpost_testkit::pause();
    }
}

pub(crate) fn is_alive(pid: i32) -> bool {
    procfs::stat(pid).is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'))
}

/// A running process whose pid a command has printed.
pub(crate) struct Watched {
    pid: i32,
    process: Option<Pidfd>,
}

impl Watched {
    /// Waits until a file has a complete line with a pid.
    pub(crate) fn pid_in(file: &Path) -> Watched {
        let mut outcome = String::new();
        until(&format!("a number in {}", file.display()), || {
            outcome = std::fs::read_to_string(file).unwrap_or_default();
            outcome.ends_with('\n')
        });
        Watched::new(outcome.trim().parse().unwrap())
    }

    pub(crate) fn new(pid: i32) -> Watched {
        // One that is gone already has ended, which is for the test to judge.
        Watched { pid, process: outpost_testkit::process(pid).ok() }
    }

    /// It must end.
    pub(crate) fn ends(&self, what: &str) {
        // A zombie counts as ended.
        let gone = self.process.as_ref().is_none_or(|process| wait_readable(process, TIMEOUT).unwrap());
        assert!(gone, "{what} ({}) still runs", self.pid);
    }

    pub(crate) fn runs(&self) -> bool {
        self.process.as_ref().is_some_and(|process| !wait_readable(process, Duration::ZERO).unwrap())
            && is_alive(self.pid)
    }
}
