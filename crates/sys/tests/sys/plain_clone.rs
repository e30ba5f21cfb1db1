//! Starts where clone3 is forbidden, as in many containers: clone(2) must do the same.

use crate::cgroup::{Groups, SCATTERED};
use crate::kit::{self, command, cstring, read_lines, read_to_end, shell};
use outpost_sys::Errno;
use outpost_sys::fault::{self, Fault};
use outpost_sys::pidfd::ExitCause;
use outpost_sys::pipe::{Pipe, pipe};
use outpost_sys::pty;
use outpost_sys::spawn::{Failure, SessionKind, Step};
use outpost_testkit::require;

/// The failpoints of a start are the status pipe, the stack, and clone3.
fn forbid(errno: Errno) {
    fault::arm(3, Fault::Errno(errno));
}

/// Checks that the start has reached the failpoint.
fn was_forbidden() {
    assert!(!fault::disarm(), "clone3 was not tried");
}

#[test]
fn a_child_starts_and_ends_without_clone3() {
    for errno in [Errno::NOSYS, Errno::PERM] {
        let Pipe { read, write } = pipe().unwrap();
        let null = kit::null();
        forbid(errno);
        let mut kid = shell("echo plain; exit 4").start_on(&null, write).unwrap();
        was_forbidden();
        assert_eq!(read_to_end(read), b"plain\n");
        assert_eq!(kid.end().cause, ExitCause::Code(4));
    }
}

#[test]
fn failures_are_reported_without_clone3() {
    let null = kit::null();
    let mut spec = command("/bin/true", &[]);
    spec.directory = Some(cstring("/missing"));
    for (spec, step) in [(&spec, Step::Directory), (&command("/missing", &[]), Step::Exec)] {
        forbid(Errno::NOSYS);
        assert_eq!(spec.start_on(&null, &null).err(), Some(Failure::at(step, Errno::NOENT)));
        was_forbidden();
    }
}

#[test]
fn any_other_error_of_clone3_is_final() {
    let null = kit::null();
    forbid(Errno::AGAIN);
    let failure = command("/bin/true", &[]).start_on(&null, &null).err().unwrap();
    was_forbidden();
    assert_eq!(failure, Failure::at(Step::Clone, Errno::AGAIN));
}

#[test]
fn a_terminal_works_without_clone3() {
    let pty = pty::open(pty::Size { rows: 3, cols: 4 }).unwrap();
    let mut spec = shell("stty size </dev/tty; exit 0");
    spec.session = SessionKind::Terminal;
    forbid(Errno::NOSYS);
    let mut kid = spec.start_on(&pty.slave, &pty.slave).unwrap();
    was_forbidden();
    drop(pty.slave);
    assert_eq!(read_to_end(pty.master), b"3 4\r\n");
    assert_eq!(kid.end().cause, ExitCause::Code(0));
}

#[test]
fn the_child_joins_its_cgroup_before_exec() {
    let groups = require!(Groups::of("plain"));
    let mut spec = shell(SCATTERED);
    let group = groups.group("tree", &mut spec);
    let (gate, output): (Pipe, Pipe) = (pipe().unwrap(), pipe().unwrap());
    let (null, read) = (kit::null(), output.read);
    forbid(Errno::NOSYS);
    let mut kid = spec.start_on(gate.read, output.write).unwrap();
    was_forbidden();
    assert!(group.members().contains(&kid.pid));
    assert_eq!(read_lines(&read, 3).len(), 3);
    assert_eq!(group.members().len(), 4);
    group.kill().unwrap();
    assert_eq!(read_to_end(read), b"");
    assert_eq!(kid.end().cause, ExitCause::Signal(9));
    group.destroy(kit::TIMEOUT).unwrap();
    forbid(Errno::NOSYS);
    let failure = spec.start_on(&null, &null).err().unwrap();
    was_forbidden();
    assert_eq!(failure, Failure::at(Step::Cgroup, Errno::NOENT));
}
