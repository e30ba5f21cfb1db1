//! Rate limits per client: requests per minute, pending questions, and pauses after denials.

use crate::peer::Peer;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use thiserror::Error;

/// The operator's limits. None means unlimited.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RateLimits {
    /// Requests per minute of one process, and of one session.
    pub per_minute: Option<usize>,
    /// Pending questions of one process, and of one session.
    pub pending_max: Option<usize>,
    /// Longest pause after denials. The third denial in a row starts a pause of 1 s. Each further one doubles it.
    pub pause_max: Option<Duration>,
    /// For this long after a denial, requests with the same digest are refused without a question.
    pub denied_for: Option<Duration>,
}

impl Default for RateLimits {
    fn default() -> RateLimits {
        RateLimits {
            per_minute: Some(240),
            pending_max: Some(16),
            pause_max: Some(Duration::from_secs(60)),
            denied_for: Some(Duration::from_secs(30)),
        }
    }
}

impl RateLimits {
    /// As sudo-proxy, which has no limits.
    pub const NONE: RateLimits =
        RateLimits { per_minute: None, pending_max: None, pause_max: None, denied_for: None };
}

/// Why a request is refused, as the message for the client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum RateLimited {
    #[error("rate limited, retry after {seconds}s")]
    TooMany { seconds: u64 },
    #[error("rate limited: {max} requests of this client wait for an answer already")]
    Pending { max: usize },
    #[error("rate limited: exactly this was denied a moment ago; not asked again for {seconds}s")]
    Denied { seconds: u64 },
}

const MINUTE: Duration = Duration::from_secs(60);

/// The denial in a row that starts the first pause.
const DENIALS_BEFORE_PAUSE: u32 = 3;

/// Counters kept. At this number, counters without a request in the last minute are dropped.
const COUNTERS_MAX: usize = 4096;

/// Request lines of any kind per user and minute, as a multiple of `per_minute`.
const LINES_PER_REQUEST: usize = 4;

/// The key of a counter. Each request counts for its process, for its session, and for its user if the server serves
/// several. A client cannot evade the limits by changing only one of them.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum CounterKey {
    /// uid, pid, start time.
    Process(u32, i32, u64),
    Session(u32, String),
    User(u32),
    /// All request lines of a user, valid or not.
    Lines(u32),
}

#[derive(Default)]
struct Counter {
    recent: VecDeque<Instant>,
    pending: usize,
    denials: u32,
    paused_until: Option<Instant>,
}

impl Counter {
    /// Counts a request at `now`. Fails if the last minute already had `max`.
    fn count(&mut self, max: Option<usize>, now: Instant) -> Result<(), RateLimited> {
        while self.recent.front().is_some_and(|first| now.duration_since(*first) >= MINUTE) {
            self.recent.pop_front();
        }
        let Some(max) = max else { return Ok(()) };
        if self.recent.len() >= max {
            let first = self.recent.front().copied().unwrap_or(now);
            return Err(limited(MINUTE.saturating_sub(now.duration_since(first))));
        }
        self.recent.push_back(now);
        Ok(())
    }
}

pub(crate) struct RateLimiter {
    /// Also limit the sum of each user's requests.
    per_user: bool,
    limits: Mutex<RateLimits>,
    counters: Mutex<HashMap<CounterKey, Counter>>,
    /// Denied digests, and until when they are refused.
    denied: Mutex<HashMap<String, Instant>>,
}

/// Counts one pending question until it is dropped.
pub(crate) struct PendingPermit {
    rate_limiter: Arc<RateLimiter>,
    keys: Vec<CounterKey>,
}

impl Drop for PendingPermit {
    fn drop(&mut self) {
        let mut counters = self.rate_limiter.counters();
        for key in &self.keys {
            if let Some(counter) = counters.get_mut(key) {
                counter.pending = counter.pending.saturating_sub(1);
            }
        }
    }
}

impl RateLimiter {
    pub(crate) fn new(limits: RateLimits, per_user: bool) -> RateLimiter {
        RateLimiter {
            per_user,
            limits: Mutex::new(limits),
            counters: Mutex::default(),
            denied: Mutex::default(),
        }
    }

    pub(crate) fn set_limits(&self, limits: RateLimits) {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner) = limits;
    }

    fn limits(&self) -> RateLimits {
        *self.limits.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn counters(&self) -> MutexGuard<'_, HashMap<CounterKey, Counter>> {
        self.counters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn denied(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.denied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn keys(&self, peer: &Peer, session: &str) -> Vec<CounterKey> {
        let process = CounterKey::Process(peer.uid, peer.pid, peer.start_ticks);
        let session = CounterKey::Session(peer.uid, session.to_owned());
        [process, session].into_iter().chain(self.per_user.then_some(CounterKey::User(peer.uid))).collect()
    }

    /// Counts a request line, valid or not. Refused lines are limited too, since each writes an audit record.
    pub(crate) fn count_line(&self, peer: &Peer, now: Instant) -> Result<(), RateLimited> {
        let max = self.limits().per_minute.filter(|_| self.per_user);
        let Some(max) = max else { return Ok(()) };
        let mut counters = self.counters();
        let counter = counters.entry(CounterKey::Lines(peer.uid)).or_default();
        counter.count(Some(max.saturating_mul(LINES_PER_REQUEST)), now)
    }

    /// Counts a request. Fails if the client exceeds a limit or is paused.
    pub(crate) fn count_request(&self, peer: &Peer, session: &str, now: Instant) -> Result<(), RateLimited> {
        let mut counters = self.counters();
        if counters.len() >= COUNTERS_MAX {
            counters.retain(|_, counter| {
                counter.pending > 0
                    || counter.recent.back().is_some_and(|last| now.duration_since(*last) < MINUTE)
            });
        }
        if counters.len() >= COUNTERS_MAX {
            return Err(limited(MINUTE));
        }
        for key in self.keys(peer, session) {
            let counter = counters.entry(key).or_default();
            if let Some(until) = counter.paused_until.filter(|until| *until > now) {
                return Err(limited(until - now));
            }
            counter.count(self.limits().per_minute, now)?;
        }
        Ok(())
    }

    /// Reserves one of the client's pending questions.
    pub(crate) fn reserve_pending(
        self: &Arc<RateLimiter>,
        peer: &Peer,
        session: &str,
    ) -> Result<PendingPermit, RateLimited> {
        let keys = self.keys(peer, session);
        let mut counters = self.counters();
        if let Some(max) = self.limits().pending_max
            && keys.iter().any(|key| counters.get(key).is_some_and(|counter| counter.pending >= max))
        {
            return Err(RateLimited::Pending { max });
        }
        for key in &keys {
            counters.entry(key.clone()).or_default().pending += 1;
        }
        Ok(PendingPermit { rate_limiter: self.clone(), keys })
    }

    /// Counts an approver's decision. Denials slow a client down, since repeated questions cause approval fatigue.
    pub(crate) fn record_decision(
        &self,
        peer: &Peer,
        session: &str,
        digest: &str,
        allow: bool,
        now: Instant,
    ) {
        let mut counters = self.counters();
        for key in self.keys(peer, session) {
            let counter = counters.entry(key).or_default();
            if allow {
                counter.denials = 0;
                continue;
            }
            counter.denials += 1;
            if let Some(max) = self.limits().pause_max
                && counter.denials >= DENIALS_BEFORE_PAUSE
            {
                let doubled = 1u64 << (counter.denials - DENIALS_BEFORE_PAUSE).min(16);
                counter.paused_until = Some(now + Duration::from_secs(doubled).min(max));
            }
        }
        drop(counters);
        if let Some(wait) = self.limits().denied_for.filter(|_| !allow) {
            let mut denied = self.denied();
            denied.retain(|_, until| *until > now);
            denied.insert(digest.to_owned(), now + wait);
        }
    }

    /// Fails if this digest was denied recently.
    pub(crate) fn check_recent_denial(&self, digest: &str, now: Instant) -> Result<(), RateLimited> {
        match self.denied().get(digest).filter(|until| **until > now) {
            Some(until) => Err(RateLimited::Denied { seconds: (*until - now).as_secs() + 1 }),
            None => Ok(()),
        }
    }
}

fn limited(wait: Duration) -> RateLimited {
    RateLimited::TooMany { seconds: wait.as_secs() + 1 }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(pid: i32) -> Peer {
        Peer { pid, uid: 1000, gid: Some(1000), start_ticks: 7, program: String::new() }
    }

    #[test]
    fn a_new_process_or_a_new_session_does_not_reset_the_count() {
        let rate_limiter = RateLimiter::new(RateLimits { per_minute: Some(2), ..RateLimits::NONE }, false);
        let now = Instant::now();
        assert!(
            rate_limiter.count_request(&peer(1), "a", now).is_ok()
                && rate_limiter.count_request(&peer(1), "a", now).is_ok()
        );
        assert_eq!(rate_limiter.count_request(&peer(1), "b", now), Err(RateLimited::TooMany { seconds: 61 }));
        assert!(rate_limiter.count_request(&peer(2), "a", now).is_err());
        assert!(rate_limiter.count_request(&peer(2), "c", now).is_ok());
        assert!(rate_limiter.count_request(&peer(1), "a", now + MINUTE).is_ok());
    }

    #[test]
    fn denials_in_a_row_pause_a_client_and_an_approval_resets_them() {
        let rate_limiter = RateLimiter::new(
            RateLimits { pause_max: Some(Duration::from_secs(3)), ..RateLimits::NONE },
            false,
        );
        let now = Instant::now();
        for _ in 0..2 {
            rate_limiter.record_decision(&peer(1), "a", "d", false, now);
            assert!(rate_limiter.count_request(&peer(1), "a", now).is_ok());
        }
        rate_limiter.record_decision(&peer(1), "a", "d", false, now);
        assert!(rate_limiter.count_request(&peer(1), "a", now).is_err());
        assert!(rate_limiter.count_request(&peer(1), "a", now + Duration::from_secs(1)).is_ok());
        rate_limiter.record_decision(&peer(1), "a", "d", false, now);
        rate_limiter.record_decision(&peer(1), "a", "d", false, now);
        assert!(rate_limiter.count_request(&peer(1), "a", now + Duration::from_millis(2900)).is_err());
        assert!(
            rate_limiter.count_request(&peer(1), "a", now + Duration::from_secs(3)).is_ok(),
            "the pause is capped"
        );
        rate_limiter.record_decision(&peer(1), "a", "d", true, now);
        rate_limiter.record_decision(&peer(1), "a", "d", false, now + Duration::from_secs(4));
        assert!(rate_limiter.count_request(&peer(1), "a", now + Duration::from_secs(4)).is_ok());
    }

    #[test]
    fn a_denied_digest_is_refused_for_a_while() {
        let rate_limiter = RateLimiter::new(
            RateLimits { denied_for: Some(Duration::from_secs(5)), ..RateLimits::NONE },
            false,
        );
        let now = Instant::now();
        rate_limiter.record_decision(&peer(1), "a", "digest", false, now);
        assert!(rate_limiter.check_recent_denial("digest", now).is_err());
        assert!(rate_limiter.check_recent_denial("another", now).is_ok());
        assert!(rate_limiter.check_recent_denial("digest", now + Duration::from_secs(5)).is_ok());
    }

    #[test]
    fn a_dropped_permit_frees_its_place() {
        let rate_limiter =
            Arc::new(RateLimiter::new(RateLimits { pending_max: Some(1), ..RateLimits::NONE }, false));
        let permit = rate_limiter.reserve_pending(&peer(1), "a");
        assert!(permit.is_ok());
        assert!(
            rate_limiter.reserve_pending(&peer(1), "b").is_err()
                && rate_limiter.reserve_pending(&peer(2), "a").is_err()
        );
        drop(permit);
        assert!(rate_limiter.reserve_pending(&peer(1), "b").is_ok());
    }

    #[test]
    fn processes_and_sessions_of_a_user_share_that_users_limit() {
        let rate_limiter = Arc::new(RateLimiter::new(
            RateLimits { per_minute: Some(2), pending_max: Some(2), ..RateLimits::NONE },
            true,
        ));
        let now = Instant::now();
        let other = Peer { uid: 1001, ..peer(9) };
        assert!(
            rate_limiter.count_request(&peer(1), "a", now).is_ok()
                && rate_limiter.count_request(&peer(2), "b", now).is_ok()
        );
        assert!(rate_limiter.count_request(&peer(3), "c", now).is_err());
        assert!(
            rate_limiter.count_request(&other, "a", now).is_ok(),
            "another user with a session of the same name"
        );
        let permits =
            [rate_limiter.reserve_pending(&peer(1), "a"), rate_limiter.reserve_pending(&peer(2), "b")];
        assert!(permits.iter().all(Result::is_ok) && rate_limiter.reserve_pending(&peer(3), "c").is_err());
        assert!(rate_limiter.reserve_pending(&other, "a").is_ok());
        for _ in 0..2 * LINES_PER_REQUEST {
            assert!(rate_limiter.count_line(&peer(1), now).is_ok());
        }
        assert!(
            rate_limiter.count_line(&peer(2), now).is_err() && rate_limiter.count_line(&other, now).is_ok()
        );
    }
}
