//! The archive's file: opened without waiting, read by position, and its name removed when all is over.

use crate::extract::failed;
use outpost_sys::beneath::{Dir, Identity, identity};
use outpost_sys::{Errno, file};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

pub(super) struct Archive<'a> {
    pub(super) path: &'a str,
    file: File,
    opened: Identity,
    /// Held, so that the name is looked up in the same directory at the end, wherever that has gone.
    parent: Dir,
    name: &'a OsStr,
}

impl<'a> Archive<'a> {
    pub(super) fn open(path: &'a str) -> Result<Archive<'a>, String> {
        let opening = |errno| failed("open", path, errno);
        let (parent, name) = match path.rsplit_once('/') {
            Some(("", name)) => ("/", name),
            Some((parent, name)) => (parent, name),
            None => (".", path),
        };
        if matches!(name, "" | "." | "..") {
            // It can only be a directory, but why it is none is for the kernel to say.
            return Err(Dir::at(Path::new(path)).map_or_else(opening, |_| is_a_directory(path)));
        }
        let (parent, name) = (Dir::at(Path::new(parent)).map_err(opening)?, OsStr::new(name));
        let file = File::from(parent.open_any(name).map_err(opening)?);
        let found = file.metadata().map_err(|error| crate::go::path_error("stat", path, &error))?;
        if found.is_dir() {
            return Err(is_a_directory(path));
        }
        if !found.is_file() {
            // Its bytes come once, or without end, and it is not ours to remove.
            return Err(format!("open {path}: not a regular file"));
        }
        let opened = identity(&file).map_err(|errno| failed("stat", path, errno))?;
        Ok(Archive { path, file, opened, parent, name })
    }

    pub(super) fn reader(&self) -> Reader<'_> {
        Reader { file: &self.file, offset: 0 }
    }

    /// "archivePath is consumed — removed on every outcome once opened". A file that took the name since is not it.
    pub(super) fn consume(self) {
        if let Err(errno) = self.parent.remove_same(self.name, self.opened) {
            tracing::warn!(path = self.path, %errno, "cannot remove the archive");
        }
    }
}

/// As the original, which opens a directory and fails at the first read.
fn is_a_directory(path: &str) -> String {
    format!("gzip: {}", failed("read", path, Errno::ISDIR))
}

/// The archive's bytes from the start.
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
