//! `outpost approvals`: what waits for a human, for scripts.

mod keys;
pub(super) mod print;

use super::Outcome;
use super::approver::{self, Approver, Connected, unexpected};
use crate::console;
use crate::paths::Paths;
use clap::{Args, Subcommand};
use outpost_approvals::wire::{Answer, Grant, Request};
use outpost_approvals::{Client, Decision, Question, Remember};
use serde::Serialize;
use std::process::ExitCode;

/// Fewer characters of an id are a slip of the fingers more often than an id.
const ID_CHARS_MIN: usize = 4;

/// A whole id, which needs no looking for.
const ID_CHARS: usize = 36;

#[derive(Args)]
pub(super) struct Approvals {
    #[command(flatten)]
    approver: approver::Options,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// List what waits, oldest first
    List(Form),
    /// Show everything of one question
    Show {
        /// The question's id, or at least 4 characters of its beginning
        id: String,
        #[command(flatten)]
        form: Form,
    },
    /// Approve a question
    ///
    /// What is approved is what the daemon has under this id at this moment, which is not shown here. To approve what was shown
    /// before and nothing else, give its digest.
    Allow(Allow),
    /// Deny a question
    Deny {
        /// The question's id, or at least 4 characters of its beginning
        id: String,
        /// Told to whoever asked
        #[arg(long, value_name = "TEXT", default_value = "")]
        note: String,
    },
    /// List the answers that hold for later questions of the same digest
    Grants(Form),
    /// Take such an answer back
    Revoke {
        /// The grant's id, or at least 4 characters of its beginning
        id: String,
    },
    /// Enrol an approver's key: a new one, --key or --ssh-agent
    ///
    /// Without --key and --ssh-agent an Ed25519 key is made in the state directory. The first key of a daemon is taken as it comes;
    /// each later one is signed by a key that is enrolled already. Where root has /etc/outpost, only root enrols keys.
    Enroll(keys::Enroll),
    /// List the keys that decide
    Keys(keys::Keys),
    /// Give a key another name
    Rename(keys::Rename),
    /// Set when a key ends
    Expire(keys::Expire),
    /// Take a key back: nothing that it has decided and that has not begun counts any more
    RevokeKey(keys::Revoke),
    /// Print what waits, then what is asked and how it ends, as it comes
    Watch(Form),
}

#[derive(Args)]
struct Form {
    /// As JSON; what is watched, one line for each event
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Allow {
    /// The question's id, or at least 4 characters of its beginning
    id: String,
    /// The digest that was shown: the question must have it
    #[arg(long)]
    digest: Option<String>,
    /// Remember the answer for so many more questions of the same digest
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    times: Option<u32>,
    /// Remember the answer for all questions of the same digest within this time
    #[arg(long, value_name = "M")]
    minutes: Option<u32>,
}

pub(super) fn run(paths: &Paths, options: Approvals) -> Outcome {
    let approver = options.approver.approver(paths, "outpost approvals")?;
    super::block_on(dispatch(paths, approver, options.command))?;
    Ok(ExitCode::SUCCESS)
}

async fn dispatch(paths: &Paths, mut approver: Approver, command: Command) -> Result<(), String> {
    let command = match command {
        Command::Enroll(enroll) => return keys::enroll(paths, &approver, enroll).await,
        Command::Rename(rename) => return keys::rename(paths, approver, rename).await,
        Command::Expire(expire) => return keys::expire(paths, approver, expire).await,
        Command::RevokeKey(revoke) => return keys::revoke(paths, approver, revoke).await,
        command => command,
    };
    let mut connected = approver.connect().await?;
    let client = &mut connected.client;
    match command {
        Command::Enroll(_) | Command::Rename(_) | Command::Expire(_) | Command::RevokeKey(_) => Ok(()),
        Command::Keys(keys) => keys::list(client, &keys).await,
        Command::List(form) => {
            let questions = list(client).await?;
            write(&form.render(questions.as_slice(), print::questions)?)
        }
        Command::Show { id, form } => {
            let question = find(client, &id).await?;
            write(&form.render(&question, print::question)?)
        }
        Command::Allow(allow) => decide_allow(&mut approver, &mut connected, &allow).await,
        Command::Deny { id, note } => {
            let question = find(client, &id).await?;
            let decision = Decision { allow: false, note, remember: None };
            decide(&mut approver, &mut connected, &question, decision).await?;
            write(&format!("denied {}\n", question.id))
        }
        Command::Grants(form) => {
            let grants = grants(client).await?;
            write(&form.render(grants.as_slice(), print::grants)?)
        }
        Command::Revoke { id } => {
            let grants = grants(client).await?;
            let grant = only(&grants, |grant| &grant.id, &id, "grant", "grants")?;
            match ask(client, &Request::Revoke { id: grant.id.clone() }).await? {
                Answer::Revoked { id } => write(&format!("revoked {id}\n")),
                other => Err(unexpected(&other)),
            }
        }
        Command::Watch(form) => watch(client, &form).await,
    }
}

impl Form {
    fn render<T: Serialize + ?Sized>(
        &self,
        value: &T,
        text: impl Fn(&T) -> String,
    ) -> Result<String, String> {
        match self.json {
            true => super::as_json(value),
            false => Ok(text(value)),
        }
    }
}

async fn decide_allow(
    approver: &mut Approver,
    connected: &mut Connected,
    allow: &Allow,
) -> Result<(), String> {
    let question = find(&mut connected.client, &allow.id).await?;
    if let Some(digest) = &allow.digest
        && *digest != question.digest
    {
        return Err(format!(
            "question {} has another digest, {}: look at it again before you approve it",
            question.id, question.digest
        ));
    }
    let remember = allow.times.map(Remember::Times).or(allow.minutes.map(Remember::Minutes));
    let decision = Decision { allow: true, note: String::new(), remember };
    decide(approver, connected, &question, decision).await?;
    write(&format!("approved {}\n", question.id))
}

async fn decide(
    approver: &mut Approver,
    connected: &mut Connected,
    question: &Question,
    decision: Decision,
) -> Result<(), String> {
    approver.prepare(connected).await?;
    approver.decide(connected, question, decision).await.map_err(|error| error.to_string())
}

async fn list(client: &mut Client) -> Result<Vec<Question>, String> {
    match ask(client, &Request::List).await? {
        Answer::Questions { questions, .. } => Ok(questions),
        other => Err(unexpected(&other)),
    }
}

async fn grants(client: &mut Client) -> Result<Vec<Grant>, String> {
    match ask(client, &Request::Grants).await? {
        Answer::Grants { grants } => Ok(grants),
        other => Err(unexpected(&other)),
    }
}

/// A question by the beginning of its id. Only one that is not named in full makes us look at the others.
async fn find(client: &mut Client, id: &str) -> Result<Question, String> {
    if id.len() >= ID_CHARS {
        return match ask(client, &Request::Show { id: id.to_owned() }).await? {
            Answer::Question { question } => Ok(*question),
            other => Err(unexpected(&other)),
        };
    }
    only(&list(client).await?, |question| &question.id, id, "question", "list").cloned()
}

/// The only one of these with such an id; `listed_by` shows them all.
fn only<'a, T>(
    all: &'a [T],
    id: impl Fn(&T) -> &String,
    begin: &str,
    what: &str,
    listed_by: &str,
) -> Result<&'a T, String> {
    let shown = outpost_approvals::display::claim(begin, 64);
    if begin.chars().count() < ID_CHARS_MIN {
        return Err(format!("{shown} is too short: give at least {ID_CHARS_MIN} characters of the id"));
    }
    let mut found = all.iter().filter(|one| id(one).starts_with(begin));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => Err(format!("more than one {what} begins with {shown}: give more of the id")),
        (None, _) => Err(format!(
            "there is no {what} {shown}, or not any more; `outpost approvals {listed_by}` shows those that there are"
        )),
    }
}

async fn watch(client: &mut Client, form: &Form) -> Result<(), String> {
    let mut event = ask(client, &Request::Watch).await?;
    loop {
        let text = match form.json {
            true => {
                let text = serde_json::to_string(&event).map_err(|error| error.to_string())?;
                console::json(&text).into_owned() + "\n"
            }
            false => print::event(&event),
        };
        write(&text)?;
        event = client.event().await.map_err(|error| error.to_string())?;
    }
}

async fn ask(client: &mut Client, request: &Request) -> Result<Answer, String> {
    client.ask(request).await.map_err(|error| error.to_string())
}

fn write(text: &str) -> Result<(), String> {
    console::try_out(text).map_err(|error| format!("cannot write to standard output: {error}"))
}
