//! Pseudo-terminals and the children on them.

use crate::kit::{self, Kid, command, read_to_end, read_until, shell, write_all};
use crate::spawn::terminal_of;
use outpost_sys::pidfd::ExitCause;
use outpost_sys::procfs;
use outpost_sys::pty::{self, Pty, Size};
use outpost_sys::spawn::SessionKind;
use std::os::fd::{AsFd, OwnedFd};

/// Starts `spec` on a new terminal. Returns the child and the master side.
fn on_terminal(mut spec: kit::Spec, size: Size) -> (Kid, OwnedFd) {
    let Pty { master, slave } = pty::open(size).unwrap();
    spec.session = SessionKind::Terminal;
    let kid = spec.start(&[(slave.as_fd(), 0), (slave.as_fd(), 1), (slave.as_fd(), 2)]).unwrap();
    (kid, master)
}

const SIZE: Size = Size { rows: 24, cols: 80 };

#[test]
fn the_child_has_a_controlling_terminal_and_leads_its_session() {
    let (mut kid, master) = on_terminal(shell("tty; echo via /dev/tty >/dev/tty; read line"), SIZE);
    let text = read_until(&master, |text| text.contains("via /dev/tty"));
    assert!(text.starts_with("/dev/pts/"), "{text:?}");
    assert_ne!(terminal_of(kid.pid), 0);
    let stat = procfs::stat(kid.pid).unwrap();
    assert_eq!((stat.group, stat.session), (kid.pid, kid.pid));
    write_all(&master, b"\n");
    assert_eq!(kid.end().cause, ExitCause::Code(0));
}

#[test]
fn control_c_interrupts_the_foreground() {
    let (mut kid, master) = on_terminal(command("/bin/cat", &[]), SIZE);
    write_all(&master, b"echoed\n");
    read_until(&master, |text| text.matches("echoed").count() == 2);
    write_all(&master, &[3]);
    assert_eq!(kid.end().cause, ExitCause::Signal(2));
}

#[test]
fn control_c_right_after_the_start_is_not_lost() {
    for _ in 0..20 {
        let (mut kid, master) = on_terminal(command("/bin/cat", &[]), SIZE);
        write_all(&master, &[3]);
        assert_eq!(kid.end().cause, ExitCause::Signal(2));
    }
}

#[test]
fn the_child_sees_the_size_and_its_changes() {
    let script = "trap 'stty size; exit 7' WINCH; stty size; echo ready; while :; do read line; done";
    let (mut kid, master) = on_terminal(shell(script), SIZE);
    let text = read_until(&master, |text| text.contains("ready\r\n"));
    assert_eq!(text, "24 80\r\nready\r\n");
    pty::resize(&master, Size { rows: 50, cols: 132 }).unwrap();
    // A shell may handle the signal only when its read returns.
    write_all(&master, b"\n");
    let text = read_until(&master, |text| text.contains("132\r\n"));
    assert!(text.contains("50 132\r\n"), "{text:?}");
    assert_eq!(kid.end().cause, ExitCause::Code(7));
}

#[test]
fn when_our_side_closes_the_child_is_hung_up() {
    let (mut kid, master) = on_terminal(command("/bin/sleep", &["1000"]), SIZE);
    drop(master);
    assert_eq!(kid.end().cause, ExitCause::Signal(1));
}

#[test]
fn what_the_child_wrote_is_there_after_its_end() {
    let (mut kid, master) = on_terminal(shell("stty -onlcr; echo last words"), SIZE);
    assert_eq!(kid.end().cause, ExitCause::Code(0));
    assert_eq!(read_to_end(master), b"last words\n");
}
