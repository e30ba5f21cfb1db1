//! Iterates over the entries of a tar and applies GNU and PAX extension headers, with a limit on their size.
//!
//! Uses the raw iteration of the tar crate: its default iteration reads extension headers of any size into memory.

use crate::extract::EXTENSION_BYTES_MAX;
use crate::extract::error::ExtractError;
use crate::extract::stream::GzipStream;
use std::io::{self, ErrorKind, Read};
use tar::PaxExtensions;

const BLOCK_BYTES: u64 = 512;

pub(super) type Content<'a, 's> = tar::Entry<'a, GzipStream<'s>>;

pub(super) struct Entry<'a, 's> {
    /// The unmodified name of the archive.
    pub(super) name: Vec<u8>,
    /// The typeflag. The NUL of old archives is mapped to `0` or, for a directory, to `5`.
    pub(super) kind: u8,
    pub(super) content: Content<'a, 's>,
}

pub(super) struct Entries<'a, 's> {
    raw: tar::Entries<'a, GzipStream<'s>>,
    /// Remaining bytes for headers and padding: a few compressed bytes can contain any number of them.
    pub(super) overhead_left: u64,
}

impl<'a, 's> Entries<'a, 's> {
    pub(super) fn new(
        archive: &'a mut tar::Archive<GzipStream<'s>>,
        overhead_bytes_max: u64,
    ) -> Result<Entries<'a, 's>, ExtractError> {
        let raw = archive.entries().map_err(read_error)?.raw(true);
        Ok(Entries { raw, overhead_left: overhead_bytes_max })
    }

    /// The next entry; `None` at the end. The caller must have read the content of the previous one.
    pub(super) fn next(&mut self) -> Result<Option<Entry<'a, 's>>, ExtractError> {
        let (mut records, mut long_name) = (PaxRecords::default(), Vec::new());
        while let Some(next) = self.raw.next() {
            let mut content = next.map_err(read_error)?;
            self.charge(BLOCK_BYTES + content.size().wrapping_neg() % BLOCK_BYTES)?;
            let [kind] = content.header().as_old().linkflag;
            match kind {
                b'x' => records = PaxRecords::parse(&self.read_extension(&mut content)?)?,
                b'L' => {
                    long_name = self.read_extension(&mut content)?;
                    long_name.truncate(long_name.iter().position(|&byte| byte == 0).unwrap_or(usize::MAX));
                }
                // A long link target. The link itself is refused later.
                b'K' => drop(self.read_extension(&mut content)?),
                _ => return entry(kind, content, records, long_name).map(Some),
            }
        }
        Ok(None)
    }

    /// Reads the content of an extension header. Memory use follows the bytes read, not the claimed size.
    fn read_extension(&mut self, content: &mut Content<'a, 's>) -> Result<Vec<u8>, ExtractError> {
        let (mut bytes, size) = (Vec::new(), content.size());
        let mut limited = content.take(EXTENSION_BYTES_MAX + 1);
        let read = limited.read_to_end(&mut bytes).map_err(read_error)? as u64;
        self.charge(read)?;
        if read > EXTENSION_BYTES_MAX {
            return Err(ExtractError::LongField);
        }
        if read < size { Err(ExtractError::UnexpectedEof) } else { Ok(bytes) }
    }

    fn charge(&mut self, bytes: u64) -> Result<(), ExtractError> {
        self.overhead_left = self.overhead_left.checked_sub(bytes).ok_or(ExtractError::TooLarge)?;
        Ok(())
    }
}

/// Combines a header with the extension headers before it.
fn entry<'a, 's>(
    mut kind: u8,
    content: Content<'a, 's>,
    records: PaxRecords,
    long_name: Vec<u8>,
) -> Result<Entry<'a, 's>, ExtractError> {
    let mut names = [long_name, records.path].into_iter().filter(|name| !name.is_empty());
    let name = names.next().unwrap_or_else(|| content.header().path_bytes().into_owned());
    if kind == 0 {
        // Old archives mark a directory by a trailing slash.
        kind = if name.ends_with(b"/") { b'5' } else { b'0' };
    }
    // Tar readers disagree on the size of such an entry, and thus on the position of the next header.
    let is_ambiguous =
        records.size.is_some_and(|size| size != content.size()) || kind == b'5' && content.size() > 0;
    if is_ambiguous { Err(ExtractError::TarHeader) } else { Ok(Entry { name, kind, content }) }
}

/// The records of a PAX header that affect the extraction.
#[derive(Default)]
struct PaxRecords {
    /// Empty if there is none: an empty record cancels an earlier one.
    path: Vec<u8>,
    size: Option<u64>,
}

impl PaxRecords {
    fn parse(bytes: &[u8]) -> Result<PaxRecords, ExtractError> {
        let mut records = PaxRecords::default();
        for record in PaxExtensions::new(bytes) {
            let record = record.map_err(read_error)?;
            let value = record.value_bytes();
            match record.key_bytes() {
                b"path" if !value.contains(&0) => records.path = value.to_vec(),
                b"size" if value.is_empty() => records.size = None,
                b"size" => {
                    let size = str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                    records.size = Some(size.ok_or(ExtractError::TarHeader)?);
                }
                // The stored bytes of a sparse file are not its content.
                key if key == b"path" || key.starts_with(b"GNU.sparse.") => {
                    return Err(ExtractError::TarHeader);
                }
                _ => {}
            }
        }
        Ok(records)
    }
}

/// Maps a read error to the original's text. Errors of `GzipStream` already have it. Those of the tar crate differ only by
/// their text; a test would fail if a new version changed it.
pub(super) fn read_error(error: io::Error) -> ExtractError {
    match error.to_string() {
        text if error.kind() == ErrorKind::InvalidData => ExtractError::Read(text),
        text if text == "failed to read entire block" || text == "unexpected EOF during skip" => {
            ExtractError::UnexpectedEof
        }
        _ => ExtractError::TarHeader,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_of_a_key_wins_and_an_empty_one_cancels_it() {
        let records = PaxRecords::parse(b"9 path=a\n9 path=b\n15 comment=x=y\n").unwrap();
        assert_eq!((&records.path[..], records.size), (&b"b"[..], None));
        let records = PaxRecords::parse(b"9 path=a\n8 path=\n11 size=12\n").unwrap();
        assert_eq!((&records.path[..], records.size), (&b""[..], Some(12)));
        assert_eq!(PaxRecords::parse(b"11 size=12\n8 size=\n").unwrap().size, None);
    }

    #[test]
    fn malformed_records_are_refused() {
        let cases: [&[u8]; 13] = [
            b"x",
            b"11 path=a\n",
            b"8 path=a\n",
            b"-1 path=a\n",
            b" path=a\n",
            b"99999999999999999999 path=a\n",
            b"9223372036854775807 path=a\n",
            b"6 path\n",
            b"10 path=\0b\n",
            b"11 path=a\nb\n",
            b"11 size=x1\n",
            b"11 size=-1\n",
            b"22 GNU.sparse.major=1\n",
        ];
        for case in cases {
            let error = PaxRecords::parse(case).err();
            assert_eq!(error, Some(ExtractError::TarHeader), "{}", case.escape_ascii());
        }
    }
}
