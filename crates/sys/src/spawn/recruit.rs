//! Recruits: children that are forked before anybody knows what they are to become, and wait to be told. Who then tells
//! one waits for no fork.
//!
//! Unlike other children one may allocate between its fork and its exec. So only a process with a single thread may have
//! recruits: there is no lock that another thread could have held at the fork.

use super::{Child, Cloned, Failure, Plan, Started, Step, clone, null_ended, steps, wait_until_readable};
use crate::signal::Set;
use crate::{Errno, Result, fault, file, message};
use rustix::fd::{BorrowedFd, OwnedFd};
use std::os::fd::{AsRawFd, RawFd};

/// What a recruit was told.
pub struct Ordered {
    pub bytes: Vec<u8>,
    pub fds: Vec<OwnedFd>,
}

/// Where a recruit has the socket for its orders, and where it reports.
const ORDERS_AT: RawFd = 3;
const REPORT_AT: RawFd = 4;

/// Forks a recruit, in this cgroup and with this OOM score. To `report`, of [`Report::pair`](super::Report::pair), it tells
/// how it went. With the first message that comes over `orders`, of at most
/// `bytes_max`, it calls `obey`, which returns only when it could not become anything. When no message can come any more, it
/// ends without having done anything. While it has time it calls `rehearse`: a copy of a process has none of its program's
/// pages, and finds each where it is first needed.
pub fn recruit(
    orders: BorrowedFd<'_>,
    report: BorrowedFd<'_>,
    cgroup: Option<BorrowedFd<'_>>,
    oom_score: Option<i32>,
    bytes_max: usize,
    rehearse: impl FnOnce(),
    obey: impl FnOnce(Ordered) -> Failure,
) -> std::result::Result<Started, Failure> {
    fault::gate().map_err(|errno| Failure::at(Step::Prepare, errno))?;
    // No handler of ours may run in the child.
    let mask = Set::full().install();
    let cloned = clone(cgroup);
    if let Ok(Cloned::Child { join_cgroup }) = cloned {
        let joins = cgroup.filter(|_| join_cgroup);
        let mut report = report.as_raw_fd();
        let failure = settle(joins, oom_score, orders.as_raw_fd(), &mut report)
            .and_then(|orders| {
                rehearse();
                receive(&orders, bytes_max)
            })
            .map_or_else(|failure| failure, obey);
        steps::give_up(report, &failure);
    }
    mask.install();
    cloned.and_then(Cloned::started).map_err(|errno| Failure::at(Step::Clone, errno))
}

/// For a recruit that has its order: becomes what that describes. Returns only when it could not.
pub fn enlist(child: &Child<'_>) -> Failure {
    if let Err(errno) = child.check() {
        return Failure::at(Step::Prepare, errno);
    }
    let (arguments, environment) = (null_ended(child.arguments), null_ended(child.environment));
    let plan = Plan::new(child, &arguments, &environment, REPORT_AT);
    steps::run(&Plan { reset_signals: false, ..plan })
}

/// Whether this process may have recruits. An error says nothing about that: without descriptors or memory it cannot be
/// found out.
pub fn has_one_thread() -> Result<bool> {
    fault::gate()?;
    let threads = std::fs::read_dir("/proc/self/task");
    let threads = threads.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    Ok(threads.count() == 1)
}

/// A new recruit's first steps: nothing of its parent's stays with it but standard descriptors. A signal for its parent's
/// group ends it now, so that it does not wait and end the program that it becomes.
fn settle(
    joins: Option<BorrowedFd<'_>>,
    oom_score: Option<i32>,
    orders: RawFd,
    report: &mut RawFd,
) -> std::result::Result<OwnedFd, Failure> {
    steps::settle_recruit(joins, oom_score, (orders, ORDERS_AT), report, REPORT_AT)?;
    Set::of(&[]).install();
    file::inherited(ORDERS_AT).map_err(|errno| Failure::at(Step::Descriptors, errno))
}

/// Waits until somebody says what to become. When nobody can any more, that is nothing.
fn receive(orders: &OwnedFd, bytes_max: usize) -> std::result::Result<Ordered, Failure> {
    let failed = |errno| Failure::at(Step::Gate, errno);
    // Not zeroes, which it would be given only when it needs them.
    let (mut bytes, mut fds) = (vec![1; bytes_max], Vec::new());
    // Asked once too early, so that all that takes is in its memory already when the order comes.
    let received = loop {
        match message::receive(orders, &mut bytes, &mut fds) {
            Err(Errno::AGAIN) => wait_until_readable(orders).map_err(failed)?,
            received => break received.map_err(failed)?,
        }
    };
    // From here on it is as other children are between clone and exec.
    Set::full().install();
    bytes.truncate(received.ok_or(failed(Errno::CANCELED))?);
    Ok(Ordered { bytes, fds })
}
