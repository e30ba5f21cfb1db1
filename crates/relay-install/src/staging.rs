//! Staged files: created exclusively in the versions directory, renamed to their final name, or removed on drop.

use outpost_relay::go_compat;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{self, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Attempts to find an unused random name.
const NAME_ATTEMPTS_MAX: usize = 16;

/// A temporary file. Dropping the value removes the file unless it was installed.
pub(super) struct StagedFile {
    path: PathBuf,
    file: Option<File>,
    installed: bool,
}

impl StagedFile {
    /// Creates a file in `dir`. The error has the original's text.
    pub(super) fn create(dir: &Path, prefix: &str) -> Result<StagedFile, String> {
        let mut attempts = 0;
        loop {
            let path = dir.join(format!("{prefix}{:016x}", random()));
            // O_EXCL: never write to an existing file or through a symlink.
            let created = OpenOptions::new().read(true).write(true).create_new(true).mode(0o600).open(&path);
            match created {
                Ok(file) => return Ok(StagedFile { path, file: Some(file), installed: false }),
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists && attempts < NAME_ATTEMPTS_MAX =>
                {
                    attempts += 1;
                }
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

    /// The file, positioned at its start.
    pub(super) fn rewind(&mut self) -> Result<&mut File, String> {
        let StagedFile { path, file, .. } = self;
        let file = file.as_mut().ok_or_else(|| failed("seek", path, &closed()))?;
        file.rewind().map_err(|error| failed("seek", path, &error))?;
        Ok(file)
    }

    /// Sets the mode, syncs and closes the file. An exec of a file that is open for writing would fail with ETXTBSY.
    pub(super) fn make_executable(&mut self) -> Result<(), String> {
        let outcome =
            self.open_file().and_then(|file| file.set_permissions(PermissionsExt::from_mode(0o755)));
        outcome.map_err(|error| failed("chmod", &self.path, &error))?;
        // fsync before the rename: after a power failure the name must not refer to a partial file.
        let outcome = self.open_file().and_then(|file| file.sync_all());
        outcome.map_err(|error| failed("sync", &self.path, &error))?;
        self.file = None;
        Ok(())
    }

    /// Renames the file to `target` and replaces what is there.
    pub(super) fn install(mut self, target: &Path) -> Result<(), String> {
        clear_stale_dir(target)?;
        fs::rename(&self.path, target).map_err(|error| {
            format!("rename {} {}: {}", self.path.display(), target.display(), go_compat::io_text(&error))
        })?;
        self.installed = true;
        // The rename has succeeded. A failed fsync of the directory is not an installation error.
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let _best_effort = File::open(dir).and_then(|dir| dir.sync_all());
        Ok(())
    }

    fn open_file(&mut self) -> io::Result<&mut File> {
        self.file.as_mut().ok_or_else(closed)
    }
}

impl Drop for StagedFile {
    fn drop(&mut self) {
        if !self.installed {
            let _pruned_later = fs::remove_file(&self.path);
        }
    }
}

fn closed() -> io::Error {
    io::Error::from(outpost_sys::Errno::BADF)
}

fn failed(operation: &str, path: &Path, error: &io::Error) -> String {
    go_compat::path_error(operation, &path.display().to_string(), error)
}

/// Need not be unpredictable, because files are created with O_EXCL. It only has to differ between concurrent installations.
fn random() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    hasher.finish()
}

/// "a directory at cliPath is removed first". The rename itself replaces a symlink to a directory.
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

/// Creates a directory and its missing ancestors. The error names the directory that could not be created.
pub(super) fn create_dir_all(dir: &Path) -> Result<(), String> {
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
            // A concurrent process created it.
            Err(_) if dir.is_dir() => {}
            outcome => outcome.map_err(|error| failed("mkdir", dir, &error))?,
        }
    }
    Ok(())
}

/// Opens a file for reading. Does not block on a FIFO without a writer.
pub(super) fn open_nonblocking(path: &Path) -> io::Result<File> {
    const O_NONBLOCK: i32 =
        if cfg!(any(target_arch = "mips", target_arch = "mips64")) { 0o200 } else { 0o4000 };
    OpenOptions::new().read(true).custom_flags(O_NONBLOCK).open(path)
}

/// Removes `path` if it still names `file`. It can be the next upload by now, or the program that was just installed.
pub(super) fn remove_if_same(path: &Path, file: &File) {
    let same = |a: fs::Metadata, b: fs::Metadata| (a.dev(), a.ino()) == (b.dev(), b.ino());
    if let (Ok(named), Ok(opened)) = (path.metadata(), file.metadata())
        && same(named, opened)
    {
        let _best_effort = fs::remove_file(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_staged_file_is_private_and_removed_on_drop() {
        let dir = tempfile::tempdir().unwrap();
        let mut staged = StagedFile::create(dir.path(), ".blob-").unwrap();
        staged.write(b"x").unwrap();
        let found = staged.path().symlink_metadata().unwrap();
        assert_eq!((found.is_file(), found.permissions().mode() & 0o7777), (true, 0o600));
        let path = staged.path().to_owned();
        drop(staged);
        assert!(!path.exists());
    }

    #[test]
    fn a_creation_error_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let missing = dir.path().join("missing");
        let text = StagedFile::create(&missing, ".blob-").err().unwrap();
        assert!(text.starts_with(&format!("staging cli: open {}/.blob-", missing.display())), "{text}");
        assert!(text.ends_with(": no such file or directory"), "{text}");
    }

    #[test]
    fn an_error_names_the_directory_that_cannot_be_created() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        fs::write(&file, "").unwrap();
        assert_eq!(
            create_dir_all(&file.join("a/b")),
            Err(format!("mkdir {}: not a directory", file.display()))
        );
        let deep = dir.path().join("a/b/c");
        assert_eq!((create_dir_all(&deep), create_dir_all(&deep)), (Ok(()), Ok(())));
        assert!(deep.is_dir());
    }

    #[test]
    fn a_replaced_file_is_not_removed() {
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
    fn a_stale_directory_is_removed_and_a_symlink_to_one_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let kept = dir.path().join("kept");
        fs::create_dir_all(kept.join("inside")).unwrap();
        let (stale, link) = (dir.path().join("stale"), dir.path().join("link"));
        fs::create_dir_all(stale.join("inside")).unwrap();
        std::os::unix::fs::symlink(&kept, stale.join("inside/link")).unwrap();
        std::os::unix::fs::symlink(&kept, &link).unwrap();
        for target in [&stale, &link] {
            StagedFile::create(dir.path(), ".fetch-").unwrap().install(target).unwrap();
            assert!(target.symlink_metadata().unwrap().is_file());
        }
        assert!(kept.join("inside").is_dir());
    }
}
