//! Builds the question that a human decides: everything that would run, displayed unambiguously.

use crate::peer::Peer;
use crate::pinned_request::PinnedRequest;
use jiff::Timestamp;
use outpost_approvals::display::{command, escape_untrusted, quote, warnings};
use outpost_approvals::rules::is_interpreter;
use outpost_approvals::{Line, Question, Section};
use outpost_ledger::unix_ms;
use std::time::Duration;

/// Longer texts of the client are cut; the cut part is counted.
const REASON_CHARS_MAX: usize = 500;
const NAME_CHARS_MAX: usize = 100;

pub(crate) fn build(pinned: &PinnedRequest, peer: &Peer, time: Timestamp, timeout: Duration) -> Question {
    let asked_ms = unix_ms();
    let timeout_ms = u64::try_from(timeout.as_millis()).unwrap_or(u64::MAX);
    Question {
        id: uuid::Uuid::new_v4().to_string(),
        face: "broker".into(),
        digest: pinned.digest.clone(),
        title: command(&pinned.request.pipeline),
        sections: sections(pinned, peer, time),
        warnings: collect_warnings(pinned),
        privileged: pinned.request.privileged,
        rememberable: pinned.is_rememberable(),
        uid: Some(peer.uid),
        asked_ms,
        deadline_ms: asked_ms.saturating_add(timeout_ms),
    }
}

fn line(name: impl Into<String>, value: impl Into<String>) -> Line {
    Line { name: name.into(), value: value.into() }
}

fn sections(pinned: &PinnedRequest, peer: &Peer, time: Timestamp) -> Vec<Section> {
    let request = &pinned.request;
    let mut sections =
        vec![Section { heading: "What it is".into(), lines: vec![size(pinned)], claimed: false }];
    let stages = request.pipeline.len();
    for (at, stage) in request.pipeline.iter().enumerate() {
        let heading = match stages {
            1 => "Command".to_owned(),
            _ => format!("Stage {} of {stages}", at + 1),
        };
        let arguments =
            stage.iter().enumerate().map(|(number, argument)| line(number.to_string(), quote(argument)));
        let mut lines: Vec<Line> = arguments.collect();
        if let Some(program) = pinned.programs.get(at) {
            lines.push(line("file", quote(&program.real_path.to_string_lossy())));
            lines.push(line("sha256", program.sha256.clone()));
        }
        let operands = pinned.operands.get(at).map(|of_stage| of_stage.pinned.as_slice()).unwrap_or_default();
        // With several operands, it is unknown which one the interpreter executes.
        let name = if operands.len() == 1 { "executes" } else { "may execute" };
        for operand in operands {
            let path = quote(&operand.real_path.to_string_lossy());
            lines.push(line(name, format!("{path}, sha256 {}", operand.sha256)));
        }
        sections.push(Section { heading, lines, claimed: false });
    }
    let user = escape_untrusted(&pinned.run_as.name.to_string_lossy(), NAME_CHARS_MAX);
    let mut runs = vec![
        line("as", format!("{user} (uid {})", pinned.run_as.uid)),
        line("in", quote(&pinned.cwd.to_string_lossy())),
    ];
    for (name, value) in &pinned.environment {
        let origin = if request.env.contains_key(name) { " (set by the request)" } else { "" };
        runs.push(line("env", format!("{name}={}{origin}", quote(value))));
    }
    runs.push(line("digest", pinned.digest.clone()));
    sections.push(Section { heading: "Runs".into(), lines: runs, claimed: false });
    let requested_by = vec![
        line("process", peer.lineage()),
        line("user", format!("uid {}", peer.uid)),
        line("time", time.to_string()),
    ];
    sections.push(Section { heading: "Asked by".into(), lines: requested_by, claimed: false });
    let claims = [
        ("session", escape_untrusted(&request.session, NAME_CHARS_MAX)),
        ("host", escape_untrusted(&request.host, NAME_CHARS_MAX)),
        ("client", escape_untrusted(&request.version, NAME_CHARS_MAX)),
        ("request", escape_untrusted(&request.id, NAME_CHARS_MAX)),
        ("reason", escape_untrusted(&request.reason, REASON_CHARS_MAX)),
    ];
    let lines =
        claims.into_iter().filter(|(_, value)| !value.is_empty()).map(|(name, value)| line(name, value));
    sections.push(Section { heading: "Claimed by the client".into(), lines: lines.collect(), claimed: true });
    sections
}

/// The counts come first: a human sees the size of the request without scrolling.
fn size(pinned: &PinnedRequest) -> Line {
    let pipeline = &pinned.request.pipeline;
    let (stages, arguments) = (pipeline.len(), pipeline.iter().map(Vec::len).sum::<usize>());
    let bytes: usize = pipeline.iter().flatten().map(String::len).sum();
    let rights = if pinned.request.privileged { "as root" } else { "unprivileged" };
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

fn collect_warnings(pinned: &PinnedRequest) -> Vec<String> {
    let mut found = Vec::new();
    for (at, stage) in pinned.request.pipeline.iter().enumerate() {
        for (number, argument) in stage.iter().enumerate() {
            found.extend(warnings(&format!("argument {number} of stage {}", at + 1), argument));
        }
        let name = pinned
            .programs
            .get(at)
            .map(|program| program.real_path.to_string_lossy().into_owned())
            .unwrap_or_default();
        let interprets = is_interpreter(&name);
        let Some(operands) = pinned.operands.get(at) else { continue };
        if at > 0 && interprets {
            found.push(format!(
                "stage {} executes what it is given, and what the stage before it writes cannot be seen here",
                at + 1
            ));
        } else if interprets && operands.pinned.is_empty() {
            found.push(format!("stage {} executes code from its arguments", at + 1));
        }
        if operands.unpinned > 0 {
            found.push(format!(
                "{} of the files that stage {} is given cannot be compared before it runs",
                operands.unpinned,
                at + 1
            ));
        }
        for operand in operands.pinned.iter().filter(|operand| !operand.is_root_only) {
            let path = quote(&operand.real_path.to_string_lossy());
            found.push(format!(
                "{path} is compared with its hash before it runs, but others can change it in between"
            ));
        }
    }
    for (name, text) in [("the reason", &pinned.request.reason), ("the session", &pinned.request.session)] {
        found.extend(warnings(name, text));
    }
    if pinned.request.forward_agent {
        found.push("this command can use your SSH keys while it runs".into());
    }
    found
}
