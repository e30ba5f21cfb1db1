//! Bounds the connections of each user: a connection that has sent no request yet is evicted for a newer one.

use outpost_wire::{PerUserLimit, UserPermit};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// The limit of all users. Each user has the same number of connections.
#[derive(Clone)]
pub(crate) struct ConnectionLimit {
    users: PerUserLimit,
    /// Connections without a request, oldest first.
    pending: Arc<Mutex<VecDeque<Entry>>>,
}

struct Entry {
    uid: u32,
    permit: UserPermit,
    /// Dropped to evict the connection.
    evict: oneshot::Sender<()>,
}

/// An admitted connection that has sent no request yet.
pub(crate) struct PendingConnection {
    uid: u32,
    /// Completes when a newer connection of the user has taken the permit.
    pub(crate) evicted: oneshot::Receiver<()>,
    limit: ConnectionLimit,
}

impl ConnectionLimit {
    pub(crate) fn new(per_user: usize) -> ConnectionLimit {
        ConnectionLimit { users: PerUserLimit::new(per_user), pending: Arc::default() }
    }

    fn pending(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Admits a connection of this user. At the limit, evicts the user's oldest pending connection. Returns `None` if every
    /// connection of the user is active.
    pub(crate) fn admit(&self, uid: u32) -> Option<PendingConnection> {
        let mut pending = self.pending();
        let free = self.users.acquire(uid);
        let permit = free.or_else(|| {
            let oldest = pending.iter().position(|entry| entry.uid == uid)?;
            pending.remove(oldest).map(|entry| entry.permit)
        })?;
        let (evict, evicted) = oneshot::channel();
        pending.push_back(Entry { uid, permit, evict });
        Some(PendingConnection { uid, evicted, limit: self.clone() })
    }
}

impl PendingConnection {
    /// Makes the connection active: it can no longer be evicted. Returns `None` if it already was.
    pub(crate) fn activate(mut self) -> Option<UserPermit> {
        self.take_permit()
    }

    fn take_permit(&mut self) -> Option<UserPermit> {
        self.evicted.close();
        let mut pending = self.limit.pending();
        let at = pending.iter().position(|entry| entry.uid == self.uid && entry.evict.is_closed())?;
        pending.remove(at).map(|entry| entry.permit)
    }
}

impl Drop for PendingConnection {
    fn drop(&mut self) {
        drop(self.take_permit());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pending_connections_are_evicted_and_active_ones_are_not() {
        let limit = ConnectionLimit::new(2);
        let (mut first, second) = (limit.admit(1).unwrap(), limit.admit(1).unwrap());
        let third = limit.admit(1).unwrap();
        assert!(first.evicted.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        assert!(first.activate().is_none(), "the third connection has its permit");
        let (second, third) = (second.activate().unwrap(), third.activate().unwrap());
        assert!(limit.admit(1).is_none(), "both are active");
        assert!(limit.admit(0).is_some(), "root has a limit of its own");
        drop((second, third));
        assert!(limit.admit(1).is_some());
        assert!(limit.pending().is_empty(), "a dropped connection leaves no entry");
    }
}
