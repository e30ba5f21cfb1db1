//! The stdin log: bytes accepted for a child, delivered exactly once even if worker or keeper is killed in between.
//!
//! The log is a chain of files. The first part is `stdin`; a later part is `stdin.N`, where N is the offset of its first
//! byte in the child's input. The end of the last part is how many bytes were accepted. The position of the reading
//! description, which the keeper holds too, is how many bytes of its part were delivered; the kernel moves it in the
//! same call that moves the bytes.
//!
//! splice(2) does not copy: the pipe refers to the pages of the file, and a descendant of the child can hold those
//! references as long as it likes. So delivered pages never change. Punching a hole zeroes a page of which it covers
//! only a part, and a large folio likewise; unlinking a file frees its pages without a change to their contents. A
//! part is therefore unlinked as a whole, once all of it is delivered and the keeper holds the next one.
//!
//! [`StdinLog::accept`] and [`StdinLog::deliver`] read and write open files only. Parts are created, cut and removed by a
//! [`Chore`].

use crate::chore::{Chore, Stdin, StdinDone, Work};
use crate::{Error, Result};
use outpost_sys::Errno;
use outpost_sys::beneath::identity;
use outpost_sys::file::{self, Open};
use outpost_sys::pipe::{self, Moved};
use std::collections::VecDeque;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The most one splice moves to the child.
const SPLICE_BYTES: usize = 1024 * 1024;

/// A part of at least this size is followed by another one.
const PART_BYTES: u64 = 4 * 1024 * 1024;

/// What became of bytes offered to a child. Every answer tells how many bytes have been accepted altogether.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// Appended, all or the part that was new.
    Applied { applied: u64 },
    /// All of it had been accepted before; nothing was done.
    Duplicate { applied: u64 },
    /// The offset is past what has been accepted; nothing was done.
    Gap { applied: u64 },
    /// Too much would wait for the child to read it; nothing was done. `beyond` when more than may wait does already.
    Full { applied: u64, beyond: bool },
}

/// What one delivery did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Delivered {
    Bytes(usize),
    /// The pipe is full.
    WouldBlock,
    /// All that was accepted is delivered.
    End,
    /// The log goes on in another part. Nothing is delivered before the keeper holds its [`StdinLog::reader`] and
    /// [`StdinLog::held`] says so.
    NextPart,
    /// Nothing is delivered before a chore is done.
    Waits,
}

/// A file of the log.
pub(crate) struct Part {
    /// The offset of its first byte.
    base: u64,
    file: OwnedFd,
    reader: OwnedFd,
}

impl Part {
    /// Begins an empty part.
    pub(crate) fn create(path: &Path, base: u64) -> Result<Part> {
        let path = part_path(path, base);
        let file = file::open(&path, Open::Create).map_err(|errno| Error::io("create", &path, errno))?;
        file::set_size(&file, 0).map_err(|errno| Error::io("empty", &path, errno))?;
        let reader = file::open(&path, Open::Read).map_err(|errno| Error::io("open", &path, errno))?;
        Ok(Part { base, file, reader })
    }
}

/// The part that follows the last one.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Next {
    Unwanted,
    Wanted,
    UnderWay,
}

/// Bytes behind the last accepted one, of a message that was refused.
enum Refused {
    Uncut(Error),
    UnderWay(Error),
    Cut(Error),
}

pub struct StdinLog {
    /// Of the first part.
    path: PathBuf,
    /// The last part, and the offset of its first byte.
    file: Arc<OwnedFd>,
    base: u64,
    /// The part that is being delivered.
    reader: OwnedFd,
    reader_base: u64,
    /// Readers of the parts behind that, with the offsets of their first bytes.
    later: VecDeque<(u64, OwnedFd)>,
    /// The keeper does not hold `reader` yet.
    unheld: bool,
    /// Parts before the reader's, and those of them that can be removed because the keeper holds the reader.
    passed: Vec<u64>,
    removable: Vec<u64>,
    is_removing: bool,
    /// Files of such parts that are still open.
    unused: Vec<Arc<OwnedFd>>,
    next: Next,
    refused: Option<Refused>,
    accepted: u64,
    /// The child has closed its end: bytes are counted and forgotten.
    discards: bool,
}

impl StdinLog {
    /// The chore that begins a log at `path`.
    pub fn wanted(path: &Path) -> Chore {
        Chore(Work::Log { path: path.to_owned() })
    }

    /// Begins an empty log.
    pub(crate) fn create(path: &Path) -> Result<StdinLog> {
        let Part { base, file, reader } = Part::create(path, 0)?;
        Ok(StdinLog::at(path, (file, base), (reader, base), 0))
    }

    /// Goes on with a log whose reading description the keeper has kept.
    pub fn resume(path: &Path, reader: OwnedFd) -> Result<StdinLog> {
        let io = |errno| Error::io("look at", path, errno);
        let wanted = identity(&reader).map_err(io)?;
        for base in parts(path)? {
            let part = part_path(path, base);
            let file = file::open(&part, Open::Read).map_err(|errno| Error::io("open", &part, errno))?;
            if identity(&file).map_err(io)? == wanted {
                return StdinLog::from_part(path, reader, base);
            }
        }
        // All of its part was delivered, and the part is gone. Nothing of the next one was: the keeper never had it.
        let next = StdinLog::from_start(path)?;
        next.map(|log| StdinLog { unheld: true, ..log }).ok_or(Error::io("open", path, Errno::NOENT))
    }

    /// Goes on with a log of which nothing has been delivered yet; `None` when there is no log. The caller has the
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
        let size = file::size(&file).map_err(|errno| Error::io("look at", &part, errno))?;
        let mut log = StdinLog::at(path, (file, base), (reader, reader_base), base + size);
        for base in parts {
            if base < reader_base {
                log.passed.push(base);
            } else if base > reader_base {
                let part = part_path(path, base);
                let later = file::open(&part, Open::Read).map_err(|errno| Error::io("open", &part, errno))?;
                log.later.push_back((base, later));
            }
        }
        Ok(log)
    }

    fn at(path: &Path, last: (OwnedFd, u64), reader: (OwnedFd, u64), accepted: u64) -> StdinLog {
        let ((file, base), (reader, reader_base)) = (last, reader);
        StdinLog {
            path: path.to_owned(),
            file: Arc::new(file),
            base,
            reader,
            reader_base,
            later: VecDeque::new(),
            unheld: false,
            passed: Vec::new(),
            removable: Vec::new(),
            is_removing: false,
            unused: Vec::new(),
            next: Next::Unwanted,
            refused: None,
            accepted,
            discards: false,
        }
    }

    /// The work that is wanted now. Each piece is returned once.
    pub fn chores(&mut self) -> Vec<Chore> {
        let mut chores = Vec::new();
        let path = || self.path.clone();
        if self.next == Next::Wanted {
            self.next = Next::UnderWay;
            chores.push(Chore(Work::Part { path: path(), base: self.accepted }));
        }
        if let Some(Refused::Uncut(error)) = &self.refused {
            let size = self.accepted - self.base;
            chores.push(Chore(Work::Cut { file: self.file.clone(), size }));
            self.refused = Some(Refused::UnderWay(error.clone()));
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
                self.next = Next::Unwanted;
                let Part { base, file, reader } = outcome?;
                self.unused.push(std::mem::replace(&mut self.file, Arc::new(file)));
                self.base = base;
                self.later.push_back((base, reader));
                if self.discards {
                    self.read_next();
                }
            }
            Stdin::Cut => {
                if let Some(Refused::UnderWay(error)) = self.refused.take() {
                    self.refused = Some(Refused::Cut(error));
                }
            }
            Stdin::Removed => self.is_removing = false,
        }
        Ok(())
    }

    /// The description whose position is what was delivered, for the keeper to hold.
    pub fn reader(&self) -> &OwnedFd {
        &self.reader
    }

    /// The keeper holds the reader now.
    pub fn held(&mut self) {
        self.unheld = false;
    }

    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    pub fn delivered(&self) -> Result<u64> {
        let position =
            file::position(&self.reader).map_err(|errno| Error::io("look at", &self.path, errno))?;
        Ok(self.reader_base + position)
    }

    /// Takes bytes that begin at `offset` of the child's input, or at its end without one. All of the new part or none.
    /// `None` until a chore is done; then the caller offers the same bytes again before any others.
    pub fn accept(&mut self, offset: Option<u64>, data: &[u8], waiting_max: u64) -> Result<Option<Accepted>> {
        match self.refused.take() {
            Some(Refused::Cut(error)) => return Err(error),
            None => {}
            under_way => {
                self.refused = under_way;
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
            // Nothing at the very end is an append of nothing, not a repetition.
            Some(_) if known == 0 => return Ok(Some(Accepted::Applied { applied })),
            _ => return Ok(Some(Accepted::Duplicate { applied })),
        };
        // One message larger than the bound is taken when nothing waits: it could never be sent otherwise.
        let waiting = applied - self.delivered()?.min(applied);
        if waiting > 0 && waiting + fresh.len() as u64 > waiting_max {
            return Ok(Some(Accepted::Full { applied, beyond: waiting > waiting_max }));
        }
        if applied - self.base >= PART_BYTES {
            if self.next == Next::Unwanted {
                self.next = Next::Wanted;
            }
            return Ok(None);
        }
        let at = applied - self.base;
        let after = applied + fresh.len() as u64;
        let written = match (self.discards, fresh) {
            // The size counts them. They will not be read, so the rest is left a hole.
            (true, [.., last]) => file::write_all_at(&*self.file, &[*last], after - self.base - 1),
            _ => file::write_all_at(&*self.file, fresh, at),
        };
        if let Err(errno) = written {
            // The size must not count a part that we refuse.
            self.refused = Some(Refused::Uncut(Error::io("append to", &self.path, errno)));
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
        if self.unheld {
            return Ok(Delivered::NextPart);
        }
        self.removable.append(&mut self.passed);
        if self.refused.is_some() {
            return Ok(Delivered::Waits);
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

    /// Goes on with the next part; false when there is none.
    fn read_next(&mut self) -> bool {
        let Some((base, reader)) = self.later.pop_front() else { return false };
        self.passed.push(self.reader_base);
        self.unused.push(Arc::new(std::mem::replace(&mut self.reader, reader)));
        (self.reader_base, self.unheld) = (base, true);
        true
    }

    /// Whether the child has closed its end.
    pub fn discards(&self) -> bool {
        self.discards
    }

    /// Counts all that was accepted as delivered: the child will not read it.
    fn skip_all(&mut self) -> Result<()> {
        let end = self.accepted - self.reader_base;
        file::set_position(&self.reader, end).map_err(|errno| Error::io("skip", &self.path, errno))
    }

    /// How many bytes were accepted by the log that begins at `path`; 0 when there is none.
    pub fn accepted_by(path: &Path) -> Result<u64> {
        let Some(base) = parts(path)?.last().copied() else { return Ok(0) };
        let part = part_path(path, base);
        let size = file::open(&part, Open::Read).and_then(file::size);
        Ok(base + size.map_err(|errno| Error::io("look at", &part, errno))?)
    }

    /// Gives the room of a log back that will not be delivered any further. How much was accepted stays known, by the
    /// name of an empty last part.
    pub fn retire(path: &Path) -> Result<()> {
        let accepted = StdinLog::accepted_by(path)?;
        if accepted == 0 {
            return Ok(());
        }
        let last = part_path(path, accepted);
        let _empty = file::open(&last, Open::Create).map_err(|errno| Error::io("create", &last, errno))?;
        let passed: Vec<u64> = parts(path)?.into_iter().filter(|base| *base < accepted).collect();
        remove_parts(path, &passed);
        Ok(())
    }
}

fn part_path(path: &Path, base: u64) -> PathBuf {
    match base {
        0 => path.to_owned(),
        base => path.with_extension(base.to_string()),
    }
}

/// Where the parts of a log begin, in order.
fn parts(path: &Path) -> Result<Vec<u64>> {
    let (Some(dir), Some(first)) = (path.parent(), path.file_name().and_then(|name| name.to_str())) else {
        return Ok(Vec::new());
    };
    let names = file::open(dir, Open::Directory).and_then(file::names);
    let names = names.map_err(|errno| Error::io("list", dir, errno))?;
    let base = |name: &String| match name.strip_prefix(first)? {
        "" => Some(0),
        // Only the spelling that `part_path` makes.
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

/// Removes parts, oldest first. What cannot be removed now goes with the record.
pub(crate) fn remove_parts(path: &Path, bases: &[u64]) {
    for base in bases {
        let _goes_with_the_record = std::fs::remove_file(part_path(path, *base));
    }
}
