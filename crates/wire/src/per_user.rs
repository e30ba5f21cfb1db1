//! How many connections each user has, so that no user takes the places of others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts by user, up to the same number for each.
#[derive(Clone)]
pub struct PerUser {
    max: usize,
    counts: Arc<Mutex<HashMap<u32, usize>>>,
}

/// Counted until it is dropped.
pub struct UserPlace {
    uid: u32,
    of: PerUser,
}

impl PerUser {
    pub fn new(max: usize) -> PerUser {
        PerUser { max, counts: Arc::default() }
    }

    /// None for a user that has all its places taken.
    pub fn place(&self, uid: u32) -> Option<UserPlace> {
        self.place_among(uid, self.max)
    }

    /// The same with another limit.
    pub fn place_among(&self, uid: u32, max: usize) -> Option<UserPlace> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(uid).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(UserPlace { uid, of: self.clone() })
    }
}

impl Drop for UserPlace {
    fn drop(&mut self) {
        let mut counts = self.of.counts.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(count) = counts.get_mut(&self.uid) {
            *count = count.saturating_sub(1);
            if *count == 0 {
                counts.remove(&self.uid);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_places_of_one_user_are_not_anothers() {
        let users = PerUser::new(2);
        let (first, second) = (users.place(1), users.place(1));
        assert!(first.is_some() && second.is_some() && users.place(1).is_none());
        assert!(users.place(2).is_some());
        drop(first);
        assert!(users.place(1).is_some());
        assert!(users.counts.lock().unwrap().len() == 1, "a user without connections is not remembered");
    }
}
