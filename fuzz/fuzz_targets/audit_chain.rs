//! Arbitrary bytes as an audit chain are read without a panic. A valid chain reads back line by line, and is
//! invalid after a change of one byte.
//!
//! Random input never contains valid hashes. So input that begins with an even byte is turned into a chain:
//! hashes are appended to each of its lines.

#![no_main]

use libfuzzer_sys::fuzz_target;
use outpost_ledger::audit::{self, Filter};
use outpost_ledger::hex;
use sha2::{Digest, Sha256};

fuzz_target!(|input: &[u8]| {
    let Some((first, rest)) = input.split_first() else { return };
    let bytes = if first % 2 == 0 { with_hashes(rest) } else { rest.to_vec() };
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("audit.jsonl");
    std::fs::write(&file, &bytes).unwrap();
    let read: Result<Vec<_>, _> = audit::read(dir.path(), Filter::default()).unwrap().collect();
    let Ok(report) = audit::verify(dir.path(), None) else { return };
    let lines: Vec<&[u8]> = bytes.split_inclusive(|byte| *byte == b'\n').collect();
    if let Ok(read) = read {
        assert_eq!(read.len() as u64, report.records);
        for (record, line) in read.iter().zip(&lines) {
            assert_eq!(Some(record.line.as_bytes()), line.strip_suffix(b"\n"));
        }
    }
    let Some(head) = report.head else { return };
    audit::verify(dir.path(), Some(&head)).unwrap();
    let whole = bytes.len() - usize::try_from(report.torn_bytes).unwrap();
    let mut other = bytes.clone();
    other[usize::from(*first) * whole / 256] ^= 1 << (first % 8);
    std::fs::write(&file, &other).unwrap();
    assert!(audit::verify(dir.path(), Some(&head)).is_err(), "a byte was changed");
});

fn with_hashes(input: &[u8]) -> Vec<u8> {
    let (mut bytes, mut last) = (Vec::new(), "0".repeat(64));
    for line in input.split(|byte| *byte == b'\n') {
        let begin = bytes.len();
        bytes.extend_from_slice(line);
        bytes.extend_from_slice(format!(",\"prev\":\"{last}\"").as_bytes());
        last = hex(&Sha256::digest(&bytes[begin..]));
        bytes.extend_from_slice(format!(",\"hash\":\"{last}\"}}\n").as_bytes());
    }
    bytes
}
