//! `outpost audit`: whether the chain of what happened holds, and what is in it.

mod keys;
mod print;

use super::Outcome;
use crate::console;
use crate::paths::Paths;
use clap::{Args, Subcommand};
use jiff::{SignedDuration, Timestamp};
use outpost_approvals::audit::{self, Error, Filter, Findings, Head, Record};
use serde_json::Value;
use std::collections::HashSet;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
pub(super) struct Audit {
    /// Where the chain is [default: approvals/audit in the state directory]
    #[arg(long, global = true, display_order = 800, value_name = "DIR")]
    dir: Option<PathBuf>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Say whether every record is as it was written, that none is missing in between, and which approver allowed each command
    ///
    /// Each command that was started needs a decision before it that an approver has signed, a grant that one has signed, or rules by
    /// their hash. With --keys and the export of a chain this works on any host.
    ///
    /// That the end was cut off, or that all of it was written anew, shows only with a head that was kept elsewhere: the daemon
    /// tells it to syslog.
    Verify {
        /// A record that must be there, as syslog has it
        #[arg(long, value_name = "seq=N sha256=H")]
        head: Option<Head>,
        /// Only these keys count, as `outpost approvals keys --allowed-signers` prints them; without it, those that the chain has
        /// recorded and those in /etc/outpost
        #[arg(long, value_name = "FILE")]
        keys: Option<PathBuf>,
        /// What `outpost audit export` has printed, in place of the chain of this host
        export: Option<PathBuf>,
    },
    /// Print what happened, one line each
    Show(Show),
    /// Print the records as they stand in the files
    Export {
        #[command(flatten)]
        since: Since,
    },
}

#[derive(Args)]
struct Since {
    /// Not before this time: RFC 3339, a date, or how long ago (90s, 10m, 2h, 3d)
    #[arg(long, value_name = "TIME", value_parser = point_in_time)]
    since: Option<Timestamp>,
}

#[derive(Args)]
struct Show {
    #[command(flatten)]
    since: Since,
    /// Only this event: received, refused, shown, decided, started, ended, withdrawn, key, voided, opened, rotated
    #[arg(long)]
    event: Option<String>,
    /// Only what became of one request: its key, its question's id, or the client's own id of it
    #[arg(long, value_name = "KEY")]
    request: Option<String>,
    /// The records as they stand in the files
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
            "there are no records in {}: the first `outpost serve` begins them, and --dir says where others are",
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
    let Some(head) = report.head else { return Err(format!("there is no record in {}", dir.display())) };
    let mut text = format!(
        "the chain holds: {} records in {} {}, from number {}\nhead {head}\n",
        report.records,
        report.files,
        if report.files == 1 { "file" } else { "files" },
        report.first_seq
    );
    if report.first_seq > 1 {
        text += &format!("records before number {} are not there any more\n", report.first_seq);
    }
    if report.torn_bytes > 0 {
        text += &format!("{} bytes of an unfinished record are at the end\n", report.torn_bytes);
    }
    let trusted = match keys {
        Some(file) => keys::given(file)?,
        None => keys::of_this_host(paths)?,
    };
    let findings = audit::examine(dir, trusted).map_err(explain)?;
    if !findings.problems.is_empty() {
        let problems: Vec<String> =
            findings.problems.iter().map(|problem| console::printable(problem)).collect();
        return Err(format!("the chain holds, but not all in it was allowed:\n{}", problems.join("\n")));
    }
    text += &allowed(&findings);
    wrote(console::try_out(&text))
}

/// The approvers and rules that allowed commands.
fn allowed(findings: &Findings) -> String {
    let mut text = String::new();
    for (by, count) in &findings.privileged {
        let commands = if *count == 1 { "command" } else { "commands" };
        text += &format!("{count} {commands} as root allowed by {}\n", console::printable(by));
    }
    if findings.before > 0 {
        text += &format!("{} commands were started before decisions were signed\n", findings.before);
    }
    for note in &findings.notes {
        text += &format!("note: {}\n", console::printable(note));
    }
    text
}

fn print_all(dir: &Path, options: Show) -> Result<(), String> {
    let filter = Filter { since: options.since.since, event: None, from_seq: 0 };
    let mut story = options.request.map(Story::of);
    let mut out = std::io::BufWriter::new(std::io::stdout().lock());
    for record in audit::read(dir, filter).map_err(explain)? {
        let record = record.map_err(explain)?;
        let is_told = story.as_mut().is_none_or(|story| story.has(&record));
        // Only now: a request is recognized by records of other events, too.
        if !is_told || options.event.as_ref().is_some_and(|event| *event != record.event) {
            continue;
        }
        let line = if options.json { record.line } else { print::line(&record) };
        if let Err(error) = writeln!(out, "{line}") {
            return wrote(Err(error));
        }
    }
    wrote(out.flush())
}

/// Who has seen enough of it does not make it a failure.
fn wrote(written: std::io::Result<()>) -> Result<(), String> {
    match written {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(format!("cannot write to standard output: {error}"))
        }
        _ => Ok(()),
    }
}

fn explain(error: Error) -> String {
    match error {
        Error::Broken { file, line: line @ 1.., why } => format!("{}:{line}: {why}", file.display()),
        error => error.to_string(),
    }
}

/// Everything that one request is called by, as far as the chain was read.
struct Story {
    names: HashSet<String>,
}

impl Story {
    fn of(name: String) -> Story {
        Story { names: HashSet::from([name]) }
    }

    fn has(&mut self, record: &Record) -> bool {
        let name = |field: &str| record.data.get(field).and_then(Value::as_str);
        let (request, question) = (name("request"), name("question"));
        let mut called = [request, question, name("id")].into_iter().flatten();
        let is_ours = called.any(|called| self.names.contains(called));
        if is_ours {
            // Not the client's own id: another client may use it as well.
            self.names.extend([request, question].into_iter().flatten().map(str::to_owned));
        }
        is_ours
    }
}

fn point_in_time(text: &str) -> Result<Timestamp, String> {
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
    found.ok_or_else(|| "write 2026-11-16T07:05:47Z, 2026-11-16, or how long ago: 90s, 10m, 2h, 3d".into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_points_dates_or_spans() {
        assert_eq!(point_in_time("2026-11-16").unwrap(), point_in_time("2026-11-16T00:00:00Z").unwrap());
        let (before, then, after) = (Timestamp::now(), point_in_time("2h").unwrap(), Timestamp::now());
        let ago = SignedDuration::from_hours(2);
        assert!((before - ago..=after - ago).contains(&then), "{then}");
        for wrong in ["", "h", "-3m", "3", "9223372036854775807d", "yesterday", "3\u{e9}"] {
            assert!(point_in_time(wrong).is_err(), "{wrong}");
        }
    }
}
