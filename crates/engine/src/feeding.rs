//! The reactor's work with input: into the log, then to the child.

use crate::input::Delivery;
use crate::link::role;
use crate::reactor::{Due, RETRY, Reactor};
use crate::spec::Slot;
use crate::{Error, Result};
use outpost_journal::Accepted;
use outpost_keeper::Request;
use std::sync::atomic::Ordering;

impl Reactor {
    pub(crate) fn deliver(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let outcome = loop {
            // Not before the keeper holds the log: the position would be lost with this worker.
            if !self.link.is_flushed() || self.unheld.contains(&slot) {
                return self.schedule(RETRY, Due::Deliver(slot));
            }
            let outcome = child.input.deliver(child.master.as_ref());
            if outcome != Ok(Delivery::NewReader) {
                break outcome;
            }
            match child.input.unheld_reader() {
                Ok(Some(reader)) => {
                    self.link.send(Request::Hold { slot, role: role::STDIN_LOG }, vec![reader]);
                }
                Ok(None) => break Ok(Delivery::Done),
                Err(error) => break Err(error),
            }
        };
        child.input_blocked = outcome == Ok(Delivery::Blocked);
        match outcome {
            Ok(Delivery::Done | Delivery::Blocked | Delivery::NewReader) => {}
            Ok(Delivery::Closed) => {
                for role in child.end_input(&self.epoll) {
                    self.link.send(Request::Release { slot, role }, Vec::new());
                }
            }
            Err(error) => {
                tracing::error!(process = %Slot(slot), %error, "input cannot be delivered; trying again");
                self.schedule(RETRY, Due::Deliver(slot));
            }
        }
        let Some(child) = self.children.get_mut(&slot) else { return };
        child.rewatch(&self.epoll);
        child.input.tell_waiters(self.shared.config().stdin_waiting_max);
    }

    pub(crate) fn accept(
        &mut self,
        slot: u64,
        offset: Option<u64>,
        data: &[u8],
        waiting_max: u64,
    ) -> Result<Accepted> {
        let child =
            self.children.get_mut(&slot).filter(|child| child.exit.is_none()).ok_or(Error::NotRunning)?;
        if !child.input.is_open() {
            return Err(Error::NoStdin);
        }
        if let Some(reader) = child.input.open_log()? {
            self.link.send(Request::Hold { slot, role: role::STDIN_LOG }, vec![reader]);
        }
        let accepted = child.input.accept(offset, data, waiting_max)?;
        child.process.inner.stdin_accepted.store(child.input.accepted(), Ordering::Release);
        self.deliver(slot);
        Ok(accepted)
    }

    pub(crate) fn close_stdin(&mut self, slot: u64) -> Result<()> {
        let child =
            self.children.get_mut(&slot).filter(|child| child.exit.is_none()).ok_or(Error::NotRunning)?;
        if !child.input.is_open() {
            return Ok(());
        }
        if let Some(end_of_file) = child.input.end_of_file() {
            // However much waits: a refused end of file would be lost, and the caller has no way to repeat it.
            return self.accept(slot, None, end_of_file, u64::MAX).map(|_| ());
        }
        child.writer.close_stdin(child.input.accepted())?;
        child.input.closing = true;
        self.deliver(slot);
        Ok(())
    }
}
