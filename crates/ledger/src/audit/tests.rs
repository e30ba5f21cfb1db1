//! Chains that were modified, truncated, torn, or interrupted at each system call.

use super::*;
use outpost_sys::Errno;
use outpost_sys::fault::{self, Fault};
use serde_json::json;
use std::path::{Path, PathBuf};

fn current_file(dir: &Path) -> PathBuf {
    dir.join("audit.jsonl")
}

fn expect_broken(dir: &Path) -> String {
    match verify(dir, None) {
        Err(error @ Error::Broken { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Writes `count` records after the `opened` record, in files of about `file_bytes`. Returns the head.
fn write_chain(dir: &Path, count: u64, file_bytes: u64) -> Head {
    let mut writer = Writer::open_sized(dir, file_bytes).unwrap();
    for number in 0..count {
        writer.append(Event::Received, &json!({ "argv": ["/bin/ls", "a\nb\u{202e}"], "n": number })).unwrap();
    }
    writer.sync().unwrap();
    writer.head()
}

fn rotated_files(dir: &Path) -> Vec<PathBuf> {
    files::rotated(dir).unwrap().into_iter().map(|(_, path)| path).collect()
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().split_inclusive('\n').map(str::to_owned).collect()
}

#[test]
fn a_record_has_ordered_fields_and_the_previous_hash() {
    let dir = tempfile::tempdir().unwrap();
    let head = write_chain(dir.path(), 1, u64::MAX);
    let lines = lines(&current_file(dir.path()));
    let shape = [
        "{\"seq\":2,\"time\":\"20",
        "Z\",\"boot_ns\":",
        ",\"event\":\"received\",\"data\":{",
        "},\"prev\":\"",
    ];
    let mut rest = lines[1].as_str();
    for part in shape {
        let at = rest.find(part).unwrap_or_else(|| panic!("{part} in {rest}"));
        rest = &rest[at + part.len()..];
    }
    let first: serde_json::Value = serde_json::from_str(&lines[0]).unwrap();
    assert_eq!(first["prev"].as_str().unwrap(), "0".repeat(64));
    assert_eq!(first["data"], json!({ "torn_bytes": 0 }));
    assert!(rest.starts_with(first["hash"].as_str().unwrap()));
    assert!(lines[1].ends_with(&format!(",\"hash\":\"{}\"}}\n", crate::hex(&head.hash))));
    let second: serde_json::Value = serde_json::from_str(&lines[1]).unwrap();
    let time = second["time"].as_str().unwrap();
    assert_eq!(time.len(), "2026-11-16T07:05:47.123456Z".len(), "{time}");
}

#[test]
fn every_flipped_bit_is_detected() {
    let dir = tempfile::tempdir().unwrap();
    let head = write_chain(dir.path(), 3, u64::MAX);
    let path = current_file(dir.path());
    let original = std::fs::read(&path).unwrap();
    assert_eq!(verify(dir.path(), None).unwrap().head, Some(head));
    for at in 0..original.len() {
        for mask in (0..8).map(|bit| 1 << bit).chain([0xff]) {
            let mut changed = original.clone();
            changed[at] ^= mask;
            std::fs::write(&path, &changed).unwrap();
            match verify(dir.path(), None) {
                Err(Error::Broken { .. }) => {}
                other => panic!("byte {at} with {mask:#x}: {other:?}"),
            }
            assert!(verify(dir.path(), Some(&head)).is_err(), "byte {at} with {mask:#x}");
        }
    }
}

#[test]
fn removed_inserted_repeated_or_moved_lines_are_detected() {
    let dir = tempfile::tempdir().unwrap();
    write_chain(dir.path(), 4, u64::MAX);
    let path = current_file(dir.path());
    let original = lines(&path);
    let mut other = original.clone();
    other.remove(2);
    std::fs::write(&path, other.concat()).unwrap();
    assert!(expect_broken(dir.path()).contains("line 3: expected record 3, found record 4"));
    for (from, to) in [(1, 1), (1, 2), (3, 1), (4, 5)] {
        let mut other = original.clone();
        other.insert(to, original[from].clone());
        std::fs::write(&path, other.concat()).unwrap();
        expect_broken(dir.path());
    }
    let mut other = original.clone();
    other.swap(1, 2);
    std::fs::write(&path, other.concat()).unwrap();
    expect_broken(dir.path());
    // A record of another chain with a valid hash and the expected number.
    let elsewhere = tempfile::tempdir().unwrap();
    write_chain(elsewhere.path(), 4, u64::MAX);
    let mut other = original.clone();
    other[2] = lines(&current_file(elsewhere.path()))[2].clone();
    std::fs::write(&path, other.concat()).unwrap();
    assert!(expect_broken(dir.path()).contains("prev does not match"));
    for junk in ["\n", "{}\n", "null\n"] {
        std::fs::write(&path, original.concat() + junk).unwrap();
        expect_broken(dir.path());
    }
}

#[test]
fn truncation_is_detected_with_a_known_head() {
    let dir = tempfile::tempdir().unwrap();
    let head = write_chain(dir.path(), 4, u64::MAX);
    let path = current_file(dir.path());
    let original = lines(&path);
    std::fs::write(&path, original[..4].concat()).unwrap();
    assert_eq!(verify(dir.path(), None).unwrap().records, 4);
    let error = verify(dir.path(), Some(&head)).unwrap_err().to_string();
    assert!(error.contains("seq=5") && error.contains("the chain has the records 1 to 4"), "{error}");
    std::fs::write(&path, original.concat()).unwrap();
    let mut writer = Writer::open(dir.path()).unwrap();
    writer.append(Event::Ended, &json!({})).unwrap();
    assert_eq!(verify(dir.path(), Some(&head)).unwrap().records, 7, "the chain may have newer records");
    std::fs::remove_file(&path).unwrap();
    assert!(verify(dir.path(), Some(&head)).is_err());
    assert_eq!(verify(dir.path(), None).unwrap(), Report::default());
}

#[test]
fn full_files_are_rotated_and_the_chain_continues() {
    let dir = tempfile::tempdir().unwrap();
    let head = write_chain(dir.path(), 20, 1000);
    let files = rotated_files(dir.path());
    assert!(files.len() > 3, "{files:?}");
    let report = verify(dir.path(), Some(&head)).unwrap();
    assert_eq!((report.files, report.first_seq, report.records), (files.len() as u64 + 1, 1, head.seq));
    for path in &files {
        assert!(lines(path).last().unwrap().contains("\"event\":\"rotated\""));
    }
    let seqs: Vec<u64> =
        read(dir.path(), Filter::default()).unwrap().map(|record| record.unwrap().seq).collect();
    assert_eq!(seqs, (1..=head.seq).collect::<Vec<u64>>());
    drop(Writer::open_sized(dir.path(), 1000).unwrap());
    assert_eq!(verify(dir.path(), Some(&head)).unwrap().records, head.seq + 1);
}

#[test]
fn removed_swapped_or_renamed_files_are_detected() {
    let dir = tempfile::tempdir().unwrap();
    write_chain(dir.path(), 20, 1000);
    let files = rotated_files(dir.path());
    let (one, two, backup) = (&files[1], &files[2], dir.path().join("backup"));
    std::fs::rename(one, &backup).unwrap();
    assert!(expect_broken(dir.path()).contains("expected record"));
    std::fs::rename(two, one).unwrap();
    std::fs::rename(&backup, two).unwrap();
    assert!(expect_broken(dir.path()).contains("does not match the file name"));
    std::fs::rename(two, &backup).unwrap();
    std::fs::rename(one, two).unwrap();
    std::fs::rename(&backup, one).unwrap();
    verify(dir.path(), None).unwrap();
    std::fs::write(one, "").unwrap();
    expect_broken(dir.path());
}

#[test]
fn removed_oldest_files_are_reported() {
    let dir = tempfile::tempdir().unwrap();
    let head = write_chain(dir.path(), 20, 1000);
    let files = rotated_files(dir.path());
    std::fs::remove_file(&files[0]).unwrap();
    let report = verify(dir.path(), Some(&head)).unwrap();
    assert!(report.first_seq > 1);
    let begin = Head { seq: 1, hash: [1; 32] };
    assert!(verify(dir.path(), Some(&begin)).is_err(), "a removed record is reported if its head is known");
}

#[test]
fn a_torn_record_is_reported_and_overwritten() {
    let dir = tempfile::tempdir().unwrap();
    write_chain(dir.path(), 2, u64::MAX);
    let path = current_file(dir.path());
    let original = std::fs::read(&path).unwrap();
    let last = lines(&path)[2].len();
    for kept in 0..last {
        std::fs::write(&path, &original[..original.len() - last + kept]).unwrap();
        let report = verify(dir.path(), None).unwrap();
        assert_eq!((report.records, report.torn_bytes), (2, kept as u64));
        drop(Writer::open(dir.path()).unwrap());
        assert_eq!(verify(dir.path(), None).unwrap().torn_bytes, 0);
        let opened = read(dir.path(), Filter { from_seq: 3, ..Filter::default() }).unwrap().last().unwrap();
        let opened = opened.unwrap();
        assert_eq!((opened.seq, opened.event.as_str()), (3, "opened"));
        assert_eq!(opened.data["torn_bytes"], kept);
    }
    let whole: Vec<u8> = std::iter::repeat_n(0, 200_000).collect();
    std::fs::write(&path, [original.as_slice(), &whole].concat()).unwrap();
    drop(Writer::open(dir.path()).unwrap());
    assert_eq!(verify(dir.path(), None).unwrap().records, 4, "zeros after a power cut count as torn");
    std::fs::write(&path, "{\"seq\":1").unwrap();
    drop(Writer::open(dir.path()).unwrap());
    assert_eq!(verify(dir.path(), None).unwrap().records, 1, "the first record is torn");
}

#[test]
fn a_damaged_last_record_refuses_to_open() {
    let dir = tempfile::tempdir().unwrap();
    write_chain(dir.path(), 2, u64::MAX);
    let path = current_file(dir.path());
    let original = std::fs::read_to_string(&path).unwrap();
    let refused = |text: String| {
        std::fs::write(&path, text).unwrap();
        Writer::open(dir.path()).map(|_| ()).unwrap_err().to_string()
    };
    let error = refused(original.replace("\"n\":1", "\"n\":2"));
    assert!(error.contains("the last record is damaged"), "{error}");
    let error = refused(original.trim_end().to_owned() + "J");
    assert!(error.contains("does not end with a newline"), "{error}");
}

#[test]
fn two_daemons_cannot_write_one_chain() {
    let dir = tempfile::tempdir().unwrap();
    let writer = Writer::open(dir.path()).unwrap();
    assert!(matches!(Writer::open(dir.path()), Err(Error::Locked { .. })));
    drop(writer);
    Writer::open(dir.path()).unwrap();
}

#[test]
fn files_are_private_and_symlinks_are_refused() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("audit");
    drop(Writer::open(&dir).unwrap());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&dir), mode(&current_file(&dir))), (0o700, 0o600));
    let elsewhere = parent.path().join("elsewhere");
    std::fs::rename(current_file(&dir), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, current_file(&dir)).unwrap();
    assert!(Writer::open(&dir).is_err());
    assert!(verify(&dir, None).is_err());
}

#[test]
fn an_oversized_record_is_refused_without_side_effects() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open(dir.path()).unwrap();
    let long = "x".repeat(RECORD_BYTES_MAX);
    let error = writer.append(Event::Received, &long).unwrap_err().to_string();
    assert!(error.contains("16777216"), "{error}");
    let head = writer.append(Event::Refused, &json!({})).unwrap();
    let longest = "x".repeat(RECORD_BYTES_MAX - 1000);
    writer.append(Event::Received, &longest).unwrap();
    drop(writer);
    drop(Writer::open(dir.path()).unwrap());
    assert_eq!(verify(dir.path(), Some(&head)).unwrap().records, 4);
}

/// Injects a fault into each system call in turn and checks that no acknowledged record is lost.
fn inject_each_fault(fault: Fault) {
    for nth in 1.. {
        let dir = tempfile::tempdir().unwrap();
        let first = write_chain(dir.path(), 1, 400);
        fault::arm(nth, fault);
        let mut acknowledged = first;
        let outcome = (|| -> Result<()> {
            let mut writer = Writer::open_sized(dir.path(), 400)?;
            for number in 0..3 {
                let outcome = writer.append(Event::Started, &json!({ "n": number })).and_then(|head| {
                    writer.sync()?;
                    Ok(head)
                });
                match outcome {
                    Ok(head) => acknowledged = head,
                    Err(error) => {
                        let after = writer.append(Event::Started, &json!({}));
                        assert!(matches!(after, Err(Error::Failed { .. })), "{nth}: no record, no run");
                        assert!(matches!(writer.sync(), Err(Error::Failed { .. })));
                        return Err(error);
                    }
                }
            }
            Ok(())
        })();
        if fault::disarm() {
            outcome.unwrap();
            assert!(nth > 10, "{nth}");
            return;
        }
        drop(Writer::open_sized(dir.path(), 400).unwrap_or_else(|error| panic!("{nth}: {error}")));
        let report = verify(dir.path(), Some(&acknowledged));
        let report = report.unwrap_or_else(|error| panic!("{nth} {outcome:?}: {error}"));
        assert_eq!(report.torn_bytes, 0);
    }
}

#[test]
fn a_failed_system_call_loses_no_acknowledged_record() {
    inject_each_fault(Fault::Errno(Errno::IO));
    inject_each_fault(Fault::Errno(Errno::NOSPC));
    inject_each_fault(Fault::Short);
}

#[test]
fn records_are_filtered_by_number_event_and_time() {
    let dir = tempfile::tempdir().unwrap();
    let mut writer = Writer::open_sized(dir.path(), 600).unwrap();
    for _ in 0..5 {
        writer.append(Event::Received, &json!({})).unwrap();
        writer.append(Event::Decided, &json!({ "by": "rule:x" })).unwrap();
    }
    let chosen = |filter: Filter| -> Vec<Record> {
        read(dir.path(), filter).unwrap().collect::<Result<Vec<_>>>().unwrap()
    };
    let decided = chosen(Filter { event: Some("decided".into()), ..Filter::default() });
    assert_eq!(decided.len(), 5);
    assert!(decided.iter().all(|record| record.data["by"] == "rule:x"));
    let late = chosen(Filter { from_seq: 4, ..Filter::default() });
    assert_eq!(late.first().map(|record| record.seq), Some(4));
    let since = late[2].time;
    let later = chosen(Filter { since: Some(since), ..Filter::default() });
    assert!(later.iter().all(|record| record.time >= since) && !later.is_empty());
}

#[test]
fn a_head_round_trips_and_other_text_is_rejected() {
    let head = Head { seq: 12, hash: [0x5a; 32] };
    assert_eq!(head.to_string().parse(), Ok(head));
    let upper = head.to_string().replace('a', "A");
    for text in ["", "seq=1", "seq=x sha256=00", upper.as_str()] {
        assert!(text.parse::<Head>().is_err(), "{text}");
    }
}

/// Injects a fault into each system call of `run` in turn. Returns the operations that reported it. `prepare`
/// creates a fresh state for each call.
fn failing_operations<T>(prepare: impl Fn() -> T, run: impl Fn(T) -> Result<()>) -> Vec<&'static str> {
    let mut operations = Vec::new();
    for nth in 1.. {
        let prepared = prepare();
        fault::arm(nth, Fault::Errno(Errno::IO));
        let outcome = run(prepared);
        if fault::disarm() {
            outcome.unwrap();
            break;
        }
        match outcome {
            Err(Error::Io { operation, .. }) => operations.push(operation),
            other => panic!("call {nth}: {other:?}"),
        }
    }
    operations
}

/// A test cannot cut the power, so it cannot see a missing fsync. It compares the list of system calls instead.
#[test]
fn opening_is_fsynced() {
    let opening =
        failing_operations(|| tempfile::tempdir().unwrap(), |dir| Writer::open(dir.path()).map(|_| ()));
    let syncs: Vec<&str> = opening
        .iter()
        .copied()
        .filter(|operation| operation.contains("sync") || *operation == "write to")
        .collect();
    assert_eq!(syncs, ["sync the directory of", "write to", "sync"], "{opening:?}");
}

#[test]
fn each_step_of_a_rotation_is_fsynced() {
    let full = || {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open_sized(dir.path(), 1).unwrap();
        writer.sync().unwrap();
        (dir, writer)
    };
    let rotating = failing_operations(full, |(_dir, mut writer)| {
        writer.append(Event::Started, &json!({}))?;
        writer.sync()
    });
    assert_eq!(
        rotating,
        ["write to", "sync", "rename", "create", "sync the directory of", "write to", "sync"]
    );
}

#[test]
fn an_expected_head_is_compared_by_hash() {
    let dir = tempfile::tempdir().unwrap();
    let head = write_chain(dir.path(), 3, u64::MAX);
    verify(dir.path(), Some(&head)).unwrap();
    let other = Head { seq: head.seq, hash: [7; 32] };
    let error = verify(dir.path(), Some(&other)).unwrap_err().to_string();
    assert!(error.contains("line 4: hash mismatch: expected seq=4 sha256=0707"), "{error}");
}

/// Records with valid numbers and hashes after the record that ends the file.
#[test]
fn a_record_after_a_rotated_record_is_rejected() {
    for name in ["audit.jsonl".to_owned(), files::rotated_name(1)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut head, mut text, mut line) = (Head::NONE, Vec::new(), Vec::new());
        for event in [OPENED, ROTATED, "received", ROTATED] {
            head = record::encode(&mut line, &head, event, &json!({})).ok().unwrap();
            text.extend_from_slice(&line);
        }
        std::fs::write(dir.path().join(name), &text).unwrap();
        let why = expect_broken(dir.path());
        assert!(why.contains("line 3: a record follows the rotated record"), "{why}");
    }
}
