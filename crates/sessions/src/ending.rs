//! How a turn ends: the one terminal event it has, whatever its CLI did.

use crate::agents::{Agent, Cli, Hint, hint};
use crate::event::{Cause, Event, Kind};
use crate::output::{End, Held, Output};
use crate::starting::NotStarted;
use outpost_engine::{Exit, How, Ladder, Process, Reach, Signal};
use std::time::Duration;

/// The last lines of standard error that stand in a message; the cause has them all.
const MESSAGE_STDERR_BYTES: usize = 600;

/// "SIGKILL after 5 seconds if not exited".
const KILL_GRACE: Duration = Duration::from_secs(5);

/// Ends a process with everything it started.
pub(crate) async fn end(process: &Process) {
    let ladder = Ladder { signal: Signal::TERM, reach: Reach::Tree, grace: KILL_GRACE, escalate: true };
    if let Err(error) = process.kill_and_wait(ladder).await {
        tracing::warn!(%error, "a CLI could not be ended");
    }
}

/// The CLI could not be started.
pub(crate) fn not_started(cli: Cli, failure: &NotStarted) -> Event<'static> {
    let hint = failure.is_missing.then_some(Hint::NotFound);
    let message = format!("Failed to spawn {}: {}", cli.name(), failure.reason);
    error(cli, message, String::new(), hint, None)
}

/// It was stopped for doing something that a turn may not.
pub(crate) fn stopped(cli: Cli, why: &str) -> Event<'static> {
    error(cli, format!("{} {why} and was stopped", cli.title()), String::new(), None, None)
}

/// It said nothing of an end and can say no more.
pub(crate) fn mute(cli: Cli, stderr: &str) -> Event<'static> {
    let mut message = format!("{} closed its output without a result and was stopped", cli.title());
    if !recent(stderr).is_empty() {
        message = format!("{message}: {}", recent(stderr));
    }
    let hint = hint(stderr);
    error(cli, message, stderr.to_owned(), hint, None)
}

/// The CLI has said how it ends, but lives on: its word counts.
pub(crate) fn held(cli: Cli, out: &mut Output, stderr: &str) -> Event<'static> {
    match &out.end {
        End::Held(Held::Failure(reason)) => {
            let reason = reason.clone();
            failed(cli, out, reason, stderr, None)
        }
        _ => result(out),
    }
}

/// The process has ended without a terminal event. `why` is what ended it, where that is known.
pub(crate) fn ended(
    cli: Cli,
    agent: &Agent,
    out: &mut Output,
    stderr: &str,
    exit: Exit,
    why: Option<&str>,
) -> Event<'static> {
    match (&out.end, exit.how) {
        (End::Held(Held::Result), How::Code(0)) => return result(out),
        (End::Held(Held::Failure(reason)), how) => {
            let reason = reason.clone();
            return failed(cli, out, reason, stderr, Some(how));
        }
        _ => {}
    }
    let (code, signal) = match exit.how {
        How::Code(code) => (code.to_string(), "null".to_owned()),
        how => ("null".to_owned(), how.signal_name().unwrap_or_else(|| "unknown".into())),
    };
    let what = match exit.how {
        How::Code(0) => "process ended without a result",
        _ => "process exited abnormally",
    };
    let mut message = format!("{} {what} (code={code}, signal={signal})", cli.title());
    let said = agent.complaint().unwrap_or_default();
    for words in [said, recent(stderr), why.unwrap_or_default()] {
        if !words.is_empty() {
            message.push_str(": ");
            message.push_str(words);
        }
    }
    failed(cli, out, message, stderr, Some(exit.how))
}

fn result(out: &Output) -> Event<'static> {
    Event {
        session_id: out.sdk_id.clone().map(Into::into),
        unknown_lines: out.unknown_lines,
        ..Event::new(Kind::Result)
    }
}

fn failed(cli: Cli, out: &mut Output, message: String, stderr: &str, how: Option<How>) -> Event<'static> {
    let hint = hint(&message).or_else(|| hint(stderr));
    out.is_lost |= hint == Some(Hint::UnknownConversation);
    Event { unknown_lines: out.unknown_lines, ..error(cli, message, stderr.to_owned(), hint, how) }
}

fn error(cli: Cli, message: String, stderr: String, hint: Option<Hint>, how: Option<How>) -> Event<'static> {
    let hint = hint.map(|hint| hint.text(cli));
    let message = match &hint {
        Some(hint) => format!("{}. Hint: {hint}", message.trim_end_matches('.')),
        None => message,
    };
    let cause = Cause {
        cli: Some(cli.name()),
        exit_code: how.and_then(|how| if let How::Code(code) = how { Some(code) } else { None }),
        signal: how.and_then(How::signal_name),
        stderr,
        hint,
    };
    Event { cause: Some(cause), ..Event::error(message) }
}

/// The last whole lines of a text.
fn recent(text: &str) -> &str {
    let text = text.trim();
    let excess = text.len().saturating_sub(MESSAGE_STDERR_BYTES);
    let from = (excess..).find(|at| text.is_char_boundary(*at)).unwrap_or_default();
    let tail = text.get(from..).unwrap_or_default();
    match from {
        0 => tail,
        _ => tail.split_once('\n').map_or(tail, |(_, whole)| whole),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agents::codex::Codex;

    fn exit(how: How) -> Exit {
        Exit { how, ..Exit::UNKNOWN }
    }

    fn message(out: &mut Output, stderr: &str, how: How) -> (Kind, String) {
        let event = ended(Cli::Codex, &Agent::Codex(Codex::default()), out, stderr, exit(how), None);
        (event.kind, event.message.unwrap_or_default().into_owned())
    }

    #[test]
    fn every_exit_without_a_result_says_why() {
        let mut out = Output::new(1, 1);
        let said = message(&mut out, "boom\n", How::Code(3));
        assert_eq!(said, (Kind::Error, "Codex process exited abnormally (code=3, signal=null): boom".into()));
        let said = message(&mut out, "", How::Signal(9));
        assert_eq!(said, (Kind::Error, "Codex process exited abnormally (code=null, signal=SIGKILL)".into()));
        let said = message(&mut out, "", How::Code(0));
        assert_eq!(said, (Kind::Error, "Codex process ended without a result (code=0, signal=null)".into()));
    }

    #[test]
    fn a_result_that_waits_for_the_exit_counts_if_the_exit_agrees() {
        let mut out = Output::new(1, 1);
        out.hold(Held::Result);
        assert_eq!(message(&mut out, "", How::Code(0)).0, Kind::Result);
        assert_eq!(message(&mut out, "", How::Code(1)).0, Kind::Error);
        out.fail("no such model");
        assert_eq!(message(&mut out, "", How::Code(0)), (Kind::Error, "no such model".into()));
    }

    #[test]
    fn a_conversation_that_is_not_there_is_forgotten() {
        let mut out = Output::new(1, 1);
        let (_, said) = message(&mut out, "Error: no rollout found for thread id 1\n", How::Code(1));
        assert!(out.is_lost && said.contains("Hint: the conversation"), "{said}");
    }
}
