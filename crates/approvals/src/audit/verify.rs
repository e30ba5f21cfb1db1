//! Checks a chain from its first record to its last.

use super::files::{self, Line, Lines};
use super::{Error, Head, ROTATED, Result, SHORTENED, record};
use std::path::Path;

/// What is in a chain that holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub files: u64,
    pub records: u64,
    /// More than 1 when the oldest files are not there any more.
    pub first_seq: u64,
    /// To be compared with what syslog has; none where there is no record.
    pub head: Option<Head>,
    /// An unfinished record at the end: being written, or left by a crash.
    pub torn_bytes: u64,
}

/// Reads every file of the chain in a directory, or the export of one. `expected` is a head that was told elsewhere: the chain must have that
/// very record, and may have gone on since. Fails with [`Error::Broken`] at the first thing that is not as it was written.
pub fn verify(dir: &Path, expected: Option<&Head>) -> Result<Report> {
    let mut chain =
        Chain { report: Report::default(), expected, has_ended: false, is_export: files::is_export(dir) };
    for source in files::sources(dir)? {
        let first_seq = source.first_seq;
        let mut lines = source.lines()?;
        chain.file(&mut lines, first_seq)?;
        chain.report.files += 1;
    }
    match (chain.expected, chain.report.head) {
        (None, _) => Ok(chain.report),
        (Some(expected), None) => Err(missing(dir, expected, "it has no records".into())),
        (Some(expected), Some(head)) => {
            let (first, last) = (chain.report.first_seq, head.seq);
            Err(missing(dir, expected, format!("its records are {first} to {last}")))
        }
    }
}

fn missing(dir: &Path, expected: &Head, why: String) -> Error {
    Error::broken(dir, 0, format!("the record {expected} is missing: {why}; part of the log was removed"))
}

/// A chain as far as it was read.
struct Chain<'a> {
    report: Report,
    /// Until it was met.
    expected: Option<&'a Head>,
    /// The last record ended its file.
    has_ended: bool,
    /// All files of the chain in one.
    is_export: bool,
}

impl Chain<'_> {
    /// `first_seq` is the number that the first record must have by the name of a full file.
    fn file(&mut self, lines: &mut Lines, first_seq: Option<u64>) -> Result<()> {
        let before = self.report.records;
        self.has_ended = false;
        let torn = loop {
            match lines.next()? {
                Line::Whole(line) => {
                    let wanted = first_seq.filter(|_| self.report.records == before);
                    self.record(line, wanted).map_err(|why| lines.broken(why))?;
                }
                Line::Torn(bytes) if record::is_unfinished(bytes) => break bytes.len() as u64,
                Line::Torn(_) => return Err(lines.broken("it ends with something else than a newline")),
                Line::End => break 0,
            }
        };
        match first_seq {
            None => self.report.torn_bytes = torn,
            Some(_) if self.has_ended && torn == 0 => {}
            Some(_) => return Err(lines.broken("it does not end with the record that ends a full file")),
        }
        Ok(())
    }

    fn record(&mut self, line: &[u8], wanted_seq: Option<u64>) -> std::result::Result<(), String> {
        let (parsed, head) = record::parse(line)?;
        if self.has_ended && !self.is_export {
            return Err("it follows the record that ended the file".into());
        }
        if parsed.event == SHORTENED {
            return Err(format!("it reports that records before it were removed: {}", parsed.data.get()));
        }
        if wanted_seq.is_some_and(|wanted| wanted != head.seq) {
            return Err(format!("its number is {}, other than the name of the file says", head.seq));
        }
        match self.report.head {
            Some(last) => follows(&last, &head, parsed.prev())?,
            None if head.seq <= 1 => follows(&Head::NONE, &head, parsed.prev())?,
            None => {}
        }
        if let Some(expected) = self.expected.filter(|expected| expected.seq == head.seq) {
            if expected.hash != head.hash {
                return Err(format!("it is not the record that was told elsewhere, {expected}"));
            }
            self.expected = None;
        }
        if self.report.records == 0 {
            self.report.first_seq = head.seq;
        }
        self.has_ended = parsed.event == ROTATED;
        self.report.head = Some(head);
        self.report.records += 1;
        Ok(())
    }
}

fn follows(last: &Head, head: &Head, prev: Option<[u8; 32]>) -> std::result::Result<(), String> {
    if head.seq != last.seq + 1 {
        return Err(format!("its number is {} where {} should follow", head.seq, last.seq + 1));
    }
    match prev == Some(last.hash) {
        true => Ok(()),
        false => Err(format!("it follows another record than the one before it, {last}")),
    }
}
