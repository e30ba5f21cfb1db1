//! The server: what all connections share, and how it begins, goes on after a restart, and ends.

use crate::connection;
use crate::freshness::Window;
use crate::password::{Askpass, Desk};
use crate::rates::{Meter, Rates};
use crate::validate::Shape;
use crate::wire::Response;
use outpost_approvals::guard::Places;
use outpost_approvals::{Approvals, Question};
use outpost_engine::{Engine, ResourceLimit};
use outpost_wire::{PerUser, UserPlace};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::net::{UnixListener, UnixStream};
use tokio::sync::{Notify, broadcast, watch};

/// Connections that are served at once, most of them silent; more wait in the backlog.
const CONNECTIONS_MAX: usize = 512;

/// The same where every user is served: of one user, and of all.
const CONNECTIONS_PER_USER_MAX: usize = 64;
const CONNECTIONS_OF_ALL_MAX: usize = 4096;

/// What happened that a terminal may want to show.
const NOTICES_MAX: usize = 64;

/// The role of clients' connections among the descriptors that are kept for workers to come.
pub(crate) const CONNECTION_ROLE: u8 = 1;

/// What an operator decides about the broker.
#[derive(Clone, Debug)]
pub struct Settings {
    /// How long a human may take to answer.
    pub ask_patience: Duration,
    /// How long a question may wait until it is put to a human, where the time for the answer begins only then.
    pub unseen_patience: Option<Duration>,
    /// How long a command may run.
    pub run_patience: Duration,
    pub window: Window,
    pub shape: Shape,
    pub rates: Rates,
    /// Requests of one user that are under way at once.
    pub in_flight_max: usize,
    /// Resource limits of commands.
    pub limits: Vec<ResourceLimit>,
    /// The daemon's own SSH agent, which may be forwarded.
    pub agent: Option<String>,
    /// How the password that sudo may want is asked for.
    pub askpass: Option<Askpass>,
    /// Whether a client may end the daemon, as the original lets it.
    pub stoppable: bool,
    /// Whether a command ends when its client leaves. Questions always do.
    pub ends_with_client: bool,
    /// Serves every user of the host, each with limits of its own. Only root's daemon can.
    pub any_user: bool,
    /// Where to look for the guard of this host. While it has one, requests are decided and run there.
    pub guard: Option<Places>,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            ask_patience: Duration::from_secs(60),
            unseen_patience: None,
            run_patience: Duration::from_secs(300),
            window: Window::default(),
            shape: Shape::default(),
            rates: Rates::default(),
            in_flight_max: 64,
            limits: Vec::new(),
            agent: None,
            askpass: None,
            stoppable: false,
            ends_with_client: false,
            any_user: false,
            guard: None,
        }
    }
}

/// Something that happened.
#[derive(Clone, Debug)]
pub enum Notice {
    /// A request was answered.
    Answered { title: String, response: Arc<Response> },
    /// A client wants the daemon to end, and may.
    Stopped { session: String },
}

/// The server.
pub struct Server {
    pub(crate) engine: Engine,
    pub(crate) approvals: Approvals,
    settings: watch::Sender<Arc<Settings>>,
    pub(crate) meter: Arc<Meter>,
    pub(crate) passwords: Arc<Desk>,
    /// Requests under way, and connections, of each user.
    in_flight: PerUser,
    pub(crate) connections: PerUser,
    /// Serves every user of the host.
    pub(crate) any_user: bool,
    /// A human has allowed everything without root's rights, for as long as we live.
    unattended: AtomicBool,
    pub(crate) notices: broadcast::Sender<Notice>,
    stopped: Notify,
}

impl Server {
    pub fn new(engine: Engine, approvals: Approvals, settings: Settings) -> Arc<Server> {
        let any_user = settings.any_user;
        Arc::new(Server {
            engine,
            approvals,
            meter: Arc::new(Meter::new(settings.rates, any_user)),
            any_user,
            settings: watch::Sender::new(Arc::new(settings)),
            passwords: Arc::default(),
            in_flight: PerUser::new(usize::MAX),
            connections: PerUser::new(if any_user { CONNECTIONS_PER_USER_MAX } else { CONNECTIONS_MAX }),
            unattended: AtomicBool::new(false),
            notices: broadcast::Sender::new(NOTICES_MAX),
            stopped: Notify::new(),
        })
    }

    /// What holds for work that begins now.
    /// A question is put to a human now. None when it does not wait any more.
    pub fn put(&self, question: &str) -> Option<Question> {
        self.approvals.queue().give_time(question, self.settings().ask_patience)
    }

    pub(crate) fn settings(&self) -> Arc<Settings> {
        self.settings.borrow().clone()
    }

    /// What the operator has decided meanwhile. How passwords are asked for stays as it was at the start.
    pub fn configure(&self, settings: Settings) {
        self.meter.set_rates(settings.rates);
        let askpass = self.settings().askpass.clone();
        self.settings.send_replace(Arc::new(Settings { askpass, any_user: self.any_user, ..settings }));
    }

    /// A place among the requests of this user that are under way, if there is one.
    pub(crate) fn in_flight(&self, uid: u32) -> Option<UserPlace> {
        self.in_flight.place_among(uid, self.settings().in_flight_max)
    }

    /// The same for one that was under way before us: there may be more of those by now than are let in.
    pub(crate) fn still_in_flight(&self, uid: u32) -> Option<UserPlace> {
        self.in_flight.place(uid)
    }

    /// Goes on with what an earlier worker has left: its questions wait again when this returns.
    pub async fn resume(self: &Arc<Server>) {
        crate::resume::resume(self).await;
    }

    /// Serves for ever.
    pub async fn serve(self: Arc<Server>, listener: UnixListener) {
        let serve = |stream| connection::serve(self.clone(), stream);
        // The daemon of one user serves that user alone: a request of root is for root's daemon or the guard.
        let admits = |stream: &UnixStream| {
            outpost_sys::message::peer_uid(stream)
                .is_ok_and(|uid| self.any_user || uid == outpost_sys::limits::effective_uid())
        };
        let max = if self.any_user { CONNECTIONS_OF_ALL_MAX } else { CONNECTIONS_MAX };
        outpost_wire::accept_admitted(listener, max, admits, serve).await;
    }

    /// Answers the sudos of ours that want a password.
    pub fn serve_askpass(&self, listener: UnixListener) -> impl Future<Output = ()> + Send + 'static {
        self.passwords.clone().serve(listener)
    }

    pub fn approvals(&self) -> &Approvals {
        &self.approvals
    }

    pub fn notices(&self) -> broadcast::Receiver<Notice> {
        self.notices.subscribe()
    }

    /// Everything without root's rights may run unasked from now on, until this process ends.
    pub fn allow_unattended(&self) {
        self.unattended.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_unattended(&self) -> bool {
        self.unattended.load(Ordering::Relaxed)
    }

    pub(crate) fn notify(&self, notice: Notice) {
        if let Notice::Stopped { .. } = notice {
            self.stopped.notify_one();
        }
        let _nobody_listens = self.notices.send(notice);
    }

    /// Comes when a client wants us to end, and may.
    pub async fn stopped(&self) {
        self.stopped.notified().await;
    }
}
