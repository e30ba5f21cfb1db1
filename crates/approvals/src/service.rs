//! The approvals service: owns the queue, the ledger, the rules and the decision verifier.

use crate::hook;
use crate::queue::{self, Queue};
use crate::rules::{FileStamps, RuleFiles, Rules};
use crate::signing::Signer;
use crate::verifier::{self, Verifier};
use crate::{Result, grants};
use outpost_ledger::Ledger;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use tokio::sync::watch;

/// The operator's settings. All except `dir`, `etc` and `is_guard` can change at run time.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The directory of the ledger.
    pub dir: PathBuf,
    /// The operator's rule files. A missing file means no rules.
    pub rules: RuleFiles,
    /// Users besides root that see all questions.
    pub viewers: Vec<u32>,
    /// Root's policy directory. If it exists, only the approvers in it count.
    pub etc: PathBuf,
    /// This daemon is the guard: every user of the host may connect, and the approvers come only from `etc`.
    pub is_guard: bool,
    /// A command that runs for each new question. It cannot decide.
    pub hook: Option<Vec<String>>,
}

/// A handle to the service. Cheap to clone.
#[derive(Clone)]
pub struct Approvals {
    inner: Arc<Inner>,
}

struct Inner {
    settings: watch::Sender<Arc<Settings>>,
    ledger: Ledger,
    queue: Queue,
    verifier: Arc<Verifier>,
    rules: Mutex<Loaded>,
}

/// Loaded rules, with the file stamps at load time.
struct Loaded {
    rules: Arc<Rules>,
    files: RuleFiles,
    stamp: FileStamps,
}

impl Approvals {
    /// Opens the ledger. `schema` is SQL that creates the tables of the faces.
    pub fn open(settings: Settings, schema: &[&str]) -> Result<Approvals> {
        let schema: Vec<&str> = [queue::SCHEMA, grants::SCHEMA, verifier::SCHEMA]
            .into_iter()
            .chain(schema.iter().copied())
            .collect();
        let ledger = Ledger::open(&settings.dir, &schema)?;
        let verifier = Arc::new(Verifier::open(&settings.dir, &settings.etc, settings.is_guard)?);
        let recorder = verifier.clone();
        ledger.enqueue_first("record the host key", move |tx| recorder.record_host(tx));
        let queue = Queue::new(ledger.clone(), verifier.clone());
        let rules = Mutex::new(Loaded::from(&settings.rules));
        let settings = watch::Sender::new(Arc::new(settings));
        tokio::spawn(hook::run(settings.subscribe(), queue.clone()));
        let inner = Inner { settings, ledger, queue, verifier, rules };
        Ok(Approvals { inner: Arc::new(inner) })
    }

    /// Replaces the settings. The ledger and the source of the approvers stay.
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

    /// The verifier of decisions.
    pub fn verifier(&self) -> &Arc<Verifier> {
        &self.inner.verifier
    }

    /// Creates a key for the terminal of this process. The key is valid until the process exits.
    pub async fn enroll_terminal(&self) -> Result<Signer> {
        self.inner.verifier.enroll_terminal(&self.inner.ledger).await
    }

    /// The current rules. Reloads them if a file has changed.
    pub fn rules(&self) -> Arc<Rules> {
        let files = &self.settings().rules;
        let stamp = files.stamp();
        let mut loaded = self.inner.rules.lock().unwrap_or_else(PoisonError::into_inner);
        if loaded.stamp != stamp || loaded.files != *files {
            *loaded = Loaded::from(files);
        }
        loaded.rules.clone()
    }

    /// Whether a process of this user may connect.
    pub(crate) fn admits(&self, uid: u32) -> bool {
        let own = outpost_sys::process::effective_uid();
        self.settings().is_guard || uid == own || self.sees_all(uid)
    }

    /// Whether this user sees the questions of all users.
    pub(crate) fn sees_all(&self, uid: u32) -> bool {
        let named = || {
            let list = self.inner.verifier.list();
            list.is_ok_and(|list| list.viewer_uids.contains(&uid) || list.trusted_uids.contains(&uid))
        };
        uid == 0 || self.settings().viewers.contains(&uid) || named()
    }
}

impl Loaded {
    fn from(files: &RuleFiles) -> Loaded {
        // Take the stamp before the read: a change during the read causes a reload.
        let stamp = files.stamp();
        let rules = files.load();
        if let Some(problem) = rules.problem() {
            tracing::error!("{problem}");
        }
        Loaded { rules: Arc::new(rules), files: files.clone(), stamp }
    }
}
