//! The terminal event of a turn, for each way in which its CLI can end.

use super::launch::LaunchFailure;
use super::output::{Output, TurnEnd, Verdict};
use crate::agents::{Cli, Hint, hint_for};
use crate::event::{Cause, Event, Kind};
use outpost_engine::{Exit, ExitCause};

/// How much of standard error the message quotes. The cause has all of the tail.
const MESSAGE_STDERR_BYTES: usize = 600;

/// The CLI could not be launched.
pub(crate) fn not_launched(cli: Cli, failure: &LaunchFailure) -> Event<'static> {
    let hint = failure.is_missing.then_some(Hint::NotFound);
    let message = format!("Failed to spawn {}: {}", cli.name(), failure.reason);
    error(cli, message, String::new(), hint, None)
}

/// The daemon stopped the CLI at a limit.
pub(crate) fn stopped(cli: Cli, why: &str) -> Event<'static> {
    error(cli, format!("{} {why} and was stopped", cli.title()), String::new(), None, None)
}

/// The CLI closed its standard output without a result.
pub(crate) fn stdout_closed(cli: Cli, stderr: &str) -> Event<'static> {
    let mut message = format!("{} closed its output without a result and was stopped", cli.title());
    if !recent(stderr).is_empty() {
        message = format!("{message}: {}", recent(stderr));
    }
    let hint = hint_for(stderr);
    error(cli, message, stderr.to_owned(), hint, None)
}

/// The CLI reported a result but did not exit.
pub(crate) fn provisional(cli: Cli, out: &mut Output, stderr: &str) -> Event<'static> {
    match &out.checkpoint.end {
        TurnEnd::Provisional(Verdict::Failure(reason)) => {
            let reason = reason.clone();
            failed(cli, out, reason, stderr, None)
        }
        _ => result(out),
    }
}

/// The process exited without a terminal event. `why` is the known cause of its exit.
pub(crate) fn exited(
    cli: Cli,
    out: &mut Output,
    stderr: &str,
    exit: Exit,
    why: Option<&str>,
) -> Event<'static> {
    match (&out.checkpoint.end, exit.cause) {
        (TurnEnd::Provisional(Verdict::Result), ExitCause::Code(0)) => return result(out),
        (TurnEnd::Provisional(Verdict::Failure(reason)), how) => {
            let reason = reason.clone();
            return failed(cli, out, reason, stderr, Some(how));
        }
        _ => {}
    }
    let (code, signal) = match exit.cause {
        ExitCause::Code(code) => (code.to_string(), "null".to_owned()),
        how => ("null".to_owned(), how.signal_name().unwrap_or_else(|| "unknown".into())),
    };
    let what = match exit.cause {
        ExitCause::Code(0) => "process ended without a result",
        _ => "process exited abnormally",
    };
    let mut message = format!("{} {what} (code={code}, signal={signal})", cli.title());
    let last_error = out.checkpoint.adapter.last_error().unwrap_or_default();
    for detail in [last_error, recent(stderr), why.unwrap_or_default()] {
        if !detail.is_empty() {
            message.push_str(": ");
            message.push_str(detail);
        }
    }
    failed(cli, out, message, stderr, Some(exit.cause))
}

fn result(out: &Output) -> Event<'static> {
    Event {
        session_id: out.checkpoint.conversation_id.clone().map(Into::into),
        unknown_lines: out.checkpoint.unknown_lines,
        ..Event::new(Kind::Result)
    }
}

fn failed(
    cli: Cli,
    out: &mut Output,
    message: String,
    stderr: &str,
    how: Option<ExitCause>,
) -> Event<'static> {
    let hint = hint_for(&message).or_else(|| hint_for(stderr));
    out.conversation_lost |= hint == Some(Hint::UnknownConversation);
    Event { unknown_lines: out.checkpoint.unknown_lines, ..error(cli, message, stderr.to_owned(), hint, how) }
}

fn error(
    cli: Cli,
    message: String,
    stderr: String,
    hint: Option<Hint>,
    how: Option<ExitCause>,
) -> Event<'static> {
    let hint = hint.map(|hint| hint.text(cli));
    let message = match &hint {
        Some(hint) => format!("{}. Hint: {hint}", message.trim_end_matches('.')),
        None => message,
    };
    let cause = Cause {
        cli: Some(cli.name()),
        exit_code: how.and_then(|how| if let ExitCause::Code(code) = how { Some(code) } else { None }),
        signal: how.and_then(ExitCause::signal_name),
        stderr,
        hint,
    };
    Event { cause: Some(cause), ..Event::error(message) }
}

/// The last complete lines of a text.
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

    fn exit(how: ExitCause) -> Exit {
        Exit { cause: how, ..Exit::UNKNOWN }
    }

    fn message(out: &mut Output, stderr: &str, how: ExitCause) -> (Kind, String) {
        let event = exited(Cli::Codex, out, stderr, exit(how), None);
        (event.kind, event.message.unwrap_or_default().into_owned())
    }

    #[test]
    fn every_exit_without_a_result_has_a_reason() {
        let mut out = Output::detached(1);
        let ended = message(&mut out, "boom\n", ExitCause::Code(3));
        assert_eq!(
            ended,
            (Kind::Error, "Codex process exited abnormally (code=3, signal=null): boom".into())
        );
        let ended = message(&mut out, "", ExitCause::Signal(9));
        assert_eq!(
            ended,
            (Kind::Error, "Codex process exited abnormally (code=null, signal=SIGKILL)".into())
        );
        let ended = message(&mut out, "", ExitCause::Code(0));
        assert_eq!(ended, (Kind::Error, "Codex process ended without a result (code=0, signal=null)".into()));
    }

    #[test]
    fn a_provisional_result_becomes_final_if_the_exit_status_agrees() {
        let mut out = Output::detached(1);
        out.end_provisionally(Verdict::Result);
        assert_eq!(message(&mut out, "", ExitCause::Code(0)).0, Kind::Result);
        assert_eq!(message(&mut out, "", ExitCause::Code(1)).0, Kind::Error);
        out.fail("no such model");
        assert_eq!(message(&mut out, "", ExitCause::Code(0)), (Kind::Error, "no such model".into()));
    }

    #[test]
    fn a_missing_conversation_is_dropped() {
        let mut out = Output::detached(1);
        let (_, text) = message(&mut out, "Error: no rollout found for thread id 1\n", ExitCause::Code(1));
        assert!(out.conversation_lost && text.contains("Hint: the conversation"), "{text}");
    }
}
