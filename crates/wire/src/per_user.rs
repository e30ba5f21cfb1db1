//! Connection limits per user, so that one user cannot exhaust the connections of others.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};

/// Counts connections by user, with the same limit for each.
#[derive(Clone)]
pub struct PerUserLimit {
    max: usize,
    counts: Arc<Mutex<HashMap<u32, usize>>>,
}

/// One counted connection, released on drop.
pub struct UserPermit {
    uid: u32,
    of: PerUserLimit,
}

impl PerUserLimit {
    pub fn new(max: usize) -> PerUserLimit {
        PerUserLimit { max, counts: Arc::default() }
    }

    /// `None` for a user that has reached its limit.
    pub fn acquire(&self, uid: u32) -> Option<UserPermit> {
        self.acquire_up_to(uid, self.max)
    }

    /// The same with another limit.
    pub fn acquire_up_to(&self, uid: u32, max: usize) -> Option<UserPermit> {
        let mut counts = self.counts.lock().unwrap_or_else(PoisonError::into_inner);
        let count = counts.entry(uid).or_default();
        if *count >= max {
            return None;
        }
        *count += 1;
        Some(UserPermit { uid, of: self.clone() })
    }
}

impl Drop for UserPermit {
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
    fn one_user_does_not_use_up_the_limit_of_another() {
        let users = PerUserLimit::new(2);
        let (first, second) = (users.acquire(1), users.acquire(1));
        assert!(first.is_some() && second.is_some() && users.acquire(1).is_none());
        assert!(users.acquire(2).is_some());
        drop(first);
        assert!(users.acquire(1).is_some());
        assert!(users.counts.lock().unwrap().len() == 1, "a user without connections has no entry");
    }
}
