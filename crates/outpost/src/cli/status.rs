//! `outpost status`: how the daemon is.

use super::list::{age, size};
use super::{Outcome, as_json, connect, explain, print};
use crate::announced;
use crate::console;
use crate::paths::Paths;
use clap::Args;
use outpost_approvals::unix_ms;
use outpost_control::wire;

#[derive(Args)]
pub(super) struct Status {
    /// As JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(paths: &Paths, options: &Status) -> Outcome {
    let status: wire::Status = connect(paths)?.call("status", &()).map_err(explain)?;
    match options.json {
        true => print(&as_json(&status)?),
        false => print(&shown(&status)),
    }
}

fn shown(status: &wire::Status) -> String {
    let own = env!("CARGO_PKG_VERSION");
    let other = match status.version == own {
        true => String::new(),
        false => format!("  (this binary is {own}: `outpost upgrade --binary PATH` puts it in place)"),
    };
    let stands = match status.keeping {
        true => "was stopped and keeps its processes (`outpost serve` goes on with them)",
        false => "is running",
    };
    let faces = &status.faces;
    let mut text = format!(
        "outpost {} {stands}{other}\n  keeper     {}, since {}\n  worker     {}, since {}\n  processes  {} running, {} ended and still readable\n  journals   {}\n",
        console::line(&status.version),
        status.keeper_pid,
        since(status.keeper),
        status.worker_pid,
        since(status.worker),
        status.running,
        status.processes.saturating_sub(status.running),
        size(status.journal_bytes),
    );
    let waiting = faces.waiting.map_or(0, |waiting| waiting.questions);
    if let Some(file) = &faces.config_file {
        text += &format!(
            "  sessions   {}, of which {} are answering\n  approvals  {} waiting{}\n  config     {}\n",
            faces.sessions,
            faces.busy_sessions,
            waiting,
            if waiting > 0 { ": outpost approve" } else { "" },
            console::line(file),
        );
    }
    if let Some(mode) = &faces.approvals_mode {
        text += &format!("  mode       {}\n", mode.escape_debug());
    }
    text += &problems(faces);
    text + "\n" + &announced::table(&faces.listening)
}

/// A line for each part of the daemon that cannot work now.
pub(super) fn problems(faces: &wire::Faces) -> String {
    let now_ms = unix_ms();
    let line = |problem: &wire::Problem| {
        let since = age(now_ms.saturating_sub(problem.since_ms) / 1000);
        let (component, message) = (console::line(&problem.component), console::line(&problem.message));
        format!("  problem    {component} {message} (since {since}); it is retried\n")
    };
    faces.problems.iter().map(line).collect()
}

fn since(usage: Option<wire::Usage>) -> String {
    usage.map_or("?".into(), |usage| age(usage.age_ms / 1000))
}
