//! The record of one turn on disk: its events as clients read them, and how far the CLI's output has become events.
//!
//! Two files: `N.events` holds the events in the framing of a stream, so that sending them is copying them; `N.mark` says
//! which part of that stands, and where in the CLI's output the next event comes from. The mark is written after the
//! events and before anybody is told of them: what a killed worker wrote beyond the mark was seen by nobody, and is
//! made anew by the next one.

use crate::{Error, Result};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A mark is written to one half of its file and then to the other, so that one is always whole.
const SLOT_BYTES: u64 = 16 * 1024 * 1024;

/// Length, checksum and number of a mark stand before it.
const HEAD_BYTES: usize = 16;

fn events_path(dir: &Path, turn: u64) -> PathBuf {
    dir.join(format!("{turn}.events"))
}

fn mark_path(dir: &Path, turn: u64) -> PathBuf {
    dir.join(format!("{turn}.mark"))
}

/// The one who writes.
pub(crate) struct Writer {
    path: PathBuf,
    events: OwnedFd,
    marks: OwnedFd,
    bytes: u64,
    number: u64,
}

impl Writer {
    /// Opens the record of a turn. The mark is what an earlier worker has left, if there was one; `bytes_of` says how many
    /// bytes of events it vouches for.
    pub(crate) fn open<M: DeserializeOwned>(
        dir: &Path,
        turn: u64,
        bytes_of: impl Fn(&M) -> u64,
    ) -> Result<(Writer, Option<M>)> {
        let make = std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
            .recursive(true)
            .create(dir);
        make.map_err(|error| Error::io("make", dir, error))?;
        let (path, mark_path) = (events_path(dir, turn), mark_path(dir, turn));
        let events = file::open(&path, Open::Create).map_err(|errno| Error::io("open", &path, errno))?;
        let marks =
            file::open(&mark_path, Open::Create).map_err(|errno| Error::io("open", &mark_path, errno))?;
        let newest = [0, SLOT_BYTES].into_iter().filter_map(|at| read_mark(&marks, at));
        let newest = newest.max_by_key(|(number, _)| *number);
        let (number, mark) = match newest {
            Some((number, text)) => (number, serde_json::from_slice::<M>(&text).ok()),
            None => (0, None),
        };
        let bytes = mark.as_ref().map_or(0, bytes_of);
        file::set_size(&events, bytes).map_err(|errno| Error::io("cut", &path, errno))?;
        Ok((Writer { path, events, marks, bytes, number }, mark))
    }

    /// Bytes of events that stand.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends events. They do not count before a mark vouches for them.
    pub(crate) fn append(&mut self, events: &[u8]) -> Result<()> {
        let written = file::write_all_at(&self.events, events, self.bytes);
        written.map_err(|errno| Error::io("write to", &self.path, errno))?;
        self.bytes += events.len() as u64;
        Ok(())
    }

    pub(crate) fn mark(&mut self, mark: &impl Serialize) -> Result<()> {
        let mut slot = vec![0; HEAD_BYTES];
        serde_json::to_writer(&mut slot, mark).map_err(|error| Error::file("mark", &self.path, error))?;
        let length = slot.len() - HEAD_BYTES;
        if slot.len() as u64 > SLOT_BYTES {
            return Err(Error::file("mark", &self.path, "there is too much to remember"));
        }
        let number = self.number + 1;
        if let Some((head, text)) = slot.split_at_mut_checked(HEAD_BYTES) {
            let words = [u32::try_from(length).unwrap_or(u32::MAX), crc32fast::hash(text)];
            let bytes = words.iter().flat_map(|word| word.to_le_bytes()).chain(number.to_le_bytes());
            head.iter_mut().zip(bytes).for_each(|(place, byte)| *place = byte);
        }
        let at = (number % 2) * SLOT_BYTES;
        let written = file::write_all_at(&self.marks, &slot, at);
        written.map_err(|errno| Error::io("mark", &self.path, errno))?;
        // Only now: a retry after a failed write goes to the same slot again, and the other one stays whole.
        self.number = number;
        Ok(())
    }
}

/// The number and the text of the mark at `at`, if it is whole.
fn read_mark(marks: &OwnedFd, at: u64) -> Option<(u64, Vec<u8>)> {
    let mut head = [0; HEAD_BYTES];
    if file::read_full_at(marks, &mut head, at).ok()? < HEAD_BYTES {
        return None;
    }
    let word = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let (length, sum) = (word(0)?, word(4)?);
    let number = u64::from_le_bytes(head.get(8..16)?.try_into().ok()?);
    if u64::from(length) > SLOT_BYTES {
        return None;
    }
    let mut text = vec![0; length as usize];
    let read = file::read_full_at(marks, &mut text, at + HEAD_BYTES as u64).ok()?;
    (read == text.len() && crc32fast::hash(&text) == sum).then_some((number, text))
}

/// The newest mark of a turn, without opening it for writing.
pub(crate) fn last_mark<M: DeserializeOwned>(dir: &Path, turn: u64) -> Option<M> {
    let marks = file::open(mark_path(dir, turn), Open::Read).ok()?;
    let newest = [0, SLOT_BYTES].into_iter().filter_map(|at| read_mark(&marks, at));
    let (_, text) = newest.max_by_key(|(number, _)| *number)?;
    serde_json::from_slice(&text).ok()
}

/// Removes the record of a turn.
pub(crate) fn remove(dir: &Path, turn: u64) {
    for path in [events_path(dir, turn), mark_path(dir, turn)] {
        let _gone_already = std::fs::remove_file(path);
    }
}

/// One who reads the events of a turn from some byte on.
#[derive(Clone)]
pub(crate) struct Reader {
    file: Arc<OwnedFd>,
}

impl Reader {
    pub(crate) fn open(dir: &Path, turn: u64) -> Result<Reader> {
        let path = events_path(dir, turn);
        let file = file::open(&path, Open::Read).map_err(|errno| Error::io("open", &path, errno))?;
        Ok(Reader { file: Arc::new(file) })
    }

    /// The bytes `range`, which stand. Does not make the caller's thread wait for the disk.
    pub(crate) async fn read(&self, range: std::ops::Range<u64>) -> Result<Vec<u8>> {
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        let mut buffer = vec![0; length];
        let read = match file::read_cached_at(&*self.file, &mut buffer, range.start) {
            Err(Errno::AGAIN) => {
                let file = self.file.clone();
                let reading = tokio::task::spawn_blocking(move || {
                    let read = file::read_full_at(&*file, &mut buffer, range.start);
                    (buffer, read)
                });
                let (filled, read) = reading.await.map_err(|_| Error::Stopped)?;
                buffer = filled;
                read
            }
            read => read,
        };
        let read = read.map_err(|errno| Error::io("read", Path::new("a turn's events"), errno))?;
        buffer.truncate(read);
        Ok(buffer)
    }

    /// How many bytes the first `count` events take, of the `bytes` that stand.
    pub(crate) async fn bytes_of(&self, count: u64, bytes: u64) -> Result<u64> {
        let (mut left, mut at) = (count, 0);
        // An event ends in an empty line, and holds none.
        let mut last = 0;
        while left > 0 && at < bytes {
            let piece = self.read(at..bytes.min(at + SEEK_BYTES)).await?;
            if piece.is_empty() {
                break;
            }
            for end in memchr::memchr_iter(b'\n', &piece) {
                let end = at + end as u64;
                if end == last + 1 && last > 0 {
                    left -= 1;
                    if left == 0 {
                        return Ok(end + 1);
                    }
                }
                last = end;
            }
            at += piece.len() as u64;
        }
        Ok(if left == 0 { 0 } else { bytes })
    }
}

/// Read at once while looking for an event.
const SEEK_BYTES: u64 = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use outpost_sys::fault::{self, Fault};
    use serde::Deserialize;

    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct Mark {
        bytes: u64,
        word: String,
    }

    fn open(dir: &Path) -> (Writer, Option<Mark>) {
        Writer::open(dir, 1, |mark: &Mark| mark.bytes).unwrap()
    }

    fn mark(writer: &Writer, word: &str) -> Mark {
        Mark { bytes: writer.bytes(), word: word.into() }
    }

    #[test]
    fn what_no_mark_vouches_for_is_made_anew() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, none) = open(dir.path());
        assert_eq!(none, None);
        writer.append(b"data: 1\n\n").unwrap();
        let first = mark(&writer, "first");
        writer.mark(&first).unwrap();
        writer.append(b"data: lost").unwrap();
        drop(writer);
        let (mut writer, left) = open(dir.path());
        assert_eq!(left, Some(first));
        writer.append(b"data: 2\n\n").unwrap();
        let second = mark(&writer, "second");
        writer.mark(&second).unwrap();
        assert_eq!(std::fs::read(events_path(dir.path(), 1)).unwrap(), b"data: 1\n\ndata: 2\n\n");
        assert_eq!(last_mark::<Mark>(dir.path(), 1), Some(second));
    }

    #[test]
    fn a_torn_mark_leaves_the_one_before_it() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _) = open(dir.path());
        for word in ["one", "two", "three"] {
            writer.append(b"data: x\n\n").unwrap();
            writer.mark(&mark(&writer, word)).unwrap();
        }
        // The third is in the slot of the first.
        let path = mark_path(dir.path(), 1);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[SLOT_BYTES as usize + HEAD_BYTES + 3] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let (_, left) = open(dir.path());
        assert_eq!(left.unwrap().word, "two");
    }

    #[test]
    fn a_retry_after_a_failed_write_leaves_the_newest_good_mark() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _) = open(dir.path());
        for word in ["one", "two"] {
            writer.mark(&mark(&writer, word)).unwrap();
        }
        fault::arm(1, Fault::Errno(Errno::NOSPC));
        let failed = writer.mark(&mark(&writer, "three"));
        assert!(!fault::disarm() && failed.is_err());
        writer.mark(&mark(&writer, "three")).unwrap();
        assert_eq!(last_mark::<Mark>(dir.path(), 1).unwrap().word, "three");
        // The retry is torn: its slot must not have been that of the mark before it.
        let path = mark_path(dir.path(), 1);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(5).position(|word| word == b"three").unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(last_mark::<Mark>(dir.path(), 1).unwrap().word, "two");
    }

    #[tokio::test]
    async fn events_are_counted_from_the_front() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _) = open(dir.path());
        let lines: Vec<String> = (0..5000).map(|n| format!("data: {{\"n\":{n}}}\n\n")).collect();
        writer.append(lines.concat().as_bytes()).unwrap();
        let reader = Reader::open(dir.path(), 1).unwrap();
        for count in [0, 1, 2, 4999, 5000] {
            let expected: usize = lines.iter().take(count).map(String::len).sum();
            assert_eq!(
                reader.bytes_of(count as u64, writer.bytes()).await.unwrap(),
                expected as u64,
                "{count}"
            );
        }
    }
}
