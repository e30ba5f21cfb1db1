//! A sandboxed command as a process: its start, signals, exit, and descendants.

use crate::kit::{Fixture, end, host, launch, pipe, start_on};
use outpost_sandbox::{Access, Confinement, Host, Policy, PolicyEntry, Reads, Special, plan};
use outpost_sys::Errno;
use outpost_sys::pidfd::{self, ExitCause};
use outpost_sys::pty;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{Failure, SessionKind, Step};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::fd::OwnedFd;

#[test]
fn a_missing_program_is_a_failed_start() {
    let fixture = Fixture::new();
    let failure = fixture.start(&fixture.read_only(), &["/no/such/program"]).unwrap_err();
    assert_eq!(failure, Failure::at(Step::Exec, Errno::NOENT));
    let failure = fixture.start(&fixture.read_only(), &["/etc/passwd"]).unwrap_err();
    assert_eq!(failure, Failure::at(Step::Exec, Errno::ACCESS));
}

#[test]
fn a_missing_working_directory_is_reported() {
    let fixture = Fixture::new();
    let plan = plan(&fixture.read_only(), &fixture.context()).unwrap();
    let confinement = Confinement::build(&plan, host()).unwrap();
    let null: OwnedFd = File::open("/dev/null").unwrap().into();
    let started =
        launch(&confinement, &fixture.path("gone"), &["/bin/true"], SessionKind::Session, [&null; 3]);
    assert_eq!(started.err(), Some(Failure::at(Step::Directory, Errno::NOENT)));
}

#[test]
fn candidates_are_tried_in_order_inside() {
    let fixture = Fixture::new();
    let plan = plan(&fixture.read_only(), &fixture.context()).unwrap();
    let confinement = Confinement::build(&plan, host()).unwrap();
    let confinement = confinement.executing(&[c"/no/echo", c"/etc/passwd/echo", c"/bin/echo"]).unwrap();
    let (read, write) = pipe();
    let started =
        launch(&confinement, &fixture.ws(), &["/no", "found"], SessionKind::Group, [&write; 3]).unwrap();
    drop(write);
    assert_eq!(std::io::read_to_string(File::from(read)).unwrap(), "found\n");
    assert_eq!(end(&started), ExitCause::Code(0));
}

/// A command that prints a line when it is ready, then waits.
fn waiting(fixture: &Fixture, script: &str) -> (outpost_sys::spawn::Started, BufReader<File>) {
    let plan = plan(&fixture.read_only(), &fixture.context()).unwrap();
    let confinement = Confinement::build(&plan, host()).unwrap();
    let (read, write) = pipe();
    let line = ["/bin/sh", "-c", script];
    let started = launch(&confinement, &fixture.ws(), &line, SessionKind::Session, [&write; 3]).unwrap();
    drop(write);
    let mut out = BufReader::new(File::from(read));
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "ready\n");
    (started, out)
}

#[test]
fn signals_reach_the_command() {
    let fixture = Fixture::new();
    let (started, mut out) =
        waiting(&fixture, "trap 'echo term; exit 5' TERM; echo ready; while :; do sleep 0.01; done");
    pidfd::signal(&started.pidfd, Signal::TERM).unwrap();
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!((rest.as_str(), end(&started)), ("term\n", ExitCause::Code(5)));
}

#[test]
fn killing_the_outer_process_kills_everything() {
    let fixture = Fixture::new();
    let (started, mut out) = waiting(&fixture, "setsid sleep 1000 & echo ready; sleep 1000");
    pidfd::signal(&started.pidfd, Signal::KILL).unwrap();
    // EOF only after the last writer has exited.
    let mut rest = String::new();
    out.read_to_string(&mut rest).unwrap();
    assert_eq!(end(&started), ExitCause::Signal(9));
}

#[test]
fn a_terminal_has_job_control_and_reaches_the_command() {
    let fixture = Fixture::new();
    let plan = plan(&fixture.read_only(), &fixture.context()).unwrap();
    let confinement = Confinement::build(&plan, host()).unwrap();
    let pty = pty::open(pty::Size { rows: 24, cols: 80 }).unwrap();
    let line = [
        "/usr/bin/env",
        "python3",
        "-c",
        "import os,signal,sys\nsignal.signal(signal.SIGINT,signal.SIG_DFL)\nt=os.open('/dev/tty',os.O_RDWR)\nprint(os.tcgetpgrp(0)==os.getpgrp(), os.getsid(0)==os.getpid(), os.isatty(t))\nopen('/dev/stderr','w').write('err\\n')\nm,s=os.openpty()\nprint(os.ttyname(s))\nsys.stdout.flush()\nsignal.pause()",
    ];
    let started = launch(&confinement, &fixture.ws(), &line, SessionKind::Terminal, [&pty.slave; 3]).unwrap();
    drop(pty.slave);
    let mut out = BufReader::new(File::from(pty.master));
    let mut lines = String::new();
    while !lines.contains("/dev/pts/0") {
        assert_ne!(out.read_line(&mut lines).unwrap(), 0, "{lines}");
    }
    assert!(lines.contains("True True True") && lines.contains("err"), "{lines}");
    // ^C
    std::io::Write::write_all(out.get_mut(), &[3]).unwrap();
    assert_eq!(end(&started), ExitCause::Signal(2));
}

#[test]
fn without_namespaces_expressible_plans_run_and_others_are_refused() {
    let fixture = Fixture::new();
    let host = Host::probe(&crate::kit::state()).unwrap().without_namespaces("for a test");
    let script = "touch x; echo y > /proc/sys/kernel/domainname; cat /etc/hostname > /dev/null && echo read; echo z > /dev/null && echo null; python3 -c 'import socket; socket.socket()' 2>&1 | tail -1; cat /proc/1/environ";
    let done = start_on(&host, &fixture.read_only(), &fixture.context(), &["/bin/sh", "-c", script]).unwrap();
    assert!(done.out.contains("read\nnull\n"), "{}", done.out);
    assert_eq!(done.out.matches("ermission").count(), 4, "{}", done.out);
    assert!(fixture.names("ws").is_empty());
    let refused = Confinement::build(&plan(&fixture.workspace_write(), &fixture.context()).unwrap(), &host);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("for a test") && text.contains("/ws/."), "{text}");
}

/// The daemon denies its own directories to every command. Without namespaces, Landlock enforces that.
#[test]
fn without_namespaces_denied_directories_stay_closed_to_a_read_only_command() {
    let fixture = Fixture::new();
    let host = Host::probe(&crate::kit::state()).unwrap().without_namespaces("for a test");
    assert_eq!(host.why_not_alone, None, "this kernel's Landlock can stand alone");
    fixture.write("own/state/secret", "hidden");
    fixture.write("own/open", "seen");
    fixture.write("ws/file", "read");
    std::os::unix::fs::symlink("own/state", fixture.path("link")).unwrap();
    let denied = |network: bool| {
        let entries = [
            PolicyEntry::special(Special::Root, Access::Read),
            PolicyEntry::path(fixture.path("own/state"), Access::None),
            PolicyEntry::path(fixture.path("own/missing"), Access::None),
        ];
        Policy::restricted(entries.to_vec(), network)
    };
    let script = "cat file ../own/open; cat ../own/state/secret ../link/secret; ls ../own/state ../link/; \
        ls . > /dev/null && echo listed; cat /etc/passwd > /dev/null && echo passwd; touch ../own/x; echo x > /dev/null && echo null";
    let line = ["/bin/sh", "-c", script];
    let done = start_on(&host, &denied(false), &fixture.context(), &line).unwrap();
    assert!(done.out.starts_with("readseen"), "{}", done.out);
    assert!(
        done.out.contains("listed\n") && done.out.contains("passwd\n") && done.out.ends_with("null\n"),
        "{}",
        done.out
    );
    assert!(
        !done.out.contains("hidden") && done.out.matches("ermission denied").count() == 5,
        "{}",
        done.out
    );
    // Landlock does not control connect(2) to a socket by its path.
    let refused = Confinement::build(&plan(&denied(true), &fixture.context()).unwrap(), &host);
    let text = refused.unwrap_err().to_string();
    assert!(text.contains("keep sockets in") && text.contains("network access"), "{text}");
}

#[test]
fn an_unrestricted_command_without_network_still_has_none() {
    let fixture = Fixture::new();
    let policy = Policy { files: outpost_sandbox::Files::Unrestricted, network: false };
    let script =
        "touch made; python3 -c 'import socket; socket.socket()' 2>&1 | tail -1; echo 1 > /sys/kernel/x";
    let done = fixture.sh(&policy, script);
    assert!(done.out.contains("Operation not permitted") && done.out.contains("ead-only"), "{}", done.out);
    assert_eq!(fixture.names("ws"), ["made"]);
}

#[test]
fn slash_tmp_and_tmpdir_are_the_hosts() {
    let fixture = Fixture::new();
    std::fs::create_dir(fixture.path("tmp")).unwrap();
    let mut context = fixture.context();
    context.tmpdir = Some(fixture.path("tmp"));
    let policy = Policy::workspace_write(&[], &Reads::Everything, false, false, false);
    let script =
        format!("touch {}/f; t=$(mktemp -p /tmp) && echo $t && rm $t", fixture.path("tmp").display());
    let done = start_on(host(), &policy, &context, &["/bin/sh", "-c", &script]).unwrap();
    assert!(done.out.starts_with("/tmp/"), "{}", done.out);
    assert_eq!(fixture.names("tmp"), ["f"]);
}

const WORKSPACE: &str = "OUTPOST_SANDBOX_TEST_WORKSPACE";

/// The daemon of the test below. It aborts while its command still runs.
fn run_daemon_that_is_killed(workspace: String) {
    let context = outpost_sandbox::Context { cwd: workspace.into(), tmpdir: None };
    let policy = Policy::workspace_write(&[], &Reads::Everything, false, true, true);
    let confinement = Confinement::build(&plan(&policy, &context).unwrap(), host()).unwrap();
    let stdin = std::os::fd::AsFd::as_fd(&std::io::stdin()).try_clone_to_owned().unwrap();
    let null: OwnedFd = File::options().write(true).open("/dev/null").unwrap().into();
    let stdio = [&stdin, &null, &null];
    launch(&confinement, &context.cwd, &["/bin/cat"], SessionKind::Session, stdio).unwrap();
    std::process::abort();
}

#[test]
fn placeholders_are_removed_after_the_daemon_was_killed() {
    use std::process::{Command, Stdio};
    if let Ok(workspace) = std::env::var(WORKSPACE) {
        return run_daemon_that_is_killed(workspace);
    }
    let fixture = Fixture::new();
    let mut daemon = Command::new(std::env::current_exe().unwrap())
        .args(["--exact", "process::placeholders_are_removed_after_the_daemon_was_killed"])
        .env(WORKSPACE, fixture.ws())
        .stdin(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let stdin = daemon.stdin.take();
    assert!(!daemon.wait().unwrap().success());
    assert_eq!(fixture.names("ws"), [".agents", ".codex", ".git"]);
    outpost_sandbox::sweep(&crate::kit::state());
    assert_eq!(fixture.names("ws").len(), 3, "the command still runs and must not make them");
    drop(stdin);
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(20);
    while !fixture.names("ws").is_empty() {
        assert!(std::time::Instant::now() < deadline, "{:?}", fixture.names("ws"));
        outpost_testkit::pause();
    }
    outpost_sandbox::sweep(&crate::kit::state());
}
