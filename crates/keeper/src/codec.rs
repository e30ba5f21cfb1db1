//! Requests and events as bytes: a number for the variant, then its fields.

use crate::bytes::{Reader, Writer};
use crate::message::{
    Component, Event, FdNumbers, MESSAGE_BYTES_MAX, ProcessState, Readiness, Request, SpawnOptions,
};
use outpost_sys::Errno;
use outpost_sys::pidfd::{Exit, ExitCause};
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{Failure, Step};

mod request {
    pub(super) const HELLO: u8 = 1;
    pub(super) const SERVING: u8 = 2;
    pub(super) const SPAWN: u8 = 3;
    pub(super) const ADOPT: u8 = 4;
    pub(super) const HOLD: u8 = 5;
    pub(super) const RELEASE: u8 = 6;
    pub(super) const SIGNAL: u8 = 7;
    pub(super) const FORGET: u8 = 8;
    pub(super) const REPLACE: u8 = 9;
    pub(super) const STOP: u8 = 10;
    pub(super) const NOTIFY: u8 = 11;
    pub(super) const HEARTBEAT: u8 = 12;
    pub(super) const SHOW_STATUS: u8 = 13;
    pub(super) const RESEND: u8 = 14;
}

mod event {
    pub(super) const ENTRY: u8 = 1;
    pub(super) const TABLE_END: u8 = 2;
    pub(super) const RETIRE: u8 = 3;
    pub(super) const SHUTDOWN: u8 = 4;
    pub(super) const REPLACED: u8 = 5;
    pub(super) const NOT_REPLACED: u8 = 6;
    pub(super) const RELOAD: u8 = 7;
}

mod state {
    pub(super) const STARTING: u8 = 0;
    pub(super) const RUNNING: u8 = 1;
    pub(super) const EXITED: u8 = 2;
    pub(super) const KILLED: u8 = 3;
    pub(super) const ENDED_UNKNOWN: u8 = 4;
    pub(super) const FAILED: u8 = 5;
}

mod component {
    pub(super) const WORKER: u8 = 0;
    pub(super) const KEEPER: u8 = 1;
}

mod readiness {
    pub(super) const READY: u8 = 0;
    pub(super) const STOPPING: u8 = 1;
}

/// Bits of [`SpawnOptions`].
mod option {
    pub(super) const CGROUP: u8 = 1;
    pub(super) const PROGRAM: u8 = 2;
    pub(super) const DIRECTORY: u8 = 4;
}

pub(crate) fn put_state(out: &mut Writer, state: &ProcessState) {
    match state {
        ProcessState::Starting => out.u8(state::STARTING),
        ProcessState::Running => out.u8(state::RUNNING),
        ProcessState::Ended(exit) => put_exit(out, exit),
        ProcessState::Failed(Failure { step, errno, operation }) => {
            out.u8(state::FAILED);
            out.u8(*step as u8);
            out.i32(errno.raw_os_error());
            out.u32((*operation).into());
        }
    }
}

fn put_exit(out: &mut Writer, exit: &Exit) {
    let (kind, number) = match exit.cause {
        ExitCause::Code(code) => (state::EXITED, code),
        ExitCause::Signal(signal) => (state::KILLED, signal),
        ExitCause::Unknown => (state::ENDED_UNKNOWN, 0),
    };
    out.u8(kind);
    out.i32(number);
    [exit.user_ms, exit.system_ms, exit.rss_max_kb].into_iter().for_each(|used| out.u32(used));
}

pub(crate) fn get_state(from: &mut Reader<'_>) -> Option<ProcessState> {
    Some(match from.u8()? {
        state::STARTING => ProcessState::Starting,
        state::RUNNING => ProcessState::Running,
        state::FAILED => {
            let (step, errno) = (Step::from_number(from.u8()?)?, Errno::from_raw_os_error(from.i32()?));
            ProcessState::Failed(Failure { step, errno, operation: u16::try_from(from.u32()?).ok()? })
        }
        kind => {
            let number = from.i32()?;
            let how = match kind {
                state::EXITED => ExitCause::Code(number),
                state::KILLED => ExitCause::Signal(number),
                state::ENDED_UNKNOWN => ExitCause::Unknown,
                _ => return None,
            };
            let (user_ms, system_ms, rss_max_kb) = (from.u32()?, from.u32()?, from.u32()?);
            ProcessState::Ended(Exit { cause: how, user_ms, system_ms, rss_max_kb })
        }
    })
}

fn put_component(out: &mut Writer, component: Component) {
    out.u8(match component {
        Component::Worker => component::WORKER,
        Component::Keeper => component::KEEPER,
    });
}

fn get_component(from: &mut Reader<'_>) -> Option<Component> {
    match from.u8()? {
        component::WORKER => Some(Component::Worker),
        component::KEEPER => Some(Component::Keeper),
        _ => None,
    }
}

fn put_options(out: &mut Writer, options: SpawnOptions) {
    let bit = |set: bool, bit: u8| if set { bit } else { 0 };
    out.u8(bit(options.cgroup, option::CGROUP)
        | bit(options.program, option::PROGRAM)
        | bit(options.directory, option::DIRECTORY));
}

fn get_options(from: &mut Reader<'_>) -> Option<SpawnOptions> {
    let bits = from.u8()?;
    let has = |bit| bits & bit != 0;
    Some(SpawnOptions {
        cgroup: has(option::CGROUP),
        program: has(option::PROGRAM),
        directory: has(option::DIRECTORY),
    })
}

fn get_numbers(from: &mut Reader<'_>) -> Option<FdNumbers> {
    from.array().map(FdNumbers)
}

/// Reads a whole message. `None` for bytes that are none, or that are too many.
fn whole<T>(bytes: &[u8], read: impl FnOnce(&mut Reader<'_>) -> Option<T>) -> Option<T> {
    let mut from = Reader(bytes);
    read(&mut from).filter(|_| from.0.is_empty())
}

impl Request {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer { bytes: Vec::with_capacity(MESSAGE_BYTES_MAX) };
        match self {
            Request::Hello { version } => {
                out.u8(request::HELLO);
                out.u32(*version);
            }
            Request::Serving => out.u8(request::SERVING),
            Request::Spawn { slot, options, held, targets } => {
                out.u8(request::SPAWN);
                out.u64(*slot);
                put_options(&mut out, *options);
                out.bytes.extend(held.0.iter().chain(&targets.0));
            }
            Request::Adopt { slot, pid, state, held } => {
                out.u8(request::ADOPT);
                out.u64(*slot);
                out.i32(*pid);
                put_state(&mut out, state);
                out.bytes.extend(&held.0);
            }
            Request::Hold { slot, role } => {
                out.u8(request::HOLD);
                out.u64(*slot);
                out.u8(*role);
            }
            Request::Release { slot, role } => {
                out.u8(request::RELEASE);
                out.u64(*slot);
                out.u8(*role);
            }
            Request::Signal { slot, signal, group } => {
                out.u8(request::SIGNAL);
                out.u64(*slot);
                out.i32(signal.number());
                out.flag(*group);
            }
            Request::Forget { slot } => {
                out.u8(request::FORGET);
                out.u64(*slot);
            }
            Request::Resend { slot } => {
                out.u8(request::RESEND);
                out.u64(*slot);
            }
            Request::Replace(component) => {
                out.u8(request::REPLACE);
                put_component(&mut out, *component);
            }
            Request::Notify(state) => {
                out.u8(request::NOTIFY);
                out.u8(match state {
                    Readiness::Ready => readiness::READY,
                    Readiness::Stopping => readiness::STOPPING,
                });
            }
            Request::ShowStatus => out.u8(request::SHOW_STATUS),
            Request::Heartbeat { interval_ms } => {
                out.u8(request::HEARTBEAT);
                out.u32(*interval_ms);
            }
            Request::Stop => out.u8(request::STOP),
        }
        out.bytes
    }

    /// `None` for bytes that are no request.
    pub fn decode(bytes: &[u8]) -> Option<Request> {
        whole(bytes, Request::read)
    }

    fn read(from: &mut Reader<'_>) -> Option<Request> {
        Some(match from.u8()? {
            request::HELLO => Request::Hello { version: from.u32()? },
            request::SERVING => Request::Serving,
            request::SPAWN => Request::Spawn {
                slot: from.u64()?,
                options: get_options(from)?,
                held: get_numbers(from)?,
                targets: get_numbers(from)?,
            },
            request::ADOPT => Request::Adopt {
                slot: from.u64()?,
                pid: from.i32()?,
                state: get_state(from)?,
                held: get_numbers(from)?,
            },
            request::HOLD => {
                let (slot, role) = (from.u64()?, from.u8()?);
                Request::Hold { slot, role: Some(role).filter(|role| *role != FdNumbers::NONE)? }
            }
            request::RELEASE => Request::Release { slot: from.u64()?, role: from.u8()? },
            request::SIGNAL => Request::Signal {
                slot: from.u64()?,
                signal: Signal::from_number(from.i32()?)?,
                group: from.flag()?,
            },
            request::FORGET => Request::Forget { slot: from.u64()? },
            request::RESEND => Request::Resend { slot: from.u64()? },
            request::REPLACE => Request::Replace(get_component(from)?),
            request::NOTIFY => Request::Notify(match from.u8()? {
                readiness::READY => Readiness::Ready,
                readiness::STOPPING => Readiness::Stopping,
                _ => return None,
            }),
            request::SHOW_STATUS => Request::ShowStatus,
            request::HEARTBEAT => Request::Heartbeat { interval_ms: from.u32()? },
            request::STOP => Request::Stop,
            _ => return None,
        })
    }
}

impl Event {
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Writer { bytes: Vec::with_capacity(MESSAGE_BYTES_MAX) };
        match self {
            Event::Entry { slot, pid, state, pidfd, held } => {
                out.u8(event::ENTRY);
                out.u64(*slot);
                out.i32(*pid);
                put_state(&mut out, state);
                out.flag(*pidfd);
                out.bytes.extend(&held.0);
            }
            Event::TableEnd => out.u8(event::TABLE_END),
            Event::Retire => out.u8(event::RETIRE),
            Event::Shutdown => out.u8(event::SHUTDOWN),
            Event::Replaced(component) => {
                out.u8(event::REPLACED);
                put_component(&mut out, *component);
            }
            Event::NotReplaced(component, errno) => {
                out.u8(event::NOT_REPLACED);
                put_component(&mut out, *component);
                out.i32(errno.raw_os_error());
            }
            Event::Reload => out.u8(event::RELOAD),
        }
        out.bytes
    }

    /// `None` for bytes that are no event.
    pub fn decode(bytes: &[u8]) -> Option<Event> {
        whole(bytes, Event::read)
    }

    fn read(from: &mut Reader<'_>) -> Option<Event> {
        Some(match from.u8()? {
            event::ENTRY => Event::Entry {
                slot: from.u64()?,
                pid: from.i32()?,
                state: get_state(from)?,
                pidfd: from.flag()?,
                held: get_numbers(from)?,
            },
            event::TABLE_END => Event::TableEnd,
            event::RETIRE => Event::Retire,
            event::SHUTDOWN => Event::Shutdown,
            event::REPLACED => Event::Replaced(get_component(from)?),
            event::NOT_REPLACED => {
                Event::NotReplaced(get_component(from)?, Errno::from_raw_os_error(from.i32()?))
            }
            event::RELOAD => Event::Reload,
            _ => return None,
        })
    }
}

#[cfg(test)]
#[allow(clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::message::{FdRoles, FdTargets};

    fn states() -> [ProcessState; 6] {
        let exit = Exit { cause: ExitCause::Signal(9), user_ms: 1, system_ms: u32::MAX, rss_max_kb: 3 };
        [
            ProcessState::Starting,
            ProcessState::Running,
            ProcessState::Ended(exit),
            ProcessState::Ended(Exit { cause: ExitCause::Code(7), ..exit }),
            ProcessState::Ended(Exit::UNKNOWN),
            ProcessState::Failed(Failure { step: Step::Confine, errno: Errno::NOENT, operation: 700 }),
        ]
    }

    #[test]
    fn every_request_decodes_to_itself() {
        let roles = FdRoles::new(0..16).unwrap();
        let targets = FdTargets::new([0, 1, 2]).unwrap();
        let options = [
            SpawnOptions::default(),
            SpawnOptions { cgroup: true, ..SpawnOptions::default() },
            SpawnOptions { program: true, directory: true, ..SpawnOptions::default() },
        ];
        let mut requests = vec![
            Request::Hello { version: 7 },
            Request::Serving,
            Request::Hold { slot: 5, role: 254 },
            Request::Release { slot: 5, role: 0 },
            Request::Signal { slot: 6, signal: Signal::TERM, group: true },
            Request::Forget { slot: 7 },
            Request::Replace(Component::Worker),
            Request::Replace(Component::Keeper),
            Request::Stop,
            Request::Notify(Readiness::Ready),
            Request::Notify(Readiness::Stopping),
            Request::Heartbeat { interval_ms: 15_000 },
            Request::ShowStatus,
            Request::Resend { slot: 8 },
        ];
        requests.extend(options.map(|options| Request::Spawn {
            slot: u64::MAX,
            options,
            held: roles,
            targets,
        }));
        requests.extend(states().map(|state| Request::Adopt {
            slot: 9,
            pid: 10,
            state,
            held: FdRoles::EMPTY,
        }));
        for request in requests {
            let bytes = request.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{request:?}");
            assert_eq!(Request::decode(&bytes), Some(request));
            assert_eq!(Request::decode(&bytes[..bytes.len() - 1]), None, "{request:?} cut short");
            assert_eq!(
                Request::decode(&[bytes.as_slice(), &[0]].concat()),
                None,
                "{request:?} with a byte more"
            );
        }
    }

    #[test]
    fn every_event_decodes_to_itself() {
        let mut events = vec![
            Event::TableEnd,
            Event::Retire,
            Event::Shutdown,
            Event::Reload,
            Event::Replaced(Component::Keeper),
            Event::NotReplaced(Component::Worker, Errno::TIMEDOUT),
        ];
        let held = FdRoles::new(0..16).unwrap();
        events.extend(states().map(|state| Event::Entry { slot: 1 << 63, pid: 3, state, pidfd: true, held }));
        for event in events {
            let bytes = event.encode();
            assert!(bytes.len() <= MESSAGE_BYTES_MAX, "{event:?}");
            assert_eq!(Event::decode(&bytes), Some(event));
        }
    }

    #[test]
    fn malformed_messages_are_refused() {
        assert_eq!(Request::decode(&[]), None);
        assert_eq!(Request::decode(&[0; MESSAGE_BYTES_MAX]), None);
        assert_eq!(Event::decode(&[99; MESSAGE_BYTES_MAX]), None);
        assert_eq!(Request::decode(&[request::SPAWN, 1, 2]), None);
    }

    #[test]
    fn more_numbers_than_fit_are_refused() {
        assert_eq!(FdRoles::new(0..17), None);
        assert_eq!(FdRoles::new([255]), None);
        assert_eq!(FdRoles::new(0..16).map(|roles| roles.len()), Some(16));
    }
}
