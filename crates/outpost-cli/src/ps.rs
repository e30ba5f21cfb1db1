//! `outpost ps`: the table of processes, and the formatting that other commands share with it.

use super::reconnect::{RECONNECT_TIMEOUT, retry_interval};
use super::{Outcome, connect, explain, print, status};
use crate::columns::{cut, pad_end, pad_start, width};
use crate::console;
use crate::paths::Paths;
use clap::Args;
use outpost_control::wire::{ProcessInfo, Status};
use outpost_sys::pty;
use std::collections::HashMap;
use std::io::IsTerminal;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Number of ended processes in the table without `--all`.
const ENDED_SHOWN: usize = 10;

/// Refresh interval of `--watch`.
const TICK: Duration = Duration::from_secs(1);

/// List the processes of all faces: running ones, and those that ended last.
#[derive(Args)]
pub(super) struct Ps {
    /// Include all ended processes
    #[arg(short, long)]
    all: bool,
    /// Print all processes as one JSON array; with --watch, one array per line
    #[arg(long)]
    json: bool,
    /// Refresh every second until Ctrl-C
    #[arg(short, long)]
    watch: bool,
}

pub(super) fn ps(paths: &Paths, options: &Ps) -> Outcome {
    let mut client = connect(paths)?;
    let mut processes: Vec<ProcessInfo> = client.call("list", &()).map_err(explain)?;
    if let Ok(Status { faces, .. }) = client.call("status", &()) {
        err!("{}", status::problems(&faces));
    }
    drop(client);
    if !options.watch {
        return print(&render(&processes, options, options.json)?);
    }
    let on_terminal = std::io::stdout().is_terminal() && !options.json;
    loop {
        let text = render(&processes, options, false)?;
        match on_terminal {
            true => console::draw(&in_place(&console::visible(&text)))?,
            false => drop(print(&(text + if options.json { "" } else { "\n" }))?),
        }
        std::thread::sleep(TICK);
        processes = list_with_retry(paths)?;
    }
}

/// Lists the processes; retries while the daemon restarts.
fn list_with_retry(paths: &Paths) -> Result<Vec<ProcessInfo>, String> {
    let deadline = Instant::now() + RECONNECT_TIMEOUT;
    loop {
        match connect(paths).and_then(|mut client| client.call("list", &()).map_err(explain)) {
            Err(_) if Instant::now() < deadline || paths.is_reconnecting() => {
                std::thread::sleep(retry_interval(paths))
            }
            outcome => return outcome,
        }
    }
}

fn render(processes: &[ProcessInfo], options: &Ps, pretty: bool) -> Result<String, String> {
    if options.json {
        let text = match pretty {
            true => serde_json::to_string_pretty(processes),
            false => serde_json::to_string(processes),
        };
        let text = text.map_err(|error| error.to_string())?;
        return Ok(console::json(&text).into_owned() + "\n");
    }
    let columns = pty::size(std::io::stdout()).ok().map(|size| size.cols.into()).filter(|cols| *cols > 0);
    Ok(table(processes, options.all, now_ms(), columns))
}

/// Redraws from the top left corner, cut to the rows of the terminal.
fn in_place(text: &str) -> String {
    let rows = pty::size(std::io::stdout()).map_or(usize::MAX, |size| size.rows.into());
    let lines: Vec<&str> = text.lines().take(rows.saturating_sub(1).max(1)).collect();
    let lines: String = lines.iter().map(|line| format!("{line}\x1b[K\n")).collect();
    format!("\x1b[H{lines}\x1b[J")
}

fn now_ms() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64)
}

/// The table, cut to `columns` on a terminal.
fn table(processes: &[ProcessInfo], all: bool, now_ms: u64, columns: Option<usize>) -> String {
    const HEAD: [&str; 10] =
        ["ID", "FACE", "PID", "STATE", "AGE", "CPU", "MEMORY", "OUTPUT", "READERS", "COMMAND"];
    let names = names(processes);
    let ended = processes.iter().filter(|process| process.exit.is_some()).count();
    let mut hidden = if all { 0 } else { ended.saturating_sub(ENDED_SHOWN) };
    let hidden_before = hidden;
    let mut rows = vec![HEAD.map(str::to_owned)];
    for (process, name) in processes.iter().zip(&names) {
        if process.exit.is_some() && hidden > 0 {
            hidden -= 1;
            continue;
        }
        rows.push(row(process, name, now_ms));
    }
    let mut text = aligned(&rows, columns);
    if hidden_before > 0 {
        text += &format!("({hidden_before} more have ended: outpost ps --all)\n");
    }
    text
}

fn row(process: &ProcessInfo, name: &str, now_ms: u64) -> [String; 10] {
    let age_ms = now_ms.saturating_sub(process.started_ms);
    let is_running = process.exit.is_none();
    let while_alive = |text: String| if is_running { text } else { "-".into() };
    [
        name.escape_debug().to_string(),
        process.face.escape_debug().to_string(),
        process.pid.to_string(),
        state(process),
        age(age_ms / 1000),
        while_alive(format!("{}%", process.cpu_ms * 100 / age_ms.max(1))),
        while_alive(size(process.rss_bytes)),
        size(process.output_bytes),
        process.readers.to_string(),
        command_line(&process.command),
    ]
}

/// The shortest unambiguous reference for each process: its id, or its address if the id is not unique.
pub(super) fn names(processes: &[ProcessInfo]) -> Vec<String> {
    let mut known: HashMap<&str, usize> = HashMap::new();
    for process in processes {
        *known.entry(&process.id).or_default() += 1;
        if process.id != process.process {
            *known.entry(&process.process).or_default() += 1;
        }
    }
    let name = |process: &ProcessInfo| match known.get(process.id.as_str()) {
        Some(1) => process.id.clone(),
        _ => process.address(),
    };
    processes.iter().map(name).collect()
}

/// Aligns the columns, numbers to the right. The last column has the rest of the line.
fn aligned(rows: &[[String; 10]], columns: Option<usize>) -> String {
    const RIGHT: [bool; 10] = [false, false, true, false, true, true, true, true, true, false];
    const LAST: usize = 9;
    let widths: Vec<usize> =
        (0..LAST).map(|at| rows.iter().map(|row| width(&row[at])).max().unwrap_or(0)).collect();
    let mut text = String::new();
    for row in rows {
        let mut line = String::new();
        for ((cell, right), column) in row.iter().zip(RIGHT).zip(&widths) {
            line += &if right { pad_start(cell, *column) } else { pad_end(cell, *column) };
            line += "  ";
        }
        line += &row[LAST];
        text += &cut(line.trim_end(), columns.unwrap_or(usize::MAX), CUT_MARK);
        text.push('\n');
    }
    text
}

/// Marks a line that is cut at the edge of the terminal.
pub(super) const CUT_MARK: &str = "…";

pub(super) fn state(process: &ProcessInfo) -> String {
    match process.exit {
        None => process.state.escape_debug().to_string(),
        Some(exit) => match (exit.code, exit.signal) {
            (Some(code), _) => format!("exited {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => match &process.exit_unknown_because {
                Some(because) => format!("exited ? ({})", because.escape_debug()),
                None => "exited ?".to_owned(),
            },
        },
    }
}

/// A duration in its largest unit.
pub(super) fn age(seconds: u64) -> String {
    match seconds {
        0..60 => format!("{seconds}s"),
        60..3600 => format!("{}m", seconds / 60),
        3600..86_400 => format!("{}h", seconds / 3600),
        _ => format!("{}d", seconds / 86_400),
    }
}

pub(super) fn size(bytes: u64) -> String {
    let units = ["B", "kB", "MB", "GB", "TB"];
    let mut value = bytes as f64;
    let mut unit = 0;
    while value >= 1000.0 && unit < units.len() - 1 {
        value /= 1000.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes}B") } else { format!("{value:.1}{}", units[unit]) }
}

/// The command line, escaped: arguments may contain terminal control sequences.
pub(super) fn command_line(command: &[String]) -> String {
    if command.is_empty() {
        return "(unknown command)".to_owned();
    }
    let mut text = String::new();
    for character in command.join(" ").chars() {
        match character {
            '"' | '\'' => text.push(character),
            other => text.extend(other.escape_debug()),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn process(face: &str, scope: &str, id: &str, number: &str, exited: bool) -> ProcessInfo {
        let exit = exited.then(|| serde_json::json!({"code": 0, "userMs": 1, "systemMs": 1, "rssMaxKb": 1}));
        serde_json::from_value(serde_json::json!({
            "process": number, "face": face, "scope": scope, "id": id, "pid": 42, "state": "running",
            "exit": exit, "command": ["sh", "-c", "echo \u{1b}[31m\n"], "directory": null, "terminal": false,
            "startedMs": 1000, "startedBy": "", "rssBytes": 1_500_000, "cpuMs": 500, "outputBytes": 7,
            "keptBytes": 7, "firstSeq": 1, "lastSeq": 1, "stdinAccepted": 0, "readers": 2, "stalled": false,
        }))
        .unwrap()
    }

    #[test]
    fn numbers_have_units_and_control_characters_are_escaped() {
        let text = table(&[process("relay", "", "a\u{1b}", "9", false)], false, 2000, None);
        let mut lines = text.lines();
        let words =
            |line: Option<&str>| line.unwrap_or_default().split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(lines.next()), "ID FACE PID STATE AGE CPU MEMORY OUTPUT READERS COMMAND");
        assert_eq!(
            words(lines.next()),
            "a\\u{1b} relay 42 running 1s 50% 1.5MB 7B 2 sh -c echo \\u{1b}[31m\\n"
        );
        assert!(!text.contains('\u{1b}'));
    }

    #[test]
    fn lines_are_cut_to_the_terminal_width() {
        let one = [process("relay", "", "a", "9", false)];
        for columns in [1, 20, 60, 79] {
            let text = table(&one, false, 2000, Some(columns));
            assert!(text.lines().all(|line| line.chars().count() <= columns), "{text}");
            assert!(text.ends_with("…\n"), "{text}");
        }
        assert!(!table(&one, false, 2000, Some(200)).contains('…'));
    }

    #[test]
    fn a_duplicate_id_is_shown_as_an_address() {
        let several = [
            process("relay", "", "build", "9", false),
            process("control", "", "build", "a", false),
            process("sessions", "s1", "1", "b", false),
            process("exec", "0", "b", "c", false),
        ];
        assert_eq!(names(&several), ["relay/build", "control/build", "1", "exec/0/b"]);
    }

    #[test]
    fn an_unknown_exit_status_has_its_reason() {
        let mut process = process("lost", "", "1a", "1a", true);
        process.exit = process.exit.map(|exit| outpost_control::wire::ExitStatus { code: None, ..exit });
        assert_eq!(state(&process), "exited ?");
        process.exit_unknown_because = Some("host restarted".into());
        process.command.clear();
        let text = table(&[process], false, 2000, None);
        assert!(text.contains("exited ? (host restarted)") && text.contains("(unknown command)"), "{text}");
    }

    #[test]
    fn only_the_last_ended_processes_are_shown() {
        let many: Vec<ProcessInfo> = (0..ENDED_SHOWN + 5)
            .map(|at| process("control", "", &format!("p{at}"), &format!("{at}x"), true))
            .collect();
        let text = table(&many, false, 2000, None);
        assert!(text.contains("(5 more have ended: outpost ps --all)") && text.contains("p14"), "{text}");
        assert_eq!(text.lines().count(), ENDED_SHOWN + 2);
        assert_eq!(table(&many, true, 2000, None).lines().count(), many.len() + 1);
    }
}
