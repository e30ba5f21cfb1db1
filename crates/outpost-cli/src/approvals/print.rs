//! Prints questions, grants and events. Nothing is cut, because the reader may approve what is printed.

use crate::approver::printable;
use crate::ps::age;
use outpost_approvals::wire::{Grant, ServerMessage};
use outpost_approvals::{Line, Outcome, Question, display};
use outpost_ledger::unix_ms;
use std::fmt::Write;

pub(super) fn questions(questions: &[Question]) -> String {
    let mut text = format!("{:<36} {:>5} {:>5} {:<6} {:<8}  COMMAND\n", "ID", "AGE", "LEFT", "AS", "DIGEST");
    questions.iter().for_each(|question| text.push_str(&row(question)));
    text
}

fn row(question: &Question) -> String {
    let now_ms = unix_ms();
    format!(
        "{:<36} {:>5} {:>5} {:<6} {:<8}  {}\n",
        printable(&question.id),
        age(now_ms.saturating_sub(question.asked_ms) / 1000),
        age(question.deadline_ms.saturating_sub(now_ms) / 1000),
        runs_as(question),
        short(&question.digest),
        printable(&question.title),
    )
}

fn runs_as(question: &Question) -> &'static str {
    if question.privileged { "root" } else { "you" }
}

fn short(digest: &str) -> String {
    printable(digest).chars().take(8).collect()
}

/// A question in full.
pub(super) fn question(question: &Question) -> String {
    let now_ms = unix_ms();
    let mut text = format!(
        "id       {}\ndigest   {}\nasked    {} ago, {} left\nas       {}\ncommand  {}\n",
        printable(&question.id),
        printable(&question.digest),
        age(now_ms.saturating_sub(question.asked_ms) / 1000),
        age(question.deadline_ms.saturating_sub(now_ms) / 1000),
        runs_as(question),
        printable(&question.title),
    );
    for warning in &question.warnings {
        push(&mut text, format_args!("WARNING  {}\n", printable(warning)));
    }
    for section in &question.sections {
        let claimed = if section.claimed { " (not verified)" } else { "" };
        push(&mut text, format_args!("\n{}{claimed}\n", printable(&section.heading)));
        for Line { name, value } in &section.lines {
            match name.is_empty() {
                true => push(&mut text, format_args!("  {}\n", printable(value))),
                false => push(&mut text, format_args!("  {}: {}\n", printable(name), printable(value))),
            }
        }
    }
    text
}

pub(super) fn grants(grants: &[Grant]) -> String {
    let mut text = format!("{:<36} {:<10} {:<8}  COMMAND\n", "ID", "LEFT", "DIGEST");
    for grant in grants {
        let (id, digest) = (printable(&grant.id), short(&grant.digest));
        let (left, title) = (left(grant), printable(&grant.title));
        push(&mut text, format_args!("{id:<36} {left:<10} {digest:<8}  {title}\n"));
        push(&mut text, format_args!("{:<36} given by {}\n", "", printable(&grant.by)));
    }
    text
}

/// The remaining uses or time of a grant.
pub(crate) fn left(grant: &Grant) -> String {
    match (grant.times_left, grant.seconds_left) {
        (Some(1), _) => "1 time".to_owned(),
        (Some(times), _) => format!("{times} times"),
        (None, Some(seconds)) => age(seconds),
        (None, None) => String::new(),
    }
}

pub(super) fn event(event: &ServerMessage) -> String {
    match event {
        ServerMessage::Questions { questions, .. } | ServerMessage::Snapshot { questions } => {
            let mut text = String::new();
            questions.iter().for_each(|question| push(&mut text, format_args!("pending  {}", row(question))));
            text
        }
        ServerMessage::Asked { question } => format!("asked    {}", row(question)),
        ServerMessage::Settled { id, outcome } => {
            format!("settled  {} {}\n", printable(id), outcome_text(outcome))
        }
        other => format!("{}\n", crate::approver::unexpected(other)),
    }
}

/// The outcome of a question, with the approver.
pub(crate) fn outcome_text(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Decided { decision, by, .. } => {
            let what = match (decision.allow, decision.remember) {
                (true, None) => "approved",
                (true, Some(_)) => "approved and remembered",
                (false, _) => "denied",
            };
            let note = match decision.note.is_empty() {
                true => String::new(),
                false => format!(": {}", display::escape_untrusted(&decision.note, usize::MAX)),
            };
            format!("{what} by {}{note}", printable(by))
        }
        Outcome::Expired => "expired: no approver answered in time".to_owned(),
        Outcome::Withdrawn => "withdrawn: the requester disconnected".to_owned(),
        Outcome::Unanswerable { why } => format!("failed: no approver could be asked: {}", printable(why)),
    }
}

fn push(text: &mut String, more: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    let _ = text.write_fmt(more);
}
