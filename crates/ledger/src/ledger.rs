//! The ledger: one SQLite database and one audit chain, both written by a single thread.
//!
//! Callers queue jobs. The thread runs the queued jobs in one database transaction and syncs the chain once for all of them.
//! A caller receives its result after both steps.

mod chain;

use crate::audit::{self, Event};
use crate::{Error, Result};
use chain::{AuditChain, Heads, SYSLOG_INTERVAL};
use outpost_sys::file::{self, Open};
use outpost_sys::procfs;
use rusqlite::{Connection, OptionalExtension};
use std::cmp::Ordering;
use std::path::{Path, PathBuf};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

/// Jobs in the queue. Callers wait while it is full.
const JOBS_MAX: usize = 1024;

/// Jobs in one transaction.
const BATCH_MAX: usize = 256;

/// The newest audit record that the database has seen.
const SCHEMA: &str = "
    create table if not exists chain (
        one integer primary key check (one = 1),
        seq integer not null,
        boot_id text not null
    ) strict;
";

/// A job's access to the database and to the audit chain. An error that the job returns rolls back both.
pub struct LedgerTx<'a> {
    db: &'a Connection,
    audit: &'a mut AuditChain,
    is_fsync_required: bool,
}

impl LedgerTx<'_> {
    /// Appends a record to the audit chain.
    pub fn record(&mut self, event: Event, data: &impl serde::Serialize) -> Result<()> {
        self.audit.append(event, data).map_err(|error| Error::Audit(error.into()))
    }

    /// The job succeeds only after its audit records are fsynced.
    pub fn require_fsync(&mut self) {
        self.is_fsync_required = true;
    }

    /// Runs one SQL statement. `what` completes the error message "cannot … in the database".
    pub fn execute(&self, what: &'static str, sql: &str, values: impl rusqlite::Params) -> Result<usize> {
        let done = self.db.prepare_cached(sql).and_then(|mut statement| statement.execute(values));
        done.map_err(|error| Error::database(what, error))
    }

    /// Returns all rows of a query.
    pub fn rows<T>(
        &self,
        what: &'static str,
        sql: &str,
        values: impl rusqlite::Params,
        read: impl FnMut(&rusqlite::Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        let rows = self.db.prepare_cached(sql).and_then(|mut statement| {
            let rows = statement.query_map(values, read)?;
            rows.collect::<rusqlite::Result<Vec<T>>>()
        });
        rows.map_err(|error| Error::database(what, error))
    }
}

/// Returns whether the job succeeded, and a callback that delivers the result after the commit.
type Job = Box<dyn FnOnce(&mut LedgerTx<'_>) -> (bool, Reply) + Send>;
/// Takes the error of the commit, if it failed.
type Reply = Box<dyn FnOnce(Option<&str>) + Send>;

/// A handle to the ledger thread. The thread stops when the last handle is dropped.
#[derive(Clone)]
pub struct Ledger {
    jobs: mpsc::Sender<Job>,
    heads: Heads,
    chain_dir: PathBuf,
}

impl Ledger {
    /// Opens the ledger in a directory, which is created if it is missing. `schema` is SQL that creates the missing tables.
    pub fn open(dir: &Path, schema: &[&str]) -> Result<Ledger> {
        Ledger::open_with_syslog(dir, schema, Path::new(audit::syslog::SOCKET))
    }

    fn open_with_syslog(dir: &Path, schema: &[&str], syslog_socket: &Path) -> Result<Ledger> {
        std::fs::create_dir_all(dir).map_err(|error| Error::file("create", dir, error))?;
        let set = std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o700));
        set.map_err(|error| Error::file("change the mode of", dir, error))?;
        // The chain's lock file also guards the database.
        let writer = audit::Writer::open(&dir.join("audit")).map_err(|error| match error {
            audit::Error::Locked { .. } => Error::InUse,
            error => Error::Audit(error.into()),
        })?;
        let db = open_database(&dir.join("approvals.db"), schema)?;
        let mut chain = AuditChain::new(writer, dir.join("audit"), syslog_socket.to_owned());
        let (heads, chain_dir) = (chain.heads.clone(), chain.dir.clone());
        reconcile(&db, &mut chain)?;
        let (jobs, receiver) = mpsc::channel(JOBS_MAX);
        let thread = std::thread::Builder::new().name("outpost-ledger".into());
        let (built, result) = std::sync::mpsc::sync_channel(1);
        // The thread builds its runtime itself. At the process limit the spawn fails and drops the closure here, and a
        // runtime that is dropped inside another runtime panics.
        let spawned =
            thread.spawn(move || match tokio::runtime::Builder::new_current_thread().enable_time().build() {
                Ok(runtime) => {
                    let _caller_waits = built.send(Ok(()));
                    run(db, chain, receiver, &runtime);
                }
                Err(error) => drop(built.send(Err(error))),
            });
        spawned.map_err(|error| Error::file("start a thread for", dir, error))?;
        let result = result.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        result.map_err(|error| Error::file("start a runtime for", dir, error))?;
        Ok(Ledger { jobs, heads, chain_dir })
    }

    /// The newest record of the chain.
    pub fn head(&self) -> audit::Head {
        self.heads.newest()
    }

    /// Whether the chain has this record.
    pub async fn contains(&self, head: audit::Head) -> bool {
        match self.heads.contains(head) {
            Some(found) => found,
            None => {
                let dir = self.chain_dir.clone();
                let lookup = tokio::task::spawn_blocking(move || audit::contains(&dir, &head));
                lookup.await.is_ok_and(|found| found.unwrap_or(false))
            }
        }
    }

    /// Queues a job without waiting for it. Call this before any [`transact`](Ledger::transact), while the queue is empty.
    /// `what` completes the log line if the job fails.
    pub fn enqueue_first(
        &self,
        what: &'static str,
        job: impl FnOnce(&mut LedgerTx<'_>) -> Result<()> + Send + 'static,
    ) {
        let job: Job = Box::new(move |tx| {
            let outcome = job(tx);
            if let Err(error) = &outcome {
                tracing::error!(%error, "cannot {what}");
            }
            (outcome.is_ok(), Box::new(|_| {}))
        });
        let _queue_is_empty = self.jobs.try_send(job);
    }

    /// Runs a job as part of a transaction, and waits for the commit. The job takes effect in the database and in the chain,
    /// or in neither. A dropped future does not cancel the job.
    pub async fn transact<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut LedgerTx<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |tx| {
            let outcome = job(tx);
            let done = outcome.is_ok();
            let reply: Reply = Box::new(move |failed| {
                let outcome = match (outcome, failed) {
                    (Ok(_), Some(reason)) => Err(Error::Audit(reason.into())),
                    (outcome, _) => outcome,
                };
                let _caller_is_gone = reply.send(outcome);
            });
            (done, reply)
        });
        self.jobs.send(job).await.map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)?
    }
}

fn open_database(path: &Path, schema: &[&str]) -> Result<Connection> {
    // SQLite would create the file with a mode that other users can read.
    file::open(path, Open::Create).map_err(|errno| Error::file("create", path, errno))?;
    let fail = |error: rusqlite::Error| Error::file("open", path, error);
    let db = Connection::open(path).map_err(fail)?;
    db.pragma_update(None, "journal_mode", "wal").map_err(fail)?;
    db.pragma_update(None, "synchronous", "normal").map_err(fail)?;
    db.pragma_update(None, "foreign_keys", "on").map_err(fail)?;
    for table in [SCHEMA].iter().chain(schema) {
        db.execute_batch(table).map_err(fail)?;
    }
    Ok(db)
}

fn store_seq(db: &Connection, audit: &AuditChain) -> rusqlite::Result<()> {
    let sql = "insert or replace into chain (one, seq, boot_id) values (1, ?, ?)";
    let values = (audit.seq().cast_signed(), procfs::boot_id());
    db.prepare_cached(sql)?.execute(values).map(|_| ())
}

/// Compares the chain with the last record that the database has seen. Records that only the chain has did not take effect.
/// Records that only the database has seen were removed from the chain. After a reboot either side may have lost its end.
fn reconcile(db: &Connection, audit: &mut AuditChain) -> Result<()> {
    let fail = |error: rusqlite::Error| Error::database("compare with the chain", error);
    let read =
        |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, String>(1)?));
    let known = db.query_row("select seq, boot_id from chain", (), read).optional().map_err(fail)?;
    // The newest record is the `opened` record of this start.
    let opened = audit.seq();
    if let Some((seq, boot_id)) = known {
        let same_boot = boot_id == procfs::boot_id();
        let note = match (seq.cmp(&(opened.saturating_sub(1))), same_boot) {
            (Ordering::Equal, _) => None,
            (Ordering::Less, true) => {
                Some((Event::Voided, seq + 1, opened - 1, "the daemon exited before the database commit"))
            }
            (Ordering::Less, false) => Some((
                Event::Voided,
                seq + 1,
                opened - 1,
                "the host went down before the database commit was on disk; these records may have taken effect",
            )),
            (Ordering::Greater, true) => Some((
                Event::Shortened,
                opened,
                seq,
                "the database has seen these records, and the chain no longer has them",
            )),
            (Ordering::Greater, false) => Some((
                Event::Voided,
                opened,
                seq,
                "the host went down before these records were on disk, or they were removed",
            )),
        };
        if let Some((event, from, to, why)) = note {
            if from == opened {
                tracing::error!(from, to, why, "records are missing at the end of the audit chain");
            }
            let data = serde_json::json!({ "from": from, "to": to, "why": why });
            audit.append(event, &data).map_err(|error| Error::Audit(error.into()))?;
        }
    }
    store_seq(db, audit).map_err(fail)
}

/// The ledger thread: runs batches of jobs until the last [`Ledger`] is dropped.
fn run(mut db: Connection, mut audit: AuditChain, mut jobs: mpsc::Receiver<Job>, runtime: &Runtime) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    loop {
        let received = async {
            let received = jobs.recv_many(&mut batch, BATCH_MAX);
            match audit.has_unsent_head() {
                true => tokio::time::timeout(SYSLOG_INTERVAL, received).await.ok(),
                false => Some(received.await),
            }
        };
        match runtime.block_on(received) {
            Some(0) => return,
            Some(_) => {}
            None => {
                if let Err(error) = audit.sync() {
                    tracing::error!(%error, "cannot sync the audit chain");
                }
                continue;
            }
        }
        let mut replies = Vec::with_capacity(batch.len());
        let failed = commit_batch(&mut db, &mut audit, batch.drain(..), &mut replies).err();
        if let Some(reason) = &failed {
            tracing::error!(reason, "cannot commit to the ledger; the jobs of this batch had no effect");
        }
        for reply in replies {
            reply(failed.as_deref());
        }
    }
}

/// Runs jobs in one transaction. A failed job rolls back its own savepoint; a failed commit or sync fails all jobs.
fn commit_batch(
    db: &mut Connection,
    audit: &mut AuditChain,
    jobs: impl Iterator<Item = Job>,
    replies: &mut Vec<Reply>,
) -> std::result::Result<(), String> {
    let fail = |error: rusqlite::Error| format!("the database: {error}");
    let mut transaction = db.transaction().map_err(fail)?;
    let mut is_fsync_required = false;
    let batch_start = audit.seq();
    for job in jobs {
        let mut savepoint = transaction.savepoint().map_err(fail)?;
        let job_start = audit.seq();
        let mut tx = LedgerTx { db: &savepoint, audit, is_fsync_required: false };
        let (done, reply) = job(&mut tx);
        is_fsync_required |= tx.is_fsync_required;
        replies.push(reply);
        match done {
            true => savepoint.commit().map_err(fail)?,
            false => {
                savepoint.rollback().and_then(|()| savepoint.finish()).map_err(fail)?;
                audit.void_after(job_start, "the job failed");
            }
        }
    }
    let committed = store_seq(&transaction, audit).and_then(|()| transaction.commit());
    if let Err(error) = committed {
        audit.void_after(batch_start, "the database commit failed");
        return Err(fail(error));
    }
    match is_fsync_required {
        true => audit.sync().map_err(|error| error.to_string()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;
    use std::time::Duration;

    #[tokio::test]
    async fn the_last_head_reaches_the_system_log_without_another_record() {
        let dir = tempfile::tempdir().unwrap();
        let log = UnixDatagram::bind(dir.path().join("log")).unwrap();
        log.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let open = || Ledger::open_with_syslog(&dir.path().join("ledger"), &[], &dir.path().join("log"));
        let ledger = open().unwrap();
        // The head of the first record is sent at once. The second comes within the interval. The third is not synced.
        for fsync in [true, true, false] {
            let write = move |tx: &mut LedgerTx<'_>| {
                tx.record(Event::Ended, &serde_json::json!({}))?;
                if fsync {
                    tx.require_fsync();
                }
                Ok(())
            };
            ledger.transact(write).await.unwrap();
        }
        let newest = audit::verify(&dir.path().join("ledger/audit"), None).unwrap().head.unwrap();
        let mut line = [0; 512];
        loop {
            let bytes = log.recv(&mut line).unwrap();
            let (_, head) = std::str::from_utf8(&line[..bytes]).unwrap().split_once("audit head ").unwrap();
            if head.parse() == Ok(newest) {
                return;
            }
        }
    }

    /// Opens the ledger after the previous ledger thread has released its lock.
    fn reopen(dir: &Path) -> Ledger {
        if let Ok(lock) = std::fs::File::open(dir.join("audit/audit.lock")) {
            lock.lock().unwrap();
        }
        Ledger::open_with_syslog(dir, &[], Path::new("/nonexistent")).unwrap()
    }

    async fn record(ledger: &Ledger) {
        let write = |tx: &mut LedgerTx<'_>| tx.record(Event::Ended, &serde_json::json!({}));
        ledger.transact(write).await.unwrap();
    }

    #[tokio::test]
    async fn a_chain_truncated_while_closed_is_reported_permanently() {
        let dir = tempfile::tempdir().unwrap();
        let chain = dir.path().join("audit");
        let ledger = reopen(dir.path());
        for _ in 0..3 {
            record(&ledger).await;
        }
        drop(ledger);
        drop(reopen(dir.path()));
        drop(reopen(dir.path()));
        audit::verify(&chain, None).unwrap();
        let path = chain.join("audit.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        let kept: Vec<&str> = text.split_inclusive('\n').take(2).collect();
        std::fs::write(&path, kept.concat()).unwrap();
        let ledger = reopen(dir.path());
        for _ in 0..9 {
            record(&ledger).await;
        }
        let error = audit::verify(&chain, None).unwrap_err().to_string();
        assert!(error.contains("line 4: records before this one were removed"), "{error}");
        assert!(error.contains(r#""from":3,"to":6"#), "{error}");
    }
}
