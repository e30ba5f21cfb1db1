//! The unpacked bytes of a gzip file, with the original's words for what is wrong with it.

use crate::extract::archive::{Archive, Reader};
use flate2::bufread::MultiGzDecoder;
use std::io::{self, BufReader, ErrorKind, Read};

/// What is read and unpacked at once.
pub(super) const PIECE_BYTES: usize = 64 << 10;

pub(super) const UNEXPECTED_EOF: &str = "unexpected EOF";

pub(super) struct Stream<'a> {
    unpacked: BufReader<MultiGzDecoder<BufReader<Reader<'a>>>>,
    path: &'a str,
    header_bytes: u64,
}

impl<'a> Stream<'a> {
    /// Reads the header of the first member and nothing else: what fails here leaves the destination as it is.
    pub(super) fn open(archive: &'a Archive<'_>) -> Result<Stream<'a>, String> {
        let packed = BufReader::with_capacity(PIECE_BYTES, archive.reader());
        let unpacked = BufReader::with_capacity(PIECE_BYTES, MultiGzDecoder::new(packed));
        let mut stream = Stream { unpacked, path: archive.path, header_bytes: 0 };
        stream.header_bytes = stream.consumed();
        if !stream.in_header() {
            return Ok(stream);
        }
        match stream.read(&mut [0]) {
            Err(_) if stream.unpacked.get_ref().get_ref().get_ref().offset == 0 => Err("EOF".to_owned()),
            Err(error) => Err(error.to_string()),
            Ok(_) => Err(INVALID_HEADER.to_owned()),
        }
    }

    /// Reads on to the end of the stream, `bytes_max` at most, so that the checksum is compared: the original stops at the
    /// tar's end mark and calls a damaged archive a success. What follows the last member is none of ours.
    pub(super) fn finish(&mut self, mut bytes_max: u64) -> Result<(), String> {
        let mut scrap = vec![0; PIECE_BYTES];
        loop {
            match self.read(&mut scrap) {
                Ok(0) => return Ok(()),
                Ok(read) => bytes_max = bytes_max.checked_sub(read as u64).ok_or(super::LIMIT_EXCEEDED)?,
                Err(_) if self.in_header() => return Ok(()),
                Err(error) => return Err(error.to_string()),
            }
        }
    }

    fn text(&self, error: &io::Error) -> String {
        if error.raw_os_error().is_some() {
            return crate::go::path_error("read", self.path, error);
        }
        if error.kind() == ErrorKind::UnexpectedEof {
            return UNEXPECTED_EOF.to_owned();
        }
        // The decoder tells what it found by text alone; the tests hold it to that.
        match error.to_string().as_str() {
            "invalid gzip header" => INVALID_HEADER.to_owned(),
            "corrupt gzip stream does not have a matching checksum" if self.in_header() => {
                INVALID_HEADER.to_owned()
            }
            "corrupt gzip stream does not have a matching checksum" => "gzip: invalid checksum".to_owned(),
            "corrupt deflate stream" => {
                // The original counts from the end of the member's header and up to the byte it failed at. Ours counts
                // from the first header, and the decoder may have taken some bytes more.
                let offset = self.consumed().saturating_sub(self.header_bytes);
                format!("flate: corrupt input before offset {offset}")
            }
            other => other.to_owned(),
        }
    }

    /// Whether a member's header is what is missing or was wrong.
    fn in_header(&self) -> bool {
        self.unpacked.get_ref().header().is_none()
    }

    /// Packed bytes that the decoder has taken.
    fn consumed(&self) -> u64 {
        let packed = self.unpacked.get_ref().get_ref();
        packed.get_ref().offset - packed.buffer().len() as u64
    }
}

/// Its errors are all `InvalidData`, with the original's words as their text.
impl Read for Stream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.unpacked.read(buffer);
        read.map_err(|error| io::Error::new(ErrorKind::InvalidData, self.text(&error)))
    }
}

const INVALID_HEADER: &str = "gzip: invalid header";
