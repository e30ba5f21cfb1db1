//! The entries of a tar, one after the other: headers put together as the original's reader does it, and their content.
//!
//! Not the tar crate's own iteration: that keeps extended headers of any size in memory, and has other ideas of what is valid.

use crate::extract::header::{self, Header, c_string, is_header_only};
use crate::extract::pax::Records;
use crate::extract::sparse::{self, Form, Piece};
use crate::extract::stream::{Stream, UNEXPECTED_EOF};
use crate::extract::{LIMIT_EXCEEDED, SPECIAL_BYTES_MAX};

const BLOCK_BYTES: u64 = 512;
const INVALID_HEADER: &str = "archive/tar: invalid tar header";

pub(super) struct Entry {
    /// As in the archive.
    pub(super) name: Vec<u8>,
    /// The type's letter, with the two of a regular file made one and the old way of directories undone.
    pub(super) kind: u8,
    pub(super) size: u64,
    pub(super) pieces: Vec<Piece>,
    pub(super) is_sparse: bool,
}

pub(super) struct Entries<'a> {
    stream: Stream<'a>,
    /// Bytes of the current entry's content that have not been read, and of the padding after them.
    content_left: u64,
    padding: u64,
    /// Headers and padding are limited too: a few packed bytes can hold any number of them.
    overhead_left: u64,
}

/// What headers before an entry said about it.
#[derive(Default)]
struct Announced {
    records: Records,
    name: Vec<u8>,
}

impl<'a> Entries<'a> {
    pub(super) fn new(stream: Stream<'a>, overhead_bytes_max: u64) -> Entries<'a> {
        Entries { stream, content_left: 0, padding: 0, overhead_left: overhead_bytes_max }
    }

    /// The next entry, once the content of the last one has been read; `None` at the end.
    pub(super) fn next(&mut self) -> Result<Option<Entry>, String> {
        let mut announced = Announced::default();
        loop {
            let Some(header) = self.read_header()? else { return Ok(None) };
            self.set_content(header.kind, header.size)?;
            match header.kind {
                b'x' => announced.records = self.read_records()?,
                b'g' => {
                    let records = self.read_records()?;
                    let name = records.get("path").map_or(header.name, <[u8]>::to_vec);
                    return Ok(Some(Entry {
                        name,
                        kind: b'g',
                        size: 0,
                        pieces: Vec::new(),
                        is_sparse: false,
                    }));
                }
                b'L' => announced.name = c_string(&self.read_special()?).to_vec(),
                // The target of a link, which is refused anyway.
                b'K' => drop(self.read_special()?),
                _ => return self.entry(header, announced).map(Some),
            }
        }
    }

    /// Reads a part of the current content, all of `buffer` unless there is less: none at its end.
    pub(super) fn read_content(&mut self, buffer: &mut [u8]) -> Result<usize, String> {
        let wanted = usize::try_from(self.content_left).unwrap_or(usize::MAX).min(buffer.len());
        let buffer = buffer.get_mut(..wanted).unwrap_or_default();
        if self.stream.read_full(buffer)? < wanted {
            return Err(UNEXPECTED_EOF.to_owned());
        }
        self.content_left -= wanted as u64;
        Ok(wanted)
    }

    /// Whether some of the current content has not been read.
    pub(super) fn has_content(&self) -> bool {
        self.content_left > 0
    }

    /// After the last entry: reads to the end of the stream, so that its checksum is compared.
    pub(super) fn finish(&mut self) -> Result<(), String> {
        self.stream.finish(self.overhead_left)
    }

    /// The header with all that was announced before it.
    fn entry(&mut self, header: Header, announced: Announced) -> Result<Entry, String> {
        let Announced { records, name: long_name } = announced;
        let Header { mut name, mut kind, size } = header;
        if let Some(path) = records.get("path") {
            name = path.to_vec();
        }
        if !long_name.is_empty() {
            name = long_name;
        }
        if kind == 0 {
            // Before there was a type for directories, their names ended so.
            kind = if name.ends_with(b"/") { b'5' } else { b'0' };
        }
        let size = records.size().unwrap_or(size);
        let stored = self.set_content(kind, size)?;
        let whole = || vec![Piece { offset: 0, bytes: stored }];
        // The old sparse files of GNU have a type of their own, which is refused.
        let Some(form) = sparse::form(&records).filter(|_| kind != b'S') else {
            return Ok(Entry { name, kind, size: stored, pieces: whole(), is_sparse: false });
        };
        if let Some(path) = records.get("GNU.sparse.name") {
            name = path.to_vec();
        }
        let pieces = match sparse::size(&records, size).filter(|_| !is_header_only(kind)) {
            None => None,
            Some(size) if form == Form::Records => {
                sparse::map_in_records(&records, size).map(|pieces| (size, pieces))
            }
            Some(size) => self.read_map(size)?.map(|pieces| (size, pieces)),
        };
        let (size, pieces) = pieces.ok_or(INVALID_HEADER)?;
        Ok(Entry { name, kind, size, pieces, is_sparse: true })
    }

    fn read_map(&mut self, size: u64) -> Result<Option<Vec<Piece>>, String> {
        sparse::map_in_content(size, || {
            let mut block = [0; BLOCK_BYTES as usize];
            self.charge(BLOCK_BYTES)?;
            if self.read_content(&mut block)? < block.len() {
                return Err(UNEXPECTED_EOF.to_owned());
            }
            Ok(block)
        })
    }

    /// How much content follows a header, and the padding behind it.
    fn set_content(&mut self, kind: u8, size: i64) -> Result<u64, String> {
        let size = if is_header_only(kind) { 0 } else { size };
        self.content_left = u64::try_from(size).map_err(|_| INVALID_HEADER)?;
        self.padding = self.content_left.wrapping_neg() % BLOCK_BYTES;
        Ok(self.content_left)
    }

    /// Skips the padding and reads the next header; `None` at the end mark, or where the stream ends between two entries.
    fn read_header(&mut self) -> Result<Option<Header>, String> {
        let mut padding = [0; BLOCK_BYTES as usize];
        let padding = padding.get_mut(..usize::try_from(self.padding).unwrap_or(0)).unwrap_or_default();
        self.charge(padding.len() as u64)?;
        if self.stream.read_full(padding)? < padding.len() {
            return Ok(None);
        }
        self.padding = 0;
        let Some(block) = self.read_block()? else { return Ok(None) };
        if block.as_bytes().iter().any(|&byte| byte != 0) {
            return header::parse(&block).map(Some).ok_or_else(|| INVALID_HEADER.to_owned());
        }
        match self.read_block()? {
            Some(block) if block.as_bytes().iter().any(|&byte| byte != 0) => Err(INVALID_HEADER.to_owned()),
            _ => Ok(None),
        }
    }

    fn read_block(&mut self) -> Result<Option<tar::Header>, String> {
        self.charge(BLOCK_BYTES)?;
        let mut block = tar::Header::new_old();
        let bytes = block.as_mut_bytes();
        match self.stream.read_full(bytes)? {
            0 => Ok(None),
            read if read < bytes.len() => Err(UNEXPECTED_EOF.to_owned()),
            _ => Ok(Some(block)),
        }
    }

    fn read_records(&mut self) -> Result<Records, String> {
        Records::parse(&self.read_special()?).ok_or_else(|| INVALID_HEADER.to_owned())
    }

    /// The content of a header that is about another. Memory follows what is there, not what is claimed.
    fn read_special(&mut self) -> Result<Vec<u8>, String> {
        let mut bytes = Vec::new();
        let mut piece = [0; 4096];
        loop {
            let read = self.read_content(&mut piece)?;
            self.charge(read as u64)?;
            bytes.extend(piece.get(..read).unwrap_or_default());
            if bytes.len() > SPECIAL_BYTES_MAX {
                return Err("archive/tar: header field too long".to_owned());
            }
            if read == 0 {
                return Ok(bytes);
            }
        }
    }

    fn charge(&mut self, bytes: u64) -> Result<(), String> {
        self.overhead_left = self.overhead_left.checked_sub(bytes).ok_or(LIMIT_EXCEEDED)?;
        Ok(())
    }
}
