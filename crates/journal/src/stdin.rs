//! The stdin log: bytes accepted for a child, delivered exactly once whoever is killed in between.
//!
//! The size of the log is how many bytes were accepted. The position of the reading description, which the keeper
//! holds too, is how many were delivered; the kernel moves it in the same call that moves the bytes.

use crate::{Error, Result};
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use outpost_sys::pipe::{self, Moved};
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

/// The most one splice moves to the child.
const SPLICE_BYTES: usize = 1024 * 1024;

/// Delivered bytes this far behind may lose their blocks: a pipe holds references to the pages it was given, and no
/// pipe is larger than this.
const KEPT_BEHIND_BYTES: u64 = 4 * 1024 * 1024;

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

pub struct StdinLog {
    path: PathBuf,
    file: OwnedFd,
    reader: OwnedFd,
    accepted: u64,
    punched: u64,
    /// The child has closed its end: bytes are counted and forgotten.
    discards: bool,
}

impl StdinLog {
    /// Begins an empty log.
    pub fn create(path: &Path) -> Result<StdinLog> {
        let file = file::open(path, Open::Create).map_err(|errno| Error::io("create", path, errno))?;
        file::set_size(&file, 0).map_err(|errno| Error::io("empty", path, errno))?;
        let reader = file::open(path, Open::Read).map_err(|errno| Error::io("open", path, errno))?;
        Ok(StdinLog { path: path.to_owned(), file, reader, accepted: 0, punched: 0, discards: false })
    }

    /// Goes on with a log whose reading description the keeper has kept.
    pub fn resume(path: &Path, reader: OwnedFd) -> Result<StdinLog> {
        let file = file::open(path, Open::ReadWrite).map_err(|errno| Error::io("open", path, errno))?;
        let accepted = file::size(&file).map_err(|errno| Error::io("look at", path, errno))?;
        Ok(StdinLog { path: path.to_owned(), file, reader, accepted, punched: 0, discards: false })
    }

    /// Goes on with a log of which nothing has been delivered yet; `None` when there is no log.
    pub fn from_start(path: &Path) -> Result<Option<StdinLog>> {
        match file::open(path, Open::Read) {
            Ok(reader) => StdinLog::resume(path, reader).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(Error::io("open", path, errno)),
        }
    }

    /// The description whose position is what was delivered, for the keeper to hold.
    pub fn reader(&self) -> &OwnedFd {
        &self.reader
    }

    pub fn accepted(&self) -> u64 {
        self.accepted
    }

    pub fn delivered(&self) -> Result<u64> {
        file::position(&self.reader).map_err(|errno| Error::io("look at", &self.path, errno))
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
        if let Err(errno) = file::write_all_at(&self.file, fresh, applied) {
            // The size must not count a part that we refuse. If even this fails, the sender's next offset still fits.
            let _cut = file::set_size(&self.file, applied);
            return Err(Error::io("append to", &self.path, errno));
        }
        self.accepted = after;
        Ok(Accepted::Applied { applied: after })
    }

    /// Moves accepted bytes to the child's pipe. `End` when all that was accepted is delivered.
    pub fn deliver(&mut self, to: impl AsFd) -> Result<Moved> {
        if self.discards {
            return Ok(Moved::End);
        }
        match pipe::splice(&self.reader, to, SPLICE_BYTES) {
            Ok(moved) => {
                self.give_back_delivered();
                Ok(moved)
            }
            Err(Errno::PIPE) => {
                self.forget_up_to(self.accepted)?;
                self.discards = true;
                Ok(Moved::End)
            }
            Err(errno) => Err(Error::io("deliver", &self.path, errno)),
        }
    }

    /// Whether the child has closed its end.
    pub fn discards(&self) -> bool {
        self.discards
    }

    /// Counts bytes that nobody will read, without keeping them.
    fn forget_up_to(&mut self, accepted: u64) -> Result<Accepted> {
        file::set_size(&self.file, accepted).map_err(|errno| Error::io("extend", &self.path, errno))?;
        file::set_position(&self.reader, accepted).map_err(|errno| Error::io("skip", &self.path, errno))?;
        self.accepted = accepted;
        Ok(Accepted::Applied { applied: accepted })
    }

    /// Disk blocks of what was delivered long ago are not needed. Best effort: not every file system can.
    fn give_back_delivered(&mut self) {
        // Looked at first because it costs no system call. A child may be behind for ever, so not only at the end.
        if self.accepted < self.punched + 2 * KEPT_BEHIND_BYTES {
            return;
        }
        let Ok(delivered) = self.delivered() else { return };
        let end = delivered.saturating_sub(KEPT_BEHIND_BYTES) / 4096 * 4096;
        if end >= self.punched + KEPT_BEHIND_BYTES
            && file::punch_hole(&self.file, self.punched, end - self.punched).is_ok()
        {
            self.punched = end;
        }
    }
}
