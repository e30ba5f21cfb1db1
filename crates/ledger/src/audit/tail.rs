//! Reads the end of a file of a chain: its last record, and a torn record after it.

use super::{Error, Head, RECORD_BYTES_MAX, ROTATED, Result, record};
use outpost_sys::file;
use std::os::fd::AsFd;
use std::path::Path;

/// Bytes of the first read from the end.
const WINDOW_BYTES: u64 = 64 << 10;
/// Room for the last record and a torn record after it.
const WINDOW_BYTES_MAX: u64 = 2 * RECORD_BYTES_MAX as u64 + 1;

pub(super) struct Tail {
    /// `None` if the file has no complete record.
    pub(super) last: Option<Head>,
    pub(super) is_rotated: bool,
    /// Offset of the end of the last record.
    pub(super) end: u64,
    /// Bytes after the last record.
    pub(super) torn: Vec<u8>,
}

/// Reads backwards until the last record is complete, and checks its hash.
pub(super) fn read(file: impl AsFd, path: &Path) -> Result<Tail> {
    let size = file::size(&file).map_err(|errno| Error::io("stat", path, errno))?;
    let mut window = WINDOW_BYTES;
    loop {
        let start = size.saturating_sub(window);
        let bytes = read_range(&file, path, start, size)?;
        if let Some((line, torn)) = last_line(&bytes, start == 0) {
            let end = size - torn.len() as u64;
            return tail(line, end, torn, path);
        }
        if window >= WINDOW_BYTES_MAX {
            return Err(Error::broken(path, 0, "no record found near the end of the file"));
        }
        window = (window * 8).min(WINDOW_BYTES_MAX);
    }
}

fn read_range(file: impl AsFd, path: &Path, start: u64, end: u64) -> Result<Vec<u8>> {
    let fail = |errno| Error::io("read", path, errno);
    let mut bytes = vec![0; usize::try_from(end - start).map_err(|_| fail(outpost_sys::Errno::FBIG))?];
    let read = file::read_full_at(file, &mut bytes, start).map_err(fail)?;
    bytes.truncate(read);
    Ok(bytes)
}

/// Returns the last line, if there is one, and the bytes after it. Returns `None` if `bytes` start inside the
/// last line.
fn last_line(bytes: &[u8], from_start: bool) -> Option<(Option<&[u8]>, &[u8])> {
    let Some(newline) = bytes.iter().rposition(|&byte| byte == b'\n') else {
        return from_start.then_some((None, bytes));
    };
    let (before, torn) = bytes.split_at_checked(newline).map(|(before, rest)| (before, rest.get(1..)))?;
    let line = match before.iter().rposition(|&byte| byte == b'\n') {
        Some(earlier) => before.get(earlier + 1..),
        None => from_start.then_some(before),
    };
    Some((Some(line?), torn?))
}

fn tail(line: Option<&[u8]>, end: u64, torn: &[u8], path: &Path) -> Result<Tail> {
    if !record::is_unfinished(torn) {
        return Err(Error::broken(path, 0, "the last record does not end with a newline"));
    }
    let mut found = Tail { last: None, is_rotated: false, end, torn: torn.to_owned() };
    if let Some(line) = line {
        let parsed = record::parse(line);
        let (parsed, head) =
            parsed.map_err(|why| Error::broken(path, 0, format!("the last record is damaged: {why}")))?;
        found.is_rotated = parsed.event == ROTATED;
        found.last = Some(head);
    }
    Ok(found)
}

/// Returns the `seq` of the first record of a file that is not empty.
pub(super) fn first_seq(file: impl AsFd, path: &Path) -> Result<u64> {
    let mut bytes = [0; 32];
    let read = file::read_full_at(file, &mut bytes, 0).map_err(|errno| Error::io("read", path, errno))?;
    let digits = bytes.get(..read).and_then(|bytes| bytes.strip_prefix(b"{\"seq\":"));
    let digits = digits.and_then(|rest| rest.split(|&byte| byte == b',').next());
    let number = digits.and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok());
    number.ok_or_else(|| Error::broken(path, 1, "the file does not start with a record"))
}
