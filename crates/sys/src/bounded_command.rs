//! Runs an external command in its own process group, without stdin or a terminal, with a timeout and an output limit.

use crate::epoll::{wait_any_readable, wait_readable};
use crate::pidfd::{self, Pidfd};
use crate::signal::Signal;
use crate::{file, pipe};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::OwnedFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

pub struct Limits {
    pub timeout: Duration,
    /// For each stream.
    pub output_bytes_max: usize,
    /// Redirects stderr to stdout, which keeps the order of writes.
    pub merge_stderr: bool,
}

pub struct Output {
    /// The command exited with code 0 and was not killed.
    pub succeeded: bool,
    /// The command exceeded a limit, and its process group was killed.
    pub killed: bool,
    pub stdout: Vec<u8>,
    pub stderr: Vec<u8>,
}

/// Blocking. Runs the command until it exits or a limit is exceeded. Stops reading early if `is_enough` returns true for the
/// stdout so far.
pub fn run(command: &mut Command, limits: &Limits, is_enough: impl Fn(&[u8]) -> bool) -> io::Result<Output> {
    let deadline = Instant::now() + limits.timeout;
    let stdout_pipe = pipe::pipe()?;
    let stderr_pipe = pipe::pipe()?;
    let stderr_target = if limits.merge_stderr { &stdout_pipe.write } else { &stderr_pipe.write };
    let stderr = file::duplicate(stderr_target)?;
    drop(stderr_pipe.write);
    command.stdin(Stdio::null()).stdout(stdout_pipe.write).stderr(stderr).process_group(0);
    let spawned = command.spawn();
    // `Command` keeps the write ends open. Replace them, or the read ends would never see EOF.
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = spawned?;
    let pidfd = Pidfd::of_child(&child)?;
    let mut readers = [Reader::new(stdout_pipe.read), Reader::new(stderr_pipe.read)];
    let within_limits = read_all(&mut readers, limits.output_bytes_max, deadline, is_enough);
    let [stdout, stderr] = readers.map(|reader| reader.bytes);
    let exited = within_limits && wait_readable(&pidfd, deadline.saturating_duration_since(Instant::now()))?;
    if !exited {
        let _already_exited = pidfd::signal_group_of_child(&pidfd, Signal::KILL);
    }
    let succeeded = child.wait()?.success() && exited;
    Ok(Output { succeeded, killed: !exited, stdout, stderr })
}

struct Reader {
    file: Option<File>,
    bytes: Vec<u8>,
}

impl Reader {
    fn new(fd: OwnedFd) -> Reader {
        Reader { file: Some(File::from(fd)), bytes: Vec::new() }
    }

    /// Reads once. Closes the file at EOF.
    fn read_available(&mut self) {
        let Some(file) = &mut self.file else { return };
        let mut chunk = [0; 16 * 1024];
        match file.read(&mut chunk) {
            Ok(0) | Err(_) => self.file = None,
            Ok(len) => self.bytes.extend_from_slice(chunk.get(..len).unwrap_or_default()),
        }
    }
}

/// Reads both streams until EOF or `is_enough`. Returns false if a limit was exceeded.
fn read_all(
    readers: &mut [Reader; 2],
    bytes_max: usize,
    deadline: Instant,
    is_enough: impl Fn(&[u8]) -> bool,
) -> bool {
    loop {
        if readers.iter().any(|reader| reader.bytes.len() > bytes_max) {
            return false;
        }
        let open: Vec<&File> = readers.iter().filter_map(|reader| reader.file.as_ref()).collect();
        if open.is_empty() || is_enough(&readers[0].bytes) {
            return true;
        }
        let left = deadline.saturating_duration_since(Instant::now());
        let Ok(ready) = wait_any_readable(&open, left) else { return false };
        if !ready.contains(&true) {
            return false;
        }
        let open = readers.iter_mut().filter(|reader| reader.file.is_some());
        for (reader, _) in open.zip(ready).filter(|(_, ready)| *ready) {
            reader.read_available();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sh(script: &str, limits: &Limits) -> Output {
        run(Command::new("/bin/sh").args(["-c", script]), limits, |_| false).unwrap()
    }

    const LIMITS: Limits =
        Limits { timeout: Duration::from_secs(30), output_bytes_max: 1000, merge_stderr: false };

    #[test]
    fn streams_and_exit_status_are_returned() {
        let output = sh("echo out; echo err >&2", &LIMITS);
        assert_eq!((output.stdout.as_slice(), output.stderr.as_slice()), (&b"out\n"[..], &b"err\n"[..]));
        assert!(output.succeeded && !output.killed);
        let merged = Limits { merge_stderr: true, ..LIMITS };
        let output = sh("echo one; echo two >&2; echo three; exit 3", &merged);
        assert_eq!(output.stdout, b"one\ntwo\nthree\n");
        assert!(!output.succeeded && !output.killed);
    }

    #[test]
    fn a_timeout_kills_the_process_group() {
        let begun = Instant::now();
        let output = sh("sleep 100 & sleep 100", &Limits { timeout: Duration::from_millis(200), ..LIMITS });
        assert!(output.killed && !output.succeeded);
        assert!(begun.elapsed() < Duration::from_secs(20), "waited for a pipe that a descendant held");
    }

    #[test]
    fn too_much_output_kills_the_command() {
        assert!(sh("yes", &LIMITS).killed);
    }

    #[test]
    fn reading_stops_early_when_it_is_enough() {
        let mut command = Command::new("/bin/sh");
        let output = run(
            command.args(["-c", "echo found; exec cat /dev/zero"]),
            &Limits { output_bytes_max: 1 << 30, ..LIMITS },
            |text| text.starts_with(b"found\n"),
        );
        assert!(output.unwrap().stdout.starts_with(b"found\n"));
    }
}
