//! Readiness: an epoll set with tokens of the caller's choice, an eventfd to wake it, a timerfd, and poll(2)
//! helpers.

use crate::{Errno, Result, fault, retry};
use rustix::event::{EventfdFlags, epoll};
use rustix::fd::{AsFd, OwnedFd};
use rustix::time::{Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec};
use std::time::Duration;

/// Which events to report.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Interest {
    Read,
    Write,
    ReadWrite,
    /// Edge-triggered. For a descriptor that stays hung up while data may still arrive.
    Edge,
    /// Only a hang-up or an error.
    Nothing,
}

impl Interest {
    fn flags(self) -> epoll::EventFlags {
        match self {
            Interest::Read => epoll::EventFlags::IN,
            Interest::Write => epoll::EventFlags::OUT,
            Interest::ReadWrite => epoll::EventFlags::IN | epoll::EventFlags::OUT,
            Interest::Edge => epoll::EventFlags::IN | epoll::EventFlags::OUT | epoll::EventFlags::ET,
            Interest::Nothing => epoll::EventFlags::empty(),
        }
    }
}

/// Readiness of the descriptor registered under `token`.
#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub token: u64,
    pub readable: bool,
    pub writable: bool,
    /// The peer has closed. Data that it wrote may still be readable.
    pub hung_up: bool,
}

/// An epoll set, level-triggered except for [`Interest::Edge`].
pub struct Epoll {
    set: OwnedFd,
}

impl Epoll {
    pub fn new() -> Result<Self> {
        fault::failpoint()?;
        Ok(Self { set: epoll::create(epoll::CreateFlags::CLOEXEC)? })
    }

    pub fn add(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        fault::failpoint()?;
        epoll::add(&self.set, fd, epoll::EventData::new_u64(token), interest.flags())
    }

    pub fn modify(&self, fd: impl AsFd, token: u64, interest: Interest) -> Result<()> {
        fault::failpoint()?;
        epoll::modify(&self.set, fd, epoll::EventData::new_u64(token), interest.flags())
    }

    pub fn remove(&self, fd: impl AsFd) -> Result<()> {
        epoll::delete(&self.set, fd)
    }

    /// Waits for at most `timeout` (without one, forever) and fills `ready`. A signal ends the wait with
    /// nothing ready.
    pub fn wait(&self, ready: &mut Vec<Ready>, timeout: Option<Duration>) -> Result<()> {
        ready.clear();
        let mut events =
            [epoll::Event { flags: epoll::EventFlags::empty(), data: epoll::EventData::new_u64(0) }; 64];
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: i64::try_from(duration.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(duration.subsec_nanos()),
        });
        let count =
            match fault::failpoint().and_then(|()| epoll::wait(&self.set, &mut events, timeout.as_ref())) {
                Ok(count) => count,
                Err(Errno::INTR) => 0,
                Err(errno) => return Err(errno),
            };
        let gone = epoll::EventFlags::HUP | epoll::EventFlags::ERR;
        ready.extend(events.iter().take(count).map(|event| {
            let flags = event.flags;
            Ready {
                token: event.data.u64(),
                readable: flags.intersects(epoll::EventFlags::IN | epoll::EventFlags::RDHUP),
                writable: flags.contains(epoll::EventFlags::OUT),
                hung_up: flags.intersects(gone),
            }
        }));
        Ok(())
    }
}

/// Wakes an [`Epoll`] from another thread.
pub struct Waker {
    counter: OwnedFd,
}

impl Waker {
    pub fn new() -> Result<Self> {
        fault::failpoint()?;
        Ok(Self { counter: rustix::event::eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)? })
    }

    /// The only failure, a full counter, means that a wake-up is pending already.
    pub fn wake(&self) {
        let _full = rustix::io::write(&self.counter, &1u64.to_ne_bytes());
    }

    /// Consumes pending wake-ups.
    pub fn clear(&self) {
        let _empty = rustix::io::read(&self.counter, &mut [0u8; 8]);
    }
}

impl AsFd for Waker {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.counter.as_fd()
    }
}

/// A one-shot timer, finer than the milliseconds of `epoll_wait`.
pub struct Timer {
    timer: OwnedFd,
}

impl Timer {
    pub fn new() -> Result<Self> {
        fault::failpoint()?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        Ok(Self { timer: rustix::time::timerfd_create(TimerfdClockId::Monotonic, flags)? })
    }

    /// Expires after `delay` from now. Replaces an earlier setting.
    pub fn set(&self, delay: Duration) -> Result<()> {
        // Zero would disarm the timer.
        let delay = delay.max(Duration::from_nanos(1));
        let value = Timespec {
            tv_sec: i64::try_from(delay.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(delay.subsec_nanos()),
        };
        let once = Itimerspec { it_interval: Timespec { tv_sec: 0, tv_nsec: 0 }, it_value: value };
        retry(|| {
            fault::failpoint()?;
            rustix::time::timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once).map(|_| ())
        })
    }

    /// Consumes the expiry.
    pub fn clear(&self) {
        let _not_expired = rustix::io::read(&self.timer, &mut [0u8; 8]);
    }
}

impl AsFd for Timer {
    fn as_fd(&self) -> rustix::fd::BorrowedFd<'_> {
        self.timer.as_fd()
    }
}

/// Whether a descriptor is readable now. A pidfd is readable once its process has exited.
pub fn is_readable(fd: impl AsFd) -> bool {
    use rustix::event::{PollFd, PollFlags, poll};
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    retry(|| poll(&mut [PollFd::new(&fd, PollFlags::IN)], Some(&now))).is_ok_and(|ready| ready > 0)
}

/// Waits until a descriptor is readable, for at most `timeout`. Returns whether it is.
pub fn wait_readable(fd: impl AsFd, timeout: Duration) -> Result<bool> {
    Ok(wait_any_readable(&[fd], timeout)?.contains(&true))
}

/// Waits until one of the descriptors is readable, for at most `timeout`. Returns which ones are.
pub fn wait_any_readable<F: AsFd>(fds: &[F], timeout: Duration) -> Result<Vec<bool>> {
    use rustix::event::{PollFd, PollFlags, poll};
    let begun = std::time::Instant::now();
    let mut entries: Vec<PollFd<'_>> = fds.iter().map(|fd| PollFd::new(fd, PollFlags::IN)).collect();
    loop {
        let left = timeout.saturating_sub(begun.elapsed());
        let poll_timeout = Timespec {
            tv_sec: i64::try_from(left.as_secs()).unwrap_or(i64::MAX),
            tv_nsec: i64::from(left.subsec_nanos()),
        };
        match poll(&mut entries, Some(&poll_timeout)) {
            Ok(_) => return Ok(entries.iter().map(|entry| !entry.revents().is_empty()).collect()),
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
}
