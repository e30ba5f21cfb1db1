//! Verifies a chain from its first record to its last.

use super::files::{self, Line, Lines};
use super::{Error, Head, ROTATED, Result, SHORTENED, record};
use std::path::Path;

/// Summary of a valid chain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub files: u64,
    pub records: u64,
    /// More than 1 if the oldest files were removed.
    pub first_seq: u64,
    /// To compare with syslog. `None` if the chain is empty.
    pub head: Option<Head>,
    /// Size of a torn record at the end: a write in progress, or left by a crash.
    pub torn_bytes: u64,
}

/// Verifies every file of the chain in a directory, or an exported chain. `expected` is a head from another
/// source, such as syslog: the chain must contain that record. Fails with [`Error::Broken`] at the first
/// modification.
pub fn verify(dir: &Path, expected: Option<&Head>) -> Result<Report> {
    let mut chain = ChainCheck {
        report: Report::default(),
        expected,
        is_file_ended: false,
        is_export: files::is_export(dir),
    };
    for file in files::list(dir)? {
        let first_seq = file.first_seq;
        let mut lines = file.lines()?;
        chain.check_file(&mut lines, first_seq)?;
        chain.report.files += 1;
    }
    match (chain.expected, chain.report.head) {
        (None, _) => Ok(chain.report),
        (Some(expected), None) => Err(missing_head(dir, expected, "the chain has no records".into())),
        (Some(expected), Some(head)) => {
            let (first, last) = (chain.report.first_seq, head.seq);
            Err(missing_head(dir, expected, format!("the chain has the records {first} to {last}")))
        }
    }
}

fn missing_head(dir: &Path, expected: &Head, why: String) -> Error {
    Error::broken(dir, 0, format!("the record {expected} is missing: {why}; part of the log was removed"))
}

/// State of the verification.
struct ChainCheck<'a> {
    report: Report,
    /// Cleared when the record is found.
    expected: Option<&'a Head>,
    /// The last record was `rotated`.
    is_file_ended: bool,
    /// The input is one file with all records of the chain.
    is_export: bool,
}

impl ChainCheck<'_> {
    /// `first_seq` is the number in the name of a full file.
    fn check_file(&mut self, lines: &mut Lines, first_seq: Option<u64>) -> Result<()> {
        let before = self.report.records;
        self.is_file_ended = false;
        let torn = loop {
            match lines.next()? {
                Line::Whole(line) => {
                    let wanted = first_seq.filter(|_| self.report.records == before);
                    self.check_record(line, wanted).map_err(|why| lines.broken(why))?;
                }
                Line::Torn(bytes) if record::is_unfinished(bytes) => break bytes.len() as u64,
                Line::Torn(_) => return Err(lines.broken("the record does not end with a newline")),
                Line::End => break 0,
            }
        };
        match first_seq {
            None => self.report.torn_bytes = torn,
            Some(_) if self.is_file_ended && torn == 0 => {}
            Some(_) => return Err(lines.broken("a full file must end with a rotated record")),
        }
        Ok(())
    }

    fn check_record(&mut self, line: &[u8], wanted_seq: Option<u64>) -> std::result::Result<(), String> {
        let (parsed, head) = record::parse(line)?;
        if self.is_file_ended && !self.is_export {
            return Err("a record follows the rotated record".into());
        }
        if parsed.event == SHORTENED {
            return Err(format!("records before this one were removed: {}", parsed.data.get()));
        }
        if wanted_seq.is_some_and(|wanted| wanted != head.seq) {
            return Err(format!("record {} does not match the file name", head.seq));
        }
        match self.report.head {
            Some(last) => check_link(&last, &head, parsed.prev())?,
            None if head.seq <= 1 => check_link(&Head::NONE, &head, parsed.prev())?,
            None => {}
        }
        if let Some(expected) = self.expected.filter(|expected| expected.seq == head.seq) {
            if expected.hash != head.hash {
                return Err(format!("hash mismatch: expected {expected}"));
            }
            self.expected = None;
        }
        if self.report.records == 0 {
            self.report.first_seq = head.seq;
        }
        self.is_file_ended = parsed.event == ROTATED;
        self.report.head = Some(head);
        self.report.records += 1;
        Ok(())
    }
}

fn check_link(last: &Head, head: &Head, prev: Option<[u8; 32]>) -> std::result::Result<(), String> {
    if head.seq != last.seq + 1 {
        return Err(format!("expected record {}, found record {}", last.seq + 1, head.seq));
    }
    match prev == Some(last.hash) {
        true => Ok(()),
        false => Err(format!("prev does not match the previous record, {last}")),
    }
}
