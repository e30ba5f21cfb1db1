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

/// The name of a full file.
pub(super) fn rotated_name(first_seq: u64) -> String {
    format!("audit-{first_seq:020}.jsonl")
}

fn rotated_seq(name: &str) -> Option<u64> {
    let digits = name.strip_prefix("audit-")?.strip_suffix(".jsonl")?;
    (digits.len() == 20 && digits.bytes().all(|digit| digit.is_ascii_digit())).then(|| digits.parse().ok())?
}

/// The full files of a chain, sorted by their first `seq`.
pub(super) fn rotated(dir: &Path) -> Result<Vec<(u64, PathBuf)>> {
    let opened = file::open(dir, Open::Directory).map_err(|errno| Error::io("open", dir, errno))?;
    let names = file::names(&opened).map_err(|errno| Error::io("list", dir, errno))?;
    let mut found: Vec<(u64, PathBuf)> =
        names.iter().filter_map(|name| Some((rotated_seq(name)?, dir.join(name)))).collect();
    found.sort();
    Ok(found)
}

/// A file of a chain, not yet read.
pub(super) struct ChainFile {
    pub(super) path: PathBuf,
    /// The first `seq`, from the name of a full file.
    pub(super) first_seq: Option<u64>,
    /// `audit.jsonl` is opened before the directory is listed: the writer may rename it in between.
    current: Option<File>,
}

/// Whether the path is an exported chain, which is one file, or the directory of a chain.
pub(super) fn is_export(path: &Path) -> bool {
    path.is_file()
}

/// Returns the files of a chain, oldest first. Safe while the writer appends or rotates. An exported chain is a
/// single file.
pub(super) fn list(dir: &Path) -> Result<Vec<ChainFile>> {
    if is_export(dir) {
        let opened = file::open(dir, Open::Foreign).map_err(|errno| Error::io("open", dir, errno))?;
        return Ok(vec![ChainFile {
            path: dir.to_owned(),
            first_seq: None,
            current: Some(File::from(opened)),
        }]);
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
    let mut sources: Vec<ChainFile> = rotated
        .into_iter()
        .map(|(first_seq, path)| ChainFile { path, first_seq: Some(first_seq), current: None })
        .collect();
    if let Some(file) = current {
        let found = file.metadata().map_err(|error| Error::std("stat", &path, &error))?;
        if newest != Some(identity(found)) {
            sources.push(ChainFile { path, first_seq: None, current: Some(file) });
        }
    }
    Ok(sources)
}

impl ChainFile {
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

/// Reads the lines of one file.
pub(super) struct Lines {
    pub(super) path: PathBuf,
    reader: BufReader<File>,
    /// Number of the last line read, from 1.
    pub(super) number: u64,
    line: Vec<u8>,
}

pub(super) enum Line<'a> {
    /// A line without its newline.
    Whole(&'a [u8]),
    /// Bytes after the last newline of the file.
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
            None if bytes == RECORD_BYTES_MAX => Err(self.broken("the line is too long for a record")),
            None => Ok(Line::Torn(&self.line)),
        }
    }

    pub(super) fn broken(&self, why: impl Into<String>) -> Error {
        Error::broken(&self.path, self.number, why)
    }
}
