//! An agent's questions in the one queue of everything that waits for a human.

use crate::agents::Answer;
use crate::event::{Event, Kind};
use crate::face::Face;
use crate::output::Ask;
use crate::room::Room;
use crate::session::Session;
use crate::{Error, FACE, Result};
use outpost_approvals::audit::Event as Record;
use outpost_approvals::display::{claim, quote, warnings};
use outpost_approvals::{Line, Moment, Outcome, Question, Queue, Section, hex, unix_ms};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use std::borrow::Cow;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinSet;

/// More members of a tool's input than this are shown as one text.
const MEMBERS_MAX: usize = 64;
const TOOL_CHARS_MAX: usize = 100;

/// A question that waits, with what the agent wants to know.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Pending {
    pub(crate) ask: Ask,
    /// Its id in the queue.
    pub(crate) question: String,
}

type Outcomes = JoinSet<(Ask, String, Outcome)>;

/// Writes a question down and asks it. One that there is no room for is not asked: then the reason is returned.
pub(crate) async fn ask(
    face: &Arc<Face>,
    session: &Session,
    ask: &Ask,
    room: &mut Room,
    outcomes: &mut Outcomes,
) -> Result<std::result::Result<Pending, String>> {
    let patience = face.settings().ask_patience;
    let question = question(patience, session, ask);
    if let Err(why) = room.take(&question, &ask.input) {
        return Ok(Err(why));
    }
    let deadline = Moment::now().after(patience);
    let (entered, id) = (question.clone(), question.id.clone());
    let record = json!({
        "request": id, "face": FACE, "session": session.id, "cli": session.cli.name(), "digest": question.digest,
        "tool": ask.tool, "input": ask.input, "cwd": session.path,
    });
    let written = face.books().write(move |books| {
        books.record(Record::Received, &record)?;
        Queue::enter(books, &entered, &deadline)
    });
    written.await.map_err(Error::from)?;
    wait(face, ask.clone(), question, patience, outcomes);
    Ok(Ok(Pending { ask: ask.clone(), question: id }))
}

/// How clients and the agent are told that a question is not asked. Its input is in no event: it may be too large for one.
pub(crate) fn refused(ask: &Ask, why: &str) -> (Event<'static>, Answer) {
    let event = Event {
        state: Some("denied"),
        tool: Some(Cow::Owned(claim(&ask.tool, TOOL_CHARS_MAX))),
        message: Some(why.to_owned().into()),
        ..Event::new(Kind::Approval)
    };
    (event, Answer { allow: false, note: why.to_owned() })
}

fn wait(face: &Arc<Face>, ask: Ask, question: Question, left: Duration, outcomes: &mut Outcomes) {
    let queue = face.approvals.queue().clone();
    let mut asked = queue.ask(question, left);
    outcomes.spawn(async move {
        let outcome = match asked.outcome().await {
            Some(outcome) => outcome,
            None => queue.expire(asked.id()).await,
        };
        (ask, asked.id().to_owned(), outcome)
    });
}

/// Asks again what an earlier worker has asked, with what is left of its time, or takes what was answered meanwhile.
pub(crate) async fn resume(face: &Arc<Face>, pending: &Pending, outcomes: &mut Outcomes) {
    let id = pending.question.clone();
    let queue = face.approvals.queue().clone();
    let found = face.books().write(move |books| {
        let all = queue.remembered(books, FACE)?;
        Ok(all.into_iter().find(|remembered| remembered.question.id == id))
    });
    let (ask, id) = (pending.ask.clone(), pending.question.clone());
    match found.await {
        Ok(Some(remembered)) => match remembered.outcome {
            Some(outcome) => {
                outcomes.spawn(async move { (ask, id, outcome) });
            }
            None => {
                let left = remembered.deadline.left(&Moment::now());
                wait(face, ask, remembered.question, left, outcomes);
            }
        },
        // It was never written down: nobody has seen it, and nobody will.
        _ => {
            outcomes.spawn(async move { (ask, id, Outcome::Expired) });
        }
    }
}

/// A question that was answered is not needed any more once its answer is on its way.
pub(crate) fn forget(face: &Arc<Face>, question: &str) {
    let (books, id) = (face.books().clone(), question.to_owned());
    tokio::spawn(async move {
        if let Err(error) = books.write(move |books| Queue::erase(books, &id)).await {
            tracing::warn!(%error, "an answered question stays in the books");
        }
    });
}

/// How clients are told of a question.
pub(crate) fn asked(ask: &Ask, question: &str) -> Event<'static> {
    Event {
        approval: Some(Cow::Owned(question.to_owned())),
        state: Some("asked"),
        tool: Some(Cow::Owned(ask.tool.clone())),
        input: serde_json::value::to_raw_value(&ask.input).ok().map(Cow::Owned),
        ..Event::new(Kind::Approval)
    }
}

/// How they are told what came of it, and what the agent is.
pub(crate) fn settled(ask: &Ask, question: &str, outcome: &Outcome) -> (Event<'static>, Answer) {
    let (state, answer) = answer(outcome);
    let message = (!answer.note.is_empty()).then(|| answer.note.clone().into());
    let asked = Event { input: None, ..asked(ask, question) };
    (Event { state: Some(state), message, ..asked }, answer)
}

/// What an outcome means to the agent, and how clients are told of it.
fn answer(outcome: &Outcome) -> (&'static str, Answer) {
    let denied = |note: &str| Answer { allow: false, note: note.to_owned() };
    match outcome {
        Outcome::Decided { decision, .. } if decision.allow => {
            ("allowed", Answer { allow: true, note: String::new() })
        }
        Outcome::Decided { decision, .. } if decision.note.is_empty() => {
            ("denied", denied("A human has denied this."))
        }
        Outcome::Decided { decision, .. } => ("denied", denied(&decision.note)),
        Outcome::Expired => ("expired", denied("Nobody answered in time, so it is denied.")),
        Outcome::Withdrawn => ("withdrawn", denied("The question was withdrawn.")),
        Outcome::Unanswerable { why } => ("expired", denied(why)),
    }
}

fn line(name: impl Into<String>, value: impl Into<String>) -> Line {
    Line { name: name.into(), value: value.into() }
}

fn question(patience: Duration, session: &Session, ask: &Ask) -> Question {
    let asked_ms = unix_ms();
    let patience = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    let tool = claim(&ask.tool, TOOL_CHARS_MAX);
    let about = json!([FACE, session.id, session.cli.name(), session.path, ask.tool, ask.input]);
    let digest = hex(&Sha256::digest(about.to_string().as_bytes()));
    let subject = subject(&ask.input);
    let title = format!("{} wants to use {tool}: {}", session.cli.title(), quote(&subject));
    let runs = vec![
        line("agent", session.cli.name()),
        line("session", session.id.clone()),
        line("in", quote(&session.path.to_string_lossy())),
        line("as", format!("uid {}", outpost_sys::limits::effective_uid())),
        line("digest", digest.clone()),
    ];
    let mut found: Vec<String> = warnings("the input", &subject);
    found.extend(warnings("the tool's name", &ask.tool));
    Question {
        id: uuid::Uuid::new_v4().to_string(),
        face: FACE.into(),
        digest,
        title,
        sections: vec![
            Section { heading: format!("Use of {tool}"), lines: input(&ask.input), claimed: false },
            Section { heading: "Asked by".into(), lines: runs, claimed: false },
        ],
        warnings: found,
        privileged: false,
        rememberable: false,
        uid: None,
        asked_ms,
        deadline_ms: asked_ms.saturating_add(patience),
    }
}

/// What it is about, in one text: the command, the file, or everything.
fn subject(input: &Value) -> String {
    let member = |name: &str| input.get(name).and_then(Value::as_str).map(str::to_owned);
    let named = ["command", "file_path", "path", "url", "query"].into_iter().find_map(member);
    named.unwrap_or_else(|| input.to_string())
}

/// Everything the tool would be given, each member on its own.
fn input(input: &Value) -> Vec<Line> {
    let text = |value: &Value| value.as_str().map_or_else(|| value.to_string(), str::to_owned);
    match input {
        Value::Object(members) if members.len() <= MEMBERS_MAX => members
            .iter()
            .map(|(name, value)| line(claim(name, TOOL_CHARS_MAX), quote(&text(value))))
            .collect(),
        other => vec![line("input", quote(&text(other)))],
    }
}
