//! The files of a chain: their names, their order, and their lines.

use super::{Error, RECORD_BYTES_MAX, Result};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

pub(super) const CURRENT: &str = "audit.jsonl";
pub(super) const LOCK: &str = "audit.lock";
const BUFFER_BYTES: usize = 256 << 10;

/// What a full file is called.
pub(super) fn rotated_name(first_seq: u64) -> String {
    format!("audit-{first_seq:020}.jsonl")
}

fn rotated_seq(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("audit-")?.strip_suffix(".jsonl")?;
    (digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// The full files of a chain by the number of their first record.
pub(super) fn rotated(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let opened = file::open(dir, Open::Directory).map_err(|errno| Error::io("open", dir, errno))?;
    let names = file::names(&opened).map_err(|errno| Error::io("list", dir, errno))?;
    let mut found: Vec<(u64, PathBuf)> =
        names.iter().filter_map(|name| Some((rotated_seq(name)?, dir.join(name)))).collect();
    found.sort();
    Ok(found)
}

/// One file of a chain, to be read.
pub(super) struct Source {
    pub(super) path: PathBuf,
    /// As its name has it; the file that is being written does not say.
    pub(super) first_seq: Option<u64>,
    /// Opened first of all, since it may get another name meanwhile.
    current: Option<File>,
}

/// Whether this is the export of a chain, and not the directory of one.
pub(super) fn is_export(path: &Path) -> bool {
    path.is_file()
}

/// Every file of a chain, oldest first, also while it is being written.
/// An export is a file with all of them.
pub(super) fn sources(dir: &Path) -> Result<Vec<Source>> {
    if is_export(dir) {
        let opened = file::open(dir, Open::Foreign).map_err(|errno| Error::io("open", dir, errno))?;
        return Ok(vec![Source { path: dir.to_owned(), first_seq: None, current: Some(File::from(opened)) }]);
    }
    let path = dir.join(CURRENT);
    let current = match file::open(&path, Open::Read) {
        Ok(file) => Some(File::from(file)),
        Err(Errno::NOENT) => None,
        Err(errno) => return Err(Error::io("open", &path, errno)),
    };
    let rotated = rotated(dir)?;
    let identity = |file: std::fs::Metadata| (file.dev(), file.ino());
    let newest = rotated.last().and_then(|(_, path)| std::fs::symlink_metadata(path).ok()).map(identity);
    let mut sources: Vec<Source> = rotated
        .into_iter()
        .map(|(first_seq, path)| Source { path, first_seq: Some(first_seq), current: None })
        .collect();
    if let Some(file) = current {
        let found = file.metadata().map_err(|error| Error::std("look at", &path, &error))?;
        if newest != Some(identity(found)) {
            sources.push(Source { path, first_seq: None, current: Some(file) });
        }
    }
    Ok(sources)
}

impl Source {
    pub(super) fn lines(self) -> Result<Lines> {
        let file = match self.current {
            Some(file) => file,
            None => File::from(
                file::open(&self.path, Open::Read).map_err(|errno| Error::io("open", &self.path, errno))?,
            ),
        };
        let reader = BufReader::with_capacity(BUFFER_BYTES, file);
        Ok(Lines { path: self.path, reader, number: 0, line: Vec::new() })
    }
}

/// The lines of one file.
pub(super) struct Lines {
    pub(super) path: PathBuf,
    reader: BufReader<File>,
    /// Of the line that was read last, from 1.
    pub(super) number: u64,
    line: Vec<u8>,
}

pub(super) enum Line<'a> {
    /// Without its newline.
    Whole(&'a [u8]),
    /// What stands after the last newline of the file.
    Torn(&'a [u8]),
    End,
}

impl Lines {
    pub(super) fn next(&mut self) -> Result<Line<'_>> {
        self.line.clear();
        self.number += 1;
        let mut limited = (&mut self.reader).take(RECORD_BYTES_MAX as u64);
        let read = limited.read_until(b'\n', &mut self.line);
        let bytes = read.map_err(|error| Error::std("read", &self.path, &error))?;
        match self.line.strip_suffix(b"\n") {
            Some(line) => Ok(Line::Whole(line)),
            None if bytes == 0 => Ok(Line::End),
            None if bytes == RECORD_BYTES_MAX => Err(self.broken("it is longer than a record can be")),
            None => Ok(Line::Torn(&self.line)),
        }
    }

    pub(super) fn broken(&self, why: impl Into<String>) -> Error {
        Error::broken(&self.path, self.number, why)
    }
}
