//! What a journal's files say when its writer is gone: the longest prefix of the index that holds together.

use crate::record::{Entry, RECORD_BYTES, Record, Stream};
use crate::segment::{self, SEGMENT_BYTES};
use crate::writer::{Position, Segment, index_path};
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::Exit;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

/// Records read from the index at a time; also the unit in which its head is given back.
const BLOCK_BYTES: usize = 4096;

/// Reads the index up to the first record that is torn, out of order, or promises bytes that are not there, cuts the
/// index off behind it, and removes segments that no record and no tail can reach.
pub(crate) fn scan(dir: &Path, index: &OwnedFd) -> Result<Position> {
    let mut scan = Scan { position: Position { next_seq: 1, first_seq: 1, ..Position::default() }, sizes: sizes(dir)?, usage: None };
    let path = index_path(dir);
    let mut block = [0; BLOCK_BYTES];
    let mut at = 0u64;
    'blocks: loop {
        let read = file::read_full_at(index, &mut block, at).map_err(|errno| Error::io("read", &path, errno))?;
        if at > 0 && read == BLOCK_BYTES && block.iter().all(|byte| *byte == 0) {
            // The head that was given back. If nothing follows, it is cut off below.
            at += BLOCK_BYTES as u64;
            scan.position.punched += BLOCK_BYTES as u64;
            continue;
        }
        let after_hole = at > scan.position.records * RECORD_BYTES as u64;
        let (records, _) = block[..read].as_chunks::<RECORD_BYTES>();
        for (number, bytes) in records.iter().enumerate() {
            let resume = after_hole && number == 0;
            let Some(record) = Record::decode(bytes).filter(|record| scan.take(record, resume).is_some()) else {
                break 'blocks;
            };
            scan.position.records = at / RECORD_BYTES as u64 + number as u64 + 1;
            if matches!(record.entry, Entry::Exit { .. }) {
                break 'blocks;
            }
        }
        if read < BLOCK_BYTES {
            break;
        }
        at += BLOCK_BYTES as u64;
    }
    let position = scan.position;
    file::set_size(index, position.records * RECORD_BYTES as u64).map_err(|errno| Error::io("cut", &path, errno))?;
    remove_unreachable(dir, &position, &scan.sizes)?;
    Ok(position)
}

/// Sizes of the segments there are, by stream and number.
type Sizes = [BTreeMap<u64, u64>; 2];

fn sizes(dir: &Path) -> Result<Sizes> {
    let mut sizes = Sizes::default();
    let names = file::open(dir, Open::Directory).and_then(file::names).map_err(|errno| Error::io("list", dir, errno))?;
    for (stream, number) in names.iter().filter_map(|name| segment::parse_name(name)) {
        sizes[stream.index()].insert(number, segment::size(dir, stream, number)?);
    }
    Ok(sizes)
}

struct Scan {
    position: Position,
    sizes: Sizes,
    usage: Option<(u32, u32, u32)>,
}

impl Scan {
    /// Adds a record; `None` when it does not follow from what came before. Behind a hole, numbers and offsets may jump.
    fn take(&mut self, record: &Record, behind_hole: bool) -> Option<()> {
        let at = &mut self.position;
        if behind_hole {
            at.next_seq = at.next_seq.max(record.seq);
            at.first_seq = at.first_seq.max(record.seq);
        }
        if record.seq != at.next_seq || record.time_ms >= 1 << 48 {
            return None;
        }
        match record.entry {
            Entry::Started { pid, start_ticks } => at.started = Some((pid, start_ticks)),
            Entry::StdinClosed { at: bytes } => at.stdin_closed = Some(bytes),
            Entry::StreamEnd { stream, offset } => {
                let end = &mut at.ends[stream.index()];
                if offset < *end || (offset > *end && at.first_seq == 1) {
                    return None;
                }
                *end = offset;
            }
            Entry::Usage { user_ms, system_ms, rss_max_kb } => self.usage = Some((user_ms, system_ms, rss_max_kb)),
            Entry::Run { stream, offset, len } => self.take_run(record.seq, record.numbers(), stream, offset, u64::from(len))?,
            Entry::Exit { how } => {
                let (user_ms, system_ms, rss_max_kb) = self.usage.unwrap_or_default();
                at.exit = Some(Exit { how, user_ms, system_ms, rss_max_kb });
            }
        }
        self.position.next_seq = record.seq.checked_add(record.numbers())?;
        Some(())
    }

    fn take_run(&mut self, seq: u64, numbers: u64, stream: Stream, offset: u64, len: u64) -> Option<()> {
        let at = &mut self.position;
        let end = &mut at.ends[stream.index()];
        let jumped = at.first_seq > 1 && offset > *end;
        let number = segment::number(offset);
        if len == 0 || segment::place(offset) + len > SEGMENT_BYTES || (offset != *end && !jumped) {
            return None;
        }
        let sizes = &self.sizes[stream.index()];
        let last_seq = seq.checked_add(numbers)?.checked_sub(1)?;
        match sizes.get(&number) {
            Some(size) if segment::place(offset) + len <= *size => {
                match at.segments.iter_mut().rev().find(|segment| segment.stream == stream && segment.number == number) {
                    Some(segment) => segment.last_seq = last_seq,
                    None => at.segments.push_back(Segment { stream, number, last_seq }),
                }
            }
            // Dropped on purpose, since the head goes first.
            None if sizes.keys().next().is_some_and(|oldest| *oldest > number) => at.first_seq = last_seq.checked_add(1)?,
            _ => return None,
        }
        *end = offset.checked_add(len)?;
        Some(())
    }
}

/// A stream goes on in the segment of its end, and past it only while segments are full. What lies beyond, or before a
/// stream that begins later, would be taken for output of ours one day.
fn remove_unreachable(dir: &Path, position: &Position, sizes: &Sizes) -> Result<()> {
    for stream in Stream::ALL {
        let sizes = &sizes[stream.index()];
        let mut last = segment::number(position.ends[stream.index()]);
        while sizes.get(&last) == Some(&SEGMENT_BYTES) {
            last += 1;
        }
        for number in sizes.keys().filter(|number| **number > last) {
            segment::remove(dir, stream, *number)?;
        }
    }
    Ok(())
}
