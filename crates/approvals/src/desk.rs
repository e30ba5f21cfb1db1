//! Everything about approvals in one handle: the queue, the books, the rules, and who may decide.

use crate::hook;
use crate::ledger::Ledger;
use crate::queue::{self, Queue};
use crate::rules::{Rules, Sources, Stamp};
use crate::secret::Verifier;
use crate::{Result, grants};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// What an operator decides about approvals. All but the place of the books can change while we run.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// Where the books are.
    pub dir: PathBuf,
    /// The operator's rules; a file that is not there has none.
    pub rules: Sources,
    /// Users besides root who may decide, by what the kernel says.
    pub approvers: Vec<u32>,
    /// A program that is told of each question. It cannot answer.
    pub hook: Option<Vec<String>>,
}

/// The handle.
#[derive(Clone)]
pub struct Approvals {
    inner: Arc<Inner>,
}

struct Inner {
    settings: watch::Sender<Arc<Settings>>,
    ledger: Ledger,
    queue: Queue,
    verifier: Verifier,
    rules: Mutex<Loaded>,
}

/// Rules, and which state of which files they are.
struct Loaded {
    rules: Arc<Rules>,
    sources: Sources,
    stamp: Stamp,
}

impl Approvals {
    /// Opens the books. `schema` makes the tables of the faces that write into them.
    pub fn open(settings: Settings, schema: &[&str]) -> Result<Approvals> {
        let schema: Vec<&str> =
            [queue::SCHEMA, grants::SCHEMA].into_iter().chain(schema.iter().copied()).collect();
        let ledger = Ledger::open(&settings.dir, &schema)?;
        let queue = Queue::new(ledger.clone());
        let verifier = Verifier::new(&settings.dir);
        let rules = Mutex::new(Loaded::from(&settings.rules));
        let settings = watch::Sender::new(Arc::new(settings));
        tokio::spawn(hook::run(settings.subscribe(), queue.clone()));
        let inner = Inner { settings, ledger, queue, verifier, rules };
        Ok(Approvals { inner: Arc::new(inner) })
    }

    /// What the operator has decided meanwhile. The books stay where they are.
    pub fn configure(&self, settings: Settings) {
        let dir = self.settings().dir.clone();
        self.inner.settings.send_replace(Arc::new(Settings { dir, ..settings }));
    }

    fn settings(&self) -> Arc<Settings> {
        self.inner.settings.borrow().clone()
    }

    pub fn queue(&self) -> &Queue {
        &self.inner.queue
    }

    pub fn ledger(&self) -> &Ledger {
        &self.inner.ledger
    }

    pub(crate) fn verifier(&self) -> &Verifier {
        &self.inner.verifier
    }

    /// The rules as they stand in the file now.
    pub fn rules(&self) -> Arc<Rules> {
        let sources = &self.settings().rules;
        let stamp = sources.stamp();
        let mut loaded = self.inner.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.stamp != stamp || loaded.sources != *sources {
            *loaded = Loaded::from(sources);
        }
        loaded.rules.clone()
    }

    /// Whether this user is the one the daemon runs as, and so may be who asks.
    pub(crate) fn is_own(&self, uid: u32) -> bool {
        uid == outpost_sys::limits::effective_uid()
    }

    /// Whether the kernel's word suffices for this user.
    pub(crate) fn is_approver(&self, uid: u32) -> bool {
        !self.is_own(uid) && (uid == 0 || self.settings().approvers.contains(&uid))
    }
}

impl Loaded {
    fn from(sources: &Sources) -> Loaded {
        // First: what is changed while it is read is read again.
        let stamp = sources.stamp();
        let rules = sources.load();
        if let Some(problem) = rules.problem() {
            tracing::error!("{problem}");
        }
        Loaded { rules: Arc::new(rules), sources: sources.clone(), stamp }
    }
}
