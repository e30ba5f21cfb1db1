//! Chains that were written, and what becomes of them: changed, cut, torn, interrupted at every system call.

use super::*;
use outpost_sys::Errno;
use outpost_sys::fault::{self, Fault};
use serde_json::json;
use std::path::{Path, PathBuf};

fn current(dir: &Path) -> PathBuf {
    dir.join("audit.jsonl")
}

fn broken(dir: &Path) -> String {
    match verify(dir, None) {
        Err(error @ Error::Broken { .. }) => error.to_string(),
        other => panic!("{other:?}"),
    }
}

/// A chain of `count` records after the first one, in files of about `file_bytes`.
fn written(dir: &Path, count: u64, file_bytes: u64) -> Head {
    let mut writer = Writer::open_sized(dir, file_bytes).unwrap();
    for number in 0..count {
        writer.append(Event::Received, &json!({ "argv": ["/bin/ls", "a\nb\u{202e}"], "n": number })).unwrap();
    }
    writer.sync().unwrap();
    writer.head()
}

fn rotated(dir: &Path) -> Vec<PathBuf> {
    files::rotated(dir).unwrap().into_iter().map(|(_, path)| path).collect()
}

fn lines(path: &Path) -> Vec<String> {
    std::fs::read_to_string(path).unwrap().split_inclusive('\n').map(str::to_owned).collect()
}

#[test]
fn a_record_has_its_fields_in_order_and_names_the_one_before() {
    let dir = tempfile::tempdir().unwrap();
    let head = written(dir.path(), 1, u64::MAX);
    let lines = lines(&current(dir.path()));
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
fn every_changed_bit_shows() {
    let dir = tempfile::tempdir().unwrap();
    let head = written(dir.path(), 3, u64::MAX);
    let path = current(dir.path());
    let honest = std::fs::read(&path).unwrap();
    assert_eq!(verify(dir.path(), None).unwrap().head, Some(head));
    for at in 0..honest.len() {
        for mask in (0..8).map(|bit| 1 << bit).chain([0xff]) {
            let mut changed = honest.clone();
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
fn lines_cannot_be_removed_inserted_repeated_or_moved() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), 4, u64::MAX);
    let path = current(dir.path());
    let honest = lines(&path);
    let mut other = honest.clone();
    other.remove(2);
    std::fs::write(&path, other.concat()).unwrap();
    assert!(broken(dir.path()).contains("line 3: its number is 4 where 3 should follow"));
    for (from, to) in [(1, 1), (1, 2), (3, 1), (4, 5)] {
        let mut other = honest.clone();
        other.insert(to, honest[from].clone());
        std::fs::write(&path, other.concat()).unwrap();
        broken(dir.path());
    }
    let mut other = honest.clone();
    other.swap(1, 2);
    std::fs::write(&path, other.concat()).unwrap();
    broken(dir.path());
    // A record that is right by itself and has the right number, of another chain.
    let elsewhere = tempfile::tempdir().unwrap();
    written(elsewhere.path(), 4, u64::MAX);
    let mut other = honest.clone();
    other[2] = lines(&current(elsewhere.path()))[2].clone();
    std::fs::write(&path, other.concat()).unwrap();
    assert!(broken(dir.path()).contains("another record"));
    for nonsense in ["\n", "{}\n", "null\n"] {
        std::fs::write(&path, honest.concat() + nonsense).unwrap();
        broken(dir.path());
    }
}

#[test]
fn a_cut_end_shows_only_to_who_knows_the_head() {
    let dir = tempfile::tempdir().unwrap();
    let head = written(dir.path(), 4, u64::MAX);
    let path = current(dir.path());
    let honest = lines(&path);
    std::fs::write(&path, honest[..4].concat()).unwrap();
    assert_eq!(verify(dir.path(), None).unwrap().records, 4);
    let error = verify(dir.path(), Some(&head)).unwrap_err().to_string();
    assert!(error.contains("seq=5") && error.contains("its records are 1 to 4"), "{error}");
    std::fs::write(&path, honest.concat()).unwrap();
    let mut writer = Writer::open(dir.path()).unwrap();
    writer.append(Event::Ended, &json!({})).unwrap();
    assert_eq!(verify(dir.path(), Some(&head)).unwrap().records, 7, "a chain may go on");
    std::fs::remove_file(&path).unwrap();
    assert!(verify(dir.path(), Some(&head)).is_err());
    assert_eq!(verify(dir.path(), None).unwrap(), Report::default());
}

#[test]
fn full_files_get_their_own_names_and_the_chain_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let head = written(dir.path(), 20, 1000);
    let files = rotated(dir.path());
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
fn files_cannot_be_removed_swapped_or_renamed() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), 20, 1000);
    let files = rotated(dir.path());
    let (one, two, aside) = (&files[1], &files[2], dir.path().join("aside"));
    std::fs::rename(one, &aside).unwrap();
    assert!(broken(dir.path()).contains("should follow"));
    std::fs::rename(two, one).unwrap();
    std::fs::rename(&aside, two).unwrap();
    assert!(broken(dir.path()).contains("the name of the file"));
    std::fs::rename(two, &aside).unwrap();
    std::fs::rename(one, two).unwrap();
    std::fs::rename(&aside, one).unwrap();
    verify(dir.path(), None).unwrap();
    std::fs::write(one, "").unwrap();
    broken(dir.path());
}

#[test]
fn the_oldest_files_may_go_but_the_report_tells() {
    let dir = tempfile::tempdir().unwrap();
    let head = written(dir.path(), 20, 1000);
    let files = rotated(dir.path());
    std::fs::remove_file(&files[0]).unwrap();
    let report = verify(dir.path(), Some(&head)).unwrap();
    assert!(report.first_seq > 1);
    let begin = Head { seq: 1, hash: [1; 32] };
    assert!(verify(dir.path(), Some(&begin)).is_err(), "what was told elsewhere and is gone is missing");
}

#[test]
fn a_record_torn_at_any_byte_is_told_of_and_the_chain_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), 2, u64::MAX);
    let path = current(dir.path());
    let honest = std::fs::read(&path).unwrap();
    let last = lines(&path)[2].len();
    for kept in 0..last {
        std::fs::write(&path, &honest[..honest.len() - last + kept]).unwrap();
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
    std::fs::write(&path, [honest.as_slice(), &whole].concat()).unwrap();
    drop(Writer::open(dir.path()).unwrap());
    assert_eq!(verify(dir.path(), None).unwrap().records, 4, "zeros that a power cut left are torn too");
    std::fs::write(&path, "{\"seq\":1").unwrap();
    drop(Writer::open(dir.path()).unwrap());
    assert_eq!(verify(dir.path(), None).unwrap().records, 1, "torn in the very first record");
}

#[test]
fn a_damaged_last_record_is_never_written_after() {
    let dir = tempfile::tempdir().unwrap();
    written(dir.path(), 2, u64::MAX);
    let path = current(dir.path());
    let honest = std::fs::read_to_string(&path).unwrap();
    let refused = |text: String| {
        std::fs::write(&path, text).unwrap();
        Writer::open(dir.path()).map(|_| ()).unwrap_err().to_string()
    };
    let error = refused(honest.replace("\"n\":1", "\"n\":2"));
    assert!(error.contains("its last line is damaged"), "{error}");
    let error = refused(honest.trim_end().to_owned() + "J");
    assert!(error.contains("something else than a newline"), "{error}");
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
fn nobody_else_can_read_it_and_no_link_leads_elsewhere() {
    use std::os::unix::fs::PermissionsExt;
    let parent = tempfile::tempdir().unwrap();
    let dir = parent.path().join("audit");
    drop(Writer::open(&dir).unwrap());
    let mode = |path: &Path| std::fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&dir), mode(&current(&dir))), (0o700, 0o600));
    let elsewhere = parent.path().join("elsewhere");
    std::fs::rename(current(&dir), &elsewhere).unwrap();
    std::os::unix::fs::symlink(&elsewhere, current(&dir)).unwrap();
    assert!(Writer::open(&dir).is_err());
    assert!(verify(&dir, None).is_err());
}

#[test]
fn what_is_too_long_is_refused_and_nothing_else_suffers() {
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

/// What was acknowledged, whatever fails: each call in turn.
fn interrupted(fault: Fault) {
    for nth in 1.. {
        let dir = tempfile::tempdir().unwrap();
        let first = written(dir.path(), 1, 400);
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
fn a_failed_call_loses_no_record_that_was_acknowledged() {
    interrupted(Fault::Errno(Errno::IO));
    interrupted(Fault::Errno(Errno::NOSPC));
    interrupted(Fault::Short);
}

#[test]
fn records_can_be_chosen_by_number_event_and_time() {
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
fn a_head_is_read_as_it_is_printed_and_nothing_else_is() {
    let head = Head { seq: 12, hash: [0x5a; 32] };
    assert_eq!(head.to_string().parse(), Ok(head));
    let upper = head.to_string().replace('a', "A");
    for text in ["", "seq=1", "seq=x sha256=00", upper.as_str()] {
        assert!(text.parse::<Head>().is_err(), "{text}");
    }
}

/// Which operations of `run` fail when each system call fails in turn. `prepare` makes the place anew.
fn operations<T>(prepare: impl Fn() -> T, run: impl Fn(T) -> Result<()>) -> Vec<&'static str> {
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

/// What is not on the disk when a call returns is lost with the machine, and no test can look there. So the calls are
/// counted: dropping one of them changes these lists.
#[test]
fn opening_waits_for_the_disk() {
    let opening = operations(|| tempfile::tempdir().unwrap(), |dir| Writer::open(dir.path()).map(|_| ()));
    let syncs: Vec<&str> = opening
        .iter()
        .copied()
        .filter(|operation| operation.contains("sync") || *operation == "write to")
        .collect();
    assert_eq!(syncs, ["sync the directory of", "write to", "sync"], "{opening:?}");
}

#[test]
fn each_step_of_a_rotation_waits_for_the_disk() {
    let full = || {
        let dir = tempfile::tempdir().unwrap();
        let mut writer = Writer::open_sized(dir.path(), 1).unwrap();
        writer.sync().unwrap();
        (dir, writer)
    };
    let rotating = operations(full, |(_dir, mut writer)| {
        writer.append(Event::Started, &json!({}))?;
        writer.sync()
    });
    assert_eq!(rotating, ["write to", "sync", "rename", "make", "sync the directory of", "write to", "sync"]);
}

#[test]
fn a_head_from_elsewhere_is_compared_by_its_hash() {
    let dir = tempfile::tempdir().unwrap();
    let head = written(dir.path(), 3, u64::MAX);
    verify(dir.path(), Some(&head)).unwrap();
    let other = Head { seq: head.seq, hash: [7; 32] };
    let error = verify(dir.path(), Some(&other)).unwrap_err().to_string();
    assert!(
        error.contains("line 4: it is not the record that was told elsewhere, seq=4 sha256=0707"),
        "{error}"
    );
}

/// Records of the right numbers and hashes that stand where the file had ended.
#[test]
fn nothing_follows_the_record_that_ends_a_file() {
    for name in ["audit.jsonl".to_owned(), files::rotated_name(1)] {
        let dir = tempfile::tempdir().unwrap();
        let (mut head, mut text, mut line) = (Head::NONE, Vec::new(), Vec::new());
        for event in [OPENED, ROTATED, "received", ROTATED] {
            head = record::encode(&mut line, &head, event, &json!({})).ok().unwrap();
            text.extend_from_slice(&line);
        }
        std::fs::write(dir.path().join(name), &text).unwrap();
        let why = broken(dir.path());
        assert!(why.contains("line 3: it follows the record that ended the file"), "{why}");
    }
}
