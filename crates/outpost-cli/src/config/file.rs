//! Reads and checks the configuration file, and reports every error with its line and column.

use super::Config;
use outpost_approvals::toml_diagnostics::{self, Diagnostic};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use toml::de::DeTable;

const BYTES_MAX: u64 = 1 << 20;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The text of the file; none if the file does not exist.
pub(crate) fn read(path: &Path) -> Result<Option<String>, String> {
    let fail = |cause: &dyn std::fmt::Display| format!("{}: {cause}", path.display());
    let opened = match file::open(path, Open::Foreign) {
        Ok(opened) => File::from(opened),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(fail(&errno)),
    };
    let found = opened.metadata().map_err(|error| fail(&error))?;
    if !found.is_file() {
        return Err(fail(&"not a regular file"));
    }
    // The file selects programs that the daemon runs and the users who may approve.
    if found.mode() & WRITABLE_BY_OTHERS != 0
        || ![0, outpost_sys::process::effective_uid()].contains(&found.uid())
    {
        let cause = format!(
            "other users can write this file, and so choose what this daemon runs\n\
             hint: `chown` it to this user and `chmod go-w {}`",
            path.display()
        );
        return Err(fail(&cause));
    }
    let bytes = file::read_whole(&opened, BYTES_MAX).map_err(|errno| fail(&errno))?;
    let text = String::from_utf8(bytes);
    text.map(Some)
        .map_err(|error| fail(&format!("byte {} is not UTF-8", error.utf8_error().valid_up_to() + 1)))
}

/// Parses the text. Returns all errors in the order of the file.
pub(crate) fn check(text: &str) -> Result<Config, Vec<Diagnostic>> {
    let document = toml_diagnostics::parse(text)?;
    let known = serde_json::to_value(Config::default()).unwrap_or_default();
    let mut diagnostics = unknown_keys(document.get_ref(), &known);
    match toml::from_str(text) {
        Ok(config) if diagnostics.is_empty() => return Ok(config),
        Ok(_) => {}
        Err(error) => diagnostics.push(Diagnostic::from_toml(&error, text)),
    }
    diagnostics.sort_by_key(|diagnostic| diagnostic.offset);
    Err(diagnostics)
}

fn unknown_keys(table: &DeTable<'_>, known: &Value) -> Vec<Diagnostic> {
    let Some(known) = known.as_object() else { return Vec::new() };
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    let mut diagnostics = toml_diagnostics::unknown_keys(table, &names);
    for (name, value) in table {
        if let (Some(table), Some(known)) = (value.get_ref().as_table(), known.get(name.get_ref().as_ref())) {
            diagnostics.extend(unknown_keys(table, known));
        }
    }
    diagnostics
}
