//! Stdin: from clients into the log, and from the log to the child.
//!
//! Offers of clients are handled in their order. An offer that waits for a chore of the log is handled again when that
//! is done.

use crate::input::{Delivery, Offer};
use crate::link::role;
use crate::reactor::{RETRY, Reactor};
use crate::spec::Slot;
use crate::timers::Due;
use crate::{Error, Result};
use outpost_journal::Accepted;
use outpost_keeper::Request;
use std::sync::atomic::Ordering;

impl Reactor {
    /// Delivers stdin from the log to the child.
    pub(crate) fn deliver_stdin(&mut self, slot: u64) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        let outcome = loop {
            // Not before the keeper holds the log: if this worker died, the position would be lost.
            if !self.shared.link.is_flushed() || self.keeper.lacks(slot) {
                return self.schedule(RETRY, Due::DeliverStdin(slot));
            }
            let outcome = child.input.deliver(child.master.as_ref());
            if outcome != Ok(Delivery::NewReader) {
                break outcome;
            }
            match child.input.unheld_reader() {
                Ok(Some(reader)) => {
                    self.shared.link.send(Request::Hold { slot, role: role::STDIN_LOG }, vec![reader]);
                }
                Ok(None) => break Ok(Delivery::Done),
                Err(error) => break Err(error),
            }
        };
        child.input_blocked = outcome == Ok(Delivery::Blocked);
        match outcome {
            Ok(Delivery::Done | Delivery::Blocked | Delivery::NewReader | Delivery::Waits) => {}
            Ok(Delivery::Closed) => {
                for role in child.end_input(&self.epoll) {
                    self.shared.link.send(Request::Release { slot, role }, Vec::new());
                }
            }
            Err(error) => {
                tracing::error!(process = %Slot(slot), %error, "cannot deliver stdin; retrying");
                self.schedule(RETRY, Due::DeliverStdin(slot));
            }
        }
        let Some(child) = self.children.get_mut(&slot) else { return };
        child.rewatch(&self.epoll);
        child.input.wake_waiters(self.shared.config().stdin_waiting_max);
        self.dispatch(slot);
    }

    /// Handles an offer after those that wait.
    pub(crate) fn offer(&mut self, slot: u64, offer: Offer) {
        let Some(child) = self.children.get_mut(&slot).filter(|child| child.exit.is_none()) else {
            return offer.refuse(Error::NotRunning);
        };
        match offer {
            Offer::Bytes { reply, .. } if !child.input.has_room_for(&offer) => {
                let full = Accepted::Full { applied: child.input.accepted(), beyond: false };
                let _gone = reply.send(Ok(full));
            }
            offer => {
                child.input.offers.push_back(offer);
                if child.input.offers.len() == 1 {
                    self.handle_offers(slot);
                }
            }
        }
    }

    /// Handles waiting offers up to the first that has to wait on.
    pub(crate) fn handle_offers(&mut self, slot: u64) {
        while let Some(offer) = self.children.get_mut(&slot).and_then(|child| child.input.offers.pop_front())
        {
            let waits = match offer {
                Offer::Bytes { offset, data, waiting_max, reply } => {
                    match self.accept(slot, offset, &data, waiting_max).transpose() {
                        Some(outcome) => {
                            let _gone = reply.send(outcome);
                            None
                        }
                        None => Some(Offer::Bytes { offset, data, waiting_max, reply }),
                    }
                }
                Offer::Close { reply } => match self.close_stdin(slot).transpose() {
                    Some(outcome) => {
                        let _gone = reply.send(outcome);
                        None
                    }
                    None => Some(Offer::Close { reply }),
                },
            };
            if let (Some(offer), Some(child)) = (waits, self.children.get_mut(&slot)) {
                child.input.offers.push_front(offer);
                return self.dispatch(slot);
            }
        }
        if let Some(child) = self.children.get_mut(&slot) {
            child.input.wake_waiters(self.shared.config().stdin_waiting_max);
        }
    }

    /// A chore of the stdin log is done.
    pub(crate) fn resume_stdin(&mut self, slot: u64, outcome: Result<()>) {
        let Some(child) = self.children.get_mut(&slot) else { return };
        if let Err(error) = outcome
            && let Some(offer) = child.input.offers.pop_front()
        {
            offer.refuse(error);
        }
        self.handle_offers(slot);
        self.deliver_stdin(slot);
    }

    /// `None` until a chore is done.
    fn accept(
        &mut self,
        slot: u64,
        offset: Option<u64>,
        data: &[u8],
        waiting_max: u64,
    ) -> Result<Option<Accepted>> {
        let child =
            self.children.get_mut(&slot).filter(|child| child.exit.is_none()).ok_or(Error::NotRunning)?;
        if !child.input.is_open() {
            return Err(Error::NoStdin);
        }
        let Some(accepted) = child.input.accept(offset, data, waiting_max)? else { return Ok(None) };
        child.process.inner.stdin_accepted.store(child.input.accepted(), Ordering::Release);
        self.deliver_stdin(slot);
        Ok(Some(accepted))
    }

    /// `None` until a chore is done.
    fn close_stdin(&mut self, slot: u64) -> Result<Option<()>> {
        let child =
            self.children.get_mut(&slot).filter(|child| child.exit.is_none()).ok_or(Error::NotRunning)?;
        if !child.input.is_open() {
            return Ok(Some(()));
        }
        if let Some(end_of_file) = child.input.end_of_file() {
            // Without a limit: a refused EOF would be lost, since the caller cannot repeat it.
            return self.accept(slot, None, end_of_file, u64::MAX).map(|accepted| accepted.map(|_| ()));
        }
        if child.writer.is_busy() {
            return Ok(None);
        }
        child.writer.close_stdin(child.input.accepted())?;
        child.input.closing = true;
        self.deliver_stdin(slot);
        Ok(Some(()))
    }
}
