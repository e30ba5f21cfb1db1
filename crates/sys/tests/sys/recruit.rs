//! Children that are forked before anybody knows what they are to become.

use crate::kit::{null, read_to_end};
use outpost_sys::epoll::wait_readable;
use outpost_sys::message;
use outpost_sys::pidfd::{self, How};
use outpost_sys::pipe::pipe;
use outpost_sys::signal::ignore_sigpipe;
use outpost_sys::spawn::{
    self, Begun, Child, Failure, Ordered, Program, Progress, Report, Standing, Started, Step, enlist, recruit,
};
use std::ffi::CString;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

const PATIENCE: Duration = Duration::from_secs(30);

/// One who becomes a shell with the script that it is told, between the two descriptors that come with it.
fn one() -> (Begun, OwnedFd) {
    let (orders, its_orders) = message::pair().unwrap();
    let (report, its_report) = Report::pair().unwrap();
    let Started { pid, pidfd } =
        recruit(its_orders.as_fd(), its_report.as_fd(), None, None, 4096, || {}, obey).unwrap();
    (Begun { pid, pidfd, report }, orders)
}

fn obey(Ordered { bytes, fds }: Ordered) -> Failure {
    let (Ok(script), [input, output]) = (CString::new(bytes), fds.as_slice()) else {
        return Failure::at(Step::Prepare, outpost_sys::Errno::INVAL);
    };
    let descriptors = [(input.as_fd(), 0), (output.as_fd(), 1), (output.as_fd(), 2)];
    let arguments = [c"sh", c"-c", script.as_c_str()];
    enlist(&Child::new(Program::Path(c"/bin/sh"), &arguments, &[], Standing::Group, &descriptors))
}

fn how_it_ended(begun: &Begun) -> How {
    assert!(wait_readable(&begun.pidfd, PATIENCE).unwrap(), "it does not end");
    pidfd::reap(&begun.pidfd).unwrap().unwrap().how
}

#[test]
fn a_recruit_becomes_what_it_is_told_and_nothing_of_ours_stays_with_it() {
    ignore_sigpipe();
    let ours = pipe().unwrap();
    let (begun, orders) = one();
    assert_eq!(begun.report.read(), Progress::Pending);
    let (null, output) = (null(), pipe().unwrap());
    let script =
        b"echo $$; grep -E '^Sig(Blk|Ign)' /proc/self/status; [ -e /proc/self/fd/3 ] || echo no more";
    message::send(&orders, script, &[null.as_fd(), output.write.as_fd()]).unwrap();
    drop((output.write, ours));
    let text = String::from_utf8(read_to_end(&output.read)).unwrap();
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.first(), Some(&begun.pid.to_string().as_str()), "{text}");
    let signals: Vec<&str> =
        lines.iter().filter_map(|line| line.split_once('\t')).map(|(_, set)| set).collect();
    assert_eq!(signals, ["0000000000000000"; 2], "{text}");
    assert_eq!(lines.last(), Some(&"no more"));
    assert_eq!(how_it_ended(&begun), How::Code(0));
    assert_eq!(begun.report.read(), Progress::Executed);
}

#[test]
fn a_recruit_that_nobody_can_tell_anything_ends() {
    let (begun, orders) = one();
    drop(orders);
    how_it_ended(&begun);
    let cancelled = Failure::at(Step::Gate, outpost_sys::Errno::CANCELED);
    assert_eq!(begun.report.read(), Progress::Failed(cancelled));
}

#[test]
fn an_order_that_stands_counts_though_who_gave_it_is_gone() {
    let (begun, orders) = one();
    let null = null();
    message::send(&orders, b"exit 7", &[null.as_fd(), null.as_fd()]).unwrap();
    drop(orders);
    assert_eq!(how_it_ended(&begun), How::Code(7));
}

#[test]
fn an_order_that_cannot_be_obeyed_is_reported() {
    let (begun, orders) = one();
    message::send(&orders, b"exit 0", &[]).unwrap();
    how_it_ended(&begun);
    let refused = Failure::at(Step::Prepare, outpost_sys::Errno::INVAL);
    assert_eq!(begun.report.read(), Progress::Failed(refused));
    // Our threads are the test's and the one that runs it.
    assert_eq!(spawn::has_one_thread(), Ok(false));
}

#[cfg(feature = "faults")]
#[test]
fn a_moment_without_descriptors_is_no_answer_to_whether_there_is_one_thread() {
    use outpost_sys::fault::{self, Fault};
    fault::arm(1, Fault::Errno(outpost_sys::Errno::MFILE));
    let asked = spawn::has_one_thread();
    assert!(!fault::disarm(), "nothing was asked");
    assert_eq!(asked, Err(outpost_sys::Errno::MFILE));
}

#[test]
fn an_order_that_was_queued_before_the_socket_was_shut_is_not_lost_and_none_comes_after_it() {
    let (orders, its_orders) = message::pair().unwrap();
    let (_report, its_report) = Report::pair().unwrap();
    let null = null();
    message::send(&orders, b"exit 7", &[null.as_fd(), null.as_fd()]).unwrap();
    message::shut_receiving(&its_orders).unwrap();
    let refused = message::send(&orders, b"exit 8", &[null.as_fd(), null.as_fd()]);
    assert_eq!(refused, Err(outpost_sys::Errno::PIPE));
    let Started { pidfd, .. } =
        recruit(its_orders.as_fd(), its_report.as_fd(), None, None, 4096, || {}, obey).unwrap();
    assert!(wait_readable(&pidfd, PATIENCE).unwrap());
    assert_eq!(pidfd::reap(&pidfd).unwrap().unwrap().how, How::Code(7));
}

#[test]
fn a_recruit_whose_socket_is_shut_without_an_order_ends() {
    let (_orders, its_orders) = message::pair().unwrap();
    let (report, its_report) = Report::pair().unwrap();
    let Started { pid, pidfd } =
        recruit(its_orders.as_fd(), its_report.as_fd(), None, None, 4096, || {}, obey).unwrap();
    message::shut_receiving(&its_orders).unwrap();
    drop(its_report);
    let begun = Begun { pid, pidfd, report };
    how_it_ended(&begun);
    assert_eq!(begun.report.read(), Progress::Failed(Failure::at(Step::Gate, outpost_sys::Errno::CANCELED)));
}
