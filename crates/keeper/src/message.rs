//! The fixed messages between worker and keeper. Descriptors travel beside them in the order each variant names.

use crate::bytes::{Reader, Writer};
use outpost_sys::Errno;
use outpost_sys::pidfd::{Exit, How};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{Failure, Step};

/// Every message has this size.
pub const MESSAGE_BYTES: usize = 80;

/// So long a specification may be to stand behind the message that tells a recruit what to become.
pub const ORDER_SPEC_BYTES_MAX: usize = 16 * 1024;

/// Up to 16 small numbers, 0 to 254.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers([u8; 16]);

/// Which descriptors a message carries or an entry holds, by role.
pub type Roles = Numbers;
/// Under which numbers a child gets its descriptors.
pub type Targets = Numbers;

/// Not numbers of the child's: the file to be executed, and the directory to begin in, instead of those the
/// specification names.
pub const PROGRAM_TARGET: u8 = 254;
pub const DIRECTORY_TARGET: u8 = 253;
/// Nor these: the gate that a child waits at, and the end that opens it. The worker that has made it can still open it
/// when the keeper has died.
pub const GATE_TARGET: u8 = 252;
pub const OPENER_TARGET: u8 = 251;
/// All of them.
pub(crate) const NO_NUMBERS: [u8; 4] = [PROGRAM_TARGET, DIRECTORY_TARGET, GATE_TARGET, OPENER_TARGET];

const NONE: u8 = 255;

impl Numbers {
    pub const EMPTY: Numbers = Numbers([NONE; 16]);

    /// `None` for more than 16 numbers or one above 254.
    pub fn new(numbers: impl IntoIterator<Item = u8>) -> Option<Numbers> {
        let mut all = Numbers::EMPTY;
        let mut places = all.0.iter_mut();
        for number in numbers {
            *places.next().filter(|_| number != NONE)? = number;
        }
        Some(all)
    }

    pub fn iter(&self) -> impl Iterator<Item = u8> + '_ {
        self.0.iter().copied().take_while(|number| *number != NONE)
    }

    pub fn len(&self) -> usize {
        self.iter().count()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

/// How an entry stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Standing {
    /// Nobody has told it yet what to become.
    Waiting,
    /// On its way to exec.
    Starting,
    Running,
    Ended(Exit),
    /// It never ran.
    Failed(Failure),
}

/// How the keeper reports an entry that it could not take over for want of descriptors. The worker hands it over again.
pub const NOT_ADOPTED: Failure = Failure { step: Step::Prepare, errno: Errno::MFILE, operation: 0 };

/// What is being replaced by a new binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Worker,
    Keeper,
}

/// What whoever supervises us, systemd mostly, is told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Said {
    Ready,
    Stopping,
}

impl Said {
    const ALL: [Said; 2] = [Said::Ready, Said::Stopping];

    /// As sd_notify(3) has it.
    pub(crate) fn words(self) -> &'static [u8] {
        match self {
            Said::Ready => b"READY=1",
            Said::Stopping => b"STOPPING=1",
        }
    }
}

/// What a worker asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Ready for the table.
    Hello {
        version: u32,
    },
    /// The worker has done its work for at least one client, or long enough without failing.
    Serving,
    /// Start a child. Descriptors: specification, cgroup directory if any, those to hold, the child's. It is told of as
    /// `Starting` at once, and executes its program when that has been told: a keeper that dies first takes it along.
    Spawn {
        slot: u64,
        cgroup: bool,
        held: Roles,
        targets: Targets,
    },
    /// Have a child wait under this slot, as soon as there is time to fork one. Descriptors: where it will be told what to
    /// become, where it reports how that went, cgroup directory if any. It is told of as `Waiting`, and is gone when it is
    /// forgotten or cannot be told any more.
    Recruit {
        slot: u64,
        oom_score: Option<i32>,
    },
    /// Now is the time to fork one of those, if fewer wait than should.
    Muster,
    /// Nothing has been started for a while: fewer need to wait.
    Rest,
    /// The worker has told the one who waits under this slot what to become. Descriptors: those to hold. Without this it does
    /// not outlive the worker.
    Enlist {
        slot: u64,
        held: Roles,
    },
    /// Take an entry over from a keeper that died. Descriptors: pidfd (unless it failed), those to hold.
    Adopt {
        slot: u64,
        pid: i32,
        standing: Standing,
        held: Roles,
    },
    /// Hold one more descriptor. Slots with the bit [`crate::KEPT`] begin to be with their first one.
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
    /// Close everything of an entry. One that runs is not forgotten.
    Forget {
        slot: u64,
    },
    /// Send an entry again, with all descriptors: the worker had no room for them.
    Resend {
        slot: u64,
    },
    /// Continue with another binary. Descriptor: the binary.
    Replace(What),
    /// Tell whoever supervises us. Only the main process is believed, which is the keeper.
    Notify(Said),
    /// Have the supervisor show a text as the daemon's status. Descriptor: a file with the text.
    Say,
    /// The worker lives, and says so again after this time.
    Alive {
        every_ms: u32,
    },
    /// Everything is done: end.
    Stop,
}

/// What the keeper tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// How an entry stands now. Descriptors: pidfd if `pidfd`, those held under `held`.
    Entry { slot: u64, pid: i32, standing: Standing, pidfd: bool, held: Roles },
    /// The whole table has been told.
    TableEnd,
    /// Another worker is ready to take over: leave.
    Retire,
    /// The keeper was asked to end: finish everything, then say `Stop`.
    Shutdown,
    /// A replacement is in force.
    Replaced(What),
    /// A replacement could not be done; everything goes on as before.
    NotReplaced(What, Errno),
    /// The keeper received SIGHUP.
    Reload,
}

pub(crate) fn put_entry(out: &mut Writer, slot: u64, pid: i32, standing: &Standing) {
    out.u64(slot);
    out.i32(pid);
    let (kind, step, number) = match standing {
        Standing::Running => (0, 0, 0),
        Standing::Ended(Exit { how: How::Code(code), .. }) => (1, 0, *code),
        Standing::Ended(Exit { how: How::Signal(signal), .. }) => (2, 0, *signal),
        Standing::Ended(Exit { how: How::Unknown, .. }) => (3, 0, 0),
        Standing::Failed(failure) => (4, failure.step as u8, failure.errno.raw_os_error()),
        Standing::Starting => (5, 0, 0),
        Standing::Waiting => (6, 0, 0),
    };
    out.u8(kind);
    out.u8(step);
    out.i32(number);
    let exit = match standing {
        Standing::Ended(exit) => *exit,
        // It has used nothing; which operation of a confinement failed stands there instead.
        Standing::Failed(failure) => Exit { user_ms: failure.operation.into(), ..Exit::UNKNOWN },
        _ => Exit::UNKNOWN,
    };
    [exit.user_ms, exit.system_ms, exit.rss_max_kb].into_iter().for_each(|used| out.u32(used));
}

pub(crate) fn get_standing(from: &mut Reader<'_>) -> Option<Standing> {
    let (kind, step, number) = (from.u8()?, from.u8()?, from.i32()?);
    let (user_ms, system_ms, rss_max_kb) = (from.u32()?, from.u32()?, from.u32()?);
    let ended = |how| Standing::Ended(Exit { how, user_ms, system_ms, rss_max_kb });
    Some(match kind {
        0 => Standing::Running,
        1 => ended(How::Code(number)),
        2 => ended(How::Signal(number)),
        3 => ended(How::Unknown),
        4 => {
            let (step, errno) = (Step::from_number(step)?, Errno::from_raw_os_error(number));
            let operation = u16::try_from(user_ms).unwrap_or(0);
            Standing::Failed(Failure { step, errno, operation })
        }
        5 => Standing::Starting,
        6 => Standing::Waiting,
        _ => return None,
    })
}

/// All that any message says, always in the same places. What a kind does not use is not looked at.
struct Record {
    kind: u8,
    slot: u64,
    number: i32,
    standing: Option<Standing>,
    byte: u8,
    held: Roles,
    targets: Targets,
}

impl Record {
    fn of(kind: u8) -> Record {
        let (held, targets) = (Numbers::EMPTY, Numbers::EMPTY);
        Record { kind, slot: 0, number: 0, standing: None, byte: 0, held, targets }
    }

    fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut out = Writer::default();
        out.u8(self.kind);
        put_entry(&mut out, self.slot, self.number, &self.standing.unwrap_or(Standing::Running));
        out.u8(self.byte);
        out.bytes.extend(self.held.0.iter().chain(&self.targets.0));
        out.bytes.resize(MESSAGE_BYTES, 0);
        out.bytes.first_chunk().copied().unwrap_or([0; MESSAGE_BYTES])
    }

    /// Another version's message, be it shorter or longer, is none of ours.
    fn decode(bytes: &[u8]) -> Option<Record> {
        let mut from = Reader(Some(bytes).filter(|bytes| bytes.len() == MESSAGE_BYTES)?);
        Some(Record {
            kind: from.u8()?,
            slot: from.u64()?,
            number: from.i32()?,
            standing: get_standing(&mut from),
            byte: from.u8()?,
            held: Numbers(from.array()?),
            targets: Numbers(from.array()?),
        })
    }

    fn what(&self) -> Option<What> {
        [What::Worker, What::Keeper].into_iter().find(|what| *what as u8 == self.byte)
    }
}

impl Request {
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        match *self {
            Request::Hello { version } => Record { number: version.cast_signed(), ..Record::of(1) },
            Request::Serving => Record::of(2),
            Request::Spawn { slot, cgroup, held, targets } => {
                Record { slot, byte: cgroup.into(), held, targets, ..Record::of(3) }
            }
            Request::Adopt { slot, pid, standing, held } => {
                Record { slot, number: pid, standing: Some(standing), held, ..Record::of(4) }
            }
            Request::Hold { slot, role } => Record { slot, byte: role, ..Record::of(5) },
            Request::Release { slot, role } => Record { slot, byte: role, ..Record::of(6) },
            Request::Signal { slot, signal, group } => {
                Record { slot, number: signal.number(), byte: group.into(), ..Record::of(7) }
            }
            Request::Forget { slot } => Record { slot, ..Record::of(8) },
            Request::Replace(what) => Record { byte: what as u8, ..Record::of(9) },
            Request::Stop => Record::of(10),
            Request::Notify(said) => Record { byte: said as u8, ..Record::of(11) },
            Request::Alive { every_ms } => Record { number: every_ms.cast_signed(), ..Record::of(12) },
            Request::Muster => Record::of(14),
            Request::Enlist { slot, held } => Record { slot, held, ..Record::of(15) },
            Request::Recruit { slot, oom_score } => {
                let (number, byte) = (oom_score.unwrap_or(0), oom_score.is_some().into());
                Record { slot, number, byte, ..Record::of(16) }
            }
            Request::Rest => Record::of(17),
            Request::Say => Record::of(18),
            Request::Resend { slot } => Record { slot, ..Record::of(19) },
        }
        .encode()
    }

    /// `None` for bytes that are no request.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let record = Record::decode(bytes)?;
        let Record { kind, slot, number, standing, byte, held, targets } = record;
        Some(match kind {
            1 => Request::Hello { version: number.cast_unsigned() },
            2 => Request::Serving,
            3 => Request::Spawn { slot, cgroup: byte != 0, held, targets },
            4 => Request::Adopt { slot, pid: number, standing: standing?, held },
            5 => Request::Hold { slot, role: Some(byte).filter(|role| *role != NONE)? },
            6 => Request::Release { slot, role: byte },
            7 => Request::Signal { slot, signal: Signal::from_number(number)?, group: byte != 0 },
            8 => Request::Forget { slot },
            9 => Request::Replace(record.what()?),
            10 => Request::Stop,
            11 => Request::Notify(Said::ALL.into_iter().find(|said| *said as u8 == byte)?),
            12 => Request::Alive { every_ms: number.cast_unsigned() },
            14 => Request::Muster,
            15 => Request::Enlist { slot, held },
            16 => Request::Recruit { slot, oom_score: (byte != 0).then_some(number) },
            17 => Request::Rest,
            18 => Request::Say,
            19 => Request::Resend { slot },
            _ => return None,
        })
    }
}

impl Event {
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        match *self {
            Event::Entry { slot, pid, standing, pidfd, held } => {
                let standing = Some(standing);
                Record { slot, number: pid, standing, byte: pidfd.into(), held, ..Record::of(1) }
            }
            Event::TableEnd => Record::of(2),
            Event::Retire => Record::of(3),
            Event::Shutdown => Record::of(4),
            Event::Replaced(what) => Record { byte: what as u8, ..Record::of(5) },
            Event::NotReplaced(what, errno) => {
                Record { byte: what as u8, number: errno.raw_os_error(), ..Record::of(6) }
            }
            Event::Reload => Record::of(7),
        }
        .encode()
    }

    /// `None` for bytes that are no event.
    pub fn decode(bytes: &[u8]) -> Option<Event> {
        let record = Record::decode(bytes)?;
        let Record { slot, number, standing, byte, held, .. } = record;
        Some(match record.kind {
            1 => Event::Entry { slot, pid: number, standing: standing?, pidfd: byte != 0, held },
            2 => Event::TableEnd,
            3 => Event::Retire,
            4 => Event::Shutdown,
            5 => Event::Replaced(record.what()?),
            6 => Event::NotReplaced(record.what()?, Errno::from_raw_os_error(number)),
            7 => Event::Reload,
            _ => return None,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_message_reads_back_as_written() {
        let exit = Exit { how: How::Signal(9), user_ms: 1, system_ms: u32::MAX, rss_max_kb: 3 };
        let failure = Failure::at(Step::Directory, Errno::NOENT);
        let roles = Roles::new(0..16).unwrap();
        let standings = [
            Standing::Waiting,
            Standing::Starting,
            Standing::Running,
            Standing::Ended(exit),
            Standing::Ended(Exit::UNKNOWN),
            Standing::Failed(failure),
        ];
        let mut requests = vec![
            Request::Hello { version: 7 },
            Request::Serving,
            Request::Spawn {
                slot: u64::MAX,
                cgroup: true,
                held: roles,
                targets: Targets::new([0, 1, 2]).unwrap(),
            },
            Request::Hold { slot: 5, role: 254 },
            Request::Release { slot: 5, role: 0 },
            Request::Signal { slot: 6, signal: Signal::TERM, group: true },
            Request::Forget { slot: 7 },
            Request::Replace(What::Worker),
            Request::Replace(What::Keeper),
            Request::Stop,
            Request::Notify(Said::Ready),
            Request::Notify(Said::Stopping),
            Request::Alive { every_ms: 15_000 },
            Request::Recruit { slot: 8, oom_score: None },
            Request::Recruit { slot: 8, oom_score: Some(-900) },
            Request::Enlist { slot: 8, held: roles },
            Request::Muster,
            Request::Rest,
            Request::Say,
            Request::Resend { slot: 8 },
        ];
        requests.extend(standings.map(|standing| Request::Adopt {
            slot: 9,
            pid: 10,
            standing,
            held: Roles::EMPTY,
        }));
        for request in requests {
            assert_eq!(Request::decode(&request.encode()), Some(request));
        }
        let mut events = vec![
            Event::TableEnd,
            Event::Retire,
            Event::Shutdown,
            Event::Reload,
            Event::Replaced(What::Keeper),
            Event::NotReplaced(What::Worker, Errno::TIMEDOUT),
        ];
        events.extend(standings.map(|standing| Event::Entry {
            slot: 1 << 63,
            pid: 3,
            standing,
            pidfd: true,
            held: roles,
        }));
        for event in events {
            assert_eq!(Event::decode(&event.encode()), Some(event));
        }
    }

    #[test]
    fn bytes_that_are_no_message_are_refused() {
        assert_eq!(Request::decode(&[]), None);
        assert_eq!(Request::decode(&[0; MESSAGE_BYTES]), None);
        assert_eq!(Event::decode(&[99; MESSAGE_BYTES]), None);
        assert_eq!(Request::decode(&[3, 1, 2]), None, "cut short");
    }

    #[test]
    fn more_numbers_than_fit_are_refused() {
        assert_eq!(Roles::new(0..17), None);
        assert_eq!(Roles::new([255]), None);
        assert_eq!(Roles::new(0..16).map(|roles| roles.len()), Some(16));
    }
}
