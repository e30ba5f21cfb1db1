//! The descriptors of a child: the given ones at the given numbers, and no others.

use crate::kit::{self, Kid, alone, command};
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::ExitCause;
use outpost_sys::pipe::{Pipe, pipe};
use outpost_sys::spawn::{DESCRIPTORS_MAX, Failure, Step};
use outpost_sys::{Errno, signal};
use std::collections::BTreeMap;
use std::fs;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::path::{Path, PathBuf};

fn table(pid: i32) -> BTreeMap<RawFd, PathBuf> {
    fs::read_dir(format!("/proc/{pid}/fd"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .map(|path| {
            (path.file_name().unwrap().to_str().unwrap().parse().unwrap(), fs::read_link(&path).unwrap())
        })
        .collect()
}

fn shows(fd: impl AsFd) -> PathBuf {
    fs::read_link(format!("/proc/self/fd/{}", fd.as_fd().as_raw_fd())).unwrap()
}

/// A running `cat` that has echoed a line, so that its loader has closed what it opened.
struct Cat {
    input: OwnedFd,
    output: OwnedFd,
    kid: Kid,
    expected: BTreeMap<RawFd, PathBuf>,
}

/// Starts `cat` with two pipes as 0 and 1, and these others.
fn cat(others: &[(BorrowedFd<'_>, RawFd)], open: Option<OwnedFd>) -> Cat {
    let (there, back): (Pipe, Pipe) = (pipe().unwrap(), pipe().unwrap());
    let mut given = vec![(there.read.as_fd(), 0), (back.write.as_fd(), 1)];
    given.extend(others);
    let expected = given.iter().map(|(fd, target)| (*target, shows(fd))).collect();
    let mut spec = command("/bin/cat", &[]);
    spec.open = open;
    let kid = spec.start(&given).unwrap();
    Cat { input: there.write, output: back.read, kid, expected }
}

impl Cat {
    fn check(mut self) {
        kit::write_all(&self.input, b"hello\n");
        assert_eq!(kit::read_lines(&self.output, 1), ["hello"]);
        assert_eq!(table(self.kid.pid), self.expected);
        drop(self.input);
        assert_eq!(self.kid.end().cause, ExitCause::Code(0));
    }
}

fn numbered_file(dir: &Path, number: usize) -> OwnedFd {
    file::open(dir.join(number.to_string()), Open::Create).unwrap()
}

#[test]
fn the_child_has_the_given_descriptors_and_no_others() {
    let dir = tempfile::tempdir().unwrap();
    let (two, five, nine) =
        (numbered_file(dir.path(), 2), numbered_file(dir.path(), 5), numbered_file(dir.path(), 9));
    cat(&[(two.as_fd(), 2), (five.as_fd(), 5), (nine.as_fd(), 9)], None).check();
}

#[test]
fn a_descriptor_without_cloexec_does_not_leak() {
    let leak = kit::null();
    file::set_inherited(&leak, true).unwrap();
    let errors = std::io::stderr();
    cat(&[(errors.as_fd(), 2)], None).check();
    // Also above the highest open number and between the given ones.
    let high = rustix::io::fcntl_dupfd_cloexec(&leak, 700).unwrap();
    file::set_inherited(&high, true).unwrap();
    cat(&[(errors.as_fd(), 2), (leak.as_fd(), 900)], None).check();
    assert!(file::size(&high).is_ok(), "ours stay open");
}

#[test]
fn sources_that_are_each_others_targets_do_not_overwrite_one_another() {
    let test = "descriptors::sources_that_are_each_others_targets_do_not_overwrite_one_another";
    alone(test, &[], || {
        let dir = tempfile::tempdir().unwrap();
        let files: Vec<OwnedFd> = (0..6).map(|number| numbered_file(dir.path(), number)).collect();
        let (stdin, stdout, errors) = (std::io::stdin(), std::io::stdout(), std::io::stderr());
        let number = |index: usize| files[index].as_raw_fd();
        let swapped = [
            (files[0].as_fd(), number(1)),
            (files[1].as_fd(), number(0)),
            // A ring of three.
            (files[2].as_fd(), number(3)),
            (files[3].as_fd(), number(4)),
            (files[4].as_fd(), number(2)),
            // One that stays in place, and one source given twice.
            (files[5].as_fd(), number(5)),
            (files[5].as_fd(), number(5) + 1),
            (errors.as_fd(), 2),
        ];
        cat(&swapped, None).check();
        // Our own 0, 1 and 2 at other numbers, while 0 and 1 of the child are pipes.
        let rotated = [(stdin.as_fd(), 9), (stdout.as_fd(), 5), (files[0].as_fd(), 2), (errors.as_fd(), 7)];
        cat(&rotated, None).check();
        // An open program at every number from below the targets to above them.
        for target in 3..20 {
            let program = file::open("/bin/cat", Open::Read).unwrap();
            let at = rustix::io::fcntl_dupfd_cloexec(&program, 12).unwrap();
            cat(&[(errors.as_fd(), 2), (files[0].as_fd(), target)], Some(at)).check();
        }
    });
}

#[test]
fn an_open_program_is_not_among_the_childs_descriptors() {
    let errors = std::io::stderr();
    let program = file::open("/bin/cat", Open::Read).unwrap();
    file::set_inherited(&program, true).unwrap();
    cat(&[(errors.as_fd(), 2)], Some(program)).check();
}

#[test]
fn a_table_without_standard_streams_is_refused() {
    let null = kit::null();
    for missing in 0..3 {
        let given: Vec<_> =
            (0..4).filter(|number| *number != missing).map(|number| (null.as_fd(), number)).collect();
        let failure = command("/bin/true", &[]).start(&given).err().unwrap();
        assert_eq!(failure, Failure::at(Step::Prepare, Errno::BADF));
    }
}

#[test]
fn too_many_descriptors_are_refused_and_the_most_allowed_arrive() {
    let null = kit::null();
    let others =
        |count: usize| -> Vec<_> { (2..2 + count).map(|number| (null.as_fd(), number as RawFd)).collect() };
    cat(&others(DESCRIPTORS_MAX - 2), None).check();
    let failure = command("/bin/true", &[]).start(&others(DESCRIPTORS_MAX + 1)).err().unwrap();
    assert_eq!(failure, Failure::at(Step::Prepare, Errno::INVAL));
}

#[test]
fn an_invalid_descriptor_number_is_refused_before_the_child_computes_with_it() {
    let null = kit::null();
    for (target, step) in [
        (RawFd::MAX, Step::Prepare),
        (RawFd::MAX - 4, Step::Prepare),
        (-1, Step::Prepare),
        (RawFd::MIN, Step::Prepare),
        // Above any limit, but without overflow in the child.
        (RawFd::MAX - 5, Step::Descriptors),
    ] {
        let given = [(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2), (null.as_fd(), target)];
        let failure = command("/bin/true", &[]).start(&given).err().unwrap();
        assert_eq!(failure.step, step, "{target}: {failure:?}");
    }
}

#[test]
fn a_child_that_writes_to_a_closed_pipe_gets_sigpipe() {
    signal::ignore_sigpipe();
    let Pipe { read, write } = pipe().unwrap();
    drop(read);
    let mut kid = command("/usr/bin/yes", &[]).start_on(kit::null(), write).unwrap();
    assert_eq!(kid.end().cause, ExitCause::Signal(signal::Signal::from_name("PIPE").unwrap().number()));
}
