//! Streaming checksum and zstd decompression of a CLI blob.

use super::staging::StagedFile;
use outpost_relay::go_compat;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::{self, Read, Seek};

const CHUNK_BYTES: usize = 128 << 10;

/// Window size limit of the decoder: 128 MiB, the default of the zstd command line tool.
const WINDOW_LOG_MAX: u32 = 27;

/// An incremental SHA-256.
#[derive(Default)]
pub(super) struct Checksum(Sha256);

impl Checksum {
    pub(super) fn add(&mut self, bytes: &[u8]) {
        self.0.update(bytes);
    }

    pub(super) fn hex(self) -> String {
        self.0.finalize().iter().map(|byte| format!("{byte:02x}")).collect()
    }
}

/// Hashes a whole file and rewinds it.
pub(super) fn file_checksum(file: &mut File) -> io::Result<String> {
    let mut hashed = HashingReader { inner: file, checksum: Checksum::default() };
    io::copy(&mut hashed, &mut io::sink())?;
    hashed.inner.rewind()?;
    Ok(hashed.checksum.hex())
}

pub(super) fn verify_checksum(expected: &str, actual: &str) -> Result<(), String> {
    if expected.eq_ignore_ascii_case(actual) {
        return Ok(());
    }
    Err(format!("checksum mismatch: expected={expected}, actual={actual}"))
}

/// Decompresses `blob` into `program`. If `expected` is given, verifies the checksum of the decoder's input.
pub(super) fn decompress(
    blob: &mut File,
    program: &mut StagedFile,
    bytes_max: u64,
    expected: Option<&str>,
) -> Result<(), String> {
    let failed = |text: String| format!("decompressing: {text}");
    let mut hashed = HashingReader { inner: blob, checksum: Checksum::default() };
    let mut decoder = zstd::Decoder::new(&mut hashed).map_err(|error| failed(reason(&error)))?;
    decoder.window_log_max(WINDOW_LOG_MAX).map_err(|error| failed(reason(&error)))?;
    let mut buffer = vec![0; CHUNK_BYTES];
    let mut bytes = 0;
    loop {
        let len = match decoder.read(&mut buffer) {
            // The decoder reads all frames, so this is the end of the file.
            Ok(0) => break,
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(failed(reason(&error))),
        };
        bytes += len as u64;
        if bytes > bytes_max {
            return Err(failed(format!("decompressed CLI exceeds {bytes_max} bytes")));
        }
        program.write(buffer.get(..len).unwrap_or_default()).map_err(failed)?;
    }
    drop(decoder);
    expected.map_or(Ok(()), |expected| verify_checksum(expected, &hashed.checksum.hex()))
}

/// The original's text for common errors.
fn reason(error: &io::Error) -> String {
    match error.to_string().as_str() {
        "Unknown frame descriptor" => "invalid input: magic number mismatch".to_owned(),
        _ if error.kind() == io::ErrorKind::UnexpectedEof => "unexpected EOF".to_owned(),
        _ => go_compat::io_text(error),
    }
}

/// A reader that hashes all bytes.
struct HashingReader<R> {
    inner: R,
    checksum: Checksum,
}

impl<R: Read> Read for HashingReader<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let len = self.inner.read(buffer)?;
        self.checksum.add(buffer.get(..len).unwrap_or_default());
        Ok(len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;

    const MANY: u64 = 1 << 30;

    fn decompressed(blob: &[u8], bytes_max: u64, expected: Option<&str>) -> Result<Vec<u8>, String> {
        let dir = tempfile::tempdir().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(blob).unwrap();
        file.rewind().unwrap();
        let mut program = StagedFile::create(dir.path(), ".fetch-").unwrap();
        decompress(&mut file, &mut program, bytes_max, expected)?;
        let mut bytes = Vec::new();
        program.rewind().unwrap().read_to_end(&mut bytes).unwrap();
        Ok(bytes)
    }

    fn packed(bytes: &[u8]) -> Vec<u8> {
        zstd::encode_all(bytes, 3).unwrap()
    }

    #[test]
    fn all_frames_are_decompressed() {
        let bytes: Vec<u8> = (0..1_000_000u32).flat_map(u32::to_le_bytes).collect();
        assert!(decompressed(&packed(&bytes), MANY, None).unwrap() == bytes);
        assert_eq!(
            decompressed(&[packed(b"a"), packed(b""), packed(b"b")].concat(), MANY, None).unwrap(),
            b"ab"
        );
    }

    #[test]
    fn a_truncated_blob_is_an_error() {
        let blob = packed(b"some program or other, some program or other");
        for len in 0..blob.len() {
            let text = decompressed(&blob[..len], MANY, None).unwrap_err();
            assert_eq!(text, "decompressing: unexpected EOF", "{len}");
        }
    }

    #[test]
    fn data_that_is_not_zstd_is_an_error() {
        let mismatch = "decompressing: invalid input: magic number mismatch";
        assert_eq!(decompressed(b"#!/bin/sh\n", MANY, None).unwrap_err(), mismatch);
        let trailing = [packed(b"a"), b"garbage".to_vec()].concat();
        assert_eq!(decompressed(&trailing, MANY, None).unwrap_err(), mismatch);
    }

    #[test]
    fn a_modified_byte_never_panics() {
        let mut encoder = zstd::Encoder::new(Vec::new(), 3).unwrap();
        encoder.include_checksum(true).unwrap();
        encoder.write_all(b"some program or other, some program or other").unwrap();
        let blob = encoder.finish().unwrap();
        for at in 0..blob.len() {
            let mut changed = blob.clone();
            changed[at] ^= 1;
            if let Ok(bytes) = decompressed(&changed, MANY, None) {
                assert_eq!(bytes, b"some program or other, some program or other", "{at}");
            }
        }
    }

    #[test]
    fn decompression_stops_at_the_limit() {
        let blob = packed(&vec![0; 1 << 20]);
        let text = decompressed(&blob, (1 << 20) - 1, None).unwrap_err();
        assert_eq!(text, "decompressing: decompressed CLI exceeds 1048575 bytes");
        assert_eq!(decompressed(&blob, 1 << 20, None).unwrap().len(), 1 << 20);
    }

    #[test]
    fn a_frame_with_a_large_window_is_refused() {
        // Magic number; no size, no checksum; a window of 2^31 bytes; one empty last block.
        let blob = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 21 << 3, 0x01, 0x00, 0x00];
        let text = decompressed(&blob, MANY, None).unwrap_err();
        assert!(text.starts_with("decompressing: ") && text.contains("memory"), "{text}");
        let fits = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 17 << 3, 0x01, 0x00, 0x00];
        assert_eq!(decompressed(&fits, MANY, None).unwrap(), b"");
    }

    #[test]
    fn the_decoded_bytes_are_verified_against_the_checksum() {
        let blob = packed(b"a");
        let mut checksum = Checksum::default();
        checksum.add(&blob);
        let actual = checksum.hex();
        assert_eq!(decompressed(&blob, MANY, Some(&actual.to_uppercase())).unwrap(), b"a");
        let text = decompressed(&blob, MANY, Some("00")).unwrap_err();
        assert_eq!(text, format!("checksum mismatch: expected=00, actual={actual}"));
    }

    #[test]
    fn the_checksum_is_sha256() {
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"abc").unwrap();
        file.rewind().unwrap();
        let known = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(file_checksum(&mut file).unwrap(), known);
        assert_eq!(file_checksum(&mut file).unwrap(), known, "the file is rewound");
        assert_eq!(verify_checksum(&known.to_uppercase(), known), Ok(()));
        assert_eq!(verify_checksum("", known), Err(format!("checksum mismatch: expected=, actual={known}")));
    }
}
