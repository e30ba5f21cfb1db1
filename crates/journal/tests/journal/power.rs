//! Power failures: lost tails, blocks of zeros, empty and missing files, in any mixture. Every byte on disk
//! stays readable.

use crate::rig::{EXIT, NO_CAP, Random, Rig, Seen, append, read_after};
use outpost_journal::{Boot, FRAME_BYTES, SEGMENT_BYTES, Stream, Writer};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

const BLOCK_BYTES: usize = 4096;
const RECORD_BYTES: usize = 32;

/// The files of a journal, and what a reader saw of it.
struct Written {
    files: BTreeMap<String, Vec<u8>>,
    seen: Seen,
}

fn snapshot(rig: &Rig) -> Written {
    let names = fs::read_dir(rig.dir.path()).unwrap().map(|entry| entry.unwrap().file_name());
    let files = names.map(|name| {
        let name = name.into_string().unwrap();
        let bytes = fs::read(rig.path(&name)).unwrap();
        (name, bytes)
    });
    Written { files: files.collect(), seen: read_after(&rig.journal(), 0) }
}

/// Nonzero bytes, so that a lost block differs from output.
fn output(random: &mut Random, len: usize) -> Vec<u8> {
    random.bytes(len).into_iter().map(|byte| byte.max(1)).collect()
}

/// Several blocks of index and of both streams.
fn several_blocks(finished: bool) -> Written {
    let mut rig = Rig::new(NO_CAP);
    let mut random = Random::new(7);
    rig.writer.started(5, 6).unwrap();
    for round in 0..300 {
        let stream = if round % 3 == 0 { Stream::Stderr } else { Stream::Stdout };
        let len = 1 + random.below(120);
        rig.feed(stream, &output(&mut random, len));
    }
    rig.feed(Stream::Stdout, &output(&mut random, 2 * FRAME_BYTES as usize + 1));
    rig.writer.close_stdin(9).unwrap();
    rig.feed(Stream::Stderr, b"the last words");
    if finished {
        rig.writer.finish(&EXIT).unwrap();
    }
    snapshot(&rig)
}

/// Three segments of stdout, and some stderr.
fn several_segments() -> Written {
    let mut rig = Rig::new(NO_CAP);
    let mut random = Random::new(8);
    rig.writer.started(5, 6).unwrap();
    for _ in 0..5 {
        rig.feed(Stream::Stdout, &output(&mut random, SEGMENT_BYTES as usize / 2 + 100));
        rig.feed(Stream::Stderr, b"between");
    }
    rig.writer.finish(&EXIT).unwrap();
    snapshot(&rig)
}

/// The head of stdout was dropped at the cap, and the head of the index was punched out.
fn without_head() -> Written {
    let mut rig = Rig::new(9 * 1024 * 1024);
    let mut random = Random::new(9);
    rig.writer.started(5, 6).unwrap();
    for _ in 0..5 {
        for _ in 0..200 {
            rig.feed(Stream::Stdout, b".");
        }
        rig.feed(Stream::Stdout, &output(&mut random, SEGMENT_BYTES as usize - 200));
    }
    assert!(rig.journal().first_seq() > 1);
    snapshot(&rig)
}

/// What happens to one file.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Tail(usize),
    Block(usize),
    ZerosFrom(usize),
    Missing,
}

fn lose(files: &mut BTreeMap<String, Vec<u8>>, name: &str, loss: Loss) {
    let bytes = files.get_mut(name).unwrap();
    match loss {
        Loss::Tail(len) => bytes.truncate(len),
        Loss::Block(number) => {
            let end = bytes.len().min((number + 1) * BLOCK_BYTES);
            bytes[number * BLOCK_BYTES..end].fill(0);
        }
        Loss::ZerosFrom(from) => bytes[from..].fill(0),
        Loss::Missing => drop(files.remove(name)),
    }
}

/// The bytes of a stream that are on disk, without zeros at the end.
fn on_disk(files: &BTreeMap<String, Vec<u8>>, prefix: &str) -> Vec<u8> {
    let number = |name: &String| name.strip_prefix(prefix).and_then(|rest| rest.parse::<u64>().ok());
    let mut segments: Vec<_> =
        files.iter().filter_map(|(name, bytes)| Some((number(name)?, bytes))).collect();
    segments.sort_by_key(|(number, _)| *number);
    let segments: Vec<&[u8]> = segments.into_iter().map(|(_, bytes)| &bytes[..]).collect();
    let mut bytes = segments.concat();
    bytes.truncate(bytes.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1));
    bytes
}

fn lay_out(dir: &Path, files: &BTreeMap<String, Vec<u8>>) {
    for (name, bytes) in files {
        fs::write(dir.join(name), bytes).unwrap();
    }
}

/// Salvages what is left, and compares with the bytes on disk.
fn assert_salvaged(before: &Written, losses: &[(&str, Loss)]) {
    let mut files = before.files.clone();
    losses.iter().for_each(|(name, loss)| lose(&mut files, name, *loss));
    let dir = tempfile::tempdir().unwrap();
    lay_out(dir.path(), &files);
    let mut writer = Writer::salvage(dir.path(), NO_CAP, Boot::Another).unwrap();
    let seen = read_after(writer.journal(), 0);
    for (stream, prefix) in [(Stream::Stdout, "out."), (Stream::Stderr, "err.")] {
        let (read, there) = (seen.stream(stream), on_disk(&files, prefix));
        assert!(read == there, "{losses:?}: {} of {} bytes of {stream:?}", read.len(), there.len());
    }
    assert!(
        seen.pieces.is_sorted_by(|before, after| before.seq < after.seq),
        "{losses:?}: numbers must rise"
    );
    let index = files.get("index").map_or(&[][..], |index| index);
    let is_known = |kind: u8| {
        let mut records = before.files["index"].as_chunks::<RECORD_BYTES>().0.iter().enumerate();
        let (at, record) = records.find(|(_, record)| record[4] == kind)?;
        (index.as_chunks().0.get(at) == Some(record)).then_some(())
    };
    assert_eq!(writer.exit().map(|exit| exit.cause), is_known(6).map(|()| EXIT.cause), "{losses:?}");
    assert_eq!(writer.start(), is_known(1).map(|()| (5, 6)), "{losses:?}");
    if losses.iter().all(|(name, _)| *name != "index") {
        for piece in &seen.pieces {
            let then = before.seen.pieces.iter().find(|then| then.seq == piece.seq).unwrap();
            // A block of zeros in the middle cannot be distinguished from output.
            let mut same = then.bytes.iter().zip(&piece.bytes).map(|(then, now)| now == then || *now == 0);
            let fits = then.stream == piece.stream && then.bytes.len() >= piece.bytes.len();
            let is_prefix = then.bytes.starts_with(&piece.bytes) || same.all(|same| same);
            assert!(fits && is_prefix, "{losses:?}: {}", piece.seq);
        }
    }
    let again = read_after(Writer::salvage(dir.path(), NO_CAP, Boot::Another).unwrap().journal(), 0);
    assert_eq!(again, seen, "{losses:?}: the second time");
    // As the daemon does for a process whose exit status is unknown.
    writer.finish(&EXIT).unwrap();
    let ended = read_after(Writer::salvage(dir.path(), NO_CAP, Boot::Another).unwrap().journal(), 0);
    assert_eq!(ended.pieces, seen.pieces, "{losses:?}: with its end");
    assert!(ended.ended.is_some());
}

/// The losses to try for a file, at relevant offsets.
fn losses_of(bytes: &[u8], step: usize) -> Vec<Loss> {
    let len = bytes.len();
    let mut losses = vec![Loss::Missing, Loss::Tail(0), Loss::ZerosFrom(0)];
    losses.extend((0..len.div_ceil(BLOCK_BYTES)).map(Loss::Block));
    losses.extend((1..len).step_by(step).map(Loss::Tail));
    losses.extend((len.saturating_sub(BLOCK_BYTES)..len).step_by(step).map(Loss::ZerosFrom));
    losses
}

#[test]
fn after_any_single_loss_every_byte_on_disk_is_readable() {
    for finished in [false, true] {
        let written = several_blocks(finished);
        assert_salvaged(&written, &[]);
        for (name, bytes) in &written.files {
            for loss in losses_of(bytes, if name == "index" { 97 } else { 1501 }) {
                assert_salvaged(&written, &[(name, loss)]);
            }
        }
    }
}

#[test]
fn after_the_loss_of_segments_or_of_the_index_what_is_left_is_readable() {
    for written in [several_segments(), without_head()] {
        assert_salvaged(&written, &[]);
        let large = SEGMENT_BYTES as usize / 3;
        for (name, bytes) in &written.files {
            let mut losses =
                vec![Loss::Missing, Loss::Tail(0), Loss::ZerosFrom(0), Loss::Tail(bytes.len() / 2)];
            if name == "index" {
                losses.extend((0..bytes.len().div_ceil(BLOCK_BYTES)).map(Loss::Block));
            } else if bytes.len() > large {
                losses.extend([Loss::Tail(large), Loss::ZerosFrom(large), Loss::Block(large / BLOCK_BYTES)]);
            }
            for loss in losses {
                assert_salvaged(&written, &[(name, loss)]);
                if name != "index" && matches!(loss, Loss::Missing) {
                    assert_salvaged(&written, &[(name, loss), ("index", Loss::Missing)]);
                }
            }
        }
    }
}

#[test]
fn after_any_mixture_of_losses_every_byte_on_disk_is_readable() {
    let written = [several_blocks(false), several_blocks(true)];
    for seed in 1..=400 {
        let mut random = Random::new(seed);
        let written = &written[random.below(2)];
        let mut losses = Vec::new();
        for (name, bytes) in &written.files {
            let loss = match random.below(6) {
                0 => Loss::Missing,
                1 => Loss::Tail(random.below(bytes.len() + 1)),
                2 => Loss::Block(random.below(bytes.len().div_ceil(BLOCK_BYTES))),
                3 => Loss::ZerosFrom(random.below(bytes.len())),
                _ => continue,
            };
            losses.push((name.as_str(), loss));
        }
        assert_salvaged(written, &losses);
    }
}

#[test]
fn zeros_that_a_process_wrote_are_output_while_the_host_runs() {
    for boot in [Boot::Same, Boot::Another] {
        let mut rig = Rig::new(NO_CAP);
        rig.feed(Stream::Stdout, b"recorded\0\0");
        append(&rig.path("out.0"), &[0; 100]);
        let writer = Writer::salvage(rig.dir.path(), NO_CAP, boot).unwrap();
        let bytes = read_after(writer.journal(), 0).stream(Stream::Stdout);
        match boot {
            Boot::Same => assert_eq!(bytes, [b"recorded".to_vec(), vec![0; 102]].concat()),
            Boot::Another => assert_eq!(bytes, b"recorded"),
        }
    }
}

#[test]
fn synced_zeros_are_output() {
    let mut rig = Rig::new(NO_CAP);
    rig.feed(Stream::Stdout, &vec![0; SEGMENT_BYTES as usize + 10]);
    rig.feed(Stream::Stderr, b"a name\0");
    assert!(rig.journal().unsynced().is_some());
    rig.journal().sync().unwrap();
    assert!(rig.journal().unsynced().is_none());
    rig.feed(Stream::Stderr, b"\0\0");
    assert!(rig.journal().unsynced().is_some());
    for _ in 0..2 {
        let writer = Writer::salvage(rig.dir.path(), NO_CAP, Boot::Another).unwrap();
        let seen = read_after(writer.journal(), 0);
        assert!(seen.stream(Stream::Stdout) == rig.written[0], "{} bytes", seen.stream(Stream::Stdout).len());
        assert_eq!(seen.stream(Stream::Stderr), b"a name\0");
    }
    // A lost watermark claims nothing.
    for note in [&[][..], &[0; 20], &[1; 20]] {
        fs::write(rig.path("synced"), note).unwrap();
        let writer = Writer::salvage(rig.dir.path(), NO_CAP, Boot::Another).unwrap();
        assert_eq!(read_after(writer.journal(), 0).stream(Stream::Stderr), b"a name");
    }
}

#[test]
fn a_journal_of_which_nothing_is_left_opens() {
    let dir = tempfile::tempdir().unwrap();
    for boot in [Boot::Same, Boot::Another] {
        let mut writer = Writer::salvage(dir.path(), NO_CAP, boot).unwrap();
        assert_eq!(
            (writer.start(), writer.journal().last_seq()),
            (writer.start(), writer.journal().last_seq())
        );
        writer.finish(&EXIT).unwrap();
        assert_eq!(writer.exit().map(|exit| exit.cause), Some(EXIT.cause));
    }
}
