//! The messages between worker and keeper. Descriptors travel beside them, in the order that each variant names.

use outpost_sys::Errno;
use outpost_sys::pidfd::Exit;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{Failure, Step};

/// No message is longer.
pub const MESSAGE_BYTES_MAX: usize = 80;

/// Up to 16 small numbers, 0 to 254.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FdNumbers(pub(crate) [u8; FdNumbers::MAX]);

/// The roles of the descriptors that a message carries or an entry holds.
pub type FdRoles = FdNumbers;
/// The numbers under which a child gets its descriptors.
pub type FdTargets = FdNumbers;

impl FdNumbers {
    pub(crate) const MAX: usize = 16;
    /// Fills unused places.
    pub(crate) const NONE: u8 = 255;
    pub const EMPTY: FdNumbers = FdNumbers([FdNumbers::NONE; FdNumbers::MAX]);

    /// `None` for more than 16 numbers or one above 254.
    pub fn new(numbers: impl IntoIterator<Item = u8>) -> Option<FdNumbers> {
        let mut all = FdNumbers::EMPTY;
        let mut places = all.0.iter_mut();
        for number in numbers {
            *places.next().filter(|_| number != FdNumbers::NONE)? = number;
        }
        Some(all)
    }

    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        self.0.iter().copied().take_while(|number| *number != FdNumbers::NONE)
    }

    pub fn len(&self) -> usize {
        self.iter().count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// The state of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProcessState {
    /// Cloned, and not known to have executed its program.
    Starting,
    Running,
    Ended(Exit),
    /// It never executed its program.
    Failed(Failure),
}

/// The state of an entry that the keeper could not adopt for lack of descriptors. The worker hands it over again.
pub const NOT_ADOPTED: Failure = Failure { step: Step::Prepare, errno: Errno::MFILE, operation: 0 };

/// The process that a new binary replaces.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Component {
    Worker,
    Keeper,
}

/// The state of the daemon that a supervisor is notified of, as sd_notify(3) defines it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Readiness {
    Ready,
    Stopping,
}

impl Readiness {
    pub(crate) fn notification(self) -> &'static [u8] {
        match self {
            Readiness::Ready => b"READY=1",
            Readiness::Stopping => b"STOPPING=1",
        }
    }
}

/// The descriptors of a [`Request::Spawn`] that not every child has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SpawnOptions {
    /// The directory of the cgroup that the child starts in.
    pub cgroup: bool,
    /// The file to execute instead of the path in the specification.
    pub program: bool,
    /// The working directory instead of the path in the specification.
    pub directory: bool,
}

/// A request of the worker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Send the table.
    Hello {
        version: u32,
    },
    /// The worker has served a client, or has run long enough without failing.
    Serving,
    /// Start a child. Descriptors: the specification in a memfd; the read and the write end of the exec gate;
    /// those of `options`; those to hold; the child's.
    ///
    /// The keeper reports the child as `Starting`, and then writes a byte to the gate. So the child executes nothing
    /// that the worker was not sent. If the keeper dies before, the worker closes the gate and the child exits. If the
    /// keeper dies in between, the worker writes the byte.
    Spawn {
        slot: u64,
        options: SpawnOptions,
        held: FdRoles,
        targets: FdTargets,
    },
    /// Adopt an entry of a keeper that died. Descriptors: the pidfd unless the start failed; those to hold.
    Adopt {
        slot: u64,
        pid: i32,
        state: ProcessState,
        held: FdRoles,
    },
    /// Hold one more descriptor. The first one creates a slot with the bit [`crate::FDS_ONLY`].
    Hold {
        slot: u64,
        role: u8,
    },
    /// Close a held descriptor.
    Release {
        slot: u64,
        role: u8,
    },
    Signal {
        slot: u64,
        signal: Signal,
        group: bool,
    },
    /// Remove an entry and close its descriptors. Ignored while the child runs.
    Forget {
        slot: u64,
    },
    /// Send an entry again with all descriptors, since the worker had no free descriptors for them.
    Resend {
        slot: u64,
    },
    /// Replace a process by another binary. Descriptor: the binary.
    Replace(Component),
    /// Notify the supervisor. It accepts notifications of the main process only, which is the keeper.
    Notify(Readiness),
    /// Have the supervisor show a text as the daemon's status. Descriptor: a file with the text.
    ShowStatus,
    /// The worker is alive and will repeat this within the interval.
    Heartbeat {
        interval_ms: u32,
    },
    /// The worker has stopped everything: exit.
    Stop,
}

/// An event that the keeper reports.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// The state of an entry. Descriptors: the pidfd if `pidfd`, then those of `held`.
    Entry { slot: u64, pid: i32, state: ProcessState, pidfd: bool, held: FdRoles },
    /// The whole table was sent.
    TableEnd,
    /// Another worker is ready to take over: exit.
    Retire,
    /// The keeper received SIGTERM or SIGINT: stop everything, then send `Stop`.
    Shutdown,
    /// The new binary runs.
    Replaced(Component),
    /// The new binary was refused; the old one continues.
    NotReplaced(Component, Errno),
    /// The keeper received SIGHUP.
    Reload,
}
