//! Files on their way into the directory of versions: created for us alone, removed unless they arrive.

use crate::go;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// How often another name is tried when one is taken. Two in a row are already next to impossible.
const NAMES_MAX: usize = 16;

/// A file that disappears with this value, unless it was installed.
pub(super) struct Staging {
    path: PathBuf,
    file: Option<File>,
    installed: bool,
}

impl Staging {
    /// A new file of ours in `dir`; the text of the error is the original's.
    pub(super) fn create(dir: &Path, prefix: &str) -> Result<Staging, String> {
        let mut tried = 0;
        loop {
            let path = dir.join(format!("{prefix}{:016x}", random()));
            // Exclusive: whatever stands there already, a link too, is not ours to write to.
            let created = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
            match created {
                Ok(file) => return Ok(Staging { path, file: Some(file), installed: false }),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists && tried < NAMES_MAX => tried += 1,
                Err(error) => return Err(format!("staging cli: {}", failed("open", &path, &error))),
            }
        }
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    pub(super) fn write(&mut self, bytes: &[u8]) -> Result<(), String> {
        let outcome = self.open_file().and_then(|file| file.write_all(bytes));
        outcome.map_err(|error| failed("write", &self.path, &error))
    }

    /// The file, to be read from its beginning.
    pub(super) fn rewound(&mut self) -> Result<&mut File, String> {
        let Staging { path, file, .. } = self;
        let file = file.as_mut().ok_or_else(|| failed("seek", path, &closed()))?;
        file.rewind().map_err(|error| failed("seek", path, &error))?;
        Ok(file)
    }

    /// Makes it executable and closes it: a file that is open for writing cannot be executed.
    pub(super) fn make_program(&mut self) -> Result<(), String> {
        let outcome =
            self.open_file().and_then(|file| file.set_permissions(PermissionsExt::from_mode(0o755)));
        outcome.map_err(|error| failed("chmod", &self.path, &error))?;
        // The name must never lead to a half of it, also not after a power failure.
        let outcome = self.open_file().and_then(|file| file.sync_all());
        outcome.map_err(|error| failed("sync", &self.path, &error))?;
        self.file = None;
        Ok(())
    }

    /// Gives it its name, in place of what had it.
    pub(super) fn install(mut self, target: &Path) -> Result<(), String> {
        clear_stale_dir(target)?;
        fs::rename(&self.path, target).map_err(|error| {
            format!("rename {} {}: {}", self.path.display(), target.display(), go::io_text(&error))
        })?;
        self.installed = true;
        // The name is there for everybody; that a power failure may still undo it is no reason to say it failed.
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let _best_effort = File::open(dir).and_then(|dir| dir.sync_all());
        Ok(())
    }

    fn open_file(&mut self) -> io::Result<&mut File> {
        self.file.as_mut().ok_or_else(closed)
    }
}

impl Drop for Staging {
    fn drop(&mut self) {
        if !self.installed {
            let _swept_later = fs::remove_file(&self.path);
        }
    }
}

fn closed() -> io::Error {
    io::Error::from(outpost_sys::Errno::BADF)
}

fn failed(operation: &str, path: &Path, error: &io::Error) -> String {
    go::path_error(operation, &path.display().to_string(), error)
}

/// Not a secret: the file is created exclusively. It only has to differ between those who install at the same time.
fn random() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

/// "a directory at cliPath is removed first". A link to one is replaced by the rename itself.
fn clear_stale_dir(target: &Path) -> Result<(), String> {
    if !target.symlink_metadata().is_ok_and(|found| found.is_dir()) {
        return Ok(());
    }
    match fs::remove_dir_all(target) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            let path = target.display();
            Err(format!("clearing stale dir at {path}: {}", failed("unlinkat", target, &error)))
        }
        _ => Ok(()),
    }
}

/// Creates a directory and those above it. The error names the one that could not be.
pub(super) fn make_dir(dir: &Path) -> Result<(), String> {
    let mut missing = Vec::new();
    for dir in dir.ancestors().filter(|dir| !dir.as_os_str().is_empty()) {
        match dir.metadata() {
            Ok(found) if found.is_dir() => break,
            Ok(_) => return Err(failed("mkdir", dir, &outpost_sys::Errno::NOTDIR.into())),
            Err(_) => missing.push(dir),
        }
    }
    for dir in missing.into_iter().rev() {
        match DirBuilder::new().mode(0o755).create(dir) {
            // Somebody else was faster.
            Err(_) if dir.is_dir() => {}
            outcome => outcome.map_err(|error| failed("mkdir", dir, &error))?,
        }
    }
    Ok(())
}

/// Opens a file for reading; a pipe without a writer does not hold us.
pub(super) fn open_without_waiting(path: &Path) -> io::Result<File> {
    const O_NONBLOCK: i32 =
        if cfg!(any(target_arch = "mips", target_arch = "mips64")) { 0o200 } else { 0o4000 };
    OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)
}

/// Removes a name if it still leads to this file: by now it may be the next upload, or the very program that was
/// installed from it.
pub(super) fn remove_if_same(path: &Path, file: &File) {
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    if let (Ok(named), Ok(opened)) = (path.metadata(), file.metadata())
        && same(named, opened)
    {
        let _left_behind = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staged_file_is_ours_alone_and_goes_with_its_owner() {
        let dir = tempfile::tempdir().unwrap();
        let mut staged = Staging::create(dir.path(), ".blob-").unwrap();
        staged.write(b"x").unwrap();
        let found = staged.path().symlink_metadata().unwrap();
        assert_eq!((found.is_file(), found.permissions().mode() & 0o7777), (true, 0o600));
        let path = staged.path().to_owned();
        drop(staged);
        assert!(!path.exists());
    }

    #[test]
    fn what_cannot_be_created_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let text = Staging::create(&missing, ".blob-").err().unwrap();
        assert!(text.starts_with(&format!("staging cli: open {}/.blob-", missing.display())), "{text}");
        assert!(text.ends_with(": no such file or directory"), "{text}");
    }

    #[test]
    fn the_directory_that_cannot_be_made_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(make_dir(&file.join("a/b")), Err(format!("mkdir {}: not a directory", file.display())));
        let deep = dir.path().join("a/b/c");
        assert_eq!((make_dir(&deep), make_dir(&deep)), (Ok(()), Ok(())));
        assert!(deep.is_dir());
    }

    #[test]
    fn a_name_that_leads_elsewhere_by_now_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        fs::write(&path, "old").unwrap();
        let opened = File::open(&path).unwrap();
        fs::write(dir.path().join("y"), "new").unwrap();
        fs::rename(dir.path().join("y"), &path).unwrap();
        remove_if_same(&path, &opened);
        assert_eq!(fs::read(&path).unwrap(), b"new");
        remove_if_same(&path, &File::open(&path).unwrap());
        assert!(!path.exists());
    }

    #[test]
    fn a_stale_directory_makes_way_and_a_link_to_one_is_only_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        fs::create_dir_all(kept.join("inside")).unwrap();
        let (stale, link) = (dir.path().join("stale"), dir.path().join("link"));
        fs::create_dir_all(stale.join("inside")).unwrap();
        std::os::unix::fs::symlink(&kept, stale.join("inside/link")).unwrap();
        std::os::unix::fs::symlink(&kept, &link).unwrap();
        for target in [&stale, &link] {
            Staging::create(dir.path(), ".fetch-").unwrap().install(target).unwrap();
            assert!(target.symlink_metadata().unwrap().is_file());
        }
        assert!(kept.join("inside").is_dir());
    }
}
