//! `outpost config` and `outpost reload`: the configuration file and the effective settings.

use super::{Outcome, as_json, connect, explain, print};
use crate::columns;
use crate::flags::Flags;
use crate::paths::Paths;
use clap::{Args, Subcommand};
use outpost_control::client::Client;
use outpost_control::wire::{Reloaded, Setting, SettingSource, Settings};
use serde_json::Value;
use std::fmt::Write;

#[derive(Args)]
pub(super) struct Config {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Check the configuration file and print its errors
    Check {
        #[command(flatten)]
        flags: Flags,
    },
    /// Show every key with its value and source: those of the running daemon, or those that `serve` would use with these
    /// flags
    Show {
        /// Print JSON
        #[arg(long)]
        json: bool,
        #[command(flatten)]
        flags: Flags,
    },
}

pub(super) fn run(paths: &Paths, options: &Config) -> Outcome {
    match &options.command {
        Command::Check { flags } => check(paths, flags),
        Command::Show { json, flags } => show(paths, flags, *json),
    }
}

fn check(paths: &Paths, flags: &Flags) -> Outcome {
    let text = flags.config_text()?;
    let effective = flags.effective(&text, &paths.state)?;
    effective.config.approvals.settings(paths)?;
    match flags.config_file() {
        file if file.exists() => print(&format!("{}: no errors\n", file.display())),
        file => print(&format!("{} does not exist; the defaults apply\n", file.display())),
    }
}

fn show(paths: &Paths, flags: &Flags, json: bool) -> Outcome {
    let running = Client::connect(&paths.control_socket()).ok();
    let (whose, settings) = match running {
        Some(mut daemon) => ("of the running daemon", daemon.call("settings", &()).map_err(explain)?),
        None => {
            let effective = flags.effective(&flags.config_text()?, &paths.state)?;
            ("that `outpost serve` would use", effective.redacted(flags.config_file().display().to_string()))
        }
    };
    match json {
        true => print(&as_json(&settings)?),
        false => print(&toml_text(whose, &settings)),
    }
}

/// The settings as a TOML document.
fn toml_text(whose: &str, settings: &Settings) -> String {
    let mut text = format!("# The configuration {whose}; file: {}\n", settings.file.escape_debug());
    let mut last = "";
    let lines: Vec<(String, &Setting)> = settings.settings.iter().map(|row| (line(row), row)).collect();
    let width = lines.iter().map(|(line, _)| columns::width(line)).max().unwrap_or_default().min(60);
    for (line, row) in &lines {
        let table = row.key.rsplit_once('.').map_or("", |(table, _)| table);
        if table != last {
            let _infallible = write!(text, "\n[{table}]\n");
            last = table;
        }
        let source = match row.source {
            SettingSource::Default => "default",
            SettingSource::File => "file",
            SettingSource::Flag => "flag",
        };
        let _infallible = match row.value.is_null() {
            true => writeln!(text, "{line}"),
            false => writeln!(text, "{}  # {source}", columns::pad_end(line, width)),
        };
    }
    text
}

fn line(row: &Setting) -> String {
    let name = row.key.rsplit_once('.').map_or(row.key.as_str(), |(_, name)| name);
    match &row.value {
        Value::Null => format!("# {name} is not set"),
        value => format!("{name} = {}", toml_value(value)),
    }
}

fn toml_value(value: &Value) -> String {
    match value {
        Value::Array(values) => format!("[{}]", values.iter().map(toml_value).collect::<Vec<_>>().join(", ")),
        Value::Object(values) => {
            let pairs =
                values.iter().map(|(name, value)| format!("{} = {}", quoted(name), toml_value(value)));
            format!("{{ {} }}", pairs.collect::<Vec<_>>().join(", "))
        }
        Value::String(text) => quoted(text),
        other => other.to_string(),
    }
}

/// A TOML string in ASCII: values may contain terminal control sequences.
fn quoted(text: &str) -> String {
    let mut quoted = String::from("\"");
    for letter in text.chars() {
        let _infallible = match letter {
            '"' | '\\' => write!(quoted, "\\{letter}"),
            ' '..='~' => write!(quoted, "{letter}"),
            other => write!(quoted, "\\U{:08X}", u32::from(other)),
        };
    }
    quoted + "\""
}

pub(super) fn reload(paths: &Paths) -> Outcome {
    let Reloaded { file, changed, needs_restart } = connect(paths)?.call("reload", &()).map_err(explain)?;
    let mut text = match changed.is_empty() {
        true => format!("{file}: no changes applied\n"),
        false => format!("{file}: applied: {}\n", changed.join(" ")),
    };
    if !needs_restart.is_empty() {
        text += &format!("needs a restart (outpost stop, outpost serve): {}\n", needs_restart.join(" "));
    }
    print(&text)
}
