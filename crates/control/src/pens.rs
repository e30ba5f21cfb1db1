//! Who may write to a process: one connection at a time, as long as it is attached.

use crate::peer::Connection;
use outpost_engine::Slot;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The input of every process that somebody has asked for.
#[derive(Default)]
pub(crate) struct Pens {
    by_slot: Mutex<HashMap<Slot, Arc<Pen>>>,
}

struct Pen {
    holder: watch::Sender<Option<Connection>>,
    /// Who writes, and who takes it over, has this: where the next byte goes does not change in between.
    turn: Arc<Semaphore>,
}

/// Somebody else has the input.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Taken;

/// A process's input in the hands of one connection, until this is dropped.
pub(crate) struct Held {
    pens: Arc<Pens>,
    slot: Slot,
    connection: Connection,
    pen: Arc<Pen>,
}

impl Pens {
    fn lock(&self) -> MutexGuard<'_, HashMap<Slot, Arc<Pen>>> {
        self.by_slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes the input of a process, if nobody has it or with `steal`.
    pub(crate) async fn take(
        self: &Arc<Pens>,
        slot: Slot,
        connection: Connection,
        steal: bool,
    ) -> Result<Held, Taken> {
        let pen = self.lock().entry(slot).or_insert_with(Pen::free).clone();
        let held = Held { pens: self.clone(), slot, connection, pen };
        let _turn = held.pen.turn.clone().acquire_owned().await.map_err(|_| Taken)?;
        let took = held.pen.holder.send_if_modified(|holder| {
            let free = steal || holder.is_none_or(|holder| holder == connection);
            if free {
                *holder = Some(connection);
            }
            free
        });
        if took { Ok(held) } else { Err(Taken) }
    }

    /// Leave to write once, if nobody else has the input.
    pub(crate) async fn turn(
        &self,
        slot: Slot,
        connection: Connection,
    ) -> Result<Option<OwnedSemaphorePermit>, Taken> {
        let Some(pen) = self.lock().get(&slot).cloned() else { return Ok(None) };
        let turn = pen.turn.clone().acquire_owned().await.map_err(|_| Taken)?;
        let holder = *pen.holder.borrow();
        match holder.is_none_or(|holder| holder == connection) {
            true => Ok(Some(turn)),
            false => Err(Taken),
        }
    }
}

impl Pen {
    fn free() -> Arc<Pen> {
        Arc::new(Pen { holder: watch::Sender::new(None), turn: Arc::new(Semaphore::new(1)) })
    }
}

impl Held {
    /// Waits until somebody else has it.
    pub(crate) async fn lost(&self) {
        let mut holder = self.pen.holder.subscribe();
        let _never_fails = holder.wait_for(|holder| *holder != Some(self.connection)).await;
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let mut pens = self.pens.lock();
        self.pen.holder.send_if_modified(|holder| {
            let ours = *holder == Some(self.connection);
            if ours {
                *holder = None;
            }
            ours
        });
        // The table's and ours: nobody waits for it.
        if Arc::strong_count(&self.pen) == 2 {
            pens.remove(&self.slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slot() -> Slot {
        "7".parse().unwrap()
    }

    #[tokio::test]
    async fn the_first_has_it_until_it_leaves_or_it_is_taken_away() {
        let pens = Arc::new(Pens::default());
        let first = pens.take(slot(), 1, false).await.unwrap();
        assert!(pens.take(slot(), 2, false).await.is_err());
        assert!(pens.turn(slot(), 1).await.is_ok() && pens.turn(slot(), 2).await.is_err());
        let second = pens.take(slot(), 2, true).await.unwrap();
        first.lost().await;
        assert!(pens.turn(slot(), 1).await.is_err() && pens.turn(slot(), 2).await.is_ok());
        drop(first);
        assert!(pens.turn(slot(), 1).await.is_err(), "who lost it cannot give it away");
        drop(second);
        assert!(pens.take(slot(), 1, false).await.is_ok());
        assert!(pens.lock().is_empty(), "nothing is left of those who left");
    }

    #[tokio::test]
    async fn it_is_not_taken_over_in_the_middle_of_a_write() {
        let pens = Arc::new(Pens::default());
        let _first = pens.take(slot(), 1, false).await.unwrap();
        let turn = pens.turn(slot(), 1).await.unwrap();
        let taking = tokio::spawn({
            let pens = pens.clone();
            async move { pens.take(slot(), 2, true).await.is_ok() }
        });
        tokio::task::yield_now().await;
        assert!(pens.lock().get(&slot()).unwrap().holder.borrow().is_some_and(|holder| holder == 1));
        drop(turn);
        assert!(taking.await.unwrap());
    }
}
