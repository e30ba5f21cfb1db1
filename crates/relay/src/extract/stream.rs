//! Decompresses the gzip archive and maps its errors to the original's texts.

use crate::extract::archive::{Archive, Reader};
use crate::extract::error::ExtractError;
use flate2::bufread::MultiGzDecoder;
use std::io::{self, BufReader, ErrorKind, Read};

/// Buffer size of reads and decompression.
pub(super) const CHUNK_BYTES: usize = 64 << 10;

pub(super) struct GzipStream<'a> {
    decompressed: BufReader<MultiGzDecoder<BufReader<Reader<'a>>>>,
    path: &'a str,
    header_bytes: u64,
}

impl<'a> GzipStream<'a> {
    /// Reads only the header of the first member. The destination is wiped after this, so a file that is not gzip leaves it
    /// untouched.
    pub(super) fn open(archive: &'a Archive<'_>) -> Result<GzipStream<'a>, ExtractError> {
        let compressed = BufReader::with_capacity(CHUNK_BYTES, archive.reader());
        let decompressed = BufReader::with_capacity(CHUNK_BYTES, MultiGzDecoder::new(compressed));
        let mut stream = GzipStream { decompressed, path: archive.path, header_bytes: 0 };
        stream.header_bytes = stream.consumed();
        if !stream.in_header() {
            return Ok(stream);
        }
        match stream.read(&mut [0]) {
            Err(_) if stream.decompressed.get_ref().get_ref().get_ref().offset == 0 => {
                Err(ExtractError::Empty)
            }
            Err(error) => Err(ExtractError::Read(error.to_string())),
            Ok(_) => Err(ExtractError::GzipHeader),
        }
    }

    /// Reads up to the end of the stream, at most `bytes_max`, to verify the gzip checksum. The original stops at the tar's
    /// end marker and reports success for a damaged archive. Ignores garbage after the last member.
    pub(super) fn finish(&mut self, mut bytes_max: u64) -> Result<(), ExtractError> {
        let mut discarded = vec![0; CHUNK_BYTES];
        loop {
            match self.read(&mut discarded) {
                Ok(0) => return Ok(()),
                Ok(read) => bytes_max = bytes_max.checked_sub(read as u64).ok_or(ExtractError::TooLarge)?,
                Err(_) if self.in_header() => return Ok(()),
                Err(error) => return Err(ExtractError::Read(error.to_string())),
            }
        }
    }

    fn error_text(&self, error: &io::Error) -> String {
        if error.raw_os_error().is_some() {
            return crate::go_compat::path_error("read", self.path, error);
        }
        if error.kind() == ErrorKind::UnexpectedEof {
            return ExtractError::UnexpectedEof.to_string();
        }
        // The errors of flate2 differ only by their text; a test would fail if a new version changed it.
        match error.to_string().as_str() {
            "invalid gzip header" => ExtractError::GzipHeader.to_string(),
            "corrupt gzip stream does not have a matching checksum" if self.in_header() => {
                ExtractError::GzipHeader.to_string()
            }
            "corrupt gzip stream does not have a matching checksum" => "gzip: invalid checksum".to_owned(),
            "corrupt deflate stream" => {
                // The original's offset is relative to the end of the member's header. This one is relative to the first
                // member's header and approximate: the decoder reads ahead.
                let offset = self.consumed().saturating_sub(self.header_bytes);
                format!("flate: corrupt input before offset {offset}")
            }
            other => other.to_owned(),
        }
    }

    /// Whether the decoder has no valid member header: it is incomplete or invalid.
    fn in_header(&self) -> bool {
        self.decompressed.get_ref().header().is_none()
    }

    /// Compressed bytes that the decoder has read.
    fn consumed(&self) -> u64 {
        let compressed = self.decompressed.get_ref().get_ref();
        compressed.get_ref().offset - compressed.buffer().len() as u64
    }
}

/// All errors are `InvalidData` with the original's text.
impl Read for GzipStream<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = self.decompressed.read(buffer);
        read.map_err(|error| io::Error::new(ErrorKind::InvalidData, self.error_text(&error)))
    }
}
