//! Connections that have said nothing yet: the oldest of a user makes room for the next one.

use outpost_wire::{PerUser, UserPlace};
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use tokio::sync::oneshot;

/// The places of all users, each with as many as the others.
#[derive(Clone)]
pub(crate) struct Places {
    users: PerUser,
    silent: Arc<Mutex<VecDeque<Entry>>>,
}

struct Entry {
    uid: u32,
    place: UserPlace,
    /// Dropped to end the connection.
    over: oneshot::Sender<()>,
}

/// A connection that has a place.
pub(crate) struct Silent {
    uid: u32,
    /// Comes when another connection of the user has taken the place.
    pub(crate) over: oneshot::Receiver<()>,
    places: Places,
}

impl Places {
    pub(crate) fn new(per_user: usize) -> Places {
        Places { users: PerUser::new(per_user), silent: Arc::default() }
    }

    fn silent(&self) -> MutexGuard<'_, VecDeque<Entry>> {
        self.silent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A place for a connection of this user; the place of its oldest silent one where all are taken. None where every
    /// connection of the user is in use.
    pub(crate) fn admit(&self, uid: u32) -> Option<Silent> {
        let mut silent = self.silent();
        let free = self.users.place(uid);
        let place = free.or_else(|| {
            let oldest = silent.iter().position(|entry| entry.uid == uid)?;
            silent.remove(oldest).map(|entry| entry.place)
        })?;
        let (over, ended) = oneshot::channel();
        silent.push_back(Entry { uid, place, over });
        Some(Silent { uid, over: ended, places: self.clone() })
    }
}

impl Silent {
    /// It has spoken: its place is its own from now on. None when the place is gone.
    pub(crate) fn speak(mut self) -> Option<UserPlace> {
        self.take()
    }

    fn take(&mut self) -> Option<UserPlace> {
        self.over.close();
        let mut silent = self.places.silent();
        let at = silent.iter().position(|entry| entry.uid == self.uid && entry.over.is_closed())?;
        silent.remove(at).map(|entry| entry.place)
    }
}

impl Drop for Silent {
    fn drop(&mut self) {
        drop(self.take());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn silent_connections_make_room_and_others_do_not() {
        let places = Places::new(2);
        let (mut first, second) = (places.admit(1).unwrap(), places.admit(1).unwrap());
        let third = places.admit(1).unwrap();
        assert!(first.over.try_recv().is_err_and(|error| error == oneshot::error::TryRecvError::Closed));
        assert!(first.speak().is_none(), "its place is the third one's");
        let (second, third) = (second.speak().unwrap(), third.speak().unwrap());
        assert!(places.admit(1).is_none(), "both are in use");
        assert!(places.admit(0).is_some(), "root has places of its own");
        drop((second, third));
        assert!(places.admit(1).is_some());
        assert!(places.silent().is_empty(), "one that ended has left its place");
    }
}
