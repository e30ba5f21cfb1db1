//! The server: state that all connections share, its settings, and its start, resume and stop.

use crate::connection;
use crate::freshness::FreshnessWindow;
use crate::password::{Askpass, PasswordPrompts};
use crate::rate_limit::{RateLimiter, RateLimits};
use crate::validate::RequestLimits;
use crate::wire::Response;
use outpost_approvals::guard::GuardPaths;
use outpost_approvals::{Approvals, Question};
use outpost_engine::{Engine, ResourceLimit};
use outpost_wire::{PerUserLimit, UserPermit};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, broadcast, watch};

/// Connections served at once. Most are idle. Further ones wait in the listen backlog.
const CONNECTIONS_MAX: usize = 512;

/// Connections served at once by a server for all users: per user, and in total.
const CONNECTIONS_PER_USER_MAX: usize = 64;
const CONNECTIONS_TOTAL_MAX: usize = 4096;

/// Capacity of the broadcast channel of [`Notice`]s.
const NOTICES_MAX: usize = 64;

/// The keeper's role number for copies of client connections.
pub(crate) const CONNECTION_ROLE: u8 = 1;

/// What the operator configures.
#[derive(Clone, Debug)]
pub struct Settings {
    /// Time that a human has to answer a question.
    pub ask_timeout: Duration,
    /// If set, `ask_timeout` starts when the question is presented, and a question waits this long to be presented.
    pub unseen_timeout: Option<Duration>,
    /// Run time limit of a command.
    pub run_timeout: Duration,
    pub freshness: FreshnessWindow,
    pub request_limits: RequestLimits,
    pub rate_limits: RateLimits,
    /// Requests in flight per user.
    pub in_flight_max: usize,
    /// Resource limits of commands.
    pub resource_limits: Vec<ResourceLimit>,
    /// The socket of the daemon's own SSH agent. Requests with `forward_agent` get it.
    pub ssh_agent: Option<String>,
    /// How the broker obtains the password that sudo may require.
    pub askpass: Option<Askpass>,
    /// Accept the action `stop` from clients, as sudo-proxy does.
    pub client_may_stop: bool,
    /// Kill a command when its client disconnects. A pending question is always withdrawn.
    pub kill_on_disconnect: bool,
    /// Serve every user of the host, with limits per user. Needs root.
    pub serves_all_users: bool,
    /// Paths of this host's guard. While a guard is installed, it decides and runs all requests.
    pub guard: Option<GuardPaths>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            ask_timeout: Duration::from_secs(60),
            unseen_timeout: None,
            run_timeout: Duration::from_secs(300),
            freshness: FreshnessWindow::default(),
            request_limits: RequestLimits::default(),
            rate_limits: RateLimits::default(),
            in_flight_max: 64,
            resource_limits: Vec::new(),
            ssh_agent: None,
            askpass: None,
            client_may_stop: false,
            kill_on_disconnect: false,
            serves_all_users: false,
            guard: None,
        }
    }
}

/// An event for a terminal.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A command ended and its request was answered.
    Answered { title: String, response: Arc<Response> },
    /// A client sent an accepted `stop`.
    StopRequested { session: String },
}

/// The server.
pub struct Server {
    pub(crate) engine: Engine,
    pub(crate) approvals: Approvals,
    settings: watch::Sender<Arc<Settings>>,
    pub(crate) rate_limiter: Arc<RateLimiter>,
    pub(crate) passwords: Arc<PasswordPrompts>,
    /// Requests in flight, and connections, per user.
    in_flight: PerUserLimit,
    pub(crate) connections: PerUserLimit,
    pub(crate) serves_all_users: bool,
    /// A human approved every unprivileged command for the lifetime of this process.
    auto_approve: AtomicBool,
    pub(crate) notices: broadcast::Sender<Notice>,
    stop_requested: Notify,
}

impl Server {
    pub fn new(engine: Engine, approvals: Approvals, settings: Settings) -> Arc<Server> {
        let all_users = settings.serves_all_users;
        Arc::new(Server {
            engine,
            approvals,
            rate_limiter: Arc::new(RateLimiter::new(settings.rate_limits, all_users)),
            serves_all_users: all_users,
            settings: watch::Sender::new(Arc::new(settings)),
            passwords: Arc::default(),
            in_flight: PerUserLimit::new(usize::MAX),
            connections: PerUserLimit::new(if all_users {
                CONNECTIONS_PER_USER_MAX
            } else {
                CONNECTIONS_MAX
            }),
            auto_approve: AtomicBool::new(false),
            notices: broadcast::Sender::new(NOTICES_MAX),
            stop_requested: Notify::new(),
        })
    }

    /// Starts the `ask_timeout` of a question that is now presented to a human. None if it is no longer pending.
    pub fn present_question(&self, question: &str) -> Option<Question> {
        self.approvals.queue().reset_deadline(question, self.settings().ask_timeout)
    }

    /// The settings for work that starts now.
    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.borrow().clone()
    }

    /// Applies new settings. `askpass` and `serves_all_users` keep their values from the start.
    pub fn configure(&self, settings: Settings) {
        self.rate_limiter.set_limits(settings.rate_limits);
        let askpass = self.settings().askpass.clone();
        let serves_all_users = self.serves_all_users;
        self.settings.send_replace(Arc::new(Settings { askpass, serves_all_users, ..settings }));
    }

    /// Reserves one of this user's places for requests in flight. None at the limit.
    pub(crate) fn acquire_in_flight(&self, uid: u32) -> Option<UserPermit> {
        self.in_flight.acquire_up_to(uid, self.settings().in_flight_max)
    }

    /// Counts a request that an earlier worker admitted. Ignores the limit, which may be lower by now.
    pub(crate) fn reacquire_in_flight(&self, uid: u32) -> Option<UserPermit> {
        self.in_flight.acquire(uid)
    }

    /// Continues the requests of an earlier worker. Their questions are pending again when this returns.
    pub async fn resume(self: &Arc<Server>) {
        crate::resume::resume(self).await;
    }

    /// Accepts connections. Never returns.
    pub async fn serve(self: Arc<Server>, listener: UnixListener) {
        let serve = |stream| connection::serve(self.clone(), stream);
        // A user's daemon serves only that user. Root must use root's daemon or the guard.
        let admits = |stream: &UnixStream| {
            outpost_sys::message::peer_uid(stream)
                .is_ok_and(|uid| self.serves_all_users || uid == outpost_sys::process::effective_uid())
        };
        let max = if self.serves_all_users { CONNECTIONS_TOTAL_MAX } else { CONNECTIONS_MAX };
        outpost_wire::accept_admitted(listener, max, admits, serve).await;
    }

    /// Answers the askpass programs of sudo processes that this broker started.
    pub fn serve_askpass(&self, listener: UnixListener) -> impl Future<Output = ()> + Send + 'static {
        self.passwords.clone().serve(listener)
    }

    pub fn approvals(&self) -> &Approvals {
        &self.approvals
    }

    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Approves every unprivileged command without a question until this process ends.
    pub fn auto_approve_unprivileged(&self) {
        self.auto_approve.store(true, Ordering::Relaxed);
    }

    pub(crate) fn auto_approves_unprivileged(&self) -> bool {
        self.auto_approve.load(Ordering::Relaxed)
    }

    pub(crate) fn notify(&self, notice: Notice) {
        if let Notice::StopRequested { .. } = notice {
            self.stop_requested.notify_one();
        }
        let _no_subscriber = self.notices.send(notice);
    }

    /// Returns when a client sent an accepted `stop`.
    pub async fn stop_requested(&self) {
        self.stop_requested.notified().await;
    }
}
