//! Fault injection: a failpoint before every system call, so that a test can make the N-th call fail.
//!
//! A plan belongs to the thread that armed it. Without the `faults` feature, the failpoint is an empty inline
//! function.

use crate::Result;

#[cfg(feature = "faults")]
pub use armed::{Fault, arm, disarm, lack_group_signals};

/// Succeeds, or fails as the thread's plan requests.
#[inline]
pub(crate) fn failpoint() -> Result<()> {
    length(1).map(|_| ())
}

/// How many of `wanted` bytes the call may move: all of them, unless the plan requests a short call.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn length(wanted: usize) -> Result<usize> {
    Ok(wanted)
}

#[cfg(feature = "faults")]
pub(crate) use armed::{lacks_group_signals, length};

/// Whether this thread simulates a kernel before Linux 6.9.
#[cfg(not(feature = "faults"))]
#[inline(always)]
pub(crate) fn lacks_group_signals() -> bool {
    false
}

#[cfg(feature = "faults")]
mod armed {
    use crate::{Errno, Result};
    use std::cell::Cell;

    /// What happens to the chosen call.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub enum Fault {
        /// It fails with this errno and has no effect.
        Errno(Errno),
        /// It moves only part of the requested bytes.
        Short,
        /// It moves only part of the requested bytes, and the next call fails with this errno.
        ShortThen(Errno),
    }

    #[derive(Clone, Copy)]
    struct Plan {
        calls_left: u64,
        fault: Fault,
    }

    thread_local! {
        static PLAN: Cell<Option<Plan>> = const { Cell::new(None) };
        static LACKS_GROUP_SIGNALS: Cell<bool> = const { Cell::new(false) };
    }

    /// Makes `pidfd::signal_group` fail with `EINVAL` on this thread from now on, as on kernels before Linux
    /// 6.9.
    pub fn lack_group_signals() {
        LACKS_GROUP_SIGNALS.set(true);
    }

    pub(crate) fn lacks_group_signals() -> bool {
        LACKS_GROUP_SIGNALS.get()
    }

    /// Injects `fault` into the `nth` call of this thread from now on. The next call is 1.
    pub fn arm(nth: u64, fault: Fault) {
        PLAN.set(Some(Plan { calls_left: nth, fault }));
    }

    /// Drops the plan. Returns whether it was still pending, that is, whether no fault was injected.
    pub fn disarm() -> bool {
        PLAN.take().is_some()
    }

    pub(crate) fn length(wanted: usize) -> Result<usize> {
        let Some(plan) = PLAN.get() else { return Ok(wanted) };
        if plan.calls_left > 1 {
            PLAN.set(Some(Plan { calls_left: plan.calls_left - 1, ..plan }));
            return Ok(wanted);
        }
        PLAN.set(None);
        match plan.fault {
            Fault::Errno(errno) => Err(errno),
            Fault::Short => Ok(wanted.div_ceil(2)),
            Fault::ShortThen(errno) => {
                PLAN.set(Some(Plan { calls_left: 1, fault: Fault::Errno(errno) }));
                Ok(wanted.div_ceil(2))
            }
        }
    }
}

#[cfg(all(test, feature = "faults"))]
mod tests {
    use super::*;
    use crate::Errno;

    #[test]
    fn only_the_chosen_call_fails_and_only_once() {
        arm(3, Fault::Errno(Errno::IO));
        assert_eq!((failpoint(), failpoint()), (Ok(()), Ok(())));
        assert_eq!(failpoint(), Err(Errno::IO));
        assert_eq!(failpoint(), Ok(()));
        assert!(!disarm(), "it has been used up");
    }

    #[test]
    fn disarm_reports_a_pending_plan() {
        assert!(!disarm());
        arm(2, Fault::Errno(Errno::IO));
        assert_eq!(failpoint(), Ok(()));
        assert!(disarm());
        assert_eq!(failpoint(), Ok(()));
    }

    #[test]
    fn a_short_call_moves_at_least_one_byte() {
        for (wanted, moved) in [(9, 5), (2, 1), (1, 1), (0, 0)] {
            arm(1, Fault::Short);
            assert_eq!(length(wanted), Ok(moved));
        }
    }

    #[test]
    fn a_plan_does_not_affect_other_threads() {
        arm(1, Fault::Errno(Errno::IO));
        std::thread::spawn(|| assert_eq!(failpoint(), Ok(()))).join().unwrap();
        assert!(disarm());
    }
}
