//! The archive file: opens it without blocking, reads it by offset, and removes it at the end.

use crate::extract::error::ExtractError;
use outpost_sys::beneath::{Dir, FileId, file_id};
use outpost_sys::{Errno, file};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub(super) struct Archive<'a> {
    pub(super) path: &'a str,
    file: File,
    opened: FileId,
    /// Kept open, so that the removal finds the name in the same directory, also if that directory is moved.
    parent: Dir,
    name: &'a OsStr,
}

impl<'a> Archive<'a> {
    pub(super) fn open(path: &'a str) -> Result<Archive<'a>, ExtractError> {
        let opening = |errno| ExtractError::path("open", path, errno);
        let (parent, name) = match path.rsplit_once('/') {
            Some(("", name)) => ("/", name),
            Some((parent, name)) => (parent, name),
            None => (".", path),
        };
        if matches!(name, "" | "." | "..") {
            // Such a path can only be a directory. If it is none, the kernel's error is the reply.
            return Err(Dir::at(Path::new(path)).map_or_else(opening, |_| is_a_directory(path)));
        }
        let (parent, name) = (Dir::at(Path::new(parent)).map_err(opening)?, OsStr::new(name));
        let file = File::from(parent.open_any(name).map_err(opening)?);
        let stat = |error: io::Error| {
            ExtractError::path("stat", path, Errno::from_io_error(&error).unwrap_or(Errno::IO))
        };
        let found = file.metadata().map_err(stat)?;
        if found.is_dir() {
            return Err(is_a_directory(path));
        }
        if !found.is_file() {
            // A FIFO or device can block or be endless, and must not be removed.
            return Err(ExtractError::NotRegular(path.to_owned()));
        }
        let opened = file_id(&file).map_err(|errno| ExtractError::path("stat", path, errno))?;
        Ok(Archive { path, file, opened, parent, name })
    }

    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { file: &self.file, offset: 0 }
    }

    /// "archivePath is consumed — removed on every outcome once opened". Does not remove a file that has replaced the
    /// archive since.
    pub(super) fn consume(self) {
        if let Err(errno) = self.parent.remove_same(self.name, self.opened) {
            tracing::warn!(path = self.path, %errno, "cannot remove the archive");
        }
    }
}

/// The original opens a directory and fails at the first read.
fn is_a_directory(path: &str) -> ExtractError {
    ExtractError::path("read", path, Errno::ISDIR).stream()
}

/// Reads the archive from the start.
pub(super) struct Reader<'a> {
    file: &'a File,
    pub(super) offset: u64,
}

impl Read for Reader<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let read = file::read_at(self.file, buffer, self.offset)?;
        self.offset += read as u64;
        Ok(read)
    }
}
