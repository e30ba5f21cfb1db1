//! What is in force: defaults, the file, and flags, the later before the earlier; and where each value comes from.

use super::Config;
use super::file::check;
use crate::redact;
use outpost_control::wire::{Setting, SettingSource};
use serde_json::{Map, Value};
use std::path::Path;

/// Keys whose change a running daemon does not follow: where it listens, and what it has made for that.
const NEED_RESTART: [&str; 7] = [
    "exec.websocket",
    "broker.askpass",
    "approvals.socket",
    "sessions.listen",
    "sessions.tls_cert",
    "sessions.tls_key",
    "metrics.listen",
];

pub(crate) fn needs_restart(key: &str) -> bool {
    NEED_RESTART.contains(&key)
}

#[derive(Clone, Debug)]
pub(crate) struct Effective {
    pub(crate) config: Config,
    rows: Vec<Setting>,
}

impl Effective {
    /// From the text of a file, of which `name` is told where it is wrong.
    pub(crate) fn new(name: &Path, text: &str, flags: &Config, state: &Path) -> Result<Effective, String> {
        let file = check(text).map_err(|mistakes| {
            let lines = mistakes.iter().map(|mistake| {
                let (line, column) = mistake.place(text);
                format!("{}: line {line}, column {column}: {}", name.display(), mistake.why)
            });
            lines.collect::<Vec<_>>().join("\n")
        })?;
        let effective = Effective::of(&Config::defaults(state), &file, flags)?;
        match effective.config.contradiction() {
            Some(why) => Err(format!("{}: {why}", name.display())),
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

    /// What differs, by key.
    pub(crate) fn changes(&self, new: &Effective) -> Vec<String> {
        let pairs = self.rows.iter().zip(&new.rows);
        pairs.filter(|(old, new)| old.value != new.value).map(|(old, _)| old.key.clone()).collect()
    }

    /// Every key, with secrets left out.
    pub(crate) fn shown(&self) -> Vec<Setting> {
        let show = |row: &Setting| Setting { value: redact::setting(&row.key, &row.value), ..row.clone() };
        self.rows.iter().map(show).collect()
    }

    /// This, but with what cannot change in a running daemon as it was.
    pub(crate) fn held_back(&self, running: &Effective) -> Result<Effective, String> {
        let mut config = serde_json::to_value(&self.config).map_err(|error| error.to_string())?;
        let mut rows = self.rows.clone();
        for (row, before) in rows.iter_mut().zip(&running.rows).filter(|(row, _)| needs_restart(&row.key)) {
            if let Some(place) = config.pointer_mut(&format!("/{}", row.key.replace('.', "/"))) {
                *place = before.value.clone();
            }
            *row = before.clone();
        }
        Ok(Effective { config: serde_json::from_value(config).map_err(|error| error.to_string())?, rows })
    }
}

/// The last of the layers that says something, key by key. The first one has all tables, and no variables of agents: those are
/// a value, settled together.
fn merge(path: &str, layers: [(SettingSource, &Value); 3], rows: &mut Vec<Setting>) -> Value {
    let Some(table) = layers[0].1.as_object() else {
        let said = layers.into_iter().rev().find(|(_, value)| !value.is_null());
        let (source, value) = said.unwrap_or(layers[0]);
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
