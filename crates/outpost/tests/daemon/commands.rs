//! `outpost run` and `outpost exec`: exit codes, signals, binary data, sandboxes, and the lifetime of their processes.

use crate::support::{cli, daemon, stdout_and_code};
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd::{self, Pidfd};
use outpost_sys::signal::Signal;
use outpost_testkit::{Daemon, Half, require};
use std::ffi::OsStr;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

const TIMEOUT: Duration = Duration::from_secs(60);

/// A running command with its standard output, read by lines.
struct Started {
    child: Child,
    lines: BufReader<ChildStdout>,
}

impl Started {
    fn new(mut command: Command) -> Started {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap());
        Started { child, lines }
    }

    fn line(&mut self) -> String {
        let mut line = String::new();
        self.lines.read_line(&mut line).unwrap();
        line.trim_end().to_owned()
    }

    fn signal(&self, signal: Signal) {
        let pidfd = outpost_testkit::process(self.child.id().cast_signed()).unwrap();
        pidfd::signal(pidfd, signal).unwrap();
    }

    fn write(&mut self, text: &str) {
        self.child.stdin.as_mut().unwrap().write_all(text.as_bytes()).unwrap();
    }

    fn code(mut self) -> Option<i32> {
        self.child.wait().unwrap().code()
    }
}

/// The process that prints its pid on its first line.
fn process_of(started: &mut Started) -> Pidfd {
    outpost_testkit::process(started.line().parse().unwrap()).unwrap()
}

/// The only process of this daemon.
fn only_process(daemon: &Daemon) -> Pidfd {
    let list = daemon.list();
    assert_eq!(list.len(), 1, "{list:?}");
    outpost_testkit::process(list[0].pid).unwrap()
}

#[test]
fn run_passes_streams_statuses_and_any_bytes_through() {
    let daemon = daemon();
    let run = |script: &str| {
        let output = cli(&daemon, &["run", "--", "sh", "-c", script]).output().unwrap();
        (output.stdout, output.stderr, output.status.code())
    };
    assert_eq!(run("echo out; echo err >&2; exit 3"), (b"out\n".to_vec(), b"err\n".to_vec(), Some(3)));
    assert_eq!(run("kill -TERM $$").2, Some(128 + 15));
    let mut command = cli(&daemon, &["run", "--cwd", "/", "--env"]);
    command.arg(OsStr::from_bytes(b"ADDED=\xff=1")).args(["--", "sh", "-c"]);
    command
        .args(["pwd; printf '%s|%s|%s' \"$ADDED\" \"$OURS\" \"$1\"", "sh"])
        .arg(OsStr::from_bytes(b"b\xfe"));
    let output = command.env("OURS", OsStr::from_bytes(b"\xfd")).output().unwrap();
    assert_eq!(output.stdout, b"/\n\xff=1|\xfd|b\xfe");
    // The environment is not in the listed records.
    let list = serde_json::to_string(&daemon.list()).unwrap();
    assert!(!list.contains("ADDED="), "{list}");
    let mut started = Started::new(cli(&daemon, &["run", "--", "cat"]));
    started.write("one\n");
    assert_eq!(started.line(), "one");
    daemon.kill(Half::Worker);
    started.write("two\n");
    assert_eq!(started.line(), "two");
    drop(started.child.stdin.take());
    assert_eq!(started.code(), Some(0));
    let (_, code) = stdout_and_code(&daemon, &["run", "--env", "=x", "--", "true"]);
    assert_eq!(code, Some(1));
}

#[test]
fn run_forwards_signals_and_its_process_survives_sighup() {
    let daemon = daemon();
    let script =
        "trap 'n=$((n+1)); echo got $n' INT; trap 'exit 9' TERM; echo $$; while :; do sleep 0.02; done";
    let mut started = Started::new(cli(&daemon, &["run", "--", "sh", "-c", script]));
    let process = process_of(&mut started);
    started.signal(Signal::INT);
    assert_eq!(started.line(), "got 1");
    started.signal(Signal::INT);
    assert_eq!(started.line(), "got 2");
    started.signal(Signal::HUP);
    assert_eq!(started.code(), None, "it ended by the signal");
    assert!(!wait_readable(&process, Duration::ZERO).unwrap(), "the process is still running");
    let number = daemon.list()[0].process.clone();
    let (killed, code) = stdout_and_code(&daemon, &["kill", &number]);
    assert_eq!((killed.trim(), code), (format!("{number}: terminated (SIGTERM)").as_str(), Some(0)));
    assert!(wait_readable(&process, TIMEOUT).unwrap());
}

#[test]
fn exec_confines_a_command_and_leaves_nothing_behind() {
    let daemon = daemon();
    let work = tempfile::tempdir().unwrap();
    let script = "touch made && ls made; touch .git/x; touch /etc/outpost-was-here; ls state; exit 5";
    let exec = |policy: &[&str]| {
        let mut command = cli(&daemon, &["exec"]);
        command.args(policy).arg("--cwd").arg(work.path()).args(["--", "sh", "-c", script]);
        command.output().unwrap()
    };
    let output = exec(&[]);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    assert_eq!((output.stdout.as_slice(), output.status.code()), (&b"made\n"[..], Some(5)), "{errors}");
    assert!(errors.contains("/etc/outpost-was-here") && errors.contains(".git/x"), "{errors}");
    let output = exec(&["--sandbox", "read-only"]);
    assert_eq!((output.stdout.as_slice(), output.status.code()), (&b""[..], Some(5)));
    let left: Vec<_> = work.path().read_dir().unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["made"]);
    let output = cli(&daemon, &["exec", "--", "no-such-program"]).output().unwrap();
    assert!(String::from_utf8_lossy(&output.stderr).contains("no-such-program: not found in PATH"));
    let output = cli(&daemon, &["run", "--network", "--", "true"]).output().unwrap();
    assert!(
        String::from_utf8_lossy(&output.stderr).contains("need a sandbox"),
        "a flag without a sandbox is an error"
    );
    // The signal goes to the whole group: a shell waits for its child before it exits.
    let mut started =
        Started::new(cli(&daemon, &["exec", "--", "sh", "-c", "echo ready; sleep 1000; echo no"]));
    assert_eq!(started.line(), "ready");
    started.signal(Signal::INT);
    assert_eq!(started.line(), "");
    assert_eq!(started.code(), Some(128 + 2));
}

#[test]
fn exec_survives_the_worker_and_ends_with_its_caller() {
    let daemon = daemon();
    let script = "echo ready; read line; echo \"got $line\"; sleep 1000";
    let mut started = Started::new(cli(&daemon, &["exec", "--", "sh", "-c", script]));
    assert_eq!(started.line(), "ready");
    let process = only_process(&daemon);
    daemon.kill(Half::Worker);
    started.write("hello\n");
    assert_eq!(started.line(), "got hello");
    started.signal(Signal::KILL);
    assert!(wait_readable(&process, TIMEOUT).unwrap(), "{}", daemon.log());
    assert_eq!(started.code(), None);
}

#[test]
fn a_command_for_another_user_is_confined_too() {
    require!(outpost_testkit::root());
    let daemon = Daemon::start_as(crate::support::outpost(), 65534);
    let mut command = Command::new("setpriv");
    command.args(["--reuid=65534", "--regid=65534", "--clear-groups"]).arg(crate::support::outpost());
    command.args([
        "--state-dir",
        "state",
        "--runtime-dir",
        "run",
        "exec",
        "--cwd",
        "/",
        "--sandbox",
        "read-only",
    ]);
    command.args(["--", "sh", "-c", "id -u; touch /tmp/outpost-was-here"]).current_dir(daemon.dir());
    let output = command.stdin(Stdio::null()).output().unwrap();
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    // A host without user namespaces refuses the command with this error.
    let refused = errors.contains("its sandbox is not possible here");
    assert!(refused || (output.stdout == b"65534\n" && output.status.code() == Some(1)), "{errors}");
}
