//! The fixed messages between worker and keeper. Descriptors travel beside them in the order each variant names.

use crate::bytes::{Reader, Writer};
use outpost_sys::Errno;
use outpost_sys::pidfd::{Exit, How};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{Failure, Step};

/// Every message has this size.
pub const MESSAGE_BYTES: usize = 80;

/// Up to 16 small numbers, 0 to 254.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Numbers([u8; 16]);

/// Which descriptors a message carries or an entry holds, by role.
pub type Roles = Numbers;
/// Under which numbers a child gets its descriptors.
pub type Targets = Numbers;

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
    /// On its way to exec.
    Starting,
    Running,
    Ended(Exit),
    /// It never ran.
    Failed(Failure),
}

/// What is being replaced by a new binary.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Worker,
    Keeper,
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
    /// Start a child. Descriptors: specification, gate, cgroup directory if any, those to hold, the child's. The child
    /// is told of as `Starting` at once and executes when a byte comes through the gate; if that closes, it never does.
    Spawn {
        slot: u64,
        cgroup: bool,
        held: Roles,
        targets: Targets,
    },
    /// Take an entry over from a keeper that died. Descriptors: pidfd (unless it failed), those to hold.
    Adopt {
        slot: u64,
        pid: i32,
        standing: Standing,
        held: Roles,
    },
    /// Hold one more descriptor.
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
    /// Continue with another binary. Descriptor: the binary.
    Replace(What),
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

fn put_standing(out: &mut Writer, standing: &Standing) {
    let (kind, a, b, exit) = match standing {
        Standing::Running => (0, 0, 0, Exit::UNKNOWN),
        Standing::Starting => (5, 0, 0, Exit::UNKNOWN),
        Standing::Ended(exit) => match exit.how {
            How::Code(code) => (1, code, 0, *exit),
            How::Signal(signal) => (2, signal, 0, *exit),
            How::Unknown => (3, 0, 0, *exit),
        },
        Standing::Failed(failure) => (4, failure.errno.raw_os_error(), failure.step as u8, Exit::UNKNOWN),
    };
    out.u8(kind);
    out.u8(b);
    out.i32(a);
    out.u32(exit.user_ms);
    out.u32(exit.system_ms);
    out.u32(exit.rss_max_kb);
}

fn get_standing(from: &mut Reader<'_>) -> Option<Standing> {
    let (kind, step, number) = (from.u8()?, from.u8()?, from.i32()?);
    let (user_ms, system_ms, rss_max_kb) = (from.u32()?, from.u32()?, from.u32()?);
    let ended = |how| Standing::Ended(Exit { how, user_ms, system_ms, rss_max_kb });
    Some(match kind {
        0 => Standing::Running,
        1 => ended(How::Code(number)),
        2 => ended(How::Signal(number)),
        3 => ended(How::Unknown),
        5 => Standing::Starting,
        4 => Standing::Failed(Failure {
            step: Step::from_number(step)?,
            errno: Errno::from_raw_os_error(number),
        }),
        _ => return None,
    })
}

pub(crate) fn put_entry(out: &mut Writer, slot: u64, pid: i32, standing: &Standing) {
    out.u64(slot);
    out.i32(pid);
    put_standing(out, standing);
}

pub(crate) fn get_entry(from: &mut Reader<'_>) -> Option<(u64, i32, Standing)> {
    Some((from.u64()?, from.i32()?, get_standing(from)?))
}

fn put_numbers(out: &mut Writer, numbers: &Numbers) {
    out.bytes.extend_from_slice(&numbers.0);
}

fn get_numbers(from: &mut Reader<'_>) -> Option<Numbers> {
    from.bytes().map(Numbers)
}

fn put_what(out: &mut Writer, what: What) {
    out.u8(if what == What::Worker { 0 } else { 1 });
}

fn get_what(from: &mut Reader<'_>) -> Option<What> {
    match from.u8()? {
        0 => Some(What::Worker),
        1 => Some(What::Keeper),
        _ => None,
    }
}

fn fixed(mut out: Writer) -> [u8; MESSAGE_BYTES] {
    out.bytes.resize(MESSAGE_BYTES, 0);
    out.bytes.first_chunk().copied().unwrap_or([0; MESSAGE_BYTES])
}

/// Another version's message, be it shorter or longer, is none of ours.
fn whole(bytes: &[u8]) -> Option<&[u8]> {
    Some(bytes).filter(|bytes| bytes.len() == MESSAGE_BYTES)
}

impl Request {
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut out = Writer::default();
        match self {
            Request::Hello { version } => {
                out.u8(1);
                out.u32(*version);
            }
            Request::Serving => out.u8(2),
            Request::Spawn { slot, cgroup, held, targets } => {
                out.u8(3);
                out.u64(*slot);
                out.u8(u8::from(*cgroup));
                put_numbers(&mut out, held);
                put_numbers(&mut out, targets);
            }
            Request::Adopt { slot, pid, standing, held } => {
                out.u8(4);
                put_entry(&mut out, *slot, *pid, standing);
                put_numbers(&mut out, held);
            }
            Request::Hold { slot, role } => {
                out.u8(5);
                out.u64(*slot);
                out.u8(*role);
            }
            Request::Release { slot, role } => {
                out.u8(6);
                out.u64(*slot);
                out.u8(*role);
            }
            Request::Signal { slot, signal, group } => {
                out.u8(7);
                out.u64(*slot);
                out.i32(signal.number());
                out.u8(u8::from(*group));
            }
            Request::Forget { slot } => {
                out.u8(8);
                out.u64(*slot);
            }
            Request::Replace(what) => {
                out.u8(9);
                put_what(&mut out, *what);
            }
            Request::Stop => out.u8(10),
        }
        fixed(out)
    }

    /// `None` for bytes that are no request.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        let mut from = Reader::new(whole(bytes)?);
        Some(match from.u8()? {
            1 => Request::Hello { version: from.u32()? },
            2 => Request::Serving,
            3 => Request::Spawn {
                slot: from.u64()?,
                cgroup: from.u8()? != 0,
                held: get_numbers(&mut from)?,
                targets: get_numbers(&mut from)?,
            },
            4 => {
                let (slot, pid, standing) = get_entry(&mut from)?;
                Request::Adopt { slot, pid, standing, held: get_numbers(&mut from)? }
            }
            5 => Request::Hold { slot: from.u64()?, role: from.u8().filter(|role| *role != NONE)? },
            6 => Request::Release { slot: from.u64()?, role: from.u8()? },
            7 => Request::Signal {
                slot: from.u64()?,
                signal: Signal::from_number(from.i32()?)?,
                group: from.u8()? != 0,
            },
            8 => Request::Forget { slot: from.u64()? },
            9 => Request::Replace(get_what(&mut from)?),
            10 => Request::Stop,
            _ => return None,
        })
    }
}

impl Event {
    pub fn encode(&self) -> [u8; MESSAGE_BYTES] {
        let mut out = Writer::default();
        match self {
            Event::Entry { slot, pid, standing, pidfd, held } => {
                out.u8(1);
                put_entry(&mut out, *slot, *pid, standing);
                out.u8(u8::from(*pidfd));
                put_numbers(&mut out, held);
            }
            Event::TableEnd => out.u8(2),
            Event::Retire => out.u8(3),
            Event::Shutdown => out.u8(4),
            Event::Replaced(what) => {
                out.u8(5);
                put_what(&mut out, *what);
            }
            Event::NotReplaced(what, errno) => {
                out.u8(6);
                put_what(&mut out, *what);
                out.i32(errno.raw_os_error());
            }
            Event::Reload => out.u8(7),
        }
        fixed(out)
    }

    /// `None` for bytes that are no event.
    pub fn decode(bytes: &[u8]) -> Option<Event> {
        let mut from = Reader::new(whole(bytes)?);
        Some(match from.u8()? {
            1 => {
                let (slot, pid, standing) = get_entry(&mut from)?;
                Event::Entry { slot, pid, standing, pidfd: from.u8()? != 0, held: get_numbers(&mut from)? }
            }
            2 => Event::TableEnd,
            3 => Event::Retire,
            4 => Event::Shutdown,
            5 => Event::Replaced(get_what(&mut from)?),
            6 => Event::NotReplaced(get_what(&mut from)?, Errno::from_raw_os_error(from.i32()?)),
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
        let failure = Failure { step: Step::Directory, errno: Errno::NOENT };
        let roles = Roles::new(0..16).unwrap();
        let standings = [
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
