//! Permission requests of agents as questions in the approval queue.

use super::output::PermissionRequest;
use super::permission_quota::{PermissionQuota, QuotaError};
use crate::agents::PermissionDecision;
use crate::event::{Event, Kind};
use crate::face::Face;
use crate::session::Session;
use crate::{Error, FACE, Result};
use outpost_approvals::display::{escape_untrusted, quote, warnings};
use outpost_approvals::{Line, Outcome, Question, Queue, Section};
use outpost_ledger::audit::Event as Record;
use outpost_ledger::{BootInstant, hex, unix_ms};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// An input with more members is shown as one text.
const MEMBERS_MAX: usize = 64;
const TOOL_CHARS_MAX: usize = 100;

/// A pending question and the request that it belongs to.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct PendingPermission {
    pub(crate) request: PermissionRequest,
    /// The id in the approval queue.
    pub(crate) question_id: String,
}

type Outcomes = JoinSet<(PermissionRequest, String, Outcome)>;

/// Stores a question and puts it into the queue. The inner error is why it exceeds the quota.
pub(crate) async fn ask(
    face: &Arc<Face>,
    session: &Session,
    request: &PermissionRequest,
    quota: &mut PermissionQuota,
    outcomes: &mut Outcomes,
) -> Result<std::result::Result<PendingPermission, QuotaError>> {
    let timeout = face.settings().ask_timeout;
    let question = question(timeout, session, request);
    if let Err(why) = quota.reserve(&question, &request.input) {
        return Ok(Err(why));
    }
    let deadline = BootInstant::now().after(timeout);
    let (entered, id) = (question.clone(), question.id.clone());
    let record = json!({
        "request": id, "face": FACE, "session": session.id, "cli": session.cli.name(), "digest": question.digest,
        "tool": request.tool, "input": request.input, "cwd": session.path,
    });
    let written = face.ledger().transact(move |tx| {
        tx.record(Record::Received, &record)?;
        Queue::insert(tx, &entered, &deadline)
    });
    written.await.map_err(Error::from)?;
    wait(face, request.clone(), question, timeout, outcomes);
    Ok(Ok(PendingPermission { request: request.clone(), question_id: id }))
}

/// The event and the decision for a request that exceeds the quota. The event omits the input, which may be too large.
pub(crate) fn refused(request: &PermissionRequest, why: &QuotaError) -> (Event<'static>, PermissionDecision) {
    let event = Event {
        state: Some("denied"),
        tool: Some(Cow::Owned(escape_untrusted(&request.tool, TOOL_CHARS_MAX))),
        message: Some(why.to_string().into()),
        ..Event::new(Kind::Approval)
    };
    (event, PermissionDecision { allow: false, note: why.to_string() })
}

fn wait(
    face: &Arc<Face>,
    request: PermissionRequest,
    question: Question,
    left: Duration,
    outcomes: &mut Outcomes,
) {
    let queue = face.approvals.queue().clone();
    let mut asked = queue.publish(question, left);
    outcomes.spawn(async move {
        let outcome = match asked.outcome().await {
            Some(outcome) => outcome,
            None => queue.expire(asked.id()).await,
        };
        (request, asked.id().to_owned(), outcome)
    });
}

/// Puts a question of the previous worker into the queue again with its remaining time, or takes its stored outcome.
pub(crate) async fn resume(face: &Arc<Face>, pending: &PendingPermission, outcomes: &mut Outcomes) {
    let id = pending.question_id.clone();
    let queue = face.approvals.queue().clone();
    let found = face.ledger().transact(move |tx| {
        let all = queue.load(tx, FACE)?;
        Ok(all.into_iter().find(|remembered| remembered.question.id == id))
    });
    let (request, id) = (pending.request.clone(), pending.question_id.clone());
    match found.await {
        Ok(Some(remembered)) => match remembered.outcome {
            Some(outcome) => {
                outcomes.spawn(async move { (request, id, outcome) });
            }
            None => {
                let left = remembered.deadline.left(&BootInstant::now());
                wait(face, request, remembered.question, left, outcomes);
            }
        },
        // The previous worker died before it stored the question, so no approver has seen it.
        _ => {
            outcomes.spawn(async move { (request, id, Outcome::Expired) });
        }
    }
}

/// Deletes a resolved question from the database.
pub(crate) fn erase(face: &Arc<Face>, question: &str) {
    let (ledger, id) = (face.ledger().clone(), question.to_owned());
    tokio::spawn(async move {
        if let Err(error) = ledger.transact(move |tx| Queue::delete(tx, &id)).await {
            tracing::warn!(%error, "cannot delete a resolved question from the database");
        }
    });
}

/// The event of a new question.
pub(crate) fn asked(request: &PermissionRequest, question: &str) -> Event<'static> {
    Event {
        approval: Some(Cow::Owned(question.to_owned())),
        state: Some("asked"),
        tool: Some(Cow::Owned(request.tool.clone())),
        input: serde_json::value::to_raw_value(&request.input).ok().map(Cow::Owned),
        ..Event::new(Kind::Approval)
    }
}

/// The event of a resolved question, and the decision for the agent.
pub(crate) fn resolved(
    request: &PermissionRequest,
    question: &str,
    outcome: &Outcome,
) -> (Event<'static>, PermissionDecision) {
    let (state, decision) = decide(outcome);
    let message = (!decision.note.is_empty()).then(|| decision.note.clone().into());
    let asked = Event { input: None, ..asked(request, question) };
    (Event { state: Some(state), message, ..asked }, decision)
}

/// The event state and the decision of an outcome.
fn decide(outcome: &Outcome) -> (&'static str, PermissionDecision) {
    let denied = |note: &str| PermissionDecision { allow: false, note: note.to_owned() };
    match outcome {
        Outcome::Decided { decision, .. } if decision.allow => {
            ("allowed", PermissionDecision { allow: true, note: String::new() })
        }
        Outcome::Decided { decision, .. } if decision.note.is_empty() => {
            ("denied", denied("An approver denied this."))
        }
        Outcome::Decided { decision, .. } => ("denied", denied(&decision.note)),
        Outcome::Expired => ("expired", denied("No approver answered in time, so it is denied.")),
        Outcome::Withdrawn => ("withdrawn", denied("The question was withdrawn.")),
        Outcome::Unanswerable { why } => ("expired", denied(why)),
    }
}

fn line(name: impl Into<String>, value: impl Into<String>) -> Line {
    Line { name: name.into(), value: value.into() }
}

fn question(timeout: Duration, session: &Session, request: &PermissionRequest) -> Question {
    let asked_ms = unix_ms();
    let timeout = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    let tool = escape_untrusted(&request.tool, TOOL_CHARS_MAX);
    let about = json!([FACE, session.id, session.cli.name(), session.path, request.tool, request.input]);
    let digest = hex(&Sha256::digest(about.to_string().as_bytes()));
    let subject = subject(&request.input);
    let title = format!("{} wants to use {tool}: {}", session.cli.title(), quote(&subject));
    let origin = vec![
        line("agent", session.cli.name()),
        line("session", session.id.clone()),
        line("in", quote(&session.path.to_string_lossy())),
        line("as", format!("uid {}", outpost_sys::process::effective_uid())),
        line("digest", digest.clone()),
    ];
    let mut found: Vec<String> = warnings("the input", &subject);
    found.extend(warnings("the tool's name", &request.tool));
    Question {
        id: uuid::Uuid::new_v4().to_string(),
        face: FACE.into(),
        digest,
        title,
        sections: vec![
            Section { heading: format!("Use of {tool}"), lines: input(&request.input), claimed: false },
            Section { heading: "Asked by".into(), lines: origin, claimed: false },
        ],
        warnings: found,
        privileged: false,
        rememberable: false,
        uid: None,
        asked_ms,
        deadline_ms: asked_ms.saturating_add(timeout),
    }
}

/// The subject of a tool use in one text: its command, its file, or the whole input.
fn subject(input: &Value) -> String {
    let member = |name: &str| input.get(name).and_then(Value::as_str).map(str::to_owned);
    let named = ["command", "file_path", "path", "url", "query"].into_iter().find_map(member);
    named.unwrap_or_else(|| input.to_string())
}

/// The whole input, one line per member.
fn input(input: &Value) -> Vec<Line> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match input {
        Value::Object(members) if members.len() <= MEMBERS_MAX => members
            .iter()
            .map(|(name, value)| line(escape_untrusted(name, TOOL_CHARS_MAX), quote(&text(value))))
            .collect(),
        other => vec![line("input", quote(&text(other)))],
    }
}
