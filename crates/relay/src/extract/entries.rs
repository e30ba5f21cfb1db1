//! The entries of a tar, one after the other, each with the name that headers before it gave it.
//!
//! The tar crate reads the archive. Its raw iteration hands out the headers about other headers too: its own gathering of
//! them keeps any size in memory.

use crate::extract::stream::{Stream, UNEXPECTED_EOF};
use crate::extract::{LIMIT_EXCEEDED, SPECIAL_BYTES_MAX};
use std::io::{self, ErrorKind, Read};
use tar::PaxExtensions;

const BLOCK_BYTES: u64 = 512;
const INVALID_HEADER: &str = "archive/tar: invalid tar header";

pub(super) type Content<'a, 's> = tar::Entry<'a, Stream<'s>>;

pub(super) struct Entry<'a, 's> {
    /// As in the archive.
    pub(super) name: Vec<u8>,
    /// The type's letter, with the two of a regular file made one and the old way of directories undone.
    pub(super) kind: u8,
    pub(super) content: Content<'a, 's>,
}

pub(super) struct Entries<'a, 's> {
    raw: tar::Entries<'a, Stream<'s>>,
    /// Headers and padding are limited too: a few packed bytes can hold any number of them.
    pub(super) overhead_left: u64,
}

impl<'a, 's> Entries<'a, 's> {
    pub(super) fn new(
        archive: &'a mut tar::Archive<Stream<'s>>,
        overhead_bytes_max: u64,
    ) -> Result<Entries<'a, 's>, String> {
        Ok(Entries { raw: archive.entries().map_err(text)?.raw(true), overhead_left: overhead_bytes_max })
    }

    /// The next entry, once the content of the last one has been read; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Entry<'a, 's>>, String> {
        let (mut records, mut long_name) = (Records::default(), Vec::new());
        while let Some(next) = self.raw.next() {
            let mut content = next.map_err(text)?;
            self.charge(BLOCK_BYTES + content.size().wrapping_neg() % BLOCK_BYTES)?;
            let [kind] = content.header().as_old().linkflag;
            match kind {
                b'x' => records = Records::parse(&self.read_special(&mut content)?)?,
                b'L' => {
                    long_name = self.read_special(&mut content)?;
                    long_name.truncate(long_name.iter().position(|&byte| byte == 0).unwrap_or(usize::MAX));
                }
                // The target of a link, which is refused anyway.
                b'K' => drop(self.read_special(&mut content)?),
                _ => return entry(kind, content, records, long_name).map(Some),
            }
        }
        Ok(None)
    }

    /// The content of a header that is about another. Memory follows what is there, not what is claimed.
    fn read_special(&mut self, content: &mut Content<'a, 's>) -> Result<Vec<u8>, String> {
        let (mut bytes, size) = (Vec::new(), content.size());
        let read = content.take(SPECIAL_BYTES_MAX + 1).read_to_end(&mut bytes).map_err(text)? as u64;
        self.charge(read)?;
        if read > SPECIAL_BYTES_MAX {
            return Err("archive/tar: header field too long".to_owned());
        }
        if read < size { Err(UNEXPECTED_EOF.to_owned()) } else { Ok(bytes) }
    }

    fn charge(&mut self, bytes: u64) -> Result<(), String> {
        self.overhead_left = self.overhead_left.checked_sub(bytes).ok_or(LIMIT_EXCEEDED)?;
        Ok(())
    }
}

/// A header with all that was announced before it.
fn entry<'a, 's>(
    mut kind: u8,
    content: Content<'a, 's>,
    records: Records,
    long_name: Vec<u8>,
) -> Result<Entry<'a, 's>, String> {
    let mut names = [long_name, records.path].into_iter().filter(|name| !name.is_empty());
    let name = names.next().unwrap_or_else(|| content.header().path_bytes().into_owned());
    if kind == 0 {
        // Before there was a type for directories, their names ended so.
        kind = if name.ends_with(b"/") { b'5' } else { b'0' };
    }
    // Readers disagree on what such an entry holds, and so on where the next one begins.
    let is_ambiguous =
        records.size.is_some_and(|size| size != content.size()) || kind == b'5' && content.size() > 0;
    if is_ambiguous { Err(INVALID_HEADER.to_owned()) } else { Ok(Entry { name, kind, content }) }
}

/// The records of an extended (PAX) header that bear on us.
#[derive(Default)]
struct Records {
    /// Empty without one: an empty record takes back an earlier one.
    path: Vec<u8>,
    size: Option<u64>,
}

impl Records {
    fn parse(bytes: &[u8]) -> Result<Records, String> {
        let mut records = Records::default();
        for record in PaxExtensions::new(bytes) {
            let record = record.map_err(text)?;
            let value = record.value_bytes();
            match record.key_bytes() {
                b"path" if !value.contains(&0) => records.path = value.to_vec(),
                b"size" if value.is_empty() => records.size = None,
                b"size" => {
                    let size = str::from_utf8(value).ok().and_then(|size| size.parse().ok());
                    records.size = Some(size.ok_or(INVALID_HEADER)?);
                }
                // What is stored of a sparse file is not its content.
                key if key == b"path" || key.starts_with(b"GNU.sparse.") => {
                    return Err(INVALID_HEADER.to_owned());
                }
                _ => {}
            }
        }
        Ok(records)
    }
}

/// An error while reading, in the words of the original. The stream's own have them already; the crate tells what it found
/// by text alone, and the tests hold it to that.
pub(super) fn text(error: io::Error) -> String {
    match error.to_string() {
        said if error.kind() == ErrorKind::InvalidData => said,
        said if said == "failed to read entire block" || said == "unexpected EOF during skip" => {
            UNEXPECTED_EOF.to_owned()
        }
        _ => INVALID_HEADER.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_record_of_a_name_counts_and_an_empty_one_takes_it_back() {
        let records = Records::parse(b"9 path=a\n9 path=b\n15 comment=x=y\n").unwrap();
        assert_eq!((&records.path[..], records.size), (&b"b"[..], None));
        let records = Records::parse(b"9 path=a\n8 path=\n11 size=12\n").unwrap();
        assert_eq!((&records.path[..], records.size), (&b""[..], Some(12)));
        assert_eq!(Records::parse(b"11 size=12\n8 size=\n").unwrap().size, None);
    }

    #[test]
    fn what_is_not_a_record_is_refused() {
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
            let error = Records::parse(case).err();
            assert_eq!(error.as_deref(), Some(INVALID_HEADER), "{}", case.escape_ascii());
        }
    }
}
