//! `outpost doctor`: checks the host, the agent CLIs and the daemon, and names the effect and the fix of each problem.

mod agents;
mod daemon;
mod host;

pub use host::KERNEL_MIN;

use super::{Outcome, as_json, print};
use crate::flags::Flags;
use crate::paths::Paths;
use clap::Args;
use serde::Serialize;
use std::process::ExitCode;

#[derive(Args)]
pub(super) struct Doctor {
    /// Print JSON
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    flags: Flags,
}

/// The result of a check. Only an error makes the command fail.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "camelCase")]
enum Verdict {
    Ok,
    Warning,
    Error,
}

/// One check. The serialized names are part of the JSON output.
#[derive(Clone, Debug, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    effect: Option<String>,
    /// The command or the change that fixes the problem.
    #[serde(skip_serializing_if = "Option::is_none")]
    fix: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Check {
        Check { name, verdict: Verdict::Ok, found: found.into(), effect: None, fix: None }
    }

    fn bad(
        name: &'static str,
        verdict: Verdict,
        found: impl Into<String>,
        effect: impl Into<String>,
        fix: impl Into<String>,
    ) -> Check {
        Check { name, verdict, found: found.into(), effect: Some(effect.into()), fix: Some(fix.into()) }
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
    let effective = options.flags.config_text().and_then(|text| options.flags.effective(&text, &paths.state));
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
        false => print(&report_text(&report))?,
    };
    Ok(if verdict == Verdict::Error { ExitCode::FAILURE } else { ExitCode::SUCCESS })
}

fn report_text(report: &Report) -> String {
    let mut text = String::new();
    for group in &report.groups {
        text += &format!("{}\n", group.name);
        for Check { name, verdict, found, effect, fix } in &group.checks {
            let word = match verdict {
                Verdict::Ok => "ok",
                Verdict::Warning => "warning",
                Verdict::Error => "error",
            };
            text += &format!("  {word:<8}  {name:<12}  {}\n", printable(found));
            for (label, line) in [("effect", effect), ("fix", fix)] {
                if let Some(line) = line {
                    text += &format!("{:26}{label}: {}\n", "", printable(line));
                }
            }
        }
    }
    text
}

/// Escapes control characters and non-ASCII: paths and versions come from the host.
fn printable(text: &str) -> String {
    text.chars()
        .flat_map(|letter| {
            let hidden = letter.is_control() || !letter.is_ascii();
            if hidden { letter.escape_default().collect::<Vec<char>>() } else { vec![letter] }
        })
        .collect()
}
