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

/// Requests of any kind that one user may send within a minute, as a multiple of the commands that a client may ask for.
const LINES_PER_REQUEST: usize = 4;

/// Who is counted: a process, what it calls its session, and its user where there are several. Changing one does not help
/// without the others.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Client {
    Process(u32, i32, u64),
    Session(u32, String),
    User(u32),
    /// Every request line of a user, before it is looked at.
    Lines(u32),
}

#[derive(Default)]
struct Counts {
    recent: VecDeque<Instant>,
    pending: usize,
    denials: u32,
    paused_until: Option<Instant>,
}

impl Counts {
    /// Counts a request of now, unless there were `most` within the last minute.
    fn count(&mut self, most: Option<usize>, now: Instant) -> Result<(), String> {
        while self.recent.front().is_some_and(|first| now.duration_since(*first) >= MINUTE) {
            self.recent.pop_front();
        }
        let Some(most) = most else { return Ok(()) };
        if self.recent.len() >= most {
            let first = self.recent.front().copied().unwrap_or(now);
            return Err(limited(MINUTE.saturating_sub(now.duration_since(first))));
        }
        self.recent.push_back(now);
        Ok(())
    }
}

pub(crate) struct Meter {
    /// Limits hold for each user as a whole, too.
    per_user: bool,
    rates: Mutex<Rates>,
    clients: Mutex<HashMap<Client, Counts>>,
    denied: Mutex<HashMap<String, Instant>>,
}

/// A question that is counted as waiting until this is dropped.
pub(crate) struct Place {
    meter: Arc<Meter>,
    clients: Vec<Client>,
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
    pub(crate) fn new(rates: Rates, per_user: bool) -> Meter {
        Meter { per_user, rates: Mutex::new(rates), clients: Mutex::default(), denied: Mutex::default() }
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

    fn names(&self, peer: &Peer, session: &str) -> Vec<Client> {
        let process = Client::Process(peer.uid, peer.pid, peer.start_ticks);
        let session = Client::Session(peer.uid, session.to_owned());
        [process, session].into_iter().chain(self.per_user.then_some(Client::User(peer.uid))).collect()
    }

    /// Counts a line of a user, whatever it asks for: refusals are recorded, so they are limited as well.
    pub(crate) fn admit_line(&self, peer: &Peer, now: Instant) -> Result<(), String> {
        let most = self.rates().per_minute.filter(|_| self.per_user);
        let Some(most) = most else { return Ok(()) };
        let mut clients = self.clients();
        let counts = clients.entry(Client::Lines(peer.uid)).or_default();
        counts.count(Some(most.saturating_mul(LINES_PER_REQUEST)), now)
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
        for name in self.names(peer, session) {
            let counts = clients.entry(name).or_default();
            if let Some(until) = counts.paused_until.filter(|until| *until > now) {
                return Err(limited(until - now));
            }
            counts.count(self.rates().per_minute, now)?;
        }
        Ok(())
    }

    /// A place for a question that will wait.
    pub(crate) fn place(self: &Arc<Meter>, peer: &Peer, session: &str) -> Result<Place, String> {
        let names = self.names(peer, session);
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
        for name in self.names(peer, session) {
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
        Peer { pid, uid: 1000, gid: Some(1000), start_ticks: 7, program: String::new() }
    }

    #[test]
    fn neither_a_new_process_nor_a_new_session_resets_the_count() {
        let meter = Meter::new(Rates { per_minute: Some(2), ..Rates::NONE }, false);
        let now = Instant::now();
        assert!(meter.admit(&peer(1), "a", now).is_ok() && meter.admit(&peer(1), "a", now).is_ok());
        assert_eq!(meter.admit(&peer(1), "b", now), Err("rate limited, retry after 61s".into()));
        assert!(meter.admit(&peer(2), "a", now).is_err());
        assert!(meter.admit(&peer(2), "c", now).is_ok());
        assert!(meter.admit(&peer(1), "a", now + MINUTE).is_ok());
    }

    #[test]
    fn denials_in_a_row_make_a_client_slower_and_an_approval_forgives() {
        let meter = Meter::new(Rates { pause_max: Some(Duration::from_secs(3)), ..Rates::NONE }, false);
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
        let meter = Meter::new(Rates { denied_for: Some(Duration::from_secs(5)), ..Rates::NONE }, false);
        let now = Instant::now();
        meter.decided(&peer(1), "a", "digest", false, now);
        assert!(meter.was_denied("digest", now).is_err());
        assert!(meter.was_denied("another", now).is_ok());
        assert!(meter.was_denied("digest", now + Duration::from_secs(5)).is_ok());
    }

    #[test]
    fn a_place_is_given_back() {
        let meter = Arc::new(Meter::new(Rates { pending: Some(1), ..Rates::NONE }, false));
        let place = meter.place(&peer(1), "a");
        assert!(place.is_ok());
        assert!(meter.place(&peer(1), "b").is_err() && meter.place(&peer(2), "a").is_err());
        drop(place);
        assert!(meter.place(&peer(1), "b").is_ok());
    }

    #[test]
    fn several_processes_and_sessions_of_a_user_share_its_limit_and_leave_others_theirs() {
        let meter =
            Arc::new(Meter::new(Rates { per_minute: Some(2), pending: Some(2), ..Rates::NONE }, true));
        let now = Instant::now();
        let other = Peer { uid: 1001, ..peer(9) };
        assert!(meter.admit(&peer(1), "a", now).is_ok() && meter.admit(&peer(2), "b", now).is_ok());
        assert!(meter.admit(&peer(3), "c", now).is_err());
        assert!(meter.admit(&other, "a", now).is_ok(), "another user with a session of the same name");
        let places = [meter.place(&peer(1), "a"), meter.place(&peer(2), "b")];
        assert!(places.iter().all(Result::is_ok) && meter.place(&peer(3), "c").is_err());
        assert!(meter.place(&other, "a").is_ok());
        for _ in 0..2 * LINES_PER_REQUEST {
            assert!(meter.admit_line(&peer(1), now).is_ok());
        }
        assert!(meter.admit_line(&peer(2), now).is_err() && meter.admit_line(&other, now).is_ok());
    }
}
