//! What the broker writes into the books: which ids were used, which requests are under way, and the audit of each.

use crate::order::Order;
use crate::peer::Peer;
use crate::wire::Request;
use jiff::Timestamp;
use outpost_approvals::approvers::Matter;
use outpost_approvals::audit::Event;
use outpost_approvals::signing::Proof;
use outpost_approvals::{Approvals, Books, Error, Moment, Question, Queue, Result, grants, unix_ms};
use serde_json::{Value, json};
use std::time::Duration;

/// The tables of this face.
pub const SCHEMA: &str = "
    create table if not exists broker_ids (
        id text primary key,
        boot_id text not null,
        until_boot_ns integer not null,
        until_unix_ms integer not null
    ) strict, without rowid;
    create index if not exists broker_ids_by_end on broker_ids (until_unix_ms);
    create table if not exists broker_requests (
        key text primary key,
        request text not null,
        peer text not null,
        time text not null,
        digest text not null,
        connection integer not null,
        question text,
        decision text,
        approver text,
        started integer not null default 0
    ) strict, without rowid;
    create table if not exists broker_forwards (
        guard integer primary key,
        client integer not null
    ) strict;
";

/// Ids of a user that are remembered. When there are more, nothing is forgotten: new requests are refused.
const IDS_MAX: i64 = 100_000;

/// A request that is under way.
#[derive(Clone, Debug)]
pub(crate) struct Entry {
    /// Ours, whatever the client's id is.
    pub(crate) key: String,
    pub(crate) request: Request,
    pub(crate) peer: Peer,
    pub(crate) time: Timestamp,
    pub(crate) digest: String,
    /// Under which number the keeper has its connection.
    pub(crate) connection: u64,
    pub(crate) question: Option<String>,
    pub(crate) why: Option<Why>,
    pub(crate) started: bool,
}

/// Why a request may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Why {
    /// `human`, `rule:NAME`, `grant`, `session`.
    pub(crate) decision: String,
    pub(crate) by: String,
    pub(crate) authority: Authority,
}

/// What makes that so, and is checked again before anything runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Authority {
    /// An approver's decision about the question of this very request.
    Decision(Box<Proof>),
    /// An approver's earlier decision, for a number of times or a time.
    Grant { id: String, proof: Box<Proof> },
    /// The operator's rules, by their hash.
    Rules { sha256: String },
    /// A human at the drop-in's terminal, for everything without root's rights.
    Session,
    /// It was started by an earlier worker, which has recorded by what.
    Recorded,
}

impl Authority {
    /// As the record of the start names it.
    fn name(&self) -> Value {
        let statement =
            |proof: &Proof| proof.statement().map(|(statement, _)| statement.id()).unwrap_or_default();
        match self {
            Authority::Decision(proof) => json!({ "statement": statement(proof) }),
            Authority::Grant { id, proof } => json!({ "grant": id, "statement": statement(proof) }),
            Authority::Rules { sha256 } => json!({ "rules_sha256": sha256 }),
            Authority::Session => json!({ "session": true }),
            Authority::Recorded => Value::Null,
        }
    }
}

/// What became of a request when it was written down.
pub(crate) enum Entered {
    /// Its id was used before.
    Duplicate,
    /// No more ids can be remembered now.
    Full,
    /// It may run: it is recorded as started.
    MayRun(Why),
    /// A human is to be asked, by the question that was given.
    Asks,
}

/// The id of a request, and where there are several users, of which one.
pub(crate) struct IdKey {
    pub(crate) user: Option<u32>,
    pub(crate) id: String,
}

impl IdKey {
    /// As it stands in the books.
    fn text(&self) -> String {
        match self.user {
            Some(uid) => format!("{uid}:{}", self.id),
            None => self.id.clone(),
        }
    }

    /// How many ids are remembered that count towards the same limit.
    fn count(&self, books: &mut Books<'_>) -> Result<i64> {
        // `;` follows `:`, so these are the ids of this user and no others.
        let (first, end) =
            self.user.map_or_else(Default::default, |uid| (format!("{uid}:"), format!("{uid};")));
        let sql = "select count(*) from broker_ids where ?1 = '' or (id >= ?1 and id < ?2)";
        let counted = books.rows("count ids", sql, (first, end), |row| row.get::<_, i64>(0))?;
        Ok(counted.first().copied().unwrap_or(0))
    }
}

/// Remembers an id. False if it was used before.
fn use_id(books: &mut Books<'_>, id: &IdKey, time: Timestamp, window: Duration) -> Result<Option<bool>> {
    let now = Moment::now();
    let ms = unix_ms();
    let sweep = "delete from broker_ids where until_unix_ms < ? and (boot_id <> ? or until_boot_ns < ?)";
    books.execute("sweep ids", sweep, (ms.cast_signed(), &now.boot_id, now.boot_ns.cast_signed()))?;
    if id.count(books)? >= IDS_MAX {
        return Ok(None);
    }
    // As long as the request could be fresh, by its clock and by ours.
    let ahead = u64::try_from(time.as_millisecond()).unwrap_or_default().saturating_sub(ms);
    let keep = window + Duration::from_millis(ahead) + Duration::from_secs(1);
    let until = now.after(keep);
    let until_ms = ms.saturating_add(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
    let sql =
        "insert or ignore into broker_ids (id, boot_id, until_boot_ns, until_unix_ms) values (?, ?, ?, ?)";
    let values = (id.text(), &until.boot_id, until.boot_ns.cast_signed(), until_ms.cast_signed());
    Ok(Some(books.execute("remember an id", sql, values)? == 1))
}

/// Only remembers an id, for what is answered at once. The message for one that was used before.
pub(crate) fn use_id_once(
    books: &mut Books<'_>,
    id: &IdKey,
    time: Timestamp,
    window: Duration,
) -> Result<std::result::Result<(), String>> {
    Ok(match use_id(books, id, time, window)? {
        Some(true) => Ok(()),
        Some(false) => Err(duplicate(&id.id)),
        None => Err(full()),
    })
}

pub(crate) fn duplicate(id: &str) -> String {
    format!("duplicate request id: {id}")
}

pub(crate) fn full() -> String {
    "too many request ids to remember; retry in a minute".to_owned()
}

/// Writes a new request down, and decides how it goes on: by `why`, by a grant, or by the question.
pub(crate) fn enter(
    books: &mut Books<'_>,
    approvals: &Approvals,
    mut entry: Entry,
    record: Value,
    question: Option<(Question, Moment)>,
    (id, window): (&IdKey, Duration),
) -> Result<Entered> {
    match use_id(books, id, entry.time, window)? {
        None => return Ok(Entered::Full),
        Some(false) => return Ok(Entered::Duplicate),
        Some(true) => {}
    }
    books.record(Event::Received, &record)?;
    let matter = Matter { privileged: entry.request.privileged, uid: entry.peer.uid };
    if entry.why.is_none()
        && let Some(grant) = grants::take(books, approvals.trust(), &entry.digest, matter)?
    {
        let authority = Authority::Grant { id: grant.id.clone(), proof: Box::new(grant.proof) };
        let by = format!("{}, grant {}", grant.by, grant.id);
        entry.why = Some(Why { decision: "grant".into(), by, authority });
    }
    if let Some(why) = entry.why.clone() {
        let mut data = json!({ "request": entry.key, "digest": entry.digest, "allow": true, "decision": why.decision, "by": why.by });
        match &why.authority {
            Authority::Grant { id, proof } => {
                data["grant"] = json!(id);
                proof.add_to(&mut data);
            }
            Authority::Rules { sha256 } if approvals.rules().sha256() == sha256 => {
                data["rules_sha256"] = json!(sha256);
            }
            Authority::Rules { .. } => {
                return Err(Error::Refused("the rules were changed meanwhile; ask again".into()));
            }
            Authority::Decision(_) | Authority::Session | Authority::Recorded => {}
        }
        books.record(Event::Decided, &data)?;
        entry.started = true;
        insert(books, &entry)?;
        started(books, &entry, &why)?;
        return Ok(Entered::MayRun(why));
    }
    let Some((question, deadline)) = question else { return Ok(Entered::Full) };
    entry.question = Some(question.id.clone());
    Queue::enter(books, &question, &deadline)?;
    insert(books, &entry)?;
    Ok(Entered::Asks)
}

/// The last record before a command runs. It lasts, or the command does not run.
fn started(books: &mut Books<'_>, entry: &Entry, why: &Why) -> Result<()> {
    let data = json!({
        "request": entry.key, "digest": entry.digest, "privileged": entry.request.privileged,
        "authorization": why.authority.name(), "by": why.by,
    });
    books.record(Event::Started, &data)?;
    books.must_last();
    Ok(())
}

/// A human has allowed it, and by what is known of the approvers now, that counts.
pub(crate) fn start(books: &mut Books<'_>, approvals: &Approvals, entry: &Entry, why: &Why) -> Result<()> {
    check(books, approvals, entry, why).map_err(|reason| {
        Error::Refused(format!("the decision about this request does not count any more: {reason}"))
    })?;
    let sql =
        "update broker_requests set started = 1, decision = ?, approver = ? where key = ? and started = 0";
    let changed = books.execute("start a request", sql, (&why.decision, &why.by, &entry.key))?;
    if changed != 1 {
        return Err(Error::Refused("this request was started before; it is not run twice".into()));
    }
    started(books, entry, why)
}

/// Whether an approver's decision about the question of this request allows it.
fn check(
    books: &mut Books<'_>,
    approvals: &Approvals,
    entry: &Entry,
    why: &Why,
) -> std::result::Result<(), String> {
    let Authority::Decision(proof) = &why.authority else { return Err("it is not signed".into()) };
    let question = entry.question.as_ref().map(|id| Queue::stored(books, id));
    let question = question.transpose().map_err(|error| error.to_string())?.flatten();
    let question = question.ok_or("its question is gone")?;
    let verified = approvals.trust().check(&question, proof)?;
    let is_about_it = question.digest == entry.digest
        && question.privileged == entry.request.privileged
        && question.uid == Some(entry.peer.uid);
    match is_about_it && verified.statement.decision.allow {
        true => Ok(()),
        false => Err("it is about something else".into()),
    }
}

fn insert(books: &mut Books<'_>, entry: &Entry) -> Result<()> {
    let sql = "insert into broker_requests
        (key, request, peer, time, digest, connection, question, decision, approver, started)
        values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let values = (
        &entry.key,
        json_text(&entry.request),
        json_text(&entry.peer),
        entry.time.to_string(),
        &entry.digest,
        entry.connection.cast_signed(),
        &entry.question,
        entry.why.as_ref().map(|why| &why.decision),
        entry.why.as_ref().map(|why| &why.by),
        i64::from(entry.started),
    );
    books.execute("enter a request", sql, values).map(|_| ())
}

fn json_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// Everything that an earlier worker has left under way.
pub(crate) fn left(books: &mut Books<'_>) -> Result<Vec<Entry>> {
    let sql = "select key, request, peer, time, digest, connection, question, decision, approver, started
        from broker_requests";
    let rows = books.rows("read requests", sql, (), |row| {
        let why = match (row.get(7)?, row.get(8)?) {
            (Some(decision), Some(by)) => Some(Why { decision, by, authority: Authority::Recorded }),
            _ => None,
        };
        let (request, peer, time): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
        let parsed =
            serde_json::from_str(&request).ok().zip(serde_json::from_str(&peer).ok()).zip(time.parse().ok());
        let (key, digest, question) = (row.get(0)?, row.get(4)?, row.get(6)?);
        let (connection, started) = (row.get::<_, i64>(5)?.cast_unsigned(), row.get::<_, i64>(9)? != 0);
        Ok(parsed.map(|((request, peer), time)| Entry {
            key,
            request,
            peer,
            time,
            digest,
            connection,
            question,
            why,
            started,
        }))
    })?;
    Ok(rows.into_iter().flatten().collect())
}

/// A request that was passed on to the guard: the numbers under which the keeper has both connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    pub(crate) guard: u64,
    pub(crate) client: u64,
}

pub(crate) fn enter_forward(books: &mut Books<'_>, forward: Forward) -> Result<()> {
    let values = (forward.guard.cast_signed(), forward.client.cast_signed());
    let sql = "insert or replace into broker_forwards (guard, client) values (?, ?)";
    books.execute("enter a forward", sql, values).map(|_| ())
}

pub(crate) fn end_forward(books: &mut Books<'_>, forward: Forward) -> Result<()> {
    let sql = "delete from broker_forwards where guard = ?";
    books.execute("end a forward", sql, (forward.guard.cast_signed(),)).map(|_| ())
}

/// What an earlier worker was passing on.
pub(crate) fn forwards(books: &mut Books<'_>) -> Result<Vec<Forward>> {
    let number = |number: i64| number.cast_unsigned();
    books.rows("read forwards", "select guard, client from broker_forwards", (), |row| {
        Ok(Forward { guard: number(row.get(0)?), client: number(row.get(1)?) })
    })
}

/// The request is over: `data` tells how, and nothing is under way any more.
pub(crate) fn end(books: &mut Books<'_>, entry: &Entry, mut data: Value) -> Result<()> {
    data["request"] = json!(entry.key);
    data["digest"] = json!(entry.digest);
    books.record(Event::Ended, &data)?;
    if let Some(question) = &entry.question {
        Queue::erase(books, question)?;
    }
    books.execute("end a request", "delete from broker_requests where key = ?", (&entry.key,)).map(|_| ())
}

/// The request is over because whoever asked has left.
pub(crate) fn withdraw(books: &mut Books<'_>, entry: &Entry) -> Result<()> {
    if let Some(question) = &entry.question {
        Queue::asker_left(books, question, &entry.digest)?;
    }
    end(books, entry, json!({ "status": "withdrawn" }))
}

/// What the chain says of a request when it comes in. Everything but the environment that we add.
pub(crate) fn received(key: &str, order: &Order, peer: &Peer) -> Value {
    let files: Vec<Value> = order
        .files()
        .map(|file| {
            json!({
                "path": file.path, "sha256": file.sha256, "device": file.identity.device,
                "inode": file.identity.inode, "size": file.identity.size,
            })
        })
        .collect();
    let request = &order.request;
    json!({
        "request": key, "id": request.id, "digest": order.digest, "peer": peer,
        "pipeline": request.pipeline, "env": request.env, "cwd": order.cwd, "run_as": order.run_as.uid,
        "privileged": request.privileged, "forward_agent": request.forward_agent, "files": files,
        "claims": { "session": request.session, "host": request.host, "reason": request.reason },
    })
}
