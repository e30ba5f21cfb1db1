//! The question that a human is asked about an order: everything that would run, in a form that stands for nothing else.

use crate::order::Order;
use crate::peer::Peer;
use jiff::Timestamp;
use outpost_approvals::display::{claim, command, quote, warnings};
use outpost_approvals::rules::is_interpreter;
use outpost_approvals::{Line, Question, Section, unix_ms};
use std::time::Duration;

/// A client's words beyond this are counted, not shown.
const REASON_CHARS_MAX: usize = 500;
const NAME_CHARS_MAX: usize = 100;

pub(crate) fn of(order: &Order, peer: &Peer, time: Timestamp, patience: Duration) -> Question {
    let asked_ms = unix_ms();
    let patience_ms = u64::try_from(patience.as_millis()).unwrap_or(u64::MAX);
    Question {
        id: uuid::Uuid::new_v4().to_string(),
        face: "broker".into(),
        digest: order.digest.clone(),
        title: command(&order.request.pipeline),
        sections: sections(order, peer, time),
        warnings: suspicions(order),
        privileged: order.request.privileged,
        rememberable: order.is_rememberable(),
        uid: Some(peer.uid),
        asked_ms,
        deadline_ms: asked_ms.saturating_add(patience_ms),
    }
}

fn line(name: impl Into<String>, value: impl Into<String>) -> Line {
    Line { name: name.into(), value: value.into() }
}

fn sections(order: &Order, peer: &Peer, time: Timestamp) -> Vec<Section> {
    let request = &order.request;
    let mut sections =
        vec![Section { heading: "What it is".into(), lines: vec![size(order)], claimed: false }];
    let stages = request.pipeline.len();
    for (at, stage) in request.pipeline.iter().enumerate() {
        let heading = match stages {
            1 => "Command".to_owned(),
            _ => format!("Stage {} of {stages}", at + 1),
        };
        let arguments =
            stage.iter().enumerate().map(|(number, argument)| line(number.to_string(), quote(argument)));
        let mut lines: Vec<Line> = arguments.collect();
        if let Some(program) = order.programs.get(at) {
            lines.push(line("file", quote(&program.path.to_string_lossy())));
            lines.push(line("sha256", program.sha256.clone()));
        }
        let operands = order.operands.get(at).map(|of_stage| of_stage.pinned.as_slice()).unwrap_or_default();
        // Of several, only the program knows which it executes.
        let name = if operands.len() == 1 { "executes" } else { "may execute" };
        for operand in operands {
            let path = quote(&operand.path.to_string_lossy());
            lines.push(line(name, format!("{path}, sha256 {}", operand.sha256)));
        }
        sections.push(Section { heading, lines, claimed: false });
    }
    let user = claim(&order.run_as.name.to_string_lossy(), NAME_CHARS_MAX);
    let mut runs = vec![
        line("as", format!("{user} (uid {})", order.run_as.uid)),
        line("in", quote(&order.cwd.to_string_lossy())),
    ];
    for (name, value) in &order.environment {
        let asked = if request.env.contains_key(name) { " (set by the request)" } else { "" };
        runs.push(line("env", format!("{name}={}{asked}", quote(value))));
    }
    runs.push(line("digest", order.digest.clone()));
    sections.push(Section { heading: "Runs".into(), lines: runs, claimed: false });
    let asker = vec![
        line("process", peer.lineage()),
        line("user", format!("uid {}", peer.uid)),
        line("time", time.to_string()),
    ];
    sections.push(Section { heading: "Asked by".into(), lines: asker, claimed: false });
    let claims = [
        ("session", claim(&request.session, NAME_CHARS_MAX)),
        ("host", claim(&request.host, NAME_CHARS_MAX)),
        ("client", claim(&request.version, NAME_CHARS_MAX)),
        ("request", claim(&request.id, NAME_CHARS_MAX)),
        ("reason", claim(&request.reason, REASON_CHARS_MAX)),
    ];
    let lines =
        claims.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| line(name, value));
    sections.push(Section { heading: "Claimed by the client".into(), lines: lines.collect(), claimed: true });
    sections
}

/// Counts first, so that nobody has to scroll to learn how much there is to read.
fn size(order: &Order) -> Line {
    let pipeline = &order.request.pipeline;
    let (stages, arguments) = (pipeline.len(), pipeline.iter().map(Vec::len).sum::<usize>());
    let bytes: usize = pipeline.iter().flatten().map(String::len).sum();
    let rights = if order.request.privileged { "as root" } else { "unprivileged" };
    let plural = |count: usize, what: &str| format!("{count} {what}{}", if count == 1 { "" } else { "s" });
    line(
        "size",
        format!(
            "{}, {}, {}, {rights}",
            plural(stages, "stage"),
            plural(arguments, "argument"),
            plural(bytes, "byte")
        ),
    )
}

fn suspicions(order: &Order) -> Vec<String> {
    let mut found = Vec::new();
    for (at, stage) in order.request.pipeline.iter().enumerate() {
        for (number, argument) in stage.iter().enumerate() {
            found.extend(warnings(&format!("argument {number} of stage {}", at + 1), argument));
        }
        let name = order
            .programs
            .get(at)
            .map(|program| program.path.to_string_lossy().into_owned())
            .unwrap_or_default();
        let interprets = is_interpreter(&name);
        let Some(operands) = order.operands.get(at) else { continue };
        if at > 0 && interprets {
            found.push(format!(
                "stage {} executes what it is given, and what the stage before it writes cannot be seen here",
                at + 1
            ));
        } else if interprets && operands.pinned.is_empty() {
            found.push(format!("stage {} executes what its arguments say", at + 1));
        }
        if operands.loose > 0 {
            found.push(format!(
                "{} of the files that stage {} is given cannot be compared before it runs",
                operands.loose,
                at + 1
            ));
        }
        for operand in operands.pinned.iter().filter(|operand| !operand.is_guarded) {
            let path = quote(&operand.path.to_string_lossy());
            found.push(format!(
                "{path} is compared with its hash before it runs, but others can change it in between"
            ));
        }
    }
    for (name, text) in [("the reason", &order.request.reason), ("the session", &order.request.session)] {
        found.extend(warnings(name, text));
    }
    if order.request.forward_agent {
        found.push("this command can use your SSH keys while it runs".into());
    }
    found
}
