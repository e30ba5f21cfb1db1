//! Questions, grants and events as text: whole, since what is printed here may be approved.

use crate::cli::approver::printable;
use crate::cli::list::age;
use outpost_approvals::wire::{Answer, Grant};
use outpost_approvals::{Line, Outcome, Question, display, unix_ms};
use std::fmt::Write;

pub(super) fn questions(questions: &[Question]) -> String {
    let mut text =
        format!("{:<36} {:>5} {:>5} {:<6} {:<8}  COMMAND\n", "ID", "AGE", "LEFT", "RIGHTS", "DIGEST");
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
        rights(question),
        short(&question.digest),
        printable(&question.title),
    )
}

fn rights(question: &Question) -> &'static str {
    if question.privileged { "ROOT" } else { "own" }
}

fn short(digest: &str) -> String {
    printable(digest).chars().take(8).collect()
}

/// Everything, in the order in which it is to be read.
pub(super) fn question(question: &Question) -> String {
    let now_ms = unix_ms();
    let mut text = format!(
        "id       {}\ndigest   {}\nasked    {} ago, {} left\nrights   {}\ncommand  {}\n",
        printable(&question.id),
        printable(&question.digest),
        age(now_ms.saturating_sub(question.asked_ms) / 1000),
        age(question.deadline_ms.saturating_sub(now_ms) / 1000),
        rights(question),
        printable(&question.title),
    );
    for warning in &question.warnings {
        push(&mut text, format_args!("WARNING  {}\n", printable(warning)));
    }
    for section in &question.sections {
        let claimed = if section.claimed { " (not checked by anybody)" } else { "" };
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

/// For how long a grant still holds.
pub(in crate::cli) fn left(grant: &Grant) -> String {
    match (grant.times_left, grant.seconds_left) {
        (Some(1), _) => "1 time".to_owned(),
        (Some(times), _) => format!("{times} times"),
        (None, Some(seconds)) => age(seconds),
        (None, None) => String::new(),
    }
}

pub(super) fn event(event: &Answer) -> String {
    match event {
        Answer::Questions { questions, .. } | Answer::Anew { questions } => {
            let mut text = String::new();
            questions.iter().for_each(|question| push(&mut text, format_args!("waits    {}", row(question))));
            text
        }
        Answer::Asked { question } => format!("asked    {}", row(question)),
        Answer::Settled { id, outcome } => format!("settled  {} {}\n", printable(id), ending(outcome)),
        other => format!("{}\n", crate::cli::approver::unexpected(other)),
    }
}

/// How a question ended, and by whom.
pub(in crate::cli) fn ending(outcome: &Outcome) -> String {
    match outcome {
        Outcome::Decided { decision, by, .. } => {
            let what = match (decision.allow, decision.remember) {
                (true, None) => "approved",
                (true, Some(_)) => "approved and remembered",
                (false, _) => "denied",
            };
            let note = match decision.note.is_empty() {
                true => String::new(),
                false => format!(": {}", display::claim(&decision.note, usize::MAX)),
            };
            format!("{what} by {}{note}", printable(by))
        }
        Outcome::Expired => "ended: nobody answered in time".to_owned(),
        Outcome::Withdrawn => "ended: whoever asked has left".to_owned(),
        Outcome::Unanswerable { why } => format!("ended: nobody could be asked: {}", printable(why)),
    }
}

fn push(text: &mut String, more: std::fmt::Arguments<'_>) {
    // A string takes everything.
    let _ = text.write_fmt(more);
}
