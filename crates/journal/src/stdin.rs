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

use crate::{Error, Result};
use outpost_sys::Errno;
use outpost_sys::beneath::identity;
use outpost_sys::file::{self, Open};
use outpost_sys::pipe::{self, Moved};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

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
}

pub struct StdinLog {
    /// Of the first part.
    path: PathBuf,
    /// The last part, and the offset of its first byte.
    file: OwnedFd,
    base: u64,
    /// The part that is being delivered.
    reader: OwnedFd,
    reader_base: u64,
    /// The keeper does not hold `reader` yet.
    unheld: bool,
    /// There may be parts before the reader's.
    passed: bool,
    accepted: u64,
    /// The child has closed its end: bytes are counted and forgotten.
    discards: bool,
}

impl StdinLog {
    /// Begins an empty log. The caller has the keeper hold the reader before the first delivery.
    pub fn create(path: &Path) -> Result<StdinLog> {
        let file = file::open(path, Open::Create).map_err(|errno| Error::io("create", path, errno))?;
        file::set_size(&file, 0).map_err(|errno| Error::io("empty", path, errno))?;
        let reader = file::open(path, Open::Read).map_err(|errno| Error::io("open", path, errno))?;
        Ok(StdinLog::at(path, (file, 0), (reader, 0), 0))
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
        let base = parts(path)?.last().copied().unwrap_or(reader_base);
        let part = part_path(path, base);
        let file = file::open(&part, Open::ReadWrite).map_err(|errno| Error::io("open", &part, errno))?;
        let size = file::size(&file).map_err(|errno| Error::io("look at", &part, errno))?;
        Ok(StdinLog::at(path, (file, base), (reader, reader_base), base + size))
    }

    fn at(path: &Path, last: (OwnedFd, u64), reader: (OwnedFd, u64), accepted: u64) -> StdinLog {
        let ((file, base), (reader, reader_base)) = (last, reader);
        StdinLog {
            path: path.to_owned(),
            file,
            base,
            reader,
            reader_base,
            unheld: false,
            passed: reader_base > 0,
            accepted,
            discards: false,
        }
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
    pub fn accept(&mut self, offset: Option<u64>, data: &[u8], waiting_max: u64) -> Result<Accepted> {
        let applied = self.accepted;
        let offset = offset.unwrap_or(applied);
        if offset > applied {
            return Ok(Accepted::Gap { applied });
        }
        let known = applied - offset;
        let fresh = match usize::try_from(known).ok().and_then(|known| data.get(known..)) {
            Some(fresh) if !fresh.is_empty() => fresh,
            // Nothing at the very end is an append of nothing, not a repetition.
            Some(_) if known == 0 => return Ok(Accepted::Applied { applied }),
            _ => return Ok(Accepted::Duplicate { applied }),
        };
        let after = applied + fresh.len() as u64;
        if self.discards {
            return self.forget_up_to(after);
        }
        // One message larger than the bound is taken when nothing waits: it could never be sent otherwise.
        let waiting = applied - self.delivered()?.min(applied);
        if waiting > 0 && waiting + fresh.len() as u64 > waiting_max {
            return Ok(Accepted::Full { applied, beyond: waiting > waiting_max });
        }
        if applied - self.base >= PART_BYTES {
            self.begin_part()?;
        }
        if let Err(errno) = file::write_all_at(&self.file, fresh, applied - self.base) {
            // The size must not count a part that we refuse. If even this fails, the sender's next offset still fits.
            let _cut = file::set_size(&self.file, applied - self.base);
            return Err(Error::io("append to", &self.path, errno));
        }
        self.accepted = after;
        Ok(Accepted::Applied { applied: after })
    }

    fn begin_part(&mut self) -> Result<()> {
        let part = part_path(&self.path, self.accepted);
        self.file = file::open(&part, Open::Create).map_err(|errno| Error::io("create", &part, errno))?;
        self.base = self.accepted;
        Ok(())
    }

    /// Moves accepted bytes to the child's pipe.
    pub fn deliver(&mut self, to: impl AsFd) -> Result<Delivered> {
        if self.unheld {
            return Ok(Delivered::NextPart);
        }
        self.remove_passed();
        if self.discards {
            return Ok(Delivered::End);
        }
        match pipe::splice(&self.reader, to, SPLICE_BYTES) {
            Ok(Moved::Bytes(count)) => Ok(Delivered::Bytes(count)),
            Ok(Moved::WouldBlock) => Ok(Delivered::WouldBlock),
            Ok(Moved::End) if self.reader_base < self.base => self.read_from(self.delivered()?),
            Ok(Moved::End) => Ok(Delivered::End),
            Err(Errno::PIPE) => {
                let outcome = match self.reader_base < self.base {
                    true => self.read_from(self.base)?,
                    false => Delivered::End,
                };
                self.forget_up_to(self.accepted)?;
                self.discards = true;
                Ok(outcome)
            }
            Err(errno) => Err(Error::io("deliver", &self.path, errno)),
        }
    }

    /// Goes on with the part that begins at `base`.
    fn read_from(&mut self, base: u64) -> Result<Delivered> {
        let part = part_path(&self.path, base);
        self.reader = file::open(&part, Open::Read).map_err(|errno| Error::io("open", &part, errno))?;
        self.reader_base = base;
        (self.unheld, self.passed) = (true, true);
        Ok(Delivered::NextPart)
    }

    /// Whether the child has closed its end.
    pub fn discards(&self) -> bool {
        self.discards
    }

    /// Counts bytes that nobody will read, without keeping them.
    fn forget_up_to(&mut self, accepted: u64) -> Result<Accepted> {
        let size = accepted - self.base;
        file::set_size(&self.file, size).map_err(|errno| Error::io("extend", &self.path, errno))?;
        file::set_position(&self.reader, size).map_err(|errno| Error::io("skip", &self.path, errno))?;
        self.accepted = accepted;
        Ok(Accepted::Applied { applied: accepted })
    }

    /// Removes the parts that are delivered. What cannot be removed now goes with the next part, or with the record.
    fn remove_passed(&mut self) {
        if std::mem::take(&mut self.passed)
            && let Ok(parts) = parts(&self.path)
        {
            remove_before(&self.path, &parts, self.reader_base);
        }
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
        remove_before(path, &parts(path)?, accepted);
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

fn remove_before(path: &Path, parts: &[u64], end: u64) {
    for base in parts.iter().filter(|base| **base < end) {
        let _goes_with_the_record = std::fs::remove_file(part_path(path, *base));
    }
}
