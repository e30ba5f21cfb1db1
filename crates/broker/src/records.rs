//! The broker's ledger tables and audit events: used ids, active requests, and requests forwarded to the guard.

use crate::peer::Peer;
use crate::pinned_request::PinnedRequest;
use crate::wire::Request;
use jiff::Timestamp;
use outpost_approvals::approvers::RequestAttributes;
use outpost_approvals::signing::Proof;
use outpost_approvals::{Approvals, Question, Queue, grants};
use outpost_ledger::audit::Event;
use outpost_ledger::{BootInstant, Error, LedgerTx, Result, unix_ms};
use serde_json::{Value, json};
use std::time::Duration;

/// The tables of the broker face.
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

/// Used ids kept per user. At the limit new requests are refused: dropping an id would allow a replay.
const IDS_MAX: i64 = 100_000;

/// The stored state of an active request.
#[derive(Clone, Debug)]
pub(crate) struct RequestRecord {
    /// Unique, assigned by the broker. The client's id is in `request`.
    pub(crate) key: String,
    pub(crate) request: Request,
    pub(crate) peer: Peer,
    pub(crate) time: Timestamp,
    pub(crate) digest: String,
    /// The keeper's number of the client's connection.
    pub(crate) connection: u64,
    pub(crate) question: Option<String>,
    pub(crate) authorization: Option<Authorization>,
    pub(crate) started: bool,
}

/// Why a request may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Authorization {
    /// `human`, `rule:NAME`, `grant`, `session`.
    pub(crate) decision: String,
    pub(crate) by: String,
    pub(crate) basis: Basis,
}

/// The evidence for an authorization. It is checked again before the start.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// An approver's decision about this request's question.
    Decision(Box<Proof>),
    /// A grant from an approver's earlier decision.
    Grant { id: String, proof: Box<Proof> },
    /// The operator's rules, identified by their hash.
    Rules { sha256: String },
    /// The auto-approval of unprivileged commands at the drop-in's terminal.
    Session,
    /// An earlier worker authorized the request. Its audit records have the evidence.
    Recorded,
}

impl Basis {
    /// The value of `authorization` in the `started` event.
    fn to_json(&self) -> Value {
        let statement =
            |proof: &Proof| proof.statement().map(|(statement, _)| statement.id()).unwrap_or_default();
        match self {
            Basis::Decision(proof) => json!({ "statement": statement(proof) }),
            Basis::Grant { id, proof } => json!({ "grant": id, "statement": statement(proof) }),
            Basis::Rules { sha256 } => json!({ "rules_sha256": sha256 }),
            Basis::Session => json!({ "session": true }),
            Basis::Recorded => Value::Null,
        }
    }
}

/// The result of recording a new request.
pub(crate) enum Admission {
    /// Its id was used before.
    DuplicateId,
    /// The limit of stored ids is reached.
    IdsExhausted,
    /// It may run. It is recorded as started.
    Authorized(Authorization),
    /// Its question is stored and waits for a human.
    NeedsDecision,
}

/// A request's id, with the uid if the server serves several users.
pub(crate) struct IdKey {
    pub(crate) user: Option<u32>,
    pub(crate) id: String,
}

impl IdKey {
    /// The primary key in `broker_ids`.
    fn text(&self) -> String {
        match self.user {
            Some(uid) => format!("{uid}:{}", self.id),
            None => self.id.clone(),
        }
    }

    /// Stored ids that count towards the same limit.
    fn count(&self, tx: &mut LedgerTx<'_>) -> Result<i64> {
        // `;` follows `:` in ASCII, so the range has exactly the ids of this user.
        let (first, end) =
            self.user.map_or_else(Default::default, |uid| (format!("{uid}:"), format!("{uid};")));
        let sql = "select count(*) from broker_ids where ?1 = '' or (id >= ?1 and id < ?2)";
        let counted = tx.rows("count ids", sql, (first, end), |row| row.get::<_, i64>(0))?;
        Ok(counted.first().copied().unwrap_or(0))
    }
}

/// The result of storing an id.
enum IdClaim {
    New,
    Duplicate,
    /// The limit of stored ids is reached.
    Exhausted,
}

/// Stores an id until the freshness check alone refuses a replay of its request.
fn store_id(tx: &mut LedgerTx<'_>, id: &IdKey, time: Timestamp, window: Duration) -> Result<IdClaim> {
    let now = BootInstant::now();
    let ms = unix_ms();
    let sweep = "delete from broker_ids where until_unix_ms < ? and (boot_id <> ? or until_boot_ns < ?)";
    tx.execute("sweep ids", sweep, (ms.cast_signed(), &now.boot_id, now.boot_ns.cast_signed()))?;
    if id.count(tx)? >= IDS_MAX {
        return Ok(IdClaim::Exhausted);
    }
    // Keep it while the request could be fresh, by its own time and by this host's clock.
    let ahead = u64::try_from(time.as_millisecond()).unwrap_or_default().saturating_sub(ms);
    let keep = window + Duration::from_millis(ahead) + Duration::from_secs(1);
    let until = now.after(keep);
    let until_ms = ms.saturating_add(u64::try_from(keep.as_millis()).unwrap_or(u64::MAX));
    let sql =
        "insert or ignore into broker_ids (id, boot_id, until_boot_ns, until_unix_ms) values (?, ?, ?, ?)";
    let values = (id.text(), &until.boot_id, until.boot_ns.cast_signed(), until_ms.cast_signed());
    match tx.execute("remember an id", sql, values)? {
        1 => Ok(IdClaim::New),
        _ => Ok(IdClaim::Duplicate),
    }
}

/// Stores the id of a request that is answered at once. The inner error is the message for the client.
pub(crate) fn claim_id(
    tx: &mut LedgerTx<'_>,
    id: &IdKey,
    time: Timestamp,
    window: Duration,
) -> Result<std::result::Result<(), String>> {
    Ok(match store_id(tx, id, time, window)? {
        IdClaim::New => Ok(()),
        IdClaim::Duplicate => Err(duplicate_message(&id.id)),
        IdClaim::Exhausted => Err(ids_exhausted_message()),
    })
}

pub(crate) fn duplicate_message(id: &str) -> String {
    format!("duplicate request id: {id}")
}

pub(crate) fn ids_exhausted_message() -> String {
    "too many request ids to remember; retry in a minute".to_owned()
}

/// Records a new request. `record.authorization` or a grant authorizes it, otherwise its question is stored.
pub(crate) fn admit(
    tx: &mut LedgerTx<'_>,
    approvals: &Approvals,
    mut record: RequestRecord,
    event: Value,
    question: Option<(Question, BootInstant)>,
    (id, window): (&IdKey, Duration),
) -> Result<Admission> {
    match store_id(tx, id, record.time, window)? {
        IdClaim::Exhausted => return Ok(Admission::IdsExhausted),
        IdClaim::Duplicate => return Ok(Admission::DuplicateId),
        IdClaim::New => {}
    }
    tx.record(Event::Received, &event)?;
    let matter = RequestAttributes { privileged: record.request.privileged, uid: record.peer.uid };
    if record.authorization.is_none()
        && let Some(grant) = grants::consume(tx, approvals.verifier(), &record.digest, matter)?
    {
        let basis = Basis::Grant { id: grant.id.clone(), proof: Box::new(grant.proof) };
        let by = format!("{}, grant {}", grant.by, grant.id);
        record.authorization = Some(Authorization { decision: "grant".into(), by, basis });
    }
    if let Some(authorization) = record.authorization.clone() {
        let mut data = json!({ "request": record.key, "digest": record.digest, "allow": true, "decision": authorization.decision, "by": authorization.by });
        match &authorization.basis {
            Basis::Grant { id, proof } => {
                data["grant"] = json!(id);
                proof.add_to(&mut data);
            }
            Basis::Rules { sha256 } if approvals.rules().sha256() == sha256 => {
                data["rules_sha256"] = json!(sha256);
            }
            Basis::Rules { .. } => {
                return Err(Error::Refused("the rules were changed meanwhile; ask again".into()));
            }
            Basis::Decision(_) | Basis::Session | Basis::Recorded => {}
        }
        tx.record(Event::Decided, &data)?;
        record.started = true;
        insert(tx, &record)?;
        record_started(tx, &record, &authorization)?;
        return Ok(Admission::Authorized(authorization));
    }
    let Some((question, deadline)) = question else { return Ok(Admission::IdsExhausted) };
    record.question = Some(question.id.clone());
    Queue::insert(tx, &question, &deadline)?;
    insert(tx, &record)?;
    Ok(Admission::NeedsDecision)
}

/// Writes the last audit event before a command runs. It must be on disk before the start.
fn record_started(
    tx: &mut LedgerTx<'_>,
    record: &RequestRecord,
    authorization: &Authorization,
) -> Result<()> {
    let data = json!({
        "request": record.key, "digest": record.digest, "privileged": record.request.privileged,
        "authorization": authorization.basis.to_json(), "by": authorization.by,
    });
    tx.record(Event::Started, &data)?;
    tx.require_fsync();
    Ok(())
}

/// Marks a request as started by an approver's decision. The decision must still be valid for the current approvers.
pub(crate) fn mark_started(
    tx: &mut LedgerTx<'_>,
    approvals: &Approvals,
    record: &RequestRecord,
    authorization: &Authorization,
) -> Result<()> {
    check_decision(tx, approvals, record, authorization).map_err(|reason| {
        Error::Refused(format!("the decision about this request does not count any more: {reason}"))
    })?;
    let sql =
        "update broker_requests set started = 1, decision = ?, approver = ? where key = ? and started = 0";
    let changed =
        tx.execute("start a request", sql, (&authorization.decision, &authorization.by, &record.key))?;
    if changed != 1 {
        return Err(Error::Refused("this request was started before; it is not run twice".into()));
    }
    record_started(tx, record, authorization)
}

/// Verifies that an approver's signed decision about this request's question allows it.
fn check_decision(
    tx: &mut LedgerTx<'_>,
    approvals: &Approvals,
    record: &RequestRecord,
    authorization: &Authorization,
) -> std::result::Result<(), String> {
    let Basis::Decision(proof) = &authorization.basis else { return Err("it is not signed".into()) };
    let question = record.question.as_ref().map(|id| Queue::find(tx, id));
    let question = question.transpose().map_err(|error| error.to_string())?.flatten();
    let question = question.ok_or("its question is gone")?;
    let verified = approvals.verifier().check(&question, proof).map_err(|why| why.to_string())?;
    let matches_request = question.digest == record.digest
        && question.privileged == record.request.privileged
        && question.uid == Some(record.peer.uid);
    match matches_request && verified.statement.decision.allow {
        true => Ok(()),
        false => Err("it is about something else".into()),
    }
}

fn insert(tx: &mut LedgerTx<'_>, record: &RequestRecord) -> Result<()> {
    let sql = "insert into broker_requests
        (key, request, peer, time, digest, connection, question, decision, approver, started)
        values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    let values = (
        &record.key,
        json_text(&record.request),
        json_text(&record.peer),
        record.time.to_string(),
        &record.digest,
        record.connection.cast_signed(),
        &record.question,
        record.authorization.as_ref().map(|authorization| &authorization.decision),
        record.authorization.as_ref().map(|authorization| &authorization.by),
        i64::from(record.started),
    );
    tx.execute("enter a request", sql, values).map(|_| ())
}

fn json_text(value: &impl serde::Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

/// The active requests of an earlier worker.
pub(crate) fn load_active(tx: &mut LedgerTx<'_>) -> Result<Vec<RequestRecord>> {
    let sql = "select key, request, peer, time, digest, connection, question, decision, approver, started
        from broker_requests";
    let rows = tx.rows("read requests", sql, (), |row| {
        let authorization = match (row.get(7)?, row.get(8)?) {
            (Some(decision), Some(by)) => Some(Authorization { decision, by, basis: Basis::Recorded }),
            _ => None,
        };
        let (request, peer, time): (String, String, String) = (row.get(1)?, row.get(2)?, row.get(3)?);
        let parsed =
            serde_json::from_str(&request).ok().zip(serde_json::from_str(&peer).ok()).zip(time.parse().ok());
        let (key, digest, question) = (row.get(0)?, row.get(4)?, row.get(6)?);
        let (connection, started) = (row.get::<_, i64>(5)?.cast_unsigned(), row.get::<_, i64>(9)? != 0);
        Ok(parsed.map(|((request, peer), time)| RequestRecord {
            key,
            request,
            peer,
            time,
            digest,
            connection,
            question,
            authorization,
            started,
        }))
    })?;
    Ok(rows.into_iter().flatten().collect())
}

/// A request forwarded to the guard: the keeper's numbers of both connections.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Forward {
    pub(crate) guard: u64,
    pub(crate) client: u64,
}

pub(crate) fn insert_forward(tx: &mut LedgerTx<'_>, forward: Forward) -> Result<()> {
    let values = (forward.guard.cast_signed(), forward.client.cast_signed());
    let sql = "insert or replace into broker_forwards (guard, client) values (?, ?)";
    tx.execute("enter a forward", sql, values).map(|_| ())
}

pub(crate) fn delete_forward(tx: &mut LedgerTx<'_>, forward: Forward) -> Result<()> {
    let sql = "delete from broker_forwards where guard = ?";
    tx.execute("end a forward", sql, (forward.guard.cast_signed(),)).map(|_| ())
}

/// The forwarded requests of an earlier worker.
pub(crate) fn load_forwards(tx: &mut LedgerTx<'_>) -> Result<Vec<Forward>> {
    let number = |number: i64| number.cast_unsigned();
    tx.rows("read forwards", "select guard, client from broker_forwards", (), |row| {
        Ok(Forward { guard: number(row.get(0)?), client: number(row.get(1)?) })
    })
}

/// Records the end of a request, with its result in `data`, and deletes its state.
pub(crate) fn end(tx: &mut LedgerTx<'_>, record: &RequestRecord, mut data: Value) -> Result<()> {
    data["request"] = json!(record.key);
    data["digest"] = json!(record.digest);
    tx.record(Event::Ended, &data)?;
    if let Some(question) = &record.question {
        Queue::delete(tx, question)?;
    }
    tx.execute("end a request", "delete from broker_requests where key = ?", (&record.key,)).map(|_| ())
}

/// Records that the client disconnected before a decision, and ends the request.
pub(crate) fn withdraw(tx: &mut LedgerTx<'_>, record: &RequestRecord) -> Result<()> {
    if let Some(question) = &record.question {
        Queue::record_withdrawal(tx, question, &record.digest)?;
    }
    end(tx, record, json!({ "status": "withdrawn" }))
}

/// The `received` audit event. `env` has only the variables of the request.
pub(crate) fn received_event(key: &str, pinned: &PinnedRequest, peer: &Peer) -> Value {
    let files: Vec<Value> = pinned
        .files()
        .map(|file| {
            json!({
                "path": file.real_path, "sha256": file.sha256, "device": file.identity.device,
                "inode": file.identity.inode, "size": file.identity.size,
            })
        })
        .collect();
    let request = &pinned.request;
    json!({
        "request": key, "id": request.id, "digest": pinned.digest, "peer": peer,
        "pipeline": request.pipeline, "env": request.env, "cwd": pinned.cwd, "run_as": pinned.run_as.uid,
        "privileged": request.privileged, "forward_agent": request.forward_agent, "files": files,
        "claims": { "session": request.session, "host": request.host, "reason": request.reason },
    })
}
