//! Records for people: what `show` and `export` print.

use super::files::{self, Line, Lines, Source};
use super::{Head, Result, record};
use jiff::Timestamp;
use std::collections::VecDeque;
use std::path::Path;

/// Which records are wanted; by default all.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// From this number on.
    pub from_seq: u64,
    /// Not before this time, as the clock was set then.
    pub since: Option<Timestamp>,
    /// Only of this event.
    pub event: Option<String>,
}

/// One record.
#[derive(Clone, Debug)]
pub struct Record {
    pub seq: u64,
    pub time: Timestamp,
    pub boot_ns: u64,
    pub event: String,
    pub data: serde_json::Value,
    /// As it stands in the file, without the newline.
    pub line: String,
}

/// Reads the chain in a directory, oldest first, also while it is being written. Each record is right by itself; whether
/// all are there is what [`verify`](super::verify) tells.
pub fn read(dir: &Path, filter: Filter) -> Result<Reader> {
    let mut sources: VecDeque<Source> = files::sources(dir)?.into();
    // A file whose successor begins early enough has nothing of interest.
    while sources.get(1).and_then(|next| next.first_seq).is_some_and(|first| first <= filter.from_seq) {
        sources.pop_front();
    }
    Ok(Reader { sources, lines: None, filter })
}

/// Whether the chain in a directory has this very record.
pub fn has(dir: &Path, head: &Head) -> Result<bool> {
    let mut reader = read(dir, Filter { from_seq: head.seq, ..Filter::default() })?;
    let first = reader.next().transpose()?;
    let found = first.and_then(|record| Some(record::parse(record.line.as_bytes()).ok()?.1));
    Ok(found == Some(*head))
}

/// The records that pass a filter. It ends after an error.
pub struct Reader {
    sources: VecDeque<Source>,
    lines: Option<Lines>,
    filter: Filter,
}

impl Iterator for Reader {
    type Item = Result<Record>;

    fn next(&mut self) -> Option<Result<Record>> {
        let next = self.wanted().transpose();
        if matches!(next, Some(Err(_))) {
            self.sources.clear();
            self.lines = None;
        }
        next
    }
}

impl Reader {
    fn wanted(&mut self) -> Result<Option<Record>> {
        loop {
            let Some(lines) = &mut self.lines else {
                let Some(source) = self.sources.pop_front() else { return Ok(None) };
                self.lines = Some(source.lines()?);
                continue;
            };
            let parsed = match lines.next()? {
                Line::Whole(line) => parse(line, &self.filter),
                // What is unfinished may be finished later, but has not happened yet.
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
    let time: Timestamp = parsed.time.parse().map_err(|error| format!("its time cannot be read: {error}"))?;
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
