//! The stdin log: bytes accepted for a child, delivered exactly once even if worker or keeper is killed in
//! between.
//!
//! The log is a chain of files. The first part is `stdin`. A later part is `stdin.N`, where N is the offset
//! of its first byte in the child's input. The end of the last part is the number of accepted bytes. The
//! position of the reading file description, which the keeper holds too, is the number of delivered bytes of
//! its part. The kernel advances it in the same call that moves the bytes.
//!
//! splice(2) does not copy: the pipe refers to the pages of the file, and a descendant of the child can hold
//! those references for any time. So delivered pages must never change. Punching a hole zeroes a page that it
//! covers partly, and a large folio likewise. Unlinking a file frees its pages without changing them. A part
//! is therefore unlinked as a whole, once all of it is delivered and the keeper holds the next one.
//!
//! [`StdinLog::accept`] and [`StdinLog::deliver`] read and write open files only. A [`Chore`] creates,
//! truncates and removes parts.

use crate::chore::{Chore, Stdin, StdinDone, Work};
use crate::{Error, Result};
use outpost_sys::Errno;
use outpost_sys::beneath::file_id;
use outpost_sys::file::{self, Open};
use outpost_sys::pipe::{self, Moved};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum size of one splice to the child.
const SPLICE_BYTES: usize = 1024 * 1024;

/// A part of at least this size is followed by another one.
const PART_BYTES: u64 = 4 * 1024 * 1024;

/// The result of an offer of bytes. `applied` is the total number of accepted bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Appended: all bytes, or those that were new.
    Applied { applied: u64 },
    /// All bytes had been accepted before; no effect.
    Duplicate { applied: u64 },
    /// The offset is after the accepted bytes; no effect.
    Gap { applied: u64 },
    /// Too many bytes would be undelivered; no effect. `beyond` when more than the limit are undelivered
    /// already.
    Full { applied: u64, beyond: bool },
}

/// The result of one delivery.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    Bytes(usize),
    /// The pipe is full.
    WouldBlock,
    /// All accepted bytes are delivered.
    End,
    /// The log continues in another part. Nothing is delivered until the keeper holds its
    /// [`StdinLog::reader`] and the caller has called [`StdinLog::set_reader_held`].
    NextPart,
    /// Nothing is delivered until a chore is done.
    AwaitsChore,
}

/// One file of the log.
pub(crate) struct Part {
    /// The offset of its first byte.
    base: u64,
    file: OwnedFd,
    reader: OwnedFd,
}

impl Part {
    /// Creates an empty part.
    pub(crate) fn create(path: &Path, base: u64) -> Result<Part> {
        let path = part_path(path, base);
        let file = file::open(&path, Open::Create).map_err(|errno| Error::io("create", &path, errno))?;
        file::set_size(&file, 0).map_err(|errno| Error::io("empty", &path, errno))?;
        let reader = file::open(&path, Open::Read).map_err(|errno| Error::io("open", &path, errno))?;
        Ok(Part { base, file, reader })
    }
}

/// The state of the part after the last one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum NextPart {
    Unneeded,
    Needed,
    Creating,
}

/// The rollback of a failed append: the bytes after the last accepted one are truncated.
enum Rollback {
    Pending(Error),
    Running(Error),
    Done(Error),
}

pub struct StdinLog {
    /// The path of the first part.
    path: PathBuf,
    /// The last part, and the offset of its first byte.
    file: Arc<OwnedFd>,
    base: u64,
    /// The part that is being delivered.
    reader: OwnedFd,
    reader_base: u64,
    /// Readers of the parts after that, with the offsets of their first bytes.
    later: VecDeque<(u64, OwnedFd)>,
    /// The keeper does not hold `reader` yet.
    reader_unheld: bool,
    /// Parts before the reader's, and those of them that can be removed because the keeper holds the reader.
    delivered_parts: Vec<u64>,
    removable: Vec<u64>,
    is_removing: bool,
    /// Files of such parts that are still open.
    unused: Vec<Arc<OwnedFd>>,
    next: NextPart,
    rollback: Option<Rollback>,
    accepted: u64,
    /// The child has closed its end: bytes are counted and discarded.
    discards: bool,
}

impl StdinLog {
    /// The chore that creates a log at `path`.
    pub fn create_chore(path: &Path) -> Chore {
        Chore(Work::Log { path: path.to_owned() })
    }

    /// Creates an empty log.
    pub(crate) fn create(path: &Path) -> Result<StdinLog> {
        let Part { base, file, reader } = Part::create(path, 0)?;
        Ok(StdinLog::from_files(path, (file, base), (reader, base), 0))
    }

    /// Resumes a log whose reading file description the keeper holds.
    pub fn resume(path: &Path, reader: OwnedFd) -> Result<StdinLog> {
        let io = |errno| Error::io("stat", path, errno);
        let held = file_id(&reader).map_err(io)?;
        for base in parts(path)? {
            let part = part_path(path, base);
            let file = file::open(&part, Open::Read).map_err(|errno| Error::io("open", &part, errno))?;
            if file_id(&file).map_err(io)? == held {
                return StdinLog::from_part(path, reader, base);
            }
        }
        // All of its part was delivered, and the part is gone. Nothing of the next part was, because the
        // keeper never held it.
        let next = StdinLog::from_start(path)?;
        next.map(|log| StdinLog { reader_unheld: true, ..log }).ok_or(Error::io("open", path, Errno::NOENT))
    }

    /// Resumes a log of which nothing has been delivered; `None` when there is no log. The caller makes the
    /// keeper hold the reader before the first delivery.
    pub fn from_start(path: &Path) -> Result<Option<StdinLog>> {
        let Some(first) = parts(path)?.first().copied() else { return Ok(None) };
        let part = part_path(path, first);
        let reader = file::open(&part, Open::Read).map_err(|errno| Error::io("open", &part, errno))?;
        StdinLog::from_part(path, reader, first).map(Some)
    }

    fn from_part(path: &Path, reader: OwnedFd, reader_base: u64) -> Result<StdinLog> {
        let parts = parts(path)?;
        let base = parts.last().copied().unwrap_or(reader_base);
        let part = part_path(path, base);
        let file = file::open(&part, Open::ReadWrite).map_err(|errno| Error::io("open", &part, errno))?;
        let size = file::size(&file).map_err(|errno| Error::io("stat", &part, errno))?;
        let mut log = StdinLog::from_files(path, (file, base), (reader, reader_base), base + size);
        for base in parts {
            if base < reader_base {
                log.delivered_parts.push(base);
            } else if base > reader_base {
                let part = part_path(path, base);
                let later = file::open(&part, Open::Read).map_err(|errno| Error::io("open", &part, errno))?;
                log.later.push_back((base, later));
            }
        }
        Ok(log)
    }

    fn from_files(path: &Path, last: (OwnedFd, u64), reader: (OwnedFd, u64), accepted: u64) -> StdinLog {
        let ((file, base), (reader, reader_base)) = (last, reader);
        StdinLog {
            path: path.to_owned(),
            file: Arc::new(file),
            base,
            reader,
            reader_base,
            later: VecDeque::new(),
            reader_unheld: false,
            delivered_parts: Vec::new(),
            removable: Vec::new(),
            is_removing: false,
            unused: Vec::new(),
            next: NextPart::Unneeded,
            rollback: None,
            accepted,
            discards: false,
        }
    }

    /// Pending chores. Each is returned once.
    pub fn chores(&mut self) -> Vec<Chore> {
        let mut chores = Vec::new();
        let path = || self.path.clone();
        if self.next == NextPart::Needed {
            self.next = NextPart::Creating;
            chores.push(Chore(Work::Part { path: path(), base: self.accepted }));
        }
        if let Some(Rollback::Pending(error)) = &self.rollback {
            let size = self.accepted - self.base;
            chores.push(Chore(Work::Cut { file: self.file.clone(), size }));
            self.rollback = Some(Rollback::Running(error.clone()));
        }
        if !self.removable.is_empty() && !self.is_removing {
            self.is_removing = true;
            let (bases, unused) = (std::mem::take(&mut self.removable), std::mem::take(&mut self.unused));
            chores.push(Chore(Work::RemoveParts { path: path(), bases, unused }));
        }
        chores
    }

    /// Takes the result of a chore.
    pub fn take(&mut self, done: StdinDone) -> Result<()> {
        match done.0 {
            Stdin::Part(outcome) => {
                self.next = NextPart::Unneeded;
                let Part { base, file, reader } = outcome?;
                self.unused.push(std::mem::replace(&mut self.file, Arc::new(file)));
                self.base = base;
                self.later.push_back((base, reader));
                if self.discards {
                    self.read_next();
                }
            }
            Stdin::Cut => {
                if let Some(Rollback::Running(error)) = self.rollback.take() {
                    self.rollback = Some(Rollback::Done(error));
                }
            }
            Stdin::Removed => self.is_removing = false,
        }
        Ok(())
    }

    /// The file description whose position is the number of delivered bytes. The keeper holds it too.
    pub fn reader(&self) -> &OwnedFd {
        &self.reader
    }

    /// The keeper now holds the reader.
    pub fn set_reader_held(&mut self) {
        self.reader_unheld = false;
    }

    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    pub fn delivered(&self) -> Result<u64> {
        let position = file::position(&self.reader).map_err(|errno| Error::io("stat", &self.path, errno))?;
        Ok(self.reader_base + position)
    }

    /// Accepts bytes at `offset` of the child's input, or at its end without an offset: all new bytes or
    /// none. `None` until a chore is done. The caller then offers the same bytes again before any others.
    pub fn accept(
        &mut self,
        offset: Option<u64>,
        data: &[u8],
        undelivered_max: u64,
    ) -> Result<Option<Accepted>> {
        match self.rollback.take() {
            Some(Rollback::Done(error)) => return Err(error),
            None => {}
            unfinished => {
                self.rollback = unfinished;
                return Ok(None);
            }
        }
        let applied = self.accepted;
        let offset = offset.unwrap_or(applied);
        if offset > applied {
            return Ok(Some(Accepted::Gap { applied }));
        }
        let known = applied - offset;
        let fresh = match usize::try_from(known).ok().and_then(|known| data.get(known..)) {
            Some(fresh) if !fresh.is_empty() => fresh,
            // Empty data at the end is an empty append, not a duplicate.
            Some(_) if known == 0 => return Ok(Some(Accepted::Applied { applied })),
            _ => return Ok(Some(Accepted::Duplicate { applied })),
        };
        // A message larger than the limit is accepted when all is delivered. It could never be sent
        // otherwise.
        let undelivered = applied - self.delivered()?.min(applied);
        if undelivered > 0 && undelivered + fresh.len() as u64 > undelivered_max {
            return Ok(Some(Accepted::Full { applied, beyond: undelivered > undelivered_max }));
        }
        if applied - self.base >= PART_BYTES {
            if self.next == NextPart::Unneeded {
                self.next = NextPart::Needed;
            }
            return Ok(None);
        }
        let at = applied - self.base;
        let after = applied + fresh.len() as u64;
        let written = match (self.discards, fresh) {
            // Only the size matters. Nothing reads these bytes, so the rest is left a hole.
            (true, [.., last]) => file::write_all_at(&*self.file, &[*last], after - self.base - 1),
            _ => file::write_all_at(&*self.file, fresh, at),
        };
        if let Err(errno) = written {
            // The size must not count bytes that are refused.
            self.rollback = Some(Rollback::Pending(Error::io("append to", &self.path, errno)));
            return Ok(None);
        }
        self.accepted = after;
        if self.discards {
            self.skip_all()?;
        }
        Ok(Some(Accepted::Applied { applied: after }))
    }

    /// Moves accepted bytes to the child's pipe.
    pub fn deliver(&mut self, to: impl AsFd) -> Result<Delivered> {
        if self.reader_unheld {
            return Ok(Delivered::NextPart);
        }
        self.removable.append(&mut self.delivered_parts);
        if self.rollback.is_some() {
            return Ok(Delivered::AwaitsChore);
        }
        if self.discards {
            self.skip_all()?;
            return Ok(Delivered::End);
        }
        match pipe::splice(&self.reader, to, SPLICE_BYTES) {
            Ok(Moved::Bytes(count)) => Ok(Delivered::Bytes(count)),
            Ok(Moved::WouldBlock) => Ok(Delivered::WouldBlock),
            Ok(Moved::End) => Ok(if self.read_next() { Delivered::NextPart } else { Delivered::End }),
            Err(Errno::PIPE) => {
                let mut outcome = Delivered::End;
                while self.read_next() {
                    outcome = Delivered::NextPart;
                }
                self.discards = true;
                self.skip_all()?;
                Ok(outcome)
            }
            Err(errno) => Err(Error::io("deliver", &self.path, errno)),
        }
    }

    /// Continues with the next part. Returns false when there is none.
    fn read_next(&mut self) -> bool {
        let Some((base, reader)) = self.later.pop_front() else { return false };
        self.delivered_parts.push(self.reader_base);
        self.unused.push(Arc::new(std::mem::replace(&mut self.reader, reader)));
        (self.reader_base, self.reader_unheld) = (base, true);
        true
    }

    /// Whether the child has closed its end.
    pub fn discards(&self) -> bool {
        self.discards
    }

    /// Counts all accepted bytes as delivered, because the child does not read them.
    fn skip_all(&mut self) -> Result<()> {
        let end = self.accepted - self.reader_base;
        file::set_position(&self.reader, end).map_err(|errno| Error::io("skip", &self.path, errno))
    }

    /// The number of bytes accepted by the log at `path`; 0 when there is none.
    pub fn accepted_by(path: &Path) -> Result<u64> {
        let Some(base) = parts(path)?.last().copied() else { return Ok(0) };
        let part = part_path(path, base);
        let size = file::open(&part, Open::Read).and_then(file::size);
        Ok(base + size.map_err(|errno| Error::io("stat", &part, errno))?)
    }

    /// Frees the disk space of a log that is not delivered any further. The name of an empty last part keeps
    /// the number of accepted bytes.
    pub fn retire(path: &Path) -> Result<()> {
        let accepted = StdinLog::accepted_by(path)?;
        if accepted == 0 {
            return Ok(());
        }
        let last = part_path(path, accepted);
        let _empty = file::open(&last, Open::Create).map_err(|errno| Error::io("create", &last, errno))?;
        let delivered_parts: Vec<u64> = parts(path)?.into_iter().filter(|base| *base < accepted).collect();
        remove_parts(path, &delivered_parts);
        Ok(())
    }
}

fn part_path(path: &Path, base: u64) -> PathBuf {
    match base {
        0 => path.to_owned(),
        base => path.with_extension(base.to_string()),
    }
}

/// The offsets at which the parts of a log begin, in order.
fn parts(path: &Path) -> Result<Vec<u64>> {
    let (Some(dir), Some(first)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    let names = file::open(dir, Open::Directory).and_then(file::names);
    let names = names.map_err(|errno| Error::io("list", dir, errno))?;
    let base = |name: &String| match name.strip_prefix(first)? {
        "" => Some(0),
        // Only the spelling of `part_path`.
        rest => rest
            .strip_prefix('.')?
            .parse()
            .ok()
            .filter(|base: &u64| *base > 0 && rest[1..] == base.to_string()),
    };
    let mut parts: Vec<u64> = names.iter().filter_map(base).collect();
    parts.sort_unstable();
    Ok(parts)
}

/// Removes parts, oldest first. A part that cannot be removed is removed with the process directory.
pub(crate) fn remove_parts(path: &Path, bases: &[u64]) {
    for base in bases {
        let _removed_with_the_directory = std::fs::remove_file(part_path(path, *base));
    }
}
