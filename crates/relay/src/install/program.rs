//! Whether a program that was just written, and may hang, answers: executed directly, never by a shell, for a limited time.

use outpost_sys::pidfd::{self, How};
use outpost_sys::spawn::{self, Child, Failure, Program, Progress, Standing};
use outpost_sys::{Errno, epoll, signal::Signal};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long a file is waited for that somebody still holds open for writing.
const BUSY: Duration = Duration::from_secs(2);
const BUSY_PAUSE: Duration = Duration::from_millis(5);

/// Whether `<path> --version` ends with success within the limit.
pub(super) fn answers_version(path: &Path, limit: Duration) -> bool {
    let Ok(nowhere) = File::options().read(true).write(true).open("/dev/null") else { return false };
    let deadline = Deadline::after(limit);
    let outcome = unless_busy(|| {
        Running::begin(path, &[c"--version"], nowhere.as_fd(), nowhere.as_fd())?.end(&deadline)
    });
    outcome == Ok(Some(How::Code(0)))
}

/// We have closed the file, but a child that another thread was starting at that moment has a copy of the descriptor
/// until it executes something.
fn unless_busy<T>(mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(Errno::TXTBSY) if begun.elapsed() < BUSY => std::thread::sleep(BUSY_PAUSE),
            outcome => return outcome,
        }
    }
}

struct Deadline(Instant, Duration);

impl Deadline {
    fn after(limit: Duration) -> Deadline {
        Deadline(Instant::now(), limit)
    }

    fn left(&self) -> Duration {
        self.1.saturating_sub(self.0.elapsed())
    }
}

struct Running(spawn::Begun);

impl Running {
    /// The keeper's way to start a program, not the standard library's: that one waits for the exec without a limit,
    /// and may hand a file that is no program at all to a shell.
    fn begin(
        path: &Path,
        arguments: &[&CStr],
        input: BorrowedFd<'_>,
        output: BorrowedFd<'_>,
    ) -> Result<Running, Errno> {
        // Without a slash a name would be looked for elsewhere by whoever sees it.
        let path = std::path::absolute(path).map_err(|_| Errno::NOENT)?;
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let arguments: Vec<&CStr> = [path.as_c_str()].iter().chain(arguments).copied().collect();
        let environment = spawn::own_environment();
        let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
        let descriptors = [(input, 0), (output, 1), (output, 2)];
        let child =
            Child::new(Program::Path(&path), &arguments, &environment, Standing::Session, &descriptors);
        spawn::begin(&child).map(Running).map_err(|failure| failure.errno)
    }

    /// Waits for the end; `None` when it had to be brought about. The error is why nothing was executed.
    fn end(self, deadline: &Deadline) -> Result<Option<How>, Errno> {
        let Running(begun) = self;
        let in_time = epoll::wait_readable(&begun.pidfd, deadline.left()) == Ok(true);
        if !in_time {
            // Both: before it has a group of its own, only the first reaches it.
            let _it = pidfd::signal(&begun.pidfd, Signal::KILL);
            let _all = pidfd::signal_group_of_child(&begun.pidfd, Signal::KILL);
            let _gone = epoll::wait_readable(&begun.pidfd, Duration::from_secs(5));
        }
        let exit = pidfd::reap(&begun.pidfd)?;
        if let Progress::Failed(Failure { errno, .. }) = begun.report.read() {
            return Err(errno);
        }
        Ok(exit.filter(|_| in_time).map(|exit| exit.how))
    }
}

#[cfg(test)]
mod tests {
    use super::super::testkit::script;
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    const PATIENT: Duration = Duration::from_secs(60);

    #[test]
    fn only_success_counts_as_an_answer() {
        let dir = tempfile::tempdir().unwrap();
        let good = script(dir.path(), "good", "test \"$1\" = --version && test \"$#\" = 1");
        assert!(answers_version(&good, PATIENT));
        for body in ["exit 3", "kill -9 $$"] {
            assert!(!answers_version(&script(dir.path(), "bad", body), PATIENT), "{body}");
        }
        assert!(!answers_version(&dir.path().join("missing"), PATIENT));
        assert!(!answers_version(dir.path(), PATIENT));
    }

    #[test]
    fn a_file_that_is_no_program_is_not_given_to_a_shell() {
        let dir = tempfile::tempdir().unwrap();
        for (name, contents) in [("empty", ""), ("text", "exit 0\n")] {
            let path = dir.path().join(name);
            std::fs::write(&path, contents).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            assert!(!answers_version(&path, PATIENT), "{name}");
        }
    }

    #[test]
    fn it_reads_nothing_of_our_input_and_gets_no_other_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let body = "read line && exit 1; test \"$(readlink /proc/$$/fd/0)\" = /dev/null || exit 2\n\
                    for fd in /proc/$$/fd/*; do case ${fd##*/} in 0|1|2|10|255) ;; *) test -e $fd && exit 3;; esac; done; exit 0";
        let held = File::open(dir.path()).unwrap();
        assert!(answers_version(&script(dir.path(), "reader", body), PATIENT));
        drop(held);
    }

    #[test]
    fn a_program_that_hangs_is_killed_with_all_it_started() {
        let dir = tempfile::tempdir().unwrap();
        // The pipe ends only when nobody holds it any more: neither the shell nor what it started.
        let (mut reader, writer) = std::io::pipe().unwrap();
        let path = script(dir.path(), "hanging", "sleep 1000 & sleep 1000");
        let nowhere = File::open("/dev/null").unwrap();
        let running = Running::begin(&path, &[], nowhere.as_fd(), writer.as_fd()).unwrap();
        drop(writer);
        assert_eq!(running.end(&Deadline::after(Duration::from_millis(200))), Ok(None));
        assert!(epoll::wait_readable(&reader, PATIENT).unwrap());
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn a_file_somebody_still_writes_to_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let path = script(dir.path(), "busy", "exit 0");
        let mut writer = Some(File::options().append(true).open(&path).unwrap());
        let nowhere = File::open("/dev/null").unwrap();
        let mut outcomes = Vec::new();
        let last = unless_busy(|| {
            let running = Running::begin(&path, &[], nowhere.as_fd(), nowhere.as_fd())?;
            let outcome = running.end(&Deadline::after(PATIENT));
            outcomes.push(outcome);
            writer = None;
            outcome
        });
        assert_eq!(outcomes.first(), Some(&Err(Errno::TXTBSY)));
        assert_eq!(last, Ok(Some(How::Code(0))));
    }
}
