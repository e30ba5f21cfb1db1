//! Input locks: at most one attached connection at a time may write to the stdin of a process.

use crate::peer::ConnectionId;
use outpost_engine::Slot;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

/// The input locks of all processes that a connection asked to write to.
#[derive(Default)]
pub(crate) struct InputLocks {
    by_slot: Mutex<HashMap<Slot, Arc<InputLock>>>,
}

struct InputLock {
    holder: watch::Sender<Option<ConnectionId>>,
    /// Held during a write and during a change of the holder, so that the stdin offset is stable in between.
    write_permit: Arc<Semaphore>,
}

/// Another connection holds the input lock.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct LockedByOther;

/// The input lock of a process, held by one connection. Dropping the guard releases the lock.
pub(crate) struct InputGuard {
    locks: Arc<InputLocks>,
    slot: Slot,
    connection: ConnectionId,
    lock: Arc<InputLock>,
}

impl InputLocks {
    fn table(&self) -> MutexGuard<'_, HashMap<Slot, Arc<InputLock>>> {
        self.by_slot.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Acquires the input lock if it is free. With `steal`, takes it from its holder.
    pub(crate) async fn acquire(
        self: &Arc<InputLocks>,
        slot: Slot,
        connection: ConnectionId,
        steal: bool,
    ) -> Result<InputGuard, LockedByOther> {
        let lock = self.table().entry(slot).or_insert_with(InputLock::free).clone();
        let guard = InputGuard { locks: self.clone(), slot, connection, lock };
        let _permit = guard.lock.write_permit.clone().acquire_owned().await.map_err(|_| LockedByOther)?;
        let acquired = guard.lock.holder.send_if_modified(|holder| {
            let free = steal || holder.is_none_or(|holder| holder == connection);
            if free {
                *holder = Some(connection);
            }
            free
        });
        if acquired { Ok(guard) } else { Err(LockedByOther) }
    }

    /// A permit for one write, unless another connection holds the input lock.
    pub(crate) async fn write_permit(
        &self,
        slot: Slot,
        connection: ConnectionId,
    ) -> Result<Option<OwnedSemaphorePermit>, LockedByOther> {
        let Some(lock) = self.table().get(&slot).cloned() else { return Ok(None) };
        let permit = lock.write_permit.clone().acquire_owned().await.map_err(|_| LockedByOther)?;
        let holder = *lock.holder.borrow();
        match holder.is_none_or(|holder| holder == connection) {
            true => Ok(Some(permit)),
            false => Err(LockedByOther),
        }
    }
}

impl InputLock {
    fn free() -> Arc<InputLock> {
        Arc::new(InputLock { holder: watch::Sender::new(None), write_permit: Arc::new(Semaphore::new(1)) })
    }
}

impl InputGuard {
    /// Waits until another connection holds the lock.
    pub(crate) async fn lost(&self) {
        let mut holder = self.lock.holder.subscribe();
        let _never_fails = holder.wait_for(|holder| *holder != Some(self.connection)).await;
    }
}

impl Drop for InputGuard {
    fn drop(&mut self) {
        let mut table = self.locks.table();
        self.lock.holder.send_if_modified(|holder| {
            let ours = *holder == Some(self.connection);
            if ours {
                *holder = None;
            }
            ours
        });
        // Two references are left, the one in the table and ours: no other connection uses the lock.
        if Arc::strong_count(&self.lock) == 2 {
            table.remove(&self.slot);
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
    async fn the_lock_is_held_until_it_is_released_or_stolen() {
        let locks = Arc::new(InputLocks::default());
        let first = locks.acquire(slot(), 1, false).await.unwrap();
        assert!(locks.acquire(slot(), 2, false).await.is_err());
        assert!(locks.write_permit(slot(), 1).await.is_ok() && locks.write_permit(slot(), 2).await.is_err());
        let second = locks.acquire(slot(), 2, true).await.unwrap();
        first.lost().await;
        assert!(locks.write_permit(slot(), 1).await.is_err() && locks.write_permit(slot(), 2).await.is_ok());
        drop(first);
        assert!(
            locks.write_permit(slot(), 1).await.is_err(),
            "a guard that lost the lock does not release it"
        );
        drop(second);
        assert!(locks.acquire(slot(), 1, false).await.is_ok());
        assert!(locks.table().is_empty(), "released locks leave the table");
    }

    #[tokio::test]
    async fn the_lock_is_not_stolen_during_a_write() {
        let locks = Arc::new(InputLocks::default());
        let _first = locks.acquire(slot(), 1, false).await.unwrap();
        let permit = locks.write_permit(slot(), 1).await.unwrap();
        let stealing = tokio::spawn({
            let locks = locks.clone();
            async move { locks.acquire(slot(), 2, true).await.is_ok() }
        });
        tokio::task::yield_now().await;
        assert!(locks.table().get(&slot()).unwrap().holder.borrow().is_some_and(|holder| holder == 1));
        drop(permit);
        assert!(stealing.await.unwrap());
    }
}
