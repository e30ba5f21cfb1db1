//! Recovery: finds the longest consistent prefix of the index after the writer was killed.

use crate::journal::index_path;
use crate::record::{RECORD_BYTES, Record, RecordBody, Stream};
use crate::segment::{self, SEGMENT_BYTES};
use crate::writer::{JournalState, Segment};
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd::Exit;
use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::path::Path;

/// How much of the index is read at a time; also the unit in which its head is punched out.
const BLOCK_BYTES: usize = 4096;

/// Reads the index up to the first record that is torn, out of order, or refers to missing bytes. Truncates
/// the index there, and removes segments that no record and no tail can reach.
pub(crate) fn repair(dir: &Path, index: &OwnedFd) -> Result<JournalState> {
    let path = index_path(dir);
    let scan = scan_index(dir, index)?;
    let state = scan.state;
    let valid = state.records * RECORD_BYTES as u64;
    // Usually nothing is cut off, so nothing is written.
    let cut =
        file::size(index).and_then(|size| if size == valid { Ok(()) } else { file::set_size(index, valid) });
    cut.map_err(|errno| Error::io("truncate", &path, errno))?;
    remove_unreachable(dir, &state, &scan.sizes)?;
    Ok(state)
}

/// Reads the index up to the first invalid record, and changes nothing.
pub(crate) fn scan_index(dir: &Path, index: &OwnedFd) -> Result<Scan> {
    let io = |errno| Error::io("read", &index_path(dir), errno);
    let mut scan = Scan::new(sizes(dir)?, [true; 2]);
    scan.read(index).map_err(io)?;
    let may_be_dropped = Stream::ALL.map(|stream| !scan.current_segment_missing(stream));
    if may_be_dropped != [true; 2] {
        scan = Scan::new(scan.sizes, may_be_dropped);
        scan.read(index).map_err(io)?;
    }
    scan.count_unindexed();
    Ok(scan)
}

/// Sizes of the existing segments, by stream and number.
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

/// The maximum sequence number and offset. Larger ones are damage, and sums with them would overflow.
pub(crate) const SEQ_MAX: u64 = 1 << 62;

pub(crate) struct Scan {
    pub(crate) state: JournalState,
    pub(crate) sizes: Sizes,
    /// The records after the hole skip bytes that are on disk.
    skipped: bool,
    /// The sequence number of the first frame that is on disk.
    first_present: Option<u64>,
    usage: Option<(u32, u32, u32)>,
    /// Per stream: no record since the hole mentions it, so its offset may jump.
    may_jump: [bool; 2],
    /// Per stream: a missing segment may have been dropped at the cap.
    may_be_dropped: [bool; 2],
}

impl Scan {
    fn new(sizes: Sizes, may_be_dropped: [bool; 2]) -> Scan {
        let state = JournalState { next_seq: 1, first_seq: 1, ..JournalState::default() };
        Scan {
            state,
            sizes,
            skipped: false,
            first_present: None,
            usage: None,
            may_jump: [false; 2],
            may_be_dropped,
        }
    }

    /// Reads records up to the first invalid one.
    fn read(&mut self, index: &OwnedFd) -> outpost_sys::Result<()> {
        let mut block = [0; BLOCK_BYTES];
        let mut at = 0u64;
        loop {
            let read = file::read_full_at(index, &mut block, at)?;
            if at > 0 && read == BLOCK_BYTES && block.iter().all(|byte| *byte == 0) {
                // The punched head. If nothing follows, it is cut off.
                at += BLOCK_BYTES as u64;
                continue;
            }
            let hole = at - self.state.records * RECORD_BYTES as u64;
            let (records, _) = block[..read].as_chunks::<RECORD_BYTES>();
            for (number, bytes) in records.iter().enumerate() {
                let hole = if number == 0 { hole } else { 0 };
                let Some(record) =
                    Record::decode(bytes).filter(|record| self.take(record, hole > 0).is_some())
                else {
                    return Ok(());
                };
                self.state.punched += hole;
                self.state.records = at / RECORD_BYTES as u64 + number as u64 + 1;
                if matches!(record.body, RecordBody::Exit { .. }) {
                    return Ok(());
                }
            }
            if read < BLOCK_BYTES {
                return Ok(());
            }
            at += BLOCK_BYTES as u64;
        }
    }

    /// Whether there are bytes on disk that a reader would not get. This is normal if the head was dropped at
    /// the cap. It is not if a power failure destroyed a segment or a block of the index.
    pub(crate) fn has_unindexed_bytes(&self) -> bool {
        self.skipped || self.first_present.is_some_and(|seq| seq < self.state.first_seq)
    }

    /// Counts the bytes after the recorded end of each stream. A stream continues in the next segment only
    /// when one is full.
    fn count_unindexed(&mut self) {
        for stream in Stream::ALL.into_iter().filter(|_| self.state.exit.is_none()) {
            let mut end = self.state.ends[stream.index()];
            while let Some(size) = self.sizes[stream.index()].get(&segment::segment_of(end))
                && *size > segment::offset_in_segment(end)
            {
                end = segment::segment_of(end) * SEGMENT_BYTES + size;
            }
            self.state.unindexed[stream.index()] = end - self.state.ends[stream.index()];
        }
    }

    /// Whether the segment that a stream is written to is missing. A current segment is never dropped, so
    /// this is damage. A new file in its place would give old records wrong bytes.
    fn current_segment_missing(&self, stream: Stream) -> bool {
        let end = self.state.ends[stream.index()];
        let missing = !self.sizes[stream.index()].contains_key(&segment::segment_of(end));
        self.state.exit.is_none() && segment::offset_in_segment(end) > 0 && missing
    }

    /// Adds a record. Returns `None` and changes nothing if the record does not follow from the ones before.
    /// After a hole, sequence numbers and offsets may jump.
    fn take(&mut self, record: &Record, behind_hole: bool) -> Option<()> {
        let next_seq = self.state.next_seq;
        let may_jump = behind_hole || matches!(record.body, RecordBody::Lost { .. });
        let follows = record.seq == next_seq || (may_jump && record.seq > next_seq && record.seq <= SEQ_MAX);
        if !follows || !self.fits(&record.body, behind_hole) {
            return None;
        }
        let state = &mut self.state;
        // A loss before the first frame counts as a dropped head.
        let is_head = next_seq == 1 && matches!(record.body, RecordBody::Lost { .. });
        if behind_hole || is_head {
            state.first_seq = record.seq;
        }
        if behind_hole {
            self.may_jump = [true; 2];
        }
        state.next_seq = record.seq + record.frame_count();
        match record.body {
            RecordBody::Started { pid, start_ticks } => state.started = Some((pid, start_ticks)),
            RecordBody::StdinClosed { at: bytes } => state.stdin_closed = Some(bytes),
            RecordBody::StreamEnd { stream, offset } => {
                self.skip_to(stream, offset);
                self.end_at(stream, offset);
            }
            RecordBody::Lost { stream, offset } => self.end_at(stream, offset),
            RecordBody::Usage { user_ms, system_ms, rss_max_kb } => {
                self.usage = Some((user_ms, system_ms, rss_max_kb));
            }
            RecordBody::Run { stream, offset, len } => {
                self.skip_to(stream, offset);
                self.note_run(stream, segment::segment_of(offset), record.seq);
                self.end_at(stream, offset + u64::from(len));
            }
            RecordBody::Exit { cause } => {
                let (user_ms, system_ms, rss_max_kb) = self.usage.unwrap_or_default();
                state.exit = Some(Exit { cause, user_ms, system_ms, rss_max_kb });
            }
        }
        Some(())
    }

    /// Whether a record continues its stream, and its bytes are on disk or were dropped at the cap.
    fn fits(&self, body: &RecordBody, behind_hole: bool) -> bool {
        let joins = |stream: Stream, offset: u64| {
            let end = self.state.ends[stream.index()];
            let may_jump = behind_hole || self.may_jump[stream.index()];
            offset == end || (may_jump && offset > end && offset <= SEQ_MAX)
        };
        match *body {
            RecordBody::StreamEnd { stream, offset } => joins(stream, offset),
            RecordBody::Lost { stream, offset } => {
                (self.state.ends[stream.index()]..=SEQ_MAX).contains(&offset)
            }
            RecordBody::Run { stream, offset, len } => {
                let end = segment::offset_in_segment(offset) + u64::from(len);
                let there = match self.sizes[stream.index()].get(&segment::segment_of(offset)) {
                    Some(size) => end <= *size,
                    None => self.is_dropped(stream, segment::segment_of(offset)),
                };
                joins(stream, offset) && len > 0 && end <= SEGMENT_BYTES && there
            }
            RecordBody::Started { .. }
            | RecordBody::StdinClosed { .. }
            | RecordBody::Usage { .. }
            | RecordBody::Exit { .. } => true,
        }
    }

    /// Segments are dropped from the head. The last segment of a stream is dropped too if it is full or the
    /// process has exited.
    fn is_dropped(&self, stream: Stream, number: u64) -> bool {
        let oldest = self.sizes[stream.index()].keys().next();
        self.may_be_dropped[stream.index()] && oldest.is_none_or(|oldest| *oldest > number)
    }

    /// Checks whether the bytes between the end of a stream and `offset`, which no record covers, are on
    /// disk.
    fn skip_to(&mut self, stream: Stream, offset: u64) {
        let end = self.state.ends[stream.index()];
        if offset > end {
            let between =
                self.sizes[stream.index()].range(segment::segment_of(end)..=segment::segment_of(offset - 1));
            let holds = |(number, size): (&u64, &u64)| number * SEGMENT_BYTES + size > end;
            self.skipped |= between.into_iter().any(holds);
        }
    }

    fn end_at(&mut self, stream: Stream, offset: u64) {
        self.state.ends[stream.index()] = offset;
        self.may_jump[stream.index()] = false;
    }

    /// Records that the frames before `next_seq` end in this segment, or that they were dropped with it.
    fn note_run(&mut self, stream: Stream, number: u64, seq: u64) {
        let dropped = self.is_dropped(stream, number);
        let state = &mut self.state;
        if dropped {
            state.first_seq = state.next_seq;
            return;
        }
        let last_seq = state.next_seq - 1;
        self.first_present.get_or_insert(seq);
        match state
            .segments
            .iter_mut()
            .rev()
            .find(|segment| segment.stream == stream && segment.number == number)
        {
            Some(segment) => segment.last_seq = last_seq,
            None => state.segments.push_back(Segment { stream, number, last_seq }),
        }
    }
}

/// Removes segments after the end of a stream, unless all segments up to them are full. A later run of the
/// writer would take their bytes for its own output.
fn remove_unreachable(dir: &Path, state: &JournalState, sizes: &Sizes) -> Result<()> {
    unreachable(state, sizes).try_for_each(|(stream, number)| segment::remove(dir, stream, number))
}

pub(crate) fn unreachable(state: &JournalState, sizes: &Sizes) -> impl Iterator<Item = (Stream, u64)> {
    Stream::ALL.into_iter().flat_map(|stream| {
        let sizes = &sizes[stream.index()];
        let mut last = segment::segment_of(state.ends[stream.index()]);
        while sizes.get(&last) == Some(&SEGMENT_BYTES) {
            last += 1;
        }
        // An empty segment was created ahead of time and is harmless.
        let holds_bytes = move |(number, size): &(&u64, &u64)| **number > last && **size > 0;
        sizes.iter().filter(holds_bytes).map(move |(number, _)| (stream, *number))
    })
}
