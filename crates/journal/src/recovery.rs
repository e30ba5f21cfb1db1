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
    let path = index_path(dir);
    let scan = survey(dir, index)?;
    let position = scan.position;
    let valid = position.records * RECORD_BYTES as u64;
    // Mostly there is nothing to cut off, and then nothing to write.
    let cut =
        file::size(index).and_then(|size| if size == valid { Ok(()) } else { file::set_size(index, valid) });
    cut.map_err(|errno| Error::io("cut", &path, errno))?;
    remove_unreachable(dir, &position, &scan.sizes)?;
    Ok(position)
}

/// Reads the index up to the first record that does not hold, and changes nothing.
pub(crate) fn survey(dir: &Path, index: &OwnedFd) -> Result<Scan> {
    let io = |errno| Error::io("read", &index_path(dir), errno);
    let mut scan = Scan::new(sizes(dir)?, [true; 2]);
    scan.read(index).map_err(io)?;
    let may_be_dropped = Stream::ALL.map(|stream| !scan.goes_on_inside_what_is_gone(stream));
    if may_be_dropped != [true; 2] {
        scan = Scan::new(scan.sizes, may_be_dropped);
        scan.read(index).map_err(io)?;
    }
    scan.note_unrecorded();
    Ok(scan)
}

/// Sizes of the segments there are, by stream and number.
pub(crate) type Sizes = [BTreeMap<u64, u64>; 2];

pub(crate) fn sizes(dir: &Path) -> Result<Sizes> {
    let mut sizes = Sizes::default();
    let names = file::open(dir, Open::Directory)
        .and_then(file::names)
        .map_err(|errno| Error::io("list", dir, errno))?;
    for (stream, number) in names.iter().filter_map(|name| segment::parse_name(name)) {
        sizes[stream.index()].insert(number, segment::size(dir, stream, number)?);
    }
    Ok(sizes)
}

/// Numbers and offsets past this are no work of ours, and sums with them would overflow.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

pub(crate) struct Scan {
    pub(crate) position: Position,
    pub(crate) sizes: Sizes,
    /// The records behind the hole leave bytes out that are on the disk.
    skipped: bool,
    /// The number of the first frame that is on the disk.
    first_present: Option<u64>,
    usage: Option<(u32, u32, u32)>,
    /// Per stream: nothing has been said of it since the hole, so its offset may jump.
    loose: [bool; 2],
    /// Per stream: a missing segment may have been dropped on purpose.
    may_be_dropped: [bool; 2],
}

impl Scan {
    fn new(sizes: Sizes, may_be_dropped: [bool; 2]) -> Scan {
        let position = Position { next_seq: 1, first_seq: 1, ..Position::default() };
        Scan {
            position,
            sizes,
            skipped: false,
            first_present: None,
            usage: None,
            loose: [false; 2],
            may_be_dropped,
        }
    }

    /// Takes records up to the first that does not hold.
    fn read(&mut self, index: &OwnedFd) -> outpost_sys::Result<()> {
        let mut block = [0; BLOCK_BYTES];
        let mut at = 0u64;
        loop {
            let read = file::read_full_at(index, &mut block, at)?;
            if at > 0 && read == BLOCK_BYTES && block.iter().all(|byte| *byte == 0) {
                // The head that was given back. If nothing follows, it is cut off.
                at += BLOCK_BYTES as u64;
                continue;
            }
            let hole = at - self.position.records * RECORD_BYTES as u64;
            let (records, _) = block[..read].as_chunks::<RECORD_BYTES>();
            for (number, bytes) in records.iter().enumerate() {
                let hole = if number == 0 { hole } else { 0 };
                let Some(record) =
                    Record::decode(bytes).filter(|record| self.take(record, hole > 0).is_some())
                else {
                    return Ok(());
                };
                self.position.punched += hole;
                self.position.records = at / RECORD_BYTES as u64 + number as u64 + 1;
                if matches!(record.entry, Entry::Exit { .. }) {
                    return Ok(());
                }
            }
            if read < BLOCK_BYTES {
                return Ok(());
            }
            at += BLOCK_BYTES as u64;
        }
    }

    /// Whether there are bytes on the disk that a reader would not be given. Where the head was dropped at the cap this can
    /// be meant so; where a power failure took a segment or a block of the index it is not.
    pub(crate) fn hides_bytes(&self) -> bool {
        self.skipped || self.first_present.is_some_and(|seq| seq < self.position.first_seq)
    }

    /// Notes the bytes behind the end of each stream. A stream goes on in the next segment only when one is full.
    fn note_unrecorded(&mut self) {
        for stream in Stream::ALL.into_iter().filter(|_| self.position.exit.is_none()) {
            let mut end = self.position.ends[stream.index()];
            while let Some(size) = self.sizes[stream.index()].get(&segment::number(end))
                && *size > segment::place(end)
            {
                end = segment::number(end) * SEGMENT_BYTES + size;
            }
            self.position.unrecorded[stream.index()] = end - self.position.ends[stream.index()];
        }
    }

    /// A segment that is being written is never dropped. Where it is missing all the same, damage did it, and what was
    /// written to it next would lend its records bytes that they do not mean.
    fn goes_on_inside_what_is_gone(&self, stream: Stream) -> bool {
        let end = self.position.ends[stream.index()];
        let missing = !self.sizes[stream.index()].contains_key(&segment::number(end));
        self.position.exit.is_none() && segment::place(end) > 0 && missing
    }

    /// Adds a record; `None`, and nothing is changed, when it does not follow from what came before. Behind a hole,
    /// numbers and offsets may jump.
    fn take(&mut self, record: &Record, behind_hole: bool) -> Option<()> {
        let next_seq = self.position.next_seq;
        let may_jump = behind_hole || matches!(record.entry, Entry::Lost { .. });
        let follows =
            record.seq == next_seq || (may_jump && record.seq > next_seq && record.seq <= NUMBER_MAX);
        if !follows || !self.fits(&record.entry, behind_hole) {
            return None;
        }
        let at = &mut self.position;
        // What is lost before the first frame counts as dropped.
        let is_head = next_seq == 1 && matches!(record.entry, Entry::Lost { .. });
        if behind_hole || is_head {
            at.first_seq = record.seq;
        }
        if behind_hole {
            self.loose = [true; 2];
        }
        at.next_seq = record.seq + record.numbers();
        match record.entry {
            Entry::Started { pid, start_ticks } => at.started = Some((pid, start_ticks)),
            Entry::StdinClosed { at: bytes } => at.stdin_closed = Some(bytes),
            Entry::StreamEnd { stream, offset } => {
                self.skip_to(stream, offset);
                self.end_at(stream, offset);
            }
            Entry::Lost { stream, offset } => self.end_at(stream, offset),
            Entry::Usage { user_ms, system_ms, rss_max_kb } => {
                self.usage = Some((user_ms, system_ms, rss_max_kb));
            }
            Entry::Run { stream, offset, len } => {
                self.skip_to(stream, offset);
                self.note_run(stream, segment::number(offset), record.seq);
                self.end_at(stream, offset + u64::from(len));
            }
            Entry::Exit { how } => {
                let (user_ms, system_ms, rss_max_kb) = self.usage.unwrap_or_default();
                at.exit = Some(Exit { how, user_ms, system_ms, rss_max_kb });
            }
        }
        Some(())
    }

    /// Whether what is said of a stream goes on from its end, and its bytes are there or were dropped on purpose.
    fn fits(&self, entry: &Entry, behind_hole: bool) -> bool {
        let joins = |stream: Stream, offset: u64| {
            let end = self.position.ends[stream.index()];
            let may_jump = behind_hole || self.loose[stream.index()];
            offset == end || (may_jump && offset > end && offset <= NUMBER_MAX)
        };
        match *entry {
            Entry::StreamEnd { stream, offset } => joins(stream, offset),
            Entry::Lost { stream, offset } => {
                (self.position.ends[stream.index()]..=NUMBER_MAX).contains(&offset)
            }
            Entry::Run { stream, offset, len } => {
                let end = segment::place(offset) + u64::from(len);
                let there = match self.sizes[stream.index()].get(&segment::number(offset)) {
                    Some(size) => end <= *size,
                    None => self.is_dropped(stream, segment::number(offset)),
                };
                joins(stream, offset) && len > 0 && end <= SEGMENT_BYTES && there
            }
            Entry::Started { .. } | Entry::StdinClosed { .. } | Entry::Usage { .. } | Entry::Exit { .. } => {
                true
            }
        }
    }

    /// Segments are dropped from the head, and the last of a stream too when it is full or the process has ended.
    fn is_dropped(&self, stream: Stream, number: u64) -> bool {
        let oldest = self.sizes[stream.index()].keys().next();
        self.may_be_dropped[stream.index()] && oldest.is_none_or(|oldest| *oldest > number)
    }

    /// Notes whether the bytes between the end of a stream and `offset`, which no record covers, are on the disk.
    fn skip_to(&mut self, stream: Stream, offset: u64) {
        let end = self.position.ends[stream.index()];
        if offset > end {
            let between =
                self.sizes[stream.index()].range(segment::number(end)..=segment::number(offset - 1));
            let holds = |(number, size): (&u64, &u64)| number * SEGMENT_BYTES + size > end;
            self.skipped |= between.into_iter().any(holds);
        }
    }

    fn end_at(&mut self, stream: Stream, offset: u64) {
        self.position.ends[stream.index()] = offset;
        self.loose[stream.index()] = false;
    }

    /// Notes that the frames before `next_seq` end in this segment, or that they are gone with it.
    fn note_run(&mut self, stream: Stream, number: u64, seq: u64) {
        let dropped = self.is_dropped(stream, number);
        let at = &mut self.position;
        if dropped {
            at.first_seq = at.next_seq;
            return;
        }
        let last_seq = at.next_seq - 1;
        self.first_present.get_or_insert(seq);
        match at
            .segments
            .iter_mut()
            .rev()
            .find(|segment| segment.stream == stream && segment.number == number)
        {
            Some(segment) => segment.last_seq = last_seq,
            None => at.segments.push_back(Segment { stream, number, last_seq }),
        }
    }
}

/// A stream goes on in the segment of its end, and past it only while segments are full. What lies beyond, or before a
/// stream that begins later, would be taken for output of ours one day.
fn remove_unreachable(dir: &Path, position: &Position, sizes: &Sizes) -> Result<()> {
    unreachable(position, sizes).try_for_each(|(stream, number)| segment::remove(dir, stream, number))
}

pub(crate) fn unreachable(position: &Position, sizes: &Sizes) -> impl Iterator<Item = (Stream, u64)> {
    Stream::ALL.into_iter().flat_map(|stream| {
        let sizes = &sizes[stream.index()];
        let mut last = segment::number(position.ends[stream.index()]);
        while sizes.get(&last) == Some(&SEGMENT_BYTES) {
            last += 1;
        }
        // An empty one was made ahead and holds nothing that could be taken for output.
        let holds_bytes = move |(number, size): &(&u64, &u64)| **number > last && **size > 0;
        sizes.iter().filter(holds_bytes).map(move |(number, _)| (stream, *number))
    })
}
