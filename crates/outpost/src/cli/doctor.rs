//! `outpost doctor`: what this host has and what it lacks, what that means, and what mends it.

mod agents;
mod daemon;
mod host;

use super::{Outcome, as_json, print};
use crate::flags::Flags;
use crate::paths::Paths;
use clap::Args;
use serde::Serialize;
use std::process::ExitCode;

#[derive(Args)]
pub(super) struct Doctor {
    /// As JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: Flags,
}

/// How bad it is. Only what is missing makes the command fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum Verdict {
    Ok,
    Degraded,
    Missing,
}

/// One line.
#[derive(Clone, Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    /// What it means, and the command that mends it, where it is not in order.
    #[serde(skip_serializing_if = "Option::is_none")]
    means: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mend: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, verdict: Verdict::Ok, found: found.into(), means: None, mend: None }
    }

    fn bad(
        name: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        means: impl Into<String>,
        mend: impl Into<String>,
    ) -> Check {
        Check { name, verdict, found: found.into(), means: Some(means.into()), mend: Some(mend.into()) }
    }
}

#[derive(Serialize)]
struct Report {
    verdict: Verdict,
    groups: Vec<Group>,
}

#[derive(Serialize)]
struct Group {
    name: &'static str,
    checks: Vec<Check>,
}

pub(super) fn run(paths: &Paths, options: &Doctor) -> Outcome {
    let effective = options.flags.text().and_then(|text| options.flags.effective(&text, &paths.state));
    let config = effective.as_ref().map(|effective| effective.config.clone()).unwrap_or_default();
    let groups = vec![
        Group { name: "host", checks: host::checks(paths) },
        Group { name: "agents", checks: agents::checks(paths, &config) },
        Group { name: "daemon", checks: daemon::checks(paths, &options.flags, effective.as_ref().err()) },
    ];
    let verdicts = groups.iter().flat_map(|group| &group.checks).map(|check| check.verdict);
    let verdict = verdicts.max().unwrap_or(Verdict::Ok);
    let report = Report { verdict, groups };
    match options.json {
        true => print(&as_json(&report)?)?,
        false => print(&shown(&report))?,
    };
    Ok(if verdict == Verdict::Missing { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn shown(report: &Report) -> String {
    let mut text = String::new();
    for group in &report.groups {
        text += &format!("{}\n", group.name);
        for Check { name, verdict, found, means, mend } in &group.checks {
            let word = match verdict {
                Verdict::Ok => "ok",
                Verdict::Degraded => "degraded",
                Verdict::Missing => "MISSING",
            };
            text += &format!("  {word:<8}  {name:<12}  {}\n", printable(found));
            for (label, line) in [("means", means), ("mend", mend)] {
                if let Some(line) = line {
                    text += &format!("{:26}{label}: {}\n", "", printable(line));
                }
            }
        }
    }
    text
}

/// Paths and versions come from the host: nothing in them may speak to the terminal.
fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|letter| {
            let hidden = letter.is_control() || !letter.is_ascii();
            if hidden { letter.escape_default().collect::<Vec<char>>() } else { vec![letter] }
        })
        .collect()
}
