//! Runs a program that helps us with a question: alone in its process group, without a terminal or input, for a limited
//! time, with a limit on what it prints.

use outpost_sys::epoll::{wait_any_readable, wait_readable};
use outpost_sys::pidfd::{self, Pidfd};
use outpost_sys::signal::Signal;
use outpost_sys::{file, pipe};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub(crate) struct Limits {
    pub(crate) patience: Duration,
    pub(crate) output_bytes: usize,
    /// What goes to stderr is among what goes to stdout, in the order in which it was written.
    pub(crate) together: bool,
}

pub(crate) struct Ended {
    /// It ended by itself, with code 0.
    pub(crate) succeeded: bool,
    /// It took too long or printed too much, and was killed with its whole group.
    pub(crate) stopped: bool,
    pub(crate) stdout: Vec<u8>,
    pub(crate) stderr: Vec<u8>,
}

/// Runs it to its end, or until `enough` says so of what it has printed.
pub(crate) fn run(
    command: &mut Command,
    limits: &Limits,
    enough: impl Fn(&[u8]) -> bool,
) -> io::Result<Ended> {
    let deadline = Instant::now() + limits.patience;
    let output = pipe::pipe()?;
    let errors = pipe::pipe()?;
    let stderr =
        if limits.together { file::duplicate(&output.write)? } else { file::duplicate(&errors.write)? };
    drop(errors.write);
    command.stdin(Stdio::null()).stdout(output.write).stderr(stderr).process_group(0);
    let spawned = command.spawn();
    // The command holds our ends of the pipes as long as it has them, and we would wait for ourselves.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = spawned?;
    let program = Pidfd::of_child(&child)?;
    let mut readers = [Reader::new(output.read), Reader::new(errors.read)];
    let read = read_all(&mut readers, limits.output_bytes, deadline, enough);
    let [stdout, stderr] = readers.map(|reader| reader.bytes);
    let ended = read && wait_readable(&program, deadline.saturating_duration_since(Instant::now()))?;
    if !ended {
        let _gone = pidfd::signal_group_of_child(&program, Signal::KILL);
    }
    let succeeded = child.wait()?.success() && ended;
    Ok(Ended { succeeded, stopped: !ended, stdout, stderr })
}

struct Reader {
    file: Option<File>,
    bytes: Vec<u8>,
}

impl Reader {
    fn new(fd: OwnedFd) -> Reader {
        Reader { file: Some(File::from(fd)), bytes: Vec::new() }
    }

    /// Takes what is there; the file is closed at its end.
    fn take(&mut self) {
        let Some(file) = &mut self.file else { return };
        let mut piece = [0; 16 * 1024];
        match file.read(&mut piece) {
            Ok(0) | Err(_) => self.file = None,
            Ok(read) => self.bytes.extend_from_slice(piece.get(..read).unwrap_or_default()),
        }
    }
}

/// Reads both to their ends, or until it is enough; false when there was too much, or no time left.
fn read_all(
    readers: &mut [Reader; 2],
    bytes_max: usize,
    deadline: Instant,
    enough: impl Fn(&[u8]) -> bool,
) -> bool {
    loop {
        if readers.iter().any(|reader| reader.bytes.len() > bytes_max) {
            return false;
        }
        let open: Vec<&File> = readers.iter().filter_map(|reader| reader.file.as_ref()).collect();
        if open.is_empty() || enough(&readers[0].bytes) {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(ready) = wait_any_readable(&open, left) else { return false };
        if !ready.contains(&true) {
            return false;
        }
        let open = readers.iter_mut().filter(|reader| reader.file.is_some());
        for (reader, _) in open.zip(ready).filter(|(_, ready)| *ready) {
            reader.take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limits: &Limits) -> Ended {
        run(Command::new("/bin/sh").args(["-c", script]), limits, |_| false).unwrap()
    }

    const LIMITS: Limits = Limits { patience: Duration::from_secs(30), output_bytes: 1000, together: false };

    #[test]
    fn both_streams_and_the_outcome_are_told() {
        let ended = sh("echo out; echo err >&2", &LIMITS);
        assert_eq!((ended.stdout.as_slice(), ended.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
        assert!(ended.succeeded && !ended.stopped);
        let ended = sh("echo one; echo two >&2; echo three; exit 3", &Limits { together: true, ..LIMITS });
        assert_eq!(ended.stdout, b"one\ntwo\nthree\n");
        assert!(!ended.succeeded && !ended.stopped);
    }

    #[test]
    fn who_takes_too_long_is_killed_with_what_it_started() {
        let begun = Instant::now();
        let ended = sh("sleep 100 & sleep 100", &Limits { patience: Duration::from_millis(200), ..LIMITS });
        assert!(ended.stopped && !ended.succeeded);
        assert!(begun.elapsed() < Duration::from_secs(20), "waited for the pipe that a child held");
    }

    #[test]
    fn who_prints_too_much_is_stopped() {
        assert!(sh("yes", &LIMITS).stopped);
    }

    #[test]
    fn reading_ends_when_it_is_enough() {
        let mut command = Command::new("/bin/sh");
        let ended = run(
            command.args(["-c", "echo found; exec cat /dev/zero"]),
            &Limits { output_bytes: 1 << 30, ..LIMITS },
            |text| text.starts_with(b"found\n"),
        );
        assert!(ended.unwrap().stdout.starts_with(b"found\n"));
    }
}
