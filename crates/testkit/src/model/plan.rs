//! What the fake model answers: the directives of the last prompt carried out, still without the words of any API.

use super::conversation::Conversation;
use super::directive::{Directive, parse};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::time::Duration;

/// Between two deltas. Without it they come in one packet, and a CLI shows them as one.
const APART: Duration = Duration::from_millis(5);

/// Longer tool results and prompts are not repeated in full.
const ECHO_CHARS_MAX: usize = 400;

pub(super) enum Piece {
    Thought(Vec<String>),
    Text(Vec<String>),
    Call { id: String, tool: String, arguments: Value, freeform: bool },
}

/// How a stream ends before its end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Break {
    Cut,
    Error,
}

pub(super) struct Reply {
    pub(super) id: String,
    pub(super) model: String,
    pub(super) pieces: Vec<Piece>,
    pub(super) apart: Duration,
    pub(super) breaks: Option<Break>,
}

impl Reply {
    pub(super) fn calls(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Call { .. }))
    }
}

pub(super) enum Outcome {
    Answer(Reply),
    Refuse { status: u16, message: String },
}

pub(super) struct Plan {
    /// Delay before the first byte.
    pub(super) after: Duration,
    pub(super) outcome: Outcome,
}

/// `tries` counts the requests for each prompt that fails at first; `id` is new for every request.
pub(super) fn plan(conversation: &Conversation, tries: &mut HashMap<String, u32>, id: &str) -> Plan {
    if conversation.model.contains("no-such") {
        return refuse(404, format!("model: {} does not exist", conversation.model));
    }
    let prompts = conversation.prompts();
    let prompt = prompts.last().copied().unwrap_or_default();
    let (directives, around) = parse(prompt);
    let mut reply = Reply {
        id: id.to_owned(),
        model: conversation.model.clone(),
        pieces: Vec::new(),
        apart: APART,
        breaks: None,
    };
    if conversation.is_aside() {
        reply.pieces.push(text("A fake title"));
        return Plan { after: Duration::ZERO, outcome: Outcome::Answer(reply) };
    }
    let results = conversation.results();
    if !results.is_empty() {
        let texts = results.iter().map(|result| short(result)).collect::<Vec<_>>().join(" | ");
        reply.pieces.push(Piece::Text(vec!["Tool returned: ".into(), texts, ". ".into(), "Done.".into()]));
        return Plan { after: Duration::ZERO, outcome: Outcome::Answer(reply) };
    }
    let (mut after, mut answers, mut calls) = (Duration::ZERO, Vec::new(), Vec::new());
    for directive in directives {
        match directive {
            Directive::Hang(time) => after = time,
            Directive::Status(status) => return refuse(status, format!("scripted status {status}")),
            Directive::Flaky { status, times } => {
                let tried = tries.entry(prompt.to_owned()).or_default();
                *tried += 1;
                if *tried <= times {
                    return refuse(status, format!("scripted status {status}, {tried} of {times}"));
                }
            }
            Directive::Cut => reply.breaks = Some(Break::Cut),
            Directive::StreamError => reply.breaks = Some(Break::Error),
            Directive::Think => {
                reply.pieces.push(Piece::Thought(vec!["Let me think".into(), " about it.".into()]));
            }
            Directive::Slow { deltas, apart } => {
                reply.apart = apart;
                answers.push(Piece::Text((0..deltas).map(|number| format!("word{number} ")).collect()));
            }
            Directive::History => answers.push(Piece::Text(vec![
                format!("I saw {} prompts; ", prompts.len()),
                "the first was: ".into(),
                short(prompts.first().copied().unwrap_or_default()),
            ])),
            Directive::Text(words) => answers.push(text(&words)),
            Directive::Shell(_) | Directive::Write { .. } | Directive::Call { .. } => {
                calls.push(call(conversation, directive, format!("call_{id}_{}", calls.len())));
            }
        }
    }
    if !calls.is_empty() {
        answers.insert(0, Piece::Text(vec!["I will".into(), " use a tool.".into()]));
        answers.append(&mut calls);
    } else if answers.is_empty() {
        answers.push(text(&format!("You wrote: {}", short(&around))));
    }
    reply.pieces.append(&mut answers);
    Plan { after, outcome: Outcome::Answer(reply) }
}

fn refuse(status: u16, message: String) -> Plan {
    Plan { after: Duration::ZERO, outcome: Outcome::Refuse { status, message } }
}

/// One delta for each word.
fn text(words: &str) -> Piece {
    Piece::Text(words.split_inclusive(' ').map(str::to_owned).collect())
}

/// In one line, and not too long.
fn short(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    line.chars().take(ECHO_CHARS_MAX).collect()
}

/// A call of the tool that this CLI has for it.
fn call(conversation: &Conversation, directive: Directive, id: String) -> Piece {
    let offered = |names: &[&str]| {
        names.iter().find(|name| conversation.tool(name).is_some()).map(|name| (*name).to_owned())
    };
    let wanted = match directive {
        Directive::Shell(command) => offered(&["Bash", "bash", "run_shell_command", "exec_command"])
            .map(|tool| (shell_arguments(&tool, &command), tool)),
        Directive::Write { path, text } => {
            offered(&["Write", "write", "write_file", "apply_patch", "exec_command"])
                .map(|tool| (write_arguments(&tool, &path, &text), tool))
        }
        Directive::Call { tool, arguments } => Some((arguments, tool)),
        _ => None,
    };
    let Some((arguments, tool)) = wanted else {
        return text("No tool that can do this was offered.");
    };
    let freeform = conversation.tool(&tool).is_some_and(|tool| tool.freeform);
    Piece::Call { id, tool, arguments, freeform }
}

fn shell_arguments(tool: &str, command: &str) -> Value {
    match tool {
        "exec_command" => json!({"cmd": command}),
        _ => json!({"command": command, "description": "Run a command"}),
    }
}

fn write_arguments(tool: &str, path: &str, text: &str) -> Value {
    let patch =
        || format!("*** Begin Patch\n*** Add File: {path}\n+{}\n*** End Patch\n", text.replace('\n', "\n+"));
    match tool {
        "write" => json!({"filePath": path, "content": text}),
        "apply_patch" => json!({"input": patch()}),
        "exec_command" => json!({"cmd": format!("apply_patch <<'EOF'\n{}EOF", patch())}),
        _ => json!({"file_path": path, "content": text}),
    }
}
