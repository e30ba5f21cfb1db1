//! `outpost audit`: verifies, prints and exports the audit chain.

mod keys;
mod print;

use super::Outcome;
use crate::console;
use crate::paths::Paths;
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use outpost_approvals::authorization::{self, Findings};
use outpost_ledger::audit::{self, Error, Filter, Head, Record};
use serde_json::Value;
use std::collections::HashSet;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
pub(super) struct Audit {
    /// Directory of the audit chain [default: approvals/audit in the state directory]
    #[arg(long, global = true, display_order = 800, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Verify that no record was modified or removed, and that an approver allowed each command
    ///
    /// Each started command needs an earlier decision or grant signed by an approver, or a rules file with the recorded hash.
    /// With --keys and an exported chain, this works on any host.
    ///
    /// A truncated or completely rewritten chain is detected only with --head: the daemon logs its head to syslog.
    Verify {
        /// Record that the chain must contain, as logged to syslog
        #[arg(long, value_name = "seq=N sha256=H")]
        head: Option<Head>,
        /// Trust only the keys of this file, from `outpost approvals keys --allowed-signers` [default: the keys recorded in
        /// the chain and those in /etc/outpost]
        #[arg(long, value_name = "FILE")]
        keys: Option<PathBuf>,
        /// Output of `outpost audit export`, instead of the chain of this host
        export: Option<PathBuf>,
    },
    /// Print the records, one line each
    Show(Show),
    /// Print the records as stored
    Export {
        #[command(flatten)]
        since: Since,
    },
}

#[derive(Args)]
struct Since {
    /// Start at this time: RFC 3339, a date, or an age (90s, 10m, 2h, 3d)
    #[arg(long, value_name = "TIME", value_parser = parse_time)]
    since: Option<Timestamp>,
}

#[derive(Args)]
struct Show {
    #[command(flatten)]
    since: Since,
    /// Only this event: received, refused, shown, decided, started, ended, withdrawn, key, voided, opened, rotated
    #[arg(long)]
    event: Option<String>,
    /// Only the records of one request, by its key, the id of its question or the id of its client
    #[arg(long, value_name = "KEY")]
    request: Option<String>,
    /// Print the records as stored
    #[arg(long)]
    json: bool,
}

pub(super) fn run(paths: &Paths, options: Audit) -> Outcome {
    let export = match &options.command {
        Command::Verify { export, .. } => export.clone(),
        _ => None,
    };
    let dir = export.or(options.dir).unwrap_or_else(|| paths.approvals().join("audit"));
    if !dir.exists() {
        return Err(format!(
            "no audit records in {}\nhint: the first `outpost serve` creates them; name another directory with --dir",
            dir.display()
        ));
    }
    match options.command {
        Command::Verify { head, keys, .. } => verify(paths, &dir, head, keys.as_deref()),
        Command::Show(show) => print_all(&dir, show),
        Command::Export { since } => print_all(&dir, Show { since, event: None, request: None, json: true }),
    }
    .map(|()| ExitCode::SUCCESS)
}

fn verify(paths: &Paths, dir: &Path, head: Option<Head>, keys: Option<&Path>) -> Result<(), String> {
    let report = audit::verify(dir, head.as_ref()).map_err(explain)?;
    let Some(head) = report.head else { return Err(format!("no audit records in {}", dir.display())) };
    let mut text = format!(
        "the chain is intact: {} records in {} {}, from number {}\nhead {head}\n",
        report.records,
        report.files,
        if report.files == 1 { "file" } else { "files" },
        report.first_seq
    );
    if report.first_seq > 1 {
        text += &format!("records before number {} were removed\n", report.first_seq);
    }
    if report.torn_bytes > 0 {
        text += &format!("the last record is incomplete ({} bytes)\n", report.torn_bytes);
    }
    let trusted = match keys {
        Some(file) => keys::from_file(file)?,
        None => keys::of_this_host(paths)?,
    };
    let findings = authorization::check(dir, trusted).map_err(explain)?;
    if !findings.problems.is_empty() {
        let problems: Vec<String> =
            findings.problems.iter().map(|problem| console::printable(problem)).collect();
        return Err(format!(
            "the chain is intact, but not every command was allowed:\n{}",
            problems.join("\n")
        ));
    }
    text += &authorizations(&findings);
    console::try_out(&text)
}

/// The approvers and rules that allowed commands.
fn authorizations(findings: &Findings) -> String {
    let mut text = String::new();
    for (by, count) in &findings.privileged {
        let commands = if *count == 1 { "command" } else { "commands" };
        text += &format!("{count} {commands} as root allowed by {}\n", console::printable(by));
    }
    if findings.before_signing > 0 {
        text += &format!("{} commands date from before decisions were signed\n", findings.before_signing);
    }
    for note in &findings.notes {
        text += &format!("note: {}\n", console::printable(note));
    }
    text
}

fn print_all(dir: &Path, options: Show) -> Result<(), String> {
    let filter = Filter { since: options.since.since, event: None, from_seq: 0 };
    let mut request_filter = options.request.map(RequestFilter::new);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for record in audit::read(dir, filter).map_err(explain)? {
        let record = record.map_err(explain)?;
        let is_wanted = request_filter.as_mut().is_none_or(|request_filter| request_filter.matches(&record));
        // After the request filter, which must see the records of all events.
        if !is_wanted || options.event.as_ref().is_some_and(|event| *event != record.event) {
            continue;
        }
        let line = if options.json { record.line } else { print::line(&record) };
        writeln!(out, "{line}").map_err(|error| console::unwritable(&error))?;
    }
    out.flush().map_err(|error| console::unwritable(&error))
}

fn explain(error: Error) -> String {
    match error {
        Error::Broken { file, line: line @ 1.., why } => format!("{}:{line}: {why}", file.display()),
        error => error.to_string(),
    }
}

/// Selects the records of one request. It collects the ids of the request while it reads the chain.
struct RequestFilter {
    ids: HashSet<String>,
}

impl RequestFilter {
    fn new(name: String) -> RequestFilter {
        RequestFilter { ids: HashSet::from([name]) }
    }

    fn matches(&mut self, record: &Record) -> bool {
        let name = |field: &str| record.data.get(field).and_then(Value::as_str);
        let (request, question) = (name("request"), name("question"));
        let mut ids = [request, question, name("id")].into_iter().flatten();
        let is_ours = ids.any(|id| self.ids.contains(id));
        if is_ours {
            // Not the client's id, which another client may use too.
            self.ids.extend([request, question].into_iter().flatten().map(str::to_owned));
        }
        is_ours
    }
}

fn parse_time(text: &str) -> Result<Timestamp, String> {
    let ago = || {
        let (at, unit) = text.char_indices().last()?;
        let count: i64 = text.get(..at)?.parse().ok().filter(|count| *count >= 0)?;
        let seconds = match unit {
            's' => 1,
            'm' => 60,
            'h' => 3600,
            'd' => 86_400,
            _ => return None,
        };
        Timestamp::now().checked_sub(SignedDuration::from_secs(count.checked_mul(seconds)?)).ok()
    };
    let day = || format!("{text}T00:00:00Z").parse().ok();
    let found = text.parse().ok().or_else(ago).or_else(day);
    found.ok_or_else(|| "expected a time such as 2026-11-16T07:05:47Z, 2026-11-16, 90s, 10m, 2h or 3d".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_timestamps_dates_or_ages() {
        assert_eq!(parse_time("2026-11-16").unwrap(), parse_time("2026-11-16T00:00:00Z").unwrap());
        let (before, then, after) = (Timestamp::now(), parse_time("2h").unwrap(), Timestamp::now());
        let ago = SignedDuration::from_hours(2);
        assert!((before - ago..=after - ago).contains(&then), "{then}");
        for wrong in ["", "h", "-3m", "3", "9223372036854775807d", "yesterday", "3\u{e9}"] {
            assert!(parse_time(wrong).is_err(), "{wrong}");
        }
    }
}
