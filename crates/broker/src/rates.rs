//! How much one client may ask: requests, questions that wait, and what follows from denials.

use crate::peer::Peer;
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// What an operator allows. None is no limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rates {
    /// Requests of one process within a minute, and of one session.
    pub per_minute: Option<usize>,
    /// Questions of one process that wait, and of one session.
    pub pending: Option<usize>,
    /// After three denials in a row, a pause that doubles with each further one, up to this.
    pub pause_max: Option<Duration>,
    /// For how long what was denied is not asked about again.
    pub denied_for: Option<Duration>,
}

impl Default for Rates {
    fn default() -> Rates {
        Rates {
            per_minute: Some(240),
            pending: Some(16),
            pause_max: Some(Duration::from_secs(60)),
            denied_for: Some(Duration::from_secs(30)),
        }
    }
}

impl Rates {
    /// As the original, which has none.
    pub const NONE: Rates = Rates { per_minute: None, pending: None, pause_max: None, denied_for: None };
}

const MINUTE: Duration = Duration::from_secs(60);

/// Denials in a row that are taken for an answer each.
const DENIALS_FREE: u32 = 3;

/// Clients that are remembered; beyond, those that did nothing for a minute are forgotten first.
const CLIENTS_MAX: usize = 4096;

/// Who is counted: a process, and what it calls its session. Changing the one does not help without the other.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Client {
    Process(i32, u64),
    Session(u32, String),
}

#[derive(Default)]
struct Counts {
    recent: VecDeque<Instant>,
    pending: usize,
    denials: u32,
    paused_until: Option<Instant>,
}

pub(crate) struct Meter {
    rates: Mutex<Rates>,
    clients: Mutex<HashMap<Client, Counts>>,
    denied: Mutex<HashMap<String, Instant>>,
}

/// A question that is counted as waiting until this is dropped.
pub(crate) struct Place {
    meter: Arc<Meter>,
    clients: [Client; 2],
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut clients = self.meter.clients();
        for client in &self.clients {
            if let Some(counts) = clients.get_mut(client) {
                counts.pending = counts.pending.saturating_sub(1);
            }
        }
    }
}

impl Meter {
    pub(crate) fn new(rates: Rates) -> Meter {
        Meter { rates: Mutex::new(rates), clients: Mutex::default(), denied: Mutex::default() }
    }

    pub(crate) fn set_rates(&self, rates: Rates) {
        *self.rates.lock().unwrap_or_else(PoisonError::into_inner) = rates;
    }

    fn rates(&self) -> Rates {
        *self.rates.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn clients(&self) -> MutexGuard<'_, HashMap<Client, Counts>> {
        self.clients.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn denied(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.denied.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn names(peer: &Peer, session: &str) -> [Client; 2] {
        [Client::Process(peer.pid, peer.start_ticks), Client::Session(peer.uid, session.to_owned())]
    }

    /// Counts a request, or says why it comes too soon.
    pub(crate) fn admit(&self, peer: &Peer, session: &str, now: Instant) -> Result<(), String> {
        let mut clients = self.clients();
        if clients.len() >= CLIENTS_MAX {
            clients.retain(|_, counts| {
                counts.pending > 0
                    || counts.recent.back().is_some_and(|last| now.duration_since(*last) < MINUTE)
            });
        }
        if clients.len() >= CLIENTS_MAX {
            return Err(limited(MINUTE));
        }
        for name in Meter::names(peer, session) {
            let counts = clients.entry(name).or_default();
            if let Some(until) = counts.paused_until.filter(|until| *until > now) {
                return Err(limited(until - now));
            }
            while counts.recent.front().is_some_and(|first| now.duration_since(*first) >= MINUTE) {
                counts.recent.pop_front();
            }
            if let Some(max) = self.rates().per_minute {
                if counts.recent.len() >= max {
                    let first = counts.recent.front().copied().unwrap_or(now);
                    return Err(limited(MINUTE.saturating_sub(now.duration_since(first))));
                }
                counts.recent.push_back(now);
            }
        }
        Ok(())
    }

    /// A place for a question that will wait.
    pub(crate) fn place(self: &Arc<Meter>, peer: &Peer, session: &str) -> Result<Place, String> {
        let names = Meter::names(peer, session);
        let mut clients = self.clients();
        if let Some(max) = self.rates().pending
            && names.iter().any(|name| clients.get(name).is_some_and(|counts| counts.pending >= max))
        {
            return Err(format!("rate limited: {max} requests of this client wait for an answer already"));
        }
        for name in &names {
            clients.entry(name.clone()).or_default().pending += 1;
        }
        Ok(Place { meter: self.clone(), clients: names })
    }

    /// Notes what an approver said: approval fatigue is an attack, so denials make a client slower.
    pub(crate) fn decided(&self, peer: &Peer, session: &str, digest: &str, allow: bool, now: Instant) {
        let mut clients = self.clients();
        for name in Meter::names(peer, session) {
            let counts = clients.entry(name).or_default();
            if allow {
                counts.denials = 0;
                continue;
            }
            counts.denials += 1;
            if let Some(max) = self.rates().pause_max
                && counts.denials >= DENIALS_FREE
            {
                let doubled = 1u64 << (counts.denials - DENIALS_FREE).min(16);
                counts.paused_until = Some(now + Duration::from_secs(doubled).min(max));
            }
        }
        drop(clients);
        if let Some(wait) = self.rates().denied_for.filter(|_| !allow) {
            let mut denied = self.denied();
            denied.retain(|_, until| *until > now);
            denied.insert(digest.to_owned(), now + wait);
        }
    }

    /// Whether exactly this was denied a moment ago.
    pub(crate) fn was_denied(&self, digest: &str, now: Instant) -> Result<(), String> {
        match self.denied().get(digest).filter(|until| **until > now) {
            Some(until) => Err(format!(
                "rate limited: exactly this was denied a moment ago; not asked again for {}s",
                (*until - now).as_secs() + 1
            )),
            None => Ok(()),
        }
    }
}

fn limited(wait: Duration) -> String {
    format!("rate limited, retry after {}s", wait.as_secs() + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(pid: i32) -> Peer {
        Peer { pid, uid: 1000, start_ticks: 7, program: String::new() }
    }

    #[test]
    fn neither_a_new_process_nor_a_new_session_resets_the_count() {
        let meter = Meter::new(Rates { per_minute: Some(2), ..Rates::NONE });
        let now = Instant::now();
        assert!(meter.admit(&peer(1), "a", now).is_ok() && meter.admit(&peer(1), "a", now).is_ok());
        assert_eq!(meter.admit(&peer(1), "b", now), Err("rate limited, retry after 61s".into()));
        assert!(meter.admit(&peer(2), "a", now).is_err());
        assert!(meter.admit(&peer(2), "c", now).is_ok());
        assert!(meter.admit(&peer(1), "a", now + MINUTE).is_ok());
    }

    #[test]
    fn denials_in_a_row_make_a_client_slower_and_an_approval_forgives() {
        let meter = Meter::new(Rates { pause_max: Some(Duration::from_secs(3)), ..Rates::NONE });
        let now = Instant::now();
        for _ in 0..2 {
            meter.decided(&peer(1), "a", "d", false, now);
            assert!(meter.admit(&peer(1), "a", now).is_ok());
        }
        meter.decided(&peer(1), "a", "d", false, now);
        assert!(meter.admit(&peer(1), "a", now).is_err());
        assert!(meter.admit(&peer(1), "a", now + Duration::from_secs(1)).is_ok());
        meter.decided(&peer(1), "a", "d", false, now);
        meter.decided(&peer(1), "a", "d", false, now);
        assert!(meter.admit(&peer(1), "a", now + Duration::from_millis(2900)).is_err());
        assert!(
            meter.admit(&peer(1), "a", now + Duration::from_secs(3)).is_ok(),
            "never longer than the longest"
        );
        meter.decided(&peer(1), "a", "d", true, now);
        meter.decided(&peer(1), "a", "d", false, now + Duration::from_secs(4));
        assert!(meter.admit(&peer(1), "a", now + Duration::from_secs(4)).is_ok());
    }

    #[test]
    fn what_was_denied_is_not_asked_again_at_once() {
        let meter = Meter::new(Rates { denied_for: Some(Duration::from_secs(5)), ..Rates::NONE });
        let now = Instant::now();
        meter.decided(&peer(1), "a", "digest", false, now);
        assert!(meter.was_denied("digest", now).is_err());
        assert!(meter.was_denied("another", now).is_ok());
        assert!(meter.was_denied("digest", now + Duration::from_secs(5)).is_ok());
    }

    #[test]
    fn a_place_is_given_back() {
        let meter = Arc::new(Meter::new(Rates { pending: Some(1), ..Rates::NONE }));
        let place = meter.place(&peer(1), "a");
        assert!(place.is_ok());
        assert!(meter.place(&peer(1), "b").is_err() && meter.place(&peer(2), "a").is_err());
        drop(place);
        assert!(meter.place(&peer(1), "b").is_ok());
    }
}
