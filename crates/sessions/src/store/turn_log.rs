//! The log of one turn on disk: its events, and the checkpoint of how far the CLI's output was processed.
//!
//! There are two files. `N.events` holds the events in the framing of a stream, so sending them is copying them.
//! `N.mark` holds the checkpoint: how many bytes of events are valid, and where in the CLI's output the next event
//! starts. The worker writes the checkpoint after the events and before any client sees them. So no client has seen
//! events beyond the checkpoint; the next worker produces them again.

use crate::{Error, Result};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The checkpoint file has two slots, written in turn, so that one of them is always intact.
const SLOT_BYTES: u64 = 16 * 1024 * 1024;

/// Size of the header: length, checksum and generation of the checkpoint.
const HEAD_BYTES: usize = 16;

fn events_path(dir: &Path, turn: u64) -> PathBuf {
    dir.join(format!("{turn}.events"))
}

fn checkpoint_path(dir: &Path, turn: u64) -> PathBuf {
    dir.join(format!("{turn}.mark"))
}

/// Writes the log of one turn.
pub(crate) struct Writer {
    path: PathBuf,
    events: OwnedFd,
    checkpoints: OwnedFd,
    bytes: u64,
    generation: u64,
}

impl Writer {
    /// Opens the log of a turn, and returns the checkpoint of the previous worker if there is one. `bytes_of` returns
    /// how many bytes of events a checkpoint covers; the file is truncated to that size.
    pub(crate) fn open<C: DeserializeOwned>(
        dir: &Path,
        turn: u64,
        bytes_of: impl Fn(&C) -> u64,
    ) -> Result<(Writer, Option<C>)> {
        let make = std::os::unix::fs::DirBuilderExt::mode(&mut std::fs::DirBuilder::new(), 0o700)
            .recursive(true)
            .create(dir);
        make.map_err(|error| Error::io("create", dir, error))?;
        let (path, checkpoint_path) = (events_path(dir, turn), checkpoint_path(dir, turn));
        let events = file::open(&path, Open::Create).map_err(|errno| Error::io("open", &path, errno))?;
        let checkpoints = file::open(&checkpoint_path, Open::Create)
            .map_err(|errno| Error::io("open", &checkpoint_path, errno))?;
        let newest = [0, SLOT_BYTES].into_iter().filter_map(|at| read_slot(&checkpoints, at));
        let newest = newest.max_by_key(|(generation, _)| *generation);
        let (generation, checkpoint) = match newest {
            Some((generation, text)) => (generation, serde_json::from_slice::<C>(&text).ok()),
            None => (0, None),
        };
        let bytes = checkpoint.as_ref().map_or(0, bytes_of);
        file::set_size(&events, bytes).map_err(|errno| Error::io("truncate", &path, errno))?;
        Ok((Writer { path, events, checkpoints, bytes, generation }, checkpoint))
    }

    /// Size of the events written so far.
    pub(crate) fn bytes(&self) -> u64 {
        self.bytes
    }

    /// Appends events. They become valid with the next checkpoint.
    pub(crate) fn append(&mut self, events: &[u8]) -> Result<()> {
        let written = file::write_all_at(&self.events, events, self.bytes);
        written.map_err(|errno| Error::io("write to", &self.path, errno))?;
        self.bytes += events.len() as u64;
        Ok(())
    }

    pub(crate) fn write_checkpoint(&mut self, checkpoint: &impl Serialize) -> Result<()> {
        let mut slot = vec![0; HEAD_BYTES];
        serde_json::to_writer(&mut slot, checkpoint)
            .map_err(|error| Error::file("write the checkpoint of", &self.path, error))?;
        let length = slot.len() - HEAD_BYTES;
        if slot.len() as u64 > SLOT_BYTES {
            return Err(Error::file("write the checkpoint of", &self.path, "the checkpoint is too large"));
        }
        let generation = self.generation + 1;
        if let Some((head, text)) = slot.split_at_mut_checked(HEAD_BYTES) {
            let words = [u32::try_from(length).unwrap_or(u32::MAX), crc32fast::hash(text)];
            let bytes = words.iter().flat_map(|word| word.to_le_bytes()).chain(generation.to_le_bytes());
            head.iter_mut().zip(bytes).for_each(|(target, byte)| *target = byte);
        }
        let at = (generation % 2) * SLOT_BYTES;
        let written = file::write_all_at(&self.checkpoints, &slot, at);
        written.map_err(|errno| Error::io("write the checkpoint of", &self.path, errno))?;
        // After the write only: the retry of a failed write uses the same slot, and the other slot stays intact.
        self.generation = generation;
        Ok(())
    }
}

/// Reads the slot at `at`. Returns generation and text, or `None` if the slot is torn.
fn read_slot(checkpoints: &OwnedFd, at: u64) -> Option<(u64, Vec<u8>)> {
    let mut head = [0; HEAD_BYTES];
    if file::read_full_at(checkpoints, &mut head, at).ok()? < HEAD_BYTES {
        return None;
    }
    let word = |at: usize| head.get(at..at + 4)?.try_into().ok().map(u32::from_le_bytes);
    let (length, sum) = (word(0)?, word(4)?);
    let generation = u64::from_le_bytes(head.get(8..16)?.try_into().ok()?);
    if u64::from(length) > SLOT_BYTES {
        return None;
    }
    let mut text = vec![0; length as usize];
    let read = file::read_full_at(checkpoints, &mut text, at + HEAD_BYTES as u64).ok()?;
    (read == text.len() && crc32fast::hash(&text) == sum).then_some((generation, text))
}

/// Reads the newest checkpoint of a turn without opening its log for writing.
pub(crate) fn read_checkpoint<C: DeserializeOwned>(dir: &Path, turn: u64) -> Option<C> {
    let checkpoints = file::open(checkpoint_path(dir, turn), Open::Read).ok()?;
    let newest = [0, SLOT_BYTES].into_iter().filter_map(|at| read_slot(&checkpoints, at));
    let (_, text) = newest.max_by_key(|(generation, _)| *generation)?;
    serde_json::from_slice(&text).ok()
}

/// Deletes the log of a turn.
pub(crate) fn remove(dir: &Path, turn: u64) {
    for path in [events_path(dir, turn), checkpoint_path(dir, turn)] {
        let _gone_already = std::fs::remove_file(path);
    }
}

/// Reads the events of one turn.
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

    /// Reads a range of valid bytes. Reads from the page cache directly, and from disk on a blocking thread.
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

    /// The size of the first `count` events, within the first `bytes` bytes.
    pub(crate) async fn bytes_of(&self, count: u64, bytes: u64) -> Result<u64> {
        let (mut left, mut at) = (count, 0);
        // Each event ends with an empty line and contains none.
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

/// Bytes per read while searching for an event.
const SEEK_BYTES: u64 = 256 * 1024;

#[cfg(test)]
mod tests {
    use super::*;
    use outpost_sys::fault::{self, Fault};
    use serde::Deserialize;

    #[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
    struct TestCheckpoint {
        bytes: u64,
        word: String,
    }

    fn open(dir: &Path) -> (Writer, Option<TestCheckpoint>) {
        Writer::open(dir, 1, |checkpoint: &TestCheckpoint| checkpoint.bytes).unwrap()
    }

    fn checkpoint(writer: &Writer, word: &str) -> TestCheckpoint {
        TestCheckpoint { bytes: writer.bytes(), word: word.into() }
    }

    #[test]
    fn events_beyond_the_checkpoint_are_truncated() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, none) = open(dir.path());
        assert_eq!(none, None);
        writer.append(b"data: 1\n\n").unwrap();
        let first = checkpoint(&writer, "first");
        writer.write_checkpoint(&first).unwrap();
        writer.append(b"data: lost").unwrap();
        drop(writer);
        let (mut writer, left) = open(dir.path());
        assert_eq!(left, Some(first));
        writer.append(b"data: 2\n\n").unwrap();
        let second = checkpoint(&writer, "second");
        writer.write_checkpoint(&second).unwrap();
        assert_eq!(std::fs::read(events_path(dir.path(), 1)).unwrap(), b"data: 1\n\ndata: 2\n\n");
        assert_eq!(read_checkpoint::<TestCheckpoint>(dir.path(), 1), Some(second));
    }

    #[test]
    fn a_torn_checkpoint_leaves_the_previous_one() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _) = open(dir.path());
        for word in ["one", "two", "three"] {
            writer.append(b"data: x\n\n").unwrap();
            writer.write_checkpoint(&checkpoint(&writer, word)).unwrap();
        }
        // The third checkpoint is in the slot of the first.
        let path = checkpoint_path(dir.path(), 1);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[SLOT_BYTES as usize + HEAD_BYTES + 3] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        let (_, left) = open(dir.path());
        assert_eq!(left.unwrap().word, "two");
    }

    #[test]
    fn a_retry_after_a_failed_write_keeps_the_newest_intact_checkpoint() {
        let dir = tempfile::tempdir().unwrap();
        let (mut writer, _) = open(dir.path());
        for word in ["one", "two"] {
            writer.write_checkpoint(&checkpoint(&writer, word)).unwrap();
        }
        fault::arm(1, Fault::Errno(Errno::NOSPC));
        let failed = writer.write_checkpoint(&checkpoint(&writer, "three"));
        assert!(!fault::disarm() && failed.is_err());
        writer.write_checkpoint(&checkpoint(&writer, "three")).unwrap();
        assert_eq!(read_checkpoint::<TestCheckpoint>(dir.path(), 1).unwrap().word, "three");
        // Tear the retried write: it must not have used the slot of the previous checkpoint.
        let path = checkpoint_path(dir.path(), 1);
        let mut bytes = std::fs::read(&path).unwrap();
        let at = bytes.windows(5).position(|word| word == b"three").unwrap();
        bytes[at] ^= 1;
        std::fs::write(&path, &bytes).unwrap();
        assert_eq!(read_checkpoint::<TestCheckpoint>(dir.path(), 1).unwrap().word, "two");
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
