//! The single writer of a chain.

use super::record::{self, EncodeError};
use super::tail::{self, Tail};
use super::{Error, Event, Head, OPENED, ROTATED, Result, files};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use serde::Serialize;
use std::fs::DirBuilder;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// A file of this size is rotated.
const FILE_BYTES: u64 = 64 << 20;
/// How many bytes of a torn record the `opened` record quotes.
const TORN_BYTES_SHOWN: usize = 1024;
/// Capacity that the buffer keeps after a large record.
const BUFFER_BYTES: usize = 64 << 10;

/// The exclusive writer of a chain. After a failed write or sync it refuses all further records: an action that
/// cannot be recorded must not run.
pub struct Writer {
    dir: PathBuf,
    directory: OwnedFd,
    /// Held until the writer is dropped.
    _lock: OwnedFd,
    file: OwnedFd,
    file_bytes: u64,
    file_bytes_max: u64,
    first_seq: u64,
    head: Head,
    line: Vec<u8>,
    is_synced: bool,
    has_failed: bool,
}

/// The data of an `opened` record.
#[derive(Serialize)]
struct Opened<'a> {
    torn_bytes: usize,
    #[serde(skip_serializing_if = "str::is_empty")]
    torn: &'a str,
}

/// The data of a `rotated` record.
#[derive(Serialize)]
struct Rotated<'a> {
    file: &'a str,
}

impl Writer {
    /// Opens the chain in a directory, and creates both if they are missing. The `opened` record is on disk
    /// when this returns.
    pub fn open(dir: &Path) -> Result<Writer> {
        Writer::open_sized(dir, FILE_BYTES)
    }

    pub(super) fn open_sized(dir: &Path, file_bytes_max: u64) -> Result<Writer> {
        match DirBuilder::new().mode(0o700).create(dir) {
            Err(error) if error.kind() != std::io::ErrorKind::AlreadyExists => {
                return Err(Error::std("create", dir, &error));
            }
            _ => {}
        }
        let directory = file::open(dir, Open::Directory).map_err(|errno| Error::io("open", dir, errno))?;
        let lock = lock(dir, &directory)?;
        let (file, tail) = open_current(dir, &directory)?;
        let before = last_rotated_head(dir)?;
        let head = tail.last.or(before).unwrap_or(Head::NONE);
        let mut writer = Writer {
            dir: dir.to_owned(),
            directory,
            _lock: lock,
            file,
            file_bytes: tail.end,
            file_bytes_max,
            first_seq: head.seq + 1,
            head,
            line: Vec::new(),
            is_synced: true,
            has_failed: false,
        };
        if tail.last.is_some() {
            writer.first_seq = tail::first_seq(&writer.readable()?, &writer.path())?;
        }
        if tail.is_rotated {
            writer.start_next_file()?;
        }
        writer.append_opened(&tail)?;
        writer.sync()?;
        Ok(writer)
    }

    /// Appends a record with one `write` call. [`sync`](Writer::sync) makes it durable.
    pub fn append(&mut self, event: Event, data: &impl Serialize) -> Result<Head> {
        if self.file_bytes >= self.file_bytes_max {
            self.rotate()?;
        }
        self.append_named(event.name(), data)
    }

    /// Waits until all appended records are on disk.
    pub fn sync(&mut self) -> Result<()> {
        self.check_usable()?;
        if !self.is_synced {
            let synced = file::sync_data(&self.file);
            // Do not retry: after a failed fsync the kernel may mark the lost pages as clean, and the next
            // fsync would succeed.
            synced.map_err(|errno| self.fail("sync", errno))?;
            self.is_synced = true;
        }
        Ok(())
    }

    pub fn head(&self) -> Head {
        self.head
    }

    fn append_named(&mut self, event: &'static str, data: &impl Serialize) -> Result<Head> {
        self.check_usable()?;
        let head = self.encode(event, data)?;
        match file::write_some(&self.file, &self.line) {
            Ok(written) if written == self.line.len() => {}
            Ok(_) => return Err(self.fail("write all of a record to", Errno::NOSPC)),
            Err(errno) => return Err(self.fail("write to", errno)),
        }
        self.note_written(head);
        Ok(head)
    }

    fn encode(&mut self, event: &'static str, data: &impl Serialize) -> Result<Head> {
        self.line.shrink_to(BUFFER_BYTES);
        record::encode(&mut self.line, &self.head, event, data).map_err(|error| match error {
            EncodeError::TooLong(bytes) => Error::too_long(event, bytes),
            EncodeError::Unserializable(why) => Error::Unwritable { event, why },
        })
    }

    fn note_written(&mut self, head: Head) {
        self.head = head;
        self.file_bytes += self.line.len() as u64;
        self.is_synced = false;
    }

    /// Appends the `opened` record and overwrites a torn record with it. Neither contains a newline before its
    /// end, so after a crash the file has a torn record or the complete one.
    fn append_opened(&mut self, tail: &Tail) -> Result<()> {
        let shown = tail.torn.get(..TORN_BYTES_SHOWN).unwrap_or(&tail.torn);
        let shown = String::from_utf8_lossy(shown);
        let data = Opened { torn_bytes: tail.torn.len(), torn: &shown };
        if tail.torn.is_empty() {
            return self.append_named(OPENED, &data).map(|_| ());
        }
        let head = self.encode(OPENED, &data)?;
        let file = self.readable()?;
        let end = self.file_bytes + self.line.len() as u64;
        let written = file::write_all_at(&file, &self.line, self.file_bytes);
        written
            .and_then(|()| file::set_size(&file, end))
            .map_err(|errno| self.fail("overwrite the torn record in", errno))?;
        self.note_written(head);
        Ok(())
    }

    /// Ends the full file and starts the next one.
    fn rotate(&mut self) -> Result<()> {
        let name = files::rotated_name(self.first_seq);
        self.append_named(ROTATED, &Rotated { file: &name })?;
        self.sync()?;
        self.start_next_file()
    }

    /// Renames the full file and creates the next one.
    fn start_next_file(&mut self) -> Result<()> {
        let name = files::rotated_name(self.first_seq);
        let renamed = file::rename_at(&self.directory, files::CURRENT, &name);
        renamed.map_err(|errno| self.fail("rename", errno))?;
        let made = file::open_at(&self.directory, files::CURRENT, Open::Append);
        self.file = made.map_err(|errno| self.fail("create", errno))?;
        file::sync_directory(&self.directory).map_err(|errno| self.fail("sync the directory of", errno))?;
        self.file_bytes = 0;
        self.first_seq = self.head.seq + 1;
        Ok(())
    }

    fn check_usable(&self) -> Result<()> {
        match self.has_failed {
            true => Err(Error::Failed { path: self.dir.clone() }),
            false => Ok(()),
        }
    }

    fn fail(&mut self, operation: &'static str, errno: Errno) -> Error {
        self.has_failed = true;
        Error::io(operation, &self.path(), errno)
    }

    fn path(&self) -> PathBuf {
        self.dir.join(files::CURRENT)
    }

    fn readable(&self) -> Result<OwnedFd> {
        file::open_at(&self.directory, files::CURRENT, Open::ReadWrite)
            .map_err(|errno| Error::io("open", &self.path(), errno))
    }
}

fn lock(dir: &Path, directory: &OwnedFd) -> Result<OwnedFd> {
    let path = dir.join(files::LOCK);
    let fail = |errno| Error::io("lock", &path, errno);
    let lock = file::open_at(directory, files::LOCK, Open::Create).map_err(fail)?;
    match file::try_lock(&lock).map_err(fail)? {
        true => Ok(lock),
        false => Err(Error::Locked { path: dir.to_owned() }),
    }
}

/// Opens the current file, or creates it, and reads its end.
fn open_current(dir: &Path, directory: &OwnedFd) -> Result<(OwnedFd, Tail)> {
    let path = dir.join(files::CURRENT);
    let fail = |operation| {
        let path = &path;
        move |errno| Error::io(operation, path, errno)
    };
    let file = file::open_at(directory, files::CURRENT, Open::Append).map_err(fail("open"))?;
    file::sync_directory(directory).map_err(fail("sync the directory of"))?;
    let readable = file::open_at(directory, files::CURRENT, Open::ReadWrite).map_err(fail("open"))?;
    let tail = tail::read(&readable, &path)?;
    match tail.is_rotated && !tail.torn.is_empty() {
        true => Err(Error::broken(&path, 0, "data follows the rotated record")),
        false => Ok((file, tail)),
    }
}

/// Returns the last head of the newest full file.
fn last_rotated_head(dir: &Path) -> Result<Option<Head>> {
    let Some((_, path)) = files::rotated(dir)?.pop() else { return Ok(None) };
    let file = file::open(&path, Open::Read).map_err(|errno| Error::io("open", &path, errno))?;
    let tail = tail::read(&file, &path)?;
    match tail.is_rotated && tail.torn.is_empty() {
        true => Ok(tail.last),
        false => Err(Error::broken(&path, 0, "a full file must end with a rotated record")),
    }
}
