//! `outpost status`: prints the state of the daemon.

use super::ps::{age, size};
use super::{Outcome, as_json, connect, explain, print};
use crate::console;
use crate::listen;
use crate::paths::Paths;
use clap::Args;
use outpost_control::wire;
use outpost_ledger::unix_ms;

#[derive(Args)]
pub(super) struct Status {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(super) fn run(paths: &Paths, options: &Status) -> Outcome {
    let query = wire::StatusQuery { await_faces: true };
    let status: wire::Status = connect(paths)?.call("status", &query).map_err(explain)?;
    match options.json {
        true => print(&as_json(&status)?),
        false => print(&status_text(&status)),
    }
}

fn status_text(status: &wire::Status) -> String {
    let own = env!("CARGO_PKG_VERSION");
    let version_note = match status.version == own {
        true => String::new(),
        false => format!("  (this binary is {own}; `outpost upgrade --binary PATH` upgrades the daemon)"),
    };
    let state = match status.keeping {
        true => "is stopped and keeps its processes (`outpost serve` resumes it)",
        false => "is running",
    };
    let faces = &status.faces;
    let mut text = format!(
        "outpost {} {state}{version_note}\n  keeper     {}, up {}\n  worker     {}, up {}\n  processes  {} running, {} ended\n  journals   {}\n",
        console::line(&status.version),
        status.keeper_pid,
        uptime(status.keeper),
        status.worker_pid,
        uptime(status.worker),
        status.running,
        status.processes.saturating_sub(status.running),
        size(status.journal_bytes),
    );
    let waiting = faces.waiting.map_or(0, |waiting| waiting.questions);
    if let Some(file) = &faces.config_file {
        text += &format!(
            "  sessions   {}, {} busy\n  approvals  {} waiting{}\n  config     {}\n",
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
    text + "\n" + &listen::table(&faces.listening)
}

/// A line for each component of the daemon that fails.
pub(super) fn problems(faces: &wire::Faces) -> String {
    let now_ms = unix_ms();
    let line = |problem: &wire::Problem| {
        let since = age(now_ms.saturating_sub(problem.since_ms) / 1000);
        let (component, message) = (console::line(&problem.component), console::line(&problem.message));
        format!("  problem    {component} {message} (for {since}); retrying\n")
    };
    faces.problems.iter().map(line).collect()
}

fn uptime(usage: Option<wire::Usage>) -> String {
    usage.map_or("?".into(), |usage| age(usage.age_ms / 1000))
}
