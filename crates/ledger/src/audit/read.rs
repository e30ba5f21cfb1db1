//! Reads records for `outpost audit show` and `export`.

use super::files::{self, ChainFile, Line, Lines};
use super::{Head, Result, record};
use jiff::Timestamp;
use std::collections::VecDeque;
use std::path::Path;

/// Selects records. The default selects all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// Lowest `seq`.
    pub from_seq: u64,
    /// Earliest wall-clock time.
    pub since: Option<Timestamp>,
    /// Name of the event.
    pub event: Option<String>,
}

/// A parsed record.
#[derive(Clone, Debug)]
pub struct Record {
    pub seq: u64,
    pub time: Timestamp,
    pub boot_ns: u64,
    pub event: String,
    pub data: serde_json::Value,
    /// The line in the file, without the newline.
    pub line: String,
}

impl Record {
    /// The chain's head with this record as the newest.
    pub fn head(&self) -> Option<Head> {
        record::parse(self.line.as_bytes()).ok().map(|(_, head)| head)
    }
}

/// Reads the chain in a directory, oldest record first. Safe while the writer appends. Only the hash of each
/// record is checked; [`verify`](super::verify) checks that the chain is complete.
pub fn read(dir: &Path, filter: Filter) -> Result<Reader> {
    let mut files: VecDeque<ChainFile> = files::list(dir)?.into();
    // Skip a file if the next file starts at or before the first wanted record.
    while files.get(1).and_then(|next| next.first_seq).is_some_and(|first| first <= filter.from_seq) {
        files.pop_front();
    }
    Ok(Reader { files, lines: None, filter })
}

/// Whether the chain in a directory contains this record.
pub fn contains(dir: &Path, head: &Head) -> Result<bool> {
    let mut reader = read(dir, Filter { from_seq: head.seq, ..Filter::default() })?;
    let first = reader.next().transpose()?;
    Ok(first.and_then(|record| record.head()) == Some(*head))
}

/// An iterator over the selected records. It ends after an error.
pub struct Reader {
    files: VecDeque<ChainFile>,
    lines: Option<Lines>,
    filter: Filter,
}

impl Iterator for Reader {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        let next = self.wanted().transpose();
        if matches!(next, Some(Err(_))) {
            self.files.clear();
            self.lines = None;
        }
        next
    }
}

impl Reader {
    fn wanted(&mut self) -> Result<Option<Record>> {
        loop {
            let Some(lines) = &mut self.lines else {
                let Some(file) = self.files.pop_front() else { return Ok(None) };
                self.lines = Some(file.lines()?);
                continue;
            };
            let parsed = match lines.next()? {
                Line::Whole(line) => parse(line, &self.filter),
                // A torn record may still be in progress, so it does not count yet.
                Line::Torn(_) | Line::End => {
                    self.lines = None;
                    continue;
                }
            };
            if let Some(record) = parsed.map_err(|why| lines.broken(why))? {
                return Ok(Some(record));
            }
        }
    }
}

fn parse(line: &[u8], filter: &Filter) -> std::result::Result<Option<Record>, String> {
    let (parsed, _) = record::parse(line)?;
    let time: Timestamp = parsed.time.parse().map_err(|error| format!("invalid time: {error}"))?;
    let is_wanted = parsed.seq >= filter.from_seq
        && filter.since.is_none_or(|since| time >= since)
        && filter.event.as_ref().is_none_or(|event| event == parsed.event);
    if !is_wanted {
        return Ok(None);
    }
    let data = serde_json::from_str(parsed.data.get()).map_err(|error| error.to_string())?;
    let line = std::str::from_utf8(line).map_err(|error| error.to_string())?.to_owned();
    let event = parsed.event.to_owned();
    Ok(Some(Record { seq: parsed.seq, time, boot_ns: parsed.boot_ns, event, data, line }))
}
