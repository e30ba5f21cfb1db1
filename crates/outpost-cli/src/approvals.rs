//! `outpost approvals`: lists and decides questions, and manages grants and approver keys, for scripts.

mod keys;
pub(super) mod print;

use super::Outcome;
use super::approver::{self, Approver, Connected, unexpected};
use crate::console::{self, try_out as write};
use crate::paths::Paths;
use clap::{Args, Subcommand};
use outpost_approvals::wire::{Grant, Request, ServerMessage};
use outpost_approvals::{Client, Decision, Question, Remember};
use serde::Serialize;
use std::process::ExitCode;

/// Shortest prefix of an id. A shorter one is more likely a typing error.
const ID_CHARS_MIN: usize = 4;

/// Length of a complete id.
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
    /// List pending questions, oldest first
    List(OutputFormat),
    /// Show one question in full
    Show {
        /// Id of the question, or a prefix of at least 4 characters
        id: String,
        #[command(flatten)]
        format: OutputFormat,
    },
    /// Approve a question
    ///
    /// The daemon's current question with this id is approved; it is not shown here. To approve exactly what was shown
    /// before, pass its digest.
    #[command(alias = "allow")]
    Approve(Approve),
    /// Deny a question
    Deny {
        /// Id of the question, or a prefix of at least 4 characters
        id: String,
        /// Message for the requester
        #[arg(long, value_name = "TEXT", default_value = "")]
        note: String,
    },
    /// List grants: approvals that also cover later questions with the same digest
    Grants(OutputFormat),
    /// Revoke a grant
    Revoke {
        /// Id of the grant, or a prefix of at least 4 characters
        id: String,
    },
    /// Enroll an approver key: a new one, --key or --ssh-agent
    ///
    /// Without --key and --ssh-agent, a new Ed25519 key is created in the state directory. A daemon accepts its first key
    /// without a signature; an enrolled key must sign each later one. On a host with /etc/outpost, only root can enroll
    /// keys.
    Enroll(keys::Enroll),
    /// List the approver keys
    Keys(keys::Keys),
    /// Rename a key
    Rename(keys::Rename),
    /// Set the expiry of a key
    Expire(keys::Expire),
    /// Revoke a key, with its decisions whose commands have not started
    RevokeKey(keys::Revoke),
    /// Print pending questions, then new questions and their outcomes as they occur
    Watch(OutputFormat),
}

#[derive(Args)]
struct OutputFormat {
    /// Print JSON; `watch` prints one line per event
    #[arg(long)]
    json: bool,
}

#[derive(Args)]
struct Approve {
    /// Id of the question, or a prefix of at least 4 characters
    id: String,
    /// Digest that the question must have
    #[arg(long)]
    digest: Option<String>,
    /// Also approve the next N questions with the same digest
    #[arg(long, value_name = "N", conflicts_with = "minutes")]
    times: Option<u32>,
    /// Also approve questions with the same digest for M minutes
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
        Command::List(format) => {
            let questions = list(client).await?;
            write(&format.render(questions.as_slice(), print::questions)?)
        }
        Command::Show { id, format } => {
            let question = find(client, &id).await?;
            write(&format.render(&question, print::question)?)
        }
        Command::Approve(approve) => decide_approve(&mut approver, &mut connected, &approve).await,
        Command::Deny { id, note } => {
            let question = find(client, &id).await?;
            let decision = Decision { allow: false, note, remember: None };
            decide(&mut approver, &mut connected, &question, decision).await?;
            write(&format!("denied {}\n", question.id))
        }
        Command::Grants(format) => {
            let grants = grants(client).await?;
            write(&format.render(grants.as_slice(), print::grants)?)
        }
        Command::Revoke { id } => {
            let grants = grants(client).await?;
            let grant = by_prefix(&grants, |grant| &grant.id, &id, "grant", "grants")?;
            match ask(client, &Request::Revoke { id: grant.id.clone() }).await? {
                ServerMessage::Revoked { id } => write(&format!("revoked {id}\n")),
                other => Err(unexpected(&other)),
            }
        }
        Command::Watch(format) => watch(client, &format).await,
    }
}

impl OutputFormat {
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

async fn decide_approve(
    approver: &mut Approver,
    connected: &mut Connected,
    approve: &Approve,
) -> Result<(), String> {
    let question = find(&mut connected.client, &approve.id).await?;
    if let Some(digest) = &approve.digest
        && *digest != question.digest
    {
        return Err(format!(
            "question {} has another digest: {}\nhint: read it again before you approve it",
            question.id, question.digest
        ));
    }
    let remember = approve.times.map(Remember::Times).or(approve.minutes.map(Remember::Minutes));
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
        ServerMessage::Questions { questions, .. } => Ok(questions),
        other => Err(unexpected(&other)),
    }
}

async fn grants(client: &mut Client) -> Result<Vec<Grant>, String> {
    match ask(client, &Request::Grants).await? {
        ServerMessage::Grants { grants } => Ok(grants),
        other => Err(unexpected(&other)),
    }
}

/// The question with this id or prefix. A complete id avoids the list of all questions.
async fn find(client: &mut Client, id: &str) -> Result<Question, String> {
    if id.len() >= ID_CHARS {
        return match ask(client, &Request::Show { id: id.to_owned() }).await? {
            ServerMessage::Question { question } => Ok(*question),
            other => Err(unexpected(&other)),
        };
    }
    by_prefix(&list(client).await?, |question| &question.id, id, "question", "list").cloned()
}

/// The only element whose id has this prefix. `outpost approvals {list_command}` lists all elements.
fn by_prefix<'a, T>(
    all: &'a [T],
    id: impl Fn(&T) -> &String,
    prefix: &str,
    what: &str,
    list_command: &str,
) -> Result<&'a T, String> {
    let shown = outpost_approvals::display::escape_untrusted(prefix, 64);
    if prefix.chars().count() < ID_CHARS_MIN {
        return Err(format!("{shown} is too short: use at least {ID_CHARS_MIN} characters of the id"));
    }
    let mut found = all.iter().filter(|one| id(one).starts_with(prefix));
    match (found.next(), found.next()) {
        (Some(one), None) => Ok(one),
        (Some(_), Some(_)) => {
            Err(format!("more than one {what} starts with {shown}\nhint: use a longer prefix of the id"))
        }
        (None, _) => Err(format!(
            "no such {what}: {shown}\nhint: `outpost approvals {list_command}` shows the present ones"
        )),
    }
}

async fn watch(client: &mut Client, format: &OutputFormat) -> Result<(), String> {
    let mut event = ask(client, &Request::Watch).await?;
    loop {
        let text = match format.json {
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

async fn ask(client: &mut Client, request: &Request) -> Result<ServerMessage, String> {
    client.ask(request).await.map_err(|error| error.to_string())
}
