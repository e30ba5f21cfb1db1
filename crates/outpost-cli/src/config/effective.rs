//! The effective configuration: defaults, overridden by the file, overridden by flags, with the source of each value.

use super::Config;
use super::file::check;
use crate::redact;
use outpost_control::wire::{Setting, SettingSource, Settings};
use serde_json::{Map, Value};
use std::path::Path;

/// Keys that a reload cannot change, because a running daemon keeps its listeners.
const NEED_RESTART: [&str; 7] = [
    "exec.websocket",
    "broker.askpass",
    "approvals.socket",
    "sessions.listen",
    "sessions.tls_cert",
    "sessions.tls_key",
    "metrics.listen",
];

pub fn needs_restart(key: &str) -> bool {
    NEED_RESTART.contains(&key)
}

#[derive(Clone, Debug)]
pub struct Effective {
    pub config: Config,
    rows: Vec<Setting>,
}

impl Effective {
    /// Checks the text of the configuration file and merges the layers. Errors name `path`.
    pub(crate) fn new(path: &Path, text: &str, flags: &Config, state: &Path) -> Result<Effective, String> {
        let file = check(text).map_err(|diagnostics| {
            let lines = diagnostics.iter().map(|diagnostic| {
                let (line, column) = diagnostic.line_and_column(text);
                format!("{}: line {line}, column {column}: {}", path.display(), diagnostic.message)
            });
            lines.collect::<Vec<_>>().join("\n")
        })?;
        let effective = Effective::of(&Config::defaults(state), &file, flags)?;
        match effective.config.contradiction() {
            Some(cause) => Err(format!("{}: {cause}", path.display())),
            None => Ok(effective),
        }
    }

    fn of(default: &Config, file: &Config, flags: &Config) -> Result<Effective, String> {
        let text = |error: serde_json::Error| error.to_string();
        let mut rows = Vec::new();
        let layers = [default, file, flags].map(serde_json::to_value);
        let [default, file, flags] = layers.map(Result::unwrap_or_default);
        let layers =
            [(SettingSource::Default, &default), (SettingSource::File, &file), (SettingSource::Flag, &flags)];
        let merged = merge("", layers, &mut rows);
        Ok(Effective { config: serde_json::from_value(merged).map_err(text)?, rows })
    }

    /// The keys whose values differ.
    pub fn changes(&self, new: &Effective) -> Vec<String> {
        let pairs = self.rows.iter().zip(&new.rows);
        pairs.filter(|(old, new)| old.value != new.value).map(|(old, _)| old.key.clone()).collect()
    }

    /// Every key of this configuration file with its value. Secrets are redacted.
    pub fn redacted(&self, file: String) -> Settings {
        let redact = |row: &Setting| Setting { value: redact::setting(&row.key, &row.value), ..row.clone() };
        Settings { file, settings: self.rows.iter().map(redact).collect() }
    }

    /// A copy in which the keys that need a restart keep their running values.
    pub fn with_fixed_keys_of(&self, running: &Effective) -> Result<Effective, String> {
        let mut config = serde_json::to_value(&self.config).map_err(|error| error.to_string())?;
        let mut rows = self.rows.clone();
        for (row, before) in rows.iter_mut().zip(&running.rows).filter(|(row, _)| needs_restart(&row.key)) {
            if let Some(value) = config.pointer_mut(&format!("/{}", row.key.replace('.', "/"))) {
                *value = before.value.clone();
            }
            *row = before.clone();
        }
        Ok(Effective { config: serde_json::from_value(config).map_err(|error| error.to_string())?, rows })
    }
}

/// For each key, takes the value of the last layer that sets it. The first layer contains every table. An agent's `env` is
/// one value there, so a later layer replaces it as a whole.
fn merge(path: &str, layers: [(SettingSource, &Value); 3], rows: &mut Vec<Setting>) -> Value {
    let Some(table) = layers[0].1.as_object() else {
        let last_set = layers.into_iter().rev().find(|(_, value)| !value.is_null());
        let (source, value) = last_set.unwrap_or(layers[0]);
        rows.push(Setting { key: path.to_owned(), value: value.clone(), source });
        return value.clone();
    };
    let mut merged = Map::new();
    for name in table.keys() {
        let below = if path.is_empty() { name.clone() } else { format!("{path}.{name}") };
        let layers = layers.map(|(source, value)| (source, value.get(name).unwrap_or(&Value::Null)));
        merged.insert(name.clone(), merge(&below, layers, rows));
    }
    Value::Object(merged)
}
