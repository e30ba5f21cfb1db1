//! Runs `<cli> --version` with a timeout to test a newly written program. Never uses a shell.

use outpost_sys::pidfd::{self, ExitCause};
use outpost_sys::spawn::{self, Child, ExecStatus, Executable, Failure, SessionKind};
use outpost_sys::{Errno, epoll, signal::Signal};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long to retry after ETXTBSY.
const BUSY_TIMEOUT: Duration = Duration::from_secs(2);
const BUSY_RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Whether `<path> --version` exits with 0 within the limit.
pub(super) fn succeeds(path: &Path, limit: Duration) -> bool {
    let Ok(dev_null) = File::options().read(true).write(true).open("/dev/null") else { return false };
    let deadline = Deadline::after(limit);
    let outcome = retry_while_busy(|| {
        Running::begin(path, &[c"--version"], dev_null.as_fd(), dev_null.as_fd())?.end(&deadline)
    });
    outcome == Ok(Some(ExitCause::Code(0)))
}

/// Retries after ETXTBSY. This process has closed the file, but a child that another thread forked before holds a copy of
/// the descriptor until its exec.
fn retry_while_busy<T>(mut attempt: impl FnMut() -> Result<T, Errno>) -> Result<T, Errno> {
    let begun = Instant::now();
    loop {
        match attempt() {
            Err(Errno::TXTBSY) if begun.elapsed() < BUSY_TIMEOUT => std::thread::sleep(BUSY_RETRY_INTERVAL),
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
    /// Uses `outpost_sys::spawn`: `std::process::Command` waits for the exec without a timeout, and its execvp passes a file
    /// without a known format to a shell.
    fn begin(
        path: &Path,
        arguments: &[&CStr],
        input: BorrowedFd<'_>,
        output: BorrowedFd<'_>,
    ) -> Result<Running, Errno> {
        // Absolute, because the CLI or its interpreter would search a name without a slash in PATH.
        let path = std::path::absolute(path).map_err(|_| Errno::NOENT)?;
        let path = CString::new(path.as_os_str().as_bytes()).map_err(|_| Errno::INVAL)?;
        let arguments: Vec<&CStr> = [path.as_c_str()].iter().chain(arguments).copied().collect();
        let environment = spawn::own_environment();
        let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
        let descriptors = [(input, 0), (output, 1), (output, 2)];
        let child =
            Child::new(Executable::Path(&path), &arguments, &environment, SessionKind::Session, &descriptors);
        spawn::begin(&child).map(Running).map_err(|failure| failure.errno)
    }

    /// Waits for the exit; `None` if the timeout expired and the process group was killed. An error means that the exec failed.
    fn end(self, deadline: &Deadline) -> Result<Option<ExitCause>, Errno> {
        let Running(begun) = self;
        let in_time = epoll::wait_readable(&begun.pidfd, deadline.left()) == Ok(true);
        if !in_time {
            // Signal the process too: it may not have entered its own group yet.
            let _already_exited = pidfd::signal(&begun.pidfd, Signal::KILL);
            let _already_exited = pidfd::signal_group_of_child(&begun.pidfd, Signal::KILL);
            let _exited = epoll::wait_readable(&begun.pidfd, Duration::from_secs(5));
        }
        let exit = pidfd::reap(&begun.pidfd)?;
        if let ExecStatus::Failed(Failure { errno, .. }) = begun.status.read() {
            return Err(errno);
        }
        Ok(exit.filter(|_| in_time).map(|exit| exit.cause))
    }
}

#[cfg(test)]
mod tests {
    use super::super::fixture::script;
    use super::*;
    use std::io::Read;
    use std::os::unix::fs::PermissionsExt;

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn only_exit_code_0_is_a_success() {
        let dir = tempfile::tempdir().unwrap();
        let good = script(dir.path(), "good", "test \"$1\" = --version && test \"$#\" = 1");
        assert!(succeeds(&good, LONG));
        for body in ["exit 3", "kill -9 $$"] {
            assert!(!succeeds(&script(dir.path(), "bad", body), LONG), "{body}");
        }
        assert!(!succeeds(&dir.path().join("missing"), LONG));
        assert!(!succeeds(dir.path(), LONG));
    }

    #[test]
    fn a_file_without_executable_format_is_not_passed_to_a_shell() {
        let dir = tempfile::tempdir().unwrap();
        for (name, contents) in [("empty", ""), ("text", "exit 0\n")] {
            let path = dir.path().join(name);
            std::fs::write(&path, contents).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(0o755)).unwrap();
            assert!(!succeeds(&path, LONG), "{name}");
        }
    }

    #[test]
    fn the_program_inherits_neither_stdin_nor_other_descriptors() {
        let dir = tempfile::tempdir().unwrap();
        let body = "read line && exit 1; test \"$(readlink /proc/$$/fd/0)\" = /dev/null || exit 2\n\
                    for fd in /proc/$$/fd/*; do case ${fd##*/} in 0|1|2|10|255) ;; *) test -e $fd && exit 3;; esac; done; exit 0";
        let held = File::open(dir.path()).unwrap();
        assert!(succeeds(&script(dir.path(), "reader", body), LONG));
        drop(held);
    }

    #[test]
    fn a_hanging_program_is_killed_with_its_process_group() {
        let dir = tempfile::tempdir().unwrap();
        // The pipe reaches EOF only after the shell and its descendants have closed it.
        let (mut reader, writer) = std::io::pipe().unwrap();
        let path = script(dir.path(), "hanging", "sleep 1000 & sleep 1000");
        let dev_null = File::open("/dev/null").unwrap();
        let running = Running::begin(&path, &[], dev_null.as_fd(), writer.as_fd()).unwrap();
        drop(writer);
        assert_eq!(running.end(&Deadline::after(Duration::from_millis(200))), Ok(None));
        assert!(epoll::wait_readable(&reader, LONG).unwrap());
        assert_eq!(reader.read(&mut [0; 8]).unwrap(), 0);
    }

    #[test]
    fn a_file_open_for_writing_is_retried() {
        let dir = tempfile::tempdir().unwrap();
        let path = script(dir.path(), "busy", "exit 0");
        let mut writer = Some(File::options().append(true).open(&path).unwrap());
        let dev_null = File::open("/dev/null").unwrap();
        let mut outcomes = Vec::new();
        let last = retry_while_busy(|| {
            let running = Running::begin(&path, &[], dev_null.as_fd(), dev_null.as_fd())?;
            let outcome = running.end(&Deadline::after(LONG));
            outcomes.push(outcome);
            writer = None;
            outcome
        });
        assert_eq!(outcomes.first(), Some(&Err(Errno::TXTBSY)));
        assert_eq!(last, Ok(Some(ExitCause::Code(0))));
    }
}
