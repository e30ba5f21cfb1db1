//! Everything about approvals in one handle: the queue, the books, the rules, and who may decide.

use crate::hook;
use crate::ledger::Ledger;
use crate::queue::{self, Queue};
use crate::rules::{Rules, Sources, Stamp};
use crate::signing::Signer;
use crate::trust::{self, Trust};
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
    /// Users besides root that see every question.
    pub viewers: Vec<u32>,
    /// Root's directory of policy: where it exists, only approvers in it count.
    pub etc: PathBuf,
    /// This is the guard: every user of the host may connect, and approvers come from `etc` alone.
    pub is_guard: bool,
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
    trust: Arc<Trust>,
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
        let schema: Vec<&str> = [queue::SCHEMA, grants::SCHEMA, trust::SCHEMA]
            .into_iter()
            .chain(schema.iter().copied())
            .collect();
        let ledger = Ledger::open(&settings.dir, &schema)?;
        let trust = Arc::new(Trust::open(&settings.dir, &settings.etc, settings.is_guard)?);
        let recorder = trust.clone();
        ledger.begin_with(move |books| recorder.record_host(books));
        let queue = Queue::new(ledger.clone(), trust.clone());
        let rules = Mutex::new(Loaded::from(&settings.rules));
        let settings = watch::Sender::new(Arc::new(settings));
        tokio::spawn(hook::run(settings.subscribe(), queue.clone()));
        let inner = Inner { settings, ledger, queue, trust, rules };
        Ok(Approvals { inner: Arc::new(inner) })
    }

    /// What the operator has decided meanwhile. The books stay where they are, and so do the approvers.
    pub fn configure(&self, settings: Settings) {
        let before = self.settings();
        let (dir, etc, is_guard) = (before.dir.clone(), before.etc.clone(), before.is_guard);
        self.inner.settings.send_replace(Arc::new(Settings { dir, etc, is_guard, ..settings }));
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

    /// What decisions are checked against.
    pub fn trust(&self) -> &Arc<Trust> {
        &self.inner.trust
    }

    /// A key for the terminal that this very process asks on: it counts until the process ends.
    pub async fn enroll_terminal(&self) -> Result<Signer> {
        self.inner.trust.enroll_terminal(&self.inner.ledger).await
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

    /// Whether a process of this user may connect.
    pub(crate) fn admits(&self, uid: u32) -> bool {
        let own = outpost_sys::limits::effective_uid();
        self.settings().is_guard || uid == own || self.sees_all(uid)
    }

    /// Whether this user sees the questions of all users.
    pub(crate) fn sees_all(&self, uid: u32) -> bool {
        let named = || {
            let list = self.inner.trust.list();
            list.is_ok_and(|list| list.viewers.contains(&uid) || list.trusted.contains(&uid))
        };
        uid == 0 || self.settings().viewers.contains(&uid) || named()
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
