//! Processes by pidfd: children of this process, and others.

use crate::kit::{self, Kid, alone, command, read_lines, read_to_end, readable, shell};
use outpost_sys::epoll::wait_readable;
use outpost_sys::exits::{self, Received};
use outpost_sys::pidfd::{self, Exit, ExitCause, Pidfd};
use outpost_sys::pipe::{Pipe, pipe};
use outpost_sys::signal::Signal;
use outpost_sys::{Errno, fault, file, procfs};
use std::os::fd::{AsFd, OwnedFd};

#[test]
fn an_exit_has_its_code() {
    for code in [0, 1, 127, 128, 255] {
        assert_eq!(shell(&format!("exit {code}")).start_quiet().unwrap().end().cause, ExitCause::Code(code));
    }
}

#[test]
fn an_exit_has_its_signal() {
    for signal in [Signal::KILL, Signal::TERM, Signal::HUP, Signal::from_number(34).unwrap()] {
        let mut kid = command("/bin/sleep", &["1000"]).start_quiet().unwrap();
        assert_eq!(pidfd::reap(&kid.pidfd), Ok(None));
        pidfd::signal(&kid.pidfd, signal).unwrap();
        assert_eq!(kid.end().cause, ExitCause::Signal(signal.number()));
    }
    // 128 + 9 is an exit code like any other.
    assert_eq!(shell("exit 137").start_quiet().unwrap().end().cause, ExitCause::Code(137));
}

#[test]
fn a_core_dump_is_a_signal_too() {
    let mut spec = shell("ulimit -c 0; kill -ABRT $$");
    spec.directory = Some(kit::cstring("/tmp"));
    assert_eq!(spec.start_quiet().unwrap().end().cause, ExitCause::Signal(6));
}

#[test]
fn an_exit_has_the_resource_usage() {
    let script = "i=0; while [ $i -lt 100000 ]; do i=$((i+1)); done";
    let exit = shell(script).start_quiet().unwrap().end();
    assert!(exit.rss_max_kb > 100, "{exit:?}");
    assert!(exit.user_ms + exit.system_ms > 0, "{exit:?}");
}

#[test]
fn a_reaped_process_cannot_be_signalled() {
    let mut kid = command("/bin/true", &[]).start_quiet().unwrap();
    let _exit = kid.end();
    assert_eq!(pidfd::signal(&kid.pidfd, Signal::KILL), Err(Errno::SRCH));
    assert_eq!(pidfd::signal_group(&kid.pidfd, Signal::KILL), Err(Errno::SRCH));
    assert_eq!(pidfd::reap(&kid.pidfd), Err(Errno::CHILD));
    assert_eq!(pidfd::reap_pid(kid.pid), Err(Errno::CHILD));
}

#[test]
fn a_zombie_can_be_signalled_and_stays() {
    let mut kid = shell("exit 3").start_quiet().unwrap();
    assert!(pidfd::is_child(&kid.pidfd));
    assert_eq!(wait_readable(&kid.pidfd, kit::TIMEOUT), Ok(true));
    assert_eq!(pidfd::signal(&kid.pidfd, Signal::KILL), Ok(()));
    assert!(pidfd::is_child(&kid.pidfd));
    assert_eq!(kid.end().cause, ExitCause::Code(3));
    assert!(!pidfd::is_child(&kid.pidfd));
}

#[test]
fn ended_child_does_not_reap() {
    alone("pidfd::ended_child_does_not_reap", &[], || {
        assert_eq!(pidfd::ended_child(), Ok(None), "no child at all");
        let sleeper = command("/bin/sleep", &["1000"]).start_quiet().unwrap();
        assert_eq!(pidfd::ended_child(), Ok(None), "a child that runs");
        let mut ended = shell("exit 5").start_quiet().unwrap();
        assert!(readable(&ended.pidfd));
        assert_eq!(pidfd::ended_child(), Ok(Some(ended.pid)));
        assert_eq!(pidfd::ended_child(), Ok(Some(ended.pid)));
        assert_eq!(ended.end().cause, ExitCause::Code(5));
        assert_eq!(pidfd::ended_child(), Ok(None));
        drop(sleeper);
        let by_number = shell("exit 6").start_quiet().unwrap();
        assert!(readable(&by_number.pidfd));
        assert_eq!(pidfd::reap_pid(by_number.pid).unwrap().unwrap().cause, ExitCause::Code(6));
    });
}

#[test]
fn a_group_signal_reaches_the_whole_group() {
    let (mut kid, _gate, output) = shell("exec 5<&0; cat <&5 & cat <&5 & echo started; wait").start_gated();
    assert_eq!(read_lines(&output, 1), ["started"]);
    pidfd::signal_group(&kid.pidfd, Signal::KILL).unwrap();
    // Both others held the pipe.
    assert_eq!(read_to_end(output), b"");
    assert_eq!(kid.end().cause, ExitCause::Signal(9));
}

#[test]
fn the_group_outlives_its_leader_and_can_still_be_signalled() {
    let (mut kid, _gate, output) = shell("exec 5<&0; cat <&5 & echo started; exit 0").start_gated();
    assert_eq!(read_lines(&output, 1), ["started"]);
    assert!(readable(&kid.pidfd));
    pidfd::signal_group_of_child(&kid.pidfd, Signal::KILL).unwrap();
    assert_eq!(read_to_end(output), b"");
    assert_eq!(kid.end().cause, ExitCause::Code(0));
}

#[test]
fn before_linux_6_9_only_the_group_of_an_unreaped_child_is_signalled() {
    std::thread::spawn(|| {
        fault::lack_group_signals();
        let mut kid = command("/bin/sleep", &["1000"]).start_quiet().unwrap();
        // Pids that do not address one group, with the pidfd of a child.
        for number in [0, 1, -1, i32::MIN] {
            let other = Pidfd::received(number, file::duplicate(&kid.pidfd).unwrap());
            assert_eq!(pidfd::signal_group_of_child(&other, Signal::KILL), Err(Errno::CHILD), "{number}");
        }
        let own = Pidfd::own().unwrap();
        assert_eq!(pidfd::signal_group_of_child(&own, Signal::CONT), Err(Errno::CHILD), "no child");
        pidfd::signal_group_of_child(&kid.pidfd, Signal::KILL).unwrap();
        assert_eq!(kid.end().cause, ExitCause::Signal(9));
        assert_eq!(pidfd::signal_group_of_child(&kid.pidfd, Signal::KILL), Err(Errno::CHILD), "reaped");
    })
    .join()
    .unwrap();
}

#[test]
fn a_child_of_the_standard_library_is_opened_until_it_is_reaped() {
    let mut child = std::process::Command::new("/bin/sleep").arg("1000").spawn().unwrap();
    pidfd::signal(Pidfd::of_child(&child).unwrap(), Signal::KILL).unwrap();
    let _ended = child.wait().unwrap();
    assert!(matches!(Pidfd::of_child(&child), Err(Errno::CHILD | Errno::SRCH)));
}

#[test]
fn an_invalid_pid_is_refused_without_a_panic() {
    for number in [0, -1, i32::MIN, i32::MAX] {
        assert!(matches!(pidfd::open(number), Err(Errno::SRCH | Errno::INVAL)), "{number}");
    }
}

/// A process that is not a child of this process and exits with 33 at EOF on `gate`.
struct NonChild {
    pid: i32,
    pidfd: Pidfd,
    gate: OwnedFd,
    output: OwnedFd,
    parent: Kid,
}

/// `afterwards` is what its parent does after starting it.
fn non_child(afterwards: &str) -> NonChild {
    let (gate, output): (Pipe, Pipe) = (pipe().unwrap(), pipe().unwrap());
    let spec = shell(&format!("(read line <&5; exit 33) & echo $!; exec 5<&-; {afterwards}"));
    let (null, errors) = (kit::null(), std::io::stderr());
    let given = [(null.as_fd(), 0), (output.write.as_fd(), 1), (errors.as_fd(), 2), (gate.read.as_fd(), 5)];
    let parent = spec.start(&given).unwrap();
    let pid = read_lines(&output.read, 1)[0].parse().unwrap();
    let pidfd = outpost_testkit::process(pid).unwrap();
    assert_eq!(pidfd::reap(&pidfd), Err(Errno::CHILD));
    assert!(!pidfd::is_child(&pidfd));
    NonChild { pid, pidfd, gate: gate.write, output: output.read, parent }
}

#[test]
fn the_exit_of_an_orphan_is_found() {
    let mut it = non_child("exit 0");
    assert_eq!(it.parent.end().cause, ExitCause::Code(0));
    assert_ne!(procfs::stat(it.pid).unwrap().parent, it.parent.pid);
    drop(it.gate);
    // The process that adopted it may or may not reap it.
    assert!(readable(&it.pidfd));
    assert_eq!(pidfd::exit_of_non_child(&it.pidfd).cause, ExitCause::Code(33));
}

#[test]
fn the_exit_of_an_unreaped_non_child_is_found() {
    let it = non_child("exec sleep 1000");
    // As long as its parent is a shell, the shell may reap it.
    let begun = std::time::Instant::now();
    while std::fs::read(format!("/proc/{}/comm", it.parent.pid)).unwrap() != b"sleep\n" {
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "the parent does not become sleep");
        outpost_testkit::pause();
    }
    drop(it.gate);
    assert!(readable(&it.pidfd));
    assert_eq!(procfs::stat(it.pid).unwrap().state, b'Z', "its parent does not reap");
    assert_eq!(pidfd::exit_of_non_child(&it.pidfd).cause, ExitCause::Code(33));
}

#[test]
fn the_exit_of_a_reaped_non_child_is_found() {
    let mut it = non_child("wait; echo reaped");
    drop(it.gate);
    assert_eq!(read_to_end(it.output), b"reaped\n");
    assert_eq!(pidfd::signal(&it.pidfd, Signal::CONT), Err(Errno::SRCH));
    let exit = pidfd::exit_of_non_child(&it.pidfd);
    // Since Linux 6.15 the kernel keeps the status; before, it is lost.
    if kernel() >= (6, 15) {
        assert_eq!(exit.cause, ExitCause::Code(33));
    } else {
        assert_eq!(exit, Exit::UNKNOWN);
    }
    assert_eq!(it.parent.end().cause, ExitCause::Code(0));
}

#[test]
fn the_signal_of_a_killed_non_child_is_found() {
    for afterwards in ["exec sleep 1000", "exit 0"] {
        let it = non_child(afterwards);
        pidfd::signal(&it.pidfd, Signal::KILL).unwrap();
        assert!(readable(&it.pidfd));
        assert_eq!(pidfd::exit_of_non_child(&it.pidfd).cause, ExitCause::Signal(9), "{afterwards}");
    }
}

#[test]
fn an_exit_event_has_the_status_of_a_reaped_non_child() {
    outpost_testkit::require!(outpost_testkit::process_events());
    let events = exits::subscribe().unwrap();
    let mut it = non_child("wait; echo reaped");
    drop(it.gate);
    assert_eq!(read_to_end(it.output), b"reaped\n");
    let begun = std::time::Instant::now();
    let exit = loop {
        match exits::receive(&events).unwrap() {
            Received::Exit(ended) if ended.pid == it.pid => break ended.exit,
            Received::Nothing => outpost_testkit::pause(),
            Received::Exit(_) | Received::Other => {}
        }
        assert!(begun.elapsed() < std::time::Duration::from_secs(30), "no event");
    };
    assert_eq!(exit.cause, ExitCause::Code(33));
    assert_eq!(it.parent.end().cause, ExitCause::Code(0));
}

fn kernel() -> (u32, u32) {
    outpost_sys::kernel::version_in(&outpost_sys::kernel::release())
}
