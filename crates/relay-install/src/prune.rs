//! Deletes old versions and the temporary files of crashed installations.

use super::names;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::Path;
use std::time::{Duration, SystemTime};

/// A younger file may belong to a running installation.
const TEMPORARY_AGE_MIN: Duration = Duration::from_secs(60 * 60);

/// Keeps the `keep` newest versions, and always `installed`. 0 or less keeps all. Ignores errors, because the installation
/// has succeeded.
pub(super) fn prune(dir: &Path, installed: &str, keep: i64) {
    let Ok(keep @ 1..) = usize::try_from(keep) else { return };
    let Ok(entries) = fs::read_dir(dir) else { return };
    let now = SystemTime::now();
    let mut versions: Vec<(SystemTime, OsString)> = Vec::new();
    for entry in entries.flatten() {
        let name = entry.file_name();
        // `DirEntry::metadata` does not follow symlinks.
        let Ok(found) = entry.metadata() else { continue };
        if !found.is_file() || name == OsStr::new(installed) {
            continue;
        }
        let modified = found.modified().unwrap_or(SystemTime::UNIX_EPOCH);
        if !names::is_temporary(name.as_encoded_bytes()) {
            versions.push((modified, name));
        } else if now.duration_since(modified).is_ok_and(|age| age > TEMPORARY_AGE_MIN) {
            remove(dir, &name);
        }
    }
    // The name breaks ties, so that concurrent prunes agree.
    versions.sort_by(|a, b| b.cmp(a));
    for (_, name) in versions.iter().skip(keep - 1) {
        remove(dir, name);
    }
}

/// If the entry has become a symlink, this removes the symlink.
fn remove(dir: &Path, name: &OsStr) {
    let _best_effort = fs::remove_file(dir.join(name));
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::File;
    use std::os::unix::ffi::OsStrExt;
    use std::os::unix::fs::symlink;

    /// Creates files, each with its age in minutes.
    fn dir_with(files: &[(&str, u64)]) -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, minutes) in files {
            let file = File::create(dir.path().join(name)).unwrap();
            file.set_modified(SystemTime::now() - Duration::from_secs(60 * minutes)).unwrap();
        }
        dir
    }

    fn names(dir: &Path) -> Vec<String> {
        let entries = fs::read_dir(dir).unwrap();
        let mut names: Vec<_> =
            entries.map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned()).collect();
        names.sort();
        names
    }

    #[test]
    fn the_newest_versions_and_the_installed_one_are_kept() {
        let dir = dir_with(&[("old", 4), ("new", 1), ("installed", 1000), ("middle", 3)]);
        prune(dir.path(), "installed", 3);
        assert_eq!(names(dir.path()), ["installed", "middle", "new"]);
        prune(dir.path(), "installed", 1);
        assert_eq!(names(dir.path()), ["installed"]);
    }

    #[test]
    fn nothing_is_deleted_when_pruning_is_off() {
        for keep in [0, -1, i64::MIN] {
            let dir = dir_with(&[("a", 1), ("b", 2), (".fetch-1", 1000)]);
            prune(dir.path(), "a", keep);
            assert_eq!(names(dir.path()), [".fetch-1", "a", "b"], "{keep}");
        }
        let dir = dir_with(&[("a", 1), ("b", 2)]);
        prune(dir.path(), "a", i64::MAX);
        assert_eq!(names(dir.path()), ["a", "b"]);
    }

    #[test]
    fn old_temporary_files_are_deleted_and_never_counted() {
        let dir = dir_with(&[
            (".fetch-young", 59),
            (".fetch-old", 61),
            (".blob-young", 0),
            (".blob-old", 61),
            ("young.zst", 1),
            ("old.zst", 61),
            ("version", 500),
            ("installed", 0),
        ]);
        prune(dir.path(), "installed", 2);
        assert_eq!(names(dir.path()), [".blob-young", ".fetch-young", "installed", "version", "young.zst"]);
    }

    #[test]
    fn symlinks_and_directories_are_not_counted_followed_or_deleted() {
        let outside = dir_with(&[("target", 500)]);
        let dir = dir_with(&[("a", 500), ("b", 600), ("installed", 0)]);
        fs::create_dir(dir.path().join("directory")).unwrap();
        fs::create_dir(dir.path().join(".fetch-directory")).unwrap();
        for name in ["link", ".fetch-link", "link.zst"] {
            symlink(outside.path().join("target"), dir.path().join(name)).unwrap();
        }
        symlink("/nowhere", dir.path().join("dangling")).unwrap();
        symlink(outside.path(), dir.path().join("link-to-directory")).unwrap();
        prune(dir.path(), "installed", 2);
        let expected = [
            ".fetch-directory",
            ".fetch-link",
            "a",
            "dangling",
            "directory",
            "installed",
            "link",
            "link-to-directory",
            "link.zst",
        ];
        assert_eq!(names(dir.path()), expected);
        assert_eq!(names(outside.path()), ["target"]);
    }

    #[test]
    fn names_that_are_not_utf8_and_future_times_are_handled() {
        let dir = dir_with(&[("installed", 0), ("a", 5)]);
        let future = SystemTime::now() + Duration::from_secs(100_000);
        for name in [b"\xff\xfe".as_slice(), b".fetch-\xff", b"new\nline"] {
            File::create(dir.path().join(OsStr::from_bytes(name))).unwrap().set_modified(future).unwrap();
        }
        prune(dir.path(), "installed", 1);
        assert_eq!(names(dir.path()), [".fetch-\u{fffd}", "installed"]);
    }
}
