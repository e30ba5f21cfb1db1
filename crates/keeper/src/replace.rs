//! Replacing the keeper: a new binary is executed in this process with the serialized state.

use crate::keeper::Keeper;
use crate::message::{Component, Event};
use crate::state::State;
use crate::table::Entry;
use crate::worker::Worker;
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd::{self, Exit, ExitCause};
use outpost_sys::signal::Signal;
use outpost_sys::{Errno, Result, file, spawn};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::time::Duration;

/// A new keeper binary must have checked our state within this time, or it is not executed.
const CHECK_TIMEOUT: Duration = Duration::from_secs(5);

/// The longest wait for a killed check.
const KILL_TIMEOUT: Duration = Duration::from_secs(1);

impl Keeper {
    /// The binary, if there is one and no other replacement is in progress.
    pub(crate) fn replaceable(&self, binary: Option<OwnedFd>) -> Result<OwnedFd> {
        match binary {
            // The process belongs to another program.
            Some(_) if self.is_embedded() => Err(Errno::OPNOTSUPP),
            Some(_) if self.worker.has_candidate() => Err(Errno::BUSY),
            binary => binary.ok_or(Errno::BADF),
        }
    }

    pub(crate) fn replace_self(&mut self, binary: Option<OwnedFd>) {
        let Err(refused) = self.replaceable(binary).and_then(|binary| self.execute(&binary));
        self.log_limited(format_args!("the new keeper binary was not executed ({refused}); this one stays"));
        self.events.push(Event::NotReplaced(Component::Keeper, refused));
    }

    /// Executes the new binary in this process with the serialized state. Before, a process of the new binary must have
    /// checked that state.
    fn execute(&mut self, binary: &OwnedFd) -> Result<std::convert::Infallible> {
        // The state does not include pending events, so the worker would never get them.
        self.flush_events();
        if !self.events.is_empty() {
            return Err(Errno::AGAIN);
        }
        let state = file::sealed_memory("outpost-keeper", &self.state(binary.as_raw_fd()).encode())?;
        check_binary(binary, &state)?;
        let inherited = self.set_all_inherited(true).and_then(|()| file::set_inherited(&state, true));
        let errno = match inherited.and_then(|()| file::set_inherited(binary, true)) {
            Ok(()) => {
                let number = CString::new(state.as_raw_fd().to_string()).map_err(|_| Errno::INVAL)?;
                let arguments = [c"outpost", c"keeper", c"--state", number.as_c_str()];
                let environment = spawn::own_environment();
                let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
                spawn::replace_self(binary.as_fd(), &arguments, &environment)
            }
            Err(errno) => errno,
        };
        let _back = self.set_all_inherited(false);
        Err(errno)
    }

    fn state(&self, binary: RawFd) -> State {
        let (arguments, worker) =
            (self.worker.arguments().to_vec(), self.worker.current().map(Worker::serialize));
        let entries = self.table.iter().map(|(slot, entry)| entry.serialize(*slot)).collect();
        State { binary, arguments, worker, replaced: true, entries }
    }

    fn set_all_inherited(&self, inherited: bool) -> Result<()> {
        let worker =
            self.worker.current().into_iter().flat_map(|worker| [worker.link.as_fd(), worker.pidfd.as_fd()]);
        let mut all = self.table.values().flat_map(Entry::descriptors).chain(worker);
        all.try_for_each(|fd| file::set_inherited(fd, inherited))
    }
}

/// Checks that a new binary understands our state. A binary that accepts an empty state too does not check it, so it is
/// no keeper.
fn check_binary(binary: &OwnedFd, state: &OwnedFd) -> Result<()> {
    let nothing = file::sealed_memory("outpost-keeper", &[])?;
    match understands(binary, state)? && !understands(binary, &nothing)? {
        true => Ok(()),
        false => Err(Errno::NOEXEC),
    }
}

/// Runs `keeper --check` of a binary on a state.
fn understands(binary: &OwnedFd, state: &OwnedFd) -> Result<bool> {
    let started = spawn::spawn_self(
        binary.as_fd(),
        &[c"outpost", c"keeper", c"--check", c"3"],
        spawn::SessionKind::Group,
        &[(state.as_fd(), 3)],
    );
    let pidfd = started.map_err(|failure| failure.errno)?.pidfd;
    if !wait_readable(&pidfd, CHECK_TIMEOUT)? {
        let _gone_already = pidfd::signal(&pidfd, Signal::KILL);
        let _gone = wait_readable(&pidfd, KILL_TIMEOUT);
        let _reaped = pidfd::reap(&pidfd);
        return Err(Errno::TIMEDOUT);
    }
    Ok(matches!(pidfd::reap(&pidfd)?, Some(Exit { cause: ExitCause::Code(0), .. })))
}
