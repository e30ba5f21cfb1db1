//! The file itself: read whole or not at all, and every mistake in it with its place.

use super::Config;
use outpost_approvals::written::{self, Mistake};
use outpost_sys::file::{self, Open};
use outpost_sys::{Errno, limits};
use serde_json::Value;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use toml::de::DeTable;

const BYTES_MAX: u64 = 1 << 20;
const WRITABLE_BY_OTHERS: u32 = 0o022;

/// The text of the file; none where there is no such file.
pub(crate) fn read(path: &Path) -> Result<Option<String>, String> {
    let fail = |why: &dyn std::fmt::Display| format!("{}: {why}", path.display());
    let opened = match file::open(path, Open::Foreign) {
        Ok(opened) => File::from(opened),
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(fail(&errno)),
    };
    let found = opened.metadata().map_err(|error| fail(&error))?;
    if !found.is_file() {
        return Err(fail(&"not a regular file"));
    }
    // It names programs that we run, and who may decide.
    if found.mode() & WRITABLE_BY_OTHERS != 0 || ![0, limits::effective_uid()].contains(&found.uid()) {
        let own = format!(
            "others can write it, and so could settle what this daemon runs; give it to this user and `chmod go-w {}`",
            path.display()
        );
        return Err(fail(&own));
    }
    let bytes = file::read_whole(&opened, BYTES_MAX).map_err(|errno| fail(&errno))?;
    let text = String::from_utf8(bytes);
    text.map(Some)
        .map_err(|error| fail(&format!("byte {} is not UTF-8", error.utf8_error().valid_up_to() + 1)))
}

/// What the text says, or all that is wrong with it, in the order of the file.
pub(crate) fn check(text: &str) -> Result<Config, Vec<Mistake>> {
    let document = written::parse(text)?;
    let known = serde_json::to_value(Config::default()).unwrap_or_default();
    let mut mistakes = unknown_keys(document.get_ref(), &known);
    match toml::from_str(text) {
        Ok(config) if mistakes.is_empty() => return Ok(config),
        Ok(_) => {}
        Err(error) => mistakes.push(Mistake::of(&error, text)),
    }
    mistakes.sort_by_key(|mistake| mistake.at);
    Err(mistakes)
}

fn unknown_keys(table: &DeTable<'_>, known: &Value) -> Vec<Mistake> {
    let Some(known) = known.as_object() else { return Vec::new() };
    let names: Vec<&str> = known.keys().map(String::as_str).collect();
    let mut mistakes = written::unknown_keys(table, &names);
    for (name, value) in table {
        if let (Some(table), Some(known)) = (value.get_ref().as_table(), known.get(name.get_ref().as_ref())) {
            mistakes.extend(unknown_keys(table, known));
        }
    }
    mistakes
}
