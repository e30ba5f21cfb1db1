//! `outpost ps`.

use super::{Outcome, connect, explain};
use crate::paths::Paths;
use clap::Args;
use outpost_control::wire::ProcessInfo;
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

#[derive(Args)]
pub(super) struct Ps {
    /// One JSON array instead of a table
    #[arg(long)]
    json: bool,
}

pub(super) fn ps(paths: &Paths, options: &Ps) -> Outcome {
    let processes: Vec<ProcessInfo> = connect(paths)?.call("list", &()).map_err(explain)?;
    if options.json {
        println!("{}", serde_json::to_string_pretty(&processes).map_err(|error| error.to_string())?);
        return Ok(ExitCode::SUCCESS);
    }
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    println!(
        "{:<16} {:<8} {:>8} {:<12} {:>6} {:>8} {:>9} {:>7}  COMMAND",
        "ID", "FACE", "PID", "STATE", "AGE", "MEMORY", "OUTPUT", "READERS"
    );
    for process in &processes {
        println!(
            "{:<16} {:<8} {:>8} {:<12} {:>6} {:>8} {:>9} {:>7}  {}",
            if process.id.is_empty() { &process.process } else { &process.id },
            process.face,
            process.pid,
            state(process),
            age(now.saturating_sub(process.started_ms) / 1000),
            size(process.rss_bytes),
            size(process.output_bytes),
            process.readers,
            shown(&process.command),
        );
    }
    Ok(ExitCode::SUCCESS)
}

fn state(process: &ProcessInfo) -> String {
    match process.exit {
        None => process.state.clone(),
        Some(exit) => match (exit.code, exit.signal) {
            (Some(code), _) => format!("exited {code}"),
            (None, Some(signal)) => format!("signal {signal}"),
            (None, None) => "exited ?".to_owned(),
        },
    }
}

/// A time at a glance: its largest unit.
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

/// Arguments come from anywhere: nothing in them may reach the terminal as a command to it.
fn shown(command: &[String]) -> String {
    command.iter().map(|argument| argument.escape_debug().to_string()).collect::<Vec<_>>().join(" ")
}
