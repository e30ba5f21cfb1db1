//! The books: a database of what waits and an audit chain of what happened, kept by one thread.
//!
//! Whoever has something to write hands that thread a job. Jobs that arrive while the disk is busy are done together:
//! one transaction, one sync of the chain, however many they are. A job hears of its success when both are done.

use crate::audit::{self, Event};
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use outpost_sys::procfs;
use rusqlite::{Connection, OptionalExtension};
use std::cmp::Ordering;
use std::collections::VecDeque;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
use tokio::runtime::Runtime;
use tokio::sync::{mpsc, oneshot};

/// Jobs that may wait; who has more waits with them.
const JOBS_MAX: usize = 1024;

/// Jobs that are done in one go.
const BATCH_MAX: usize = 256;

/// How much of the chain the database agrees with.
const SCHEMA: &str = "
    create table if not exists chain (
        one integer primary key check (one = 1),
        seq integer not null,
        boot_id text not null
    ) strict;
";

/// Both books, for one job.
pub struct Books<'a> {
    db: &'a Connection,
    audit: &'a mut Chain,
    durable: bool,
}

impl Books<'_> {
    /// Writes a record into the chain.
    pub fn record(&mut self, event: Event, data: &impl serde::Serialize) -> Result<()> {
        self.audit.append(event, data).map_err(|error| Error::Audit(error.into()))
    }

    /// The job has succeeded only when its records are on the disk.
    pub fn must_last(&mut self) {
        self.durable = true;
    }

    /// Runs one statement.
    pub fn execute(&self, what: &'static str, sql: &str, values: impl rusqlite::Params) -> Result<usize> {
        let done = self.db.prepare_cached(sql).and_then(|mut statement| statement.execute(values));
        done.map_err(|error| Error::database(what, error))
    }

    /// Every row of a query.
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

/// Says whether it did what it was to do, and whom to tell when that is in the books.
type Job = Box<dyn FnOnce(&mut Books<'_>) -> (bool, Reply) + Send>;
type Reply = Box<dyn FnOnce(Option<&str>) + Send>;

/// The way to the thread that keeps the books.
#[derive(Clone)]
pub struct Ledger {
    jobs: mpsc::Sender<Job>,
    heads: Heads,
    chain: PathBuf,
}

/// Heads that are remembered without reading the chain.
const HEADS_MAX: usize = 16_384;

/// The newest heads of the chain, oldest first.
#[derive(Clone, Default)]
struct Heads(Arc<Mutex<VecDeque<audit::Head>>>);

impl Heads {
    fn add(&self, head: audit::Head) {
        let mut heads = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if heads.len() >= HEADS_MAX {
            heads.pop_front();
        }
        heads.push_back(head);
    }
}

impl Ledger {
    /// Opens the books below a directory, which is made if it is not there. `schema` makes every table that is not there.
    pub fn open(dir: &Path, schema: &[&str]) -> Result<Ledger> {
        Ledger::open_telling(dir, schema, Path::new(audit::syslog::SOCKET))
    }

    fn open_telling(dir: &Path, schema: &[&str], log: &Path) -> Result<Ledger> {
        std::fs::create_dir_all(dir).map_err(|error| Error::file("make", dir, error))?;
        let set = std::fs::set_permissions(dir, std::os::unix::fs::PermissionsExt::from_mode(0o700));
        set.map_err(|error| Error::file("close to others", dir, error))?;
        // The lock of the chain is the lock of both.
        let audit = audit::Writer::open(&dir.join("audit")).map_err(|error| match error {
            audit::Error::Locked { .. } => Error::InUse,
            error => Error::Audit(error.into()),
        })?;
        let path = dir.join("approvals.db");
        // SQLite would make it readable for others.
        file::open(&path, Open::Create).map_err(|errno| Error::file("make", &path, errno))?;
        let fail = |error: rusqlite::Error| Error::file("open", &path, error);
        let db = Connection::open(&path).map_err(fail)?;
        db.pragma_update(None, "journal_mode", "wal").map_err(fail)?;
        db.pragma_update(None, "synchronous", "normal").map_err(fail)?;
        db.pragma_update(None, "foreign_keys", "on").map_err(fail)?;
        for table in [SCHEMA].iter().chain(schema) {
            db.execute_batch(table).map_err(fail)?;
        }
        let mut chain = Chain::new(audit, dir.join("audit"), log.to_owned());
        let (heads, chain_dir) = (chain.heads.clone(), chain.dir.clone());
        agree(&db, &mut chain)?;
        let (jobs, receiver) = mpsc::channel(JOBS_MAX);
        let thread = std::thread::Builder::new().name("outpost-ledger".into());
        let (built, result) = std::sync::mpsc::sync_channel(1);
        // Built on the thread: at the process limit the closure is dropped here, and dropping a runtime inside another
        // panics.
        let spawned =
            thread.spawn(move || match tokio::runtime::Builder::new_current_thread().enable_time().build() {
                Ok(waits) => {
                    let _caller_waits = built.send(Ok(()));
                    keep(db, chain, receiver, &waits);
                }
                Err(error) => drop(built.send(Err(error))),
            });
        spawned.map_err(|error| Error::file("start a thread for", dir, error))?;
        let result = result.recv().unwrap_or_else(|_| Err(std::io::ErrorKind::Other.into()));
        result.map_err(|error| Error::file("make a clock for", dir, error))?;
        Ok(Ledger { jobs, heads, chain: chain_dir })
    }

    /// The newest record of the chain.
    pub fn head(&self) -> audit::Head {
        let heads = self.heads.0.lock().unwrap_or_else(PoisonError::into_inner);
        heads.back().copied().unwrap_or(audit::Head::NONE)
    }

    /// Whether the chain has this record.
    pub(crate) async fn has(&self, head: audit::Head) -> bool {
        let recent = {
            let heads = self.heads.0.lock().unwrap_or_else(PoisonError::into_inner);
            let oldest = heads.front().map_or(u64::MAX, |oldest| oldest.seq);
            (head.seq >= oldest).then(|| heads.contains(&head))
        };
        match recent {
            Some(found) => found,
            None => {
                let dir = self.chain.clone();
                let looked = tokio::task::spawn_blocking(move || audit::has(&dir, &head));
                looked.await.is_ok_and(|found| found.unwrap_or(false))
            }
        }
    }

    /// Hands over a job without waiting for it, before any other can be.
    pub(crate) fn begin_with(&self, job: impl FnOnce(&mut Books<'_>) -> Result<()> + Send + 'static) {
        let job: Job = Box::new(move |books| {
            let outcome = job(books);
            if let Err(error) = &outcome {
                tracing::error!(%error, "the host's key is not recorded");
            }
            (outcome.is_ok(), Box::new(|_| {}))
        });
        let _empty_so_far = self.jobs.try_send(job);
    }

    /// Does a job and waits until it is in both books, or in neither. A caller that loses interest does not stop it.
    pub async fn write<T: Send + 'static>(
        &self,
        job: impl FnOnce(&mut Books<'_>) -> Result<T> + Send + 'static,
    ) -> Result<T> {
        let (reply, answer) = oneshot::channel();
        let job: Job = Box::new(move |books| {
            let outcome = job(books);
            let done = outcome.is_ok();
            let reply: Reply = Box::new(move |failed| {
                let outcome = match (outcome, failed) {
                    (Ok(_), Some(reason)) => Err(Error::Audit(reason.into())),
                    (outcome, _) => outcome,
                };
                let _lost_interest = reply.send(outcome);
            });
            (done, reply)
        });
        self.jobs.send(job).await.map_err(|_| Error::Stopped)?;
        answer.await.map_err(|_| Error::Stopped)?
    }
}

/// The audit chain. Once a record could not be written, nothing is until the chain has been opened anew, which finds
/// out what is in it.
struct Chain {
    dir: PathBuf,
    /// The system's.
    log: PathBuf,
    writer: Option<audit::Writer>,
    told: Option<Told>,
    heads: Heads,
}

/// What the system's log knows.
struct Told {
    seq: u64,
    at: Instant,
}

/// The head goes to the system's log at most this often, since it vouches for everything before it; and when nothing has
/// happened for so long.
const TOLD_EVERY: Duration = Duration::from_secs(1);

impl Chain {
    fn new(writer: audit::Writer, dir: PathBuf, log: PathBuf) -> Chain {
        let heads = Heads::default();
        heads.add(writer.head());
        Chain { dir, log, writer: Some(writer), told: None, heads }
    }

    fn writer(&mut self) -> audit::Result<&mut audit::Writer> {
        let writer = match self.writer.take() {
            Some(writer) => writer,
            None => audit::Writer::open(&self.dir)?,
        };
        Ok(self.writer.insert(writer))
    }

    /// The number of the newest record; 0 when that cannot be known.
    fn seq(&self) -> u64 {
        self.writer.as_ref().map_or(0, |writer| writer.head().seq)
    }

    /// Whether there are records whose loss nobody else would notice.
    fn is_untold(&self) -> bool {
        let known = self.told.as_ref().map_or(0, |told| told.seq);
        self.seq() > known
    }

    /// Notes that records after `seq` did not take effect.
    fn void(&mut self, seq: u64, why: &str) {
        let last = self.seq();
        if seq == 0 || last <= seq {
            return;
        }
        let data = serde_json::json!({ "from": seq + 1, "to": last, "why": why });
        if let Err(error) = self.append(Event::Voided, &data) {
            tracing::error!(%error, "records that did not take effect stand in the audit chain");
        }
    }

    fn append(&mut self, event: Event, data: &impl serde::Serialize) -> audit::Result<()> {
        let done = self.writer()?.append(event, data).map(|head| self.heads.add(head));
        if let Err(audit::Error::Io { .. } | audit::Error::Failed { .. }) = done {
            self.writer = None;
        }
        done
    }

    fn sync(&mut self) -> audit::Result<()> {
        let done = self.writer()?.sync();
        match (&done, &self.writer) {
            (Ok(()), Some(writer))
                if self.told.as_ref().is_none_or(|told| told.at.elapsed() >= TOLD_EVERY) =>
            {
                let head = writer.head();
                audit::syslog::tell(&self.log, &head);
                self.told = Some(Told { seq: head.seq, at: Instant::now() });
            }
            (Ok(()), _) => {}
            (Err(_), _) => self.writer = None,
        }
        done
    }
}

fn store_seq(db: &Connection, audit: &Chain) -> rusqlite::Result<()> {
    let sql = "insert or replace into chain (one, seq, boot_id) values (1, ?, ?)";
    let values = (audit.seq().cast_signed(), procfs::boot_id());
    db.prepare_cached(sql)?.execute(values).map(|_| ())
}

/// Compares the chain with what the database knows of it. Records that the database does not know did not take effect.
/// Records that only the database knows were removed, unless the machine ended: then either book may lack its end.
fn agree(db: &Connection, audit: &mut Chain) -> Result<()> {
    let fail = |error: rusqlite::Error| Error::database("compare with the chain", error);
    let read =
        |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?.cast_unsigned(), row.get::<_, String>(1)?));
    let known = db.query_row("select seq, boot_id from chain", (), read).optional().map_err(fail)?;
    // The newest one tells that the chain was opened.
    let opened = audit.seq();
    if let Some((seq, boot_id)) = known {
        let same_boot = boot_id == procfs::boot_id();
        let note = match (seq.cmp(&(opened.saturating_sub(1))), same_boot) {
            (Ordering::Equal, _) => None,
            (Ordering::Less, true) => {
                Some((Event::Voided, seq + 1, opened - 1, "the daemon ended before the books agreed"))
            }
            (Ordering::Less, false) => Some((
                Event::Voided,
                seq + 1,
                opened - 1,
                "the machine ended before the books agreed: whether these took effect is not known",
            )),
            (Ordering::Greater, true) => Some((
                Event::Shortened,
                opened,
                seq,
                "the database knows these records and the chain has lost them",
            )),
            (Ordering::Greater, false) => Some((
                Event::Voided,
                opened,
                seq,
                "the machine ended before these records were on the disk, or they were removed",
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

fn keep(mut db: Connection, mut audit: Chain, mut jobs: mpsc::Receiver<Job>, waits: &Runtime) {
    let mut batch = Vec::with_capacity(BATCH_MAX);
    loop {
        let some = async {
            let some = jobs.recv_many(&mut batch, BATCH_MAX);
            match audit.is_untold() {
                true => tokio::time::timeout(TOLD_EVERY, some).await.ok(),
                false => Some(some.await),
            }
        };
        match waits.block_on(some) {
            Some(0) => return,
            Some(_) => {}
            None => {
                if let Err(error) = audit.sync() {
                    tracing::error!(%error, "the end of the audit chain is not on the disk");
                }
                continue;
            }
        }
        let mut replies = Vec::with_capacity(batch.len());
        let failed = done_together(&mut db, &mut audit, batch.drain(..), &mut replies).err();
        if let Some(reason) = &failed {
            tracing::error!(
                reason,
                "what was to be written into the books is lost; nothing was done about it"
            );
        }
        for reply in replies {
            reply(failed.as_deref());
        }
    }
}

/// A job that fails is undone alone; what fails at the end fails for all.
fn done_together(
    db: &mut Connection,
    audit: &mut Chain,
    jobs: impl Iterator<Item = Job>,
    replies: &mut Vec<Reply>,
) -> std::result::Result<(), String> {
    let fail = |error: rusqlite::Error| format!("the approvals database: {error}");
    let mut transaction = db.transaction().map_err(fail)?;
    let mut durable = false;
    let before = audit.seq();
    for job in jobs {
        let mut part = transaction.savepoint().map_err(fail)?;
        let begun = audit.seq();
        let mut books = Books { db: &part, audit, durable: false };
        let (done, reply) = job(&mut books);
        durable |= books.durable;
        replies.push(reply);
        match done {
            true => part.commit().map_err(fail)?,
            false => {
                part.rollback().and_then(|()| part.finish()).map_err(fail)?;
                audit.void(begun, "it could not be done");
            }
        }
    }
    let committed = store_seq(&transaction, audit).and_then(|()| transaction.commit());
    if let Err(error) = committed {
        audit.void(before, "the database failed");
        return Err(fail(error));
    }
    match durable {
        true => audit.sync().map_err(|error| error.to_string()),
        false => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::net::UnixDatagram;

    #[tokio::test]
    async fn the_system_log_hears_of_the_last_record_even_if_nothing_follows_it() {
        let dir = tempfile::tempdir().unwrap();
        let log = UnixDatagram::bind(dir.path().join("log")).unwrap();
        log.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let ledger = Ledger::open_telling(&dir.path().join("books"), &[], &dir.path().join("log")).unwrap();
        // The first is told at once, the second comes too soon after it, and nothing makes the third last.
        for lasts in [true, true, false] {
            let write = move |books: &mut Books<'_>| {
                books.record(Event::Ended, &serde_json::json!({}))?;
                if lasts {
                    books.must_last();
                }
                Ok(())
            };
            ledger.write(write).await.unwrap();
        }
        let newest = audit::verify(&dir.path().join("books/audit"), None).unwrap().head.unwrap();
        let mut line = [0; 512];
        loop {
            let bytes = log.recv(&mut line).unwrap();
            let (_, told) = std::str::from_utf8(&line[..bytes]).unwrap().split_once("audit head ").unwrap();
            if told.parse() == Ok(newest) {
                return;
            }
        }
    }

    /// Opens the books when the thread that kept them before has let them go.
    fn opened(dir: &Path) -> Ledger {
        if let Ok(lock) = std::fs::File::open(dir.join("audit/audit.lock")) {
            lock.lock().unwrap();
        }
        Ledger::open_telling(dir, &[], Path::new("/nonexistent")).unwrap()
    }

    async fn record(ledger: &Ledger) {
        let write = |books: &mut Books<'_>| books.record(Event::Ended, &serde_json::json!({}));
        ledger.write(write).await.unwrap();
    }

    #[tokio::test]
    async fn a_chain_that_lost_its_end_while_nobody_wrote_it_is_reported_for_good() {
        let dir = tempfile::tempdir().unwrap();
        let chain = dir.path().join("audit");
        let ledger = opened(dir.path());
        for _ in 0..3 {
            record(&ledger).await;
        }
        drop(ledger);
        drop(opened(dir.path()));
        drop(opened(dir.path()));
        audit::verify(&chain, None).unwrap();
        let path = chain.join("audit.jsonl");
        let text = std::fs::read_to_string(&path).unwrap();
        let kept: Vec<&str> = text.split_inclusive('\n').take(2).collect();
        std::fs::write(&path, kept.concat()).unwrap();
        let ledger = opened(dir.path());
        for _ in 0..9 {
            record(&ledger).await;
        }
        let error = audit::verify(&chain, None).unwrap_err().to_string();
        assert!(error.contains("line 4: it reports that records before it were removed"), "{error}");
        assert!(error.contains(r#""from":3,"to":6"#), "{error}");
    }
}
