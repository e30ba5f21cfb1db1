//! Copies skills and instructions into the project of a new session.

use crate::agents::Cli;
use outpost_sys::Errno;
use outpost_sys::beneath::Dir;
use std::ffi::OsStr;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

/// Limits for the copied tree: depth and number of files.
const DEPTH_MAX: usize = 16;
const FILES_MAX: usize = 10_000;

/// The result of a copy, for the log.
#[derive(Debug, Default, PartialEq, Eq)]
pub(crate) struct Synced {
    pub(crate) copied: usize,
    pub(crate) kept: usize,
    pub(crate) failed: Vec<String>,
}

/// Copies missing files into an existing project. Existing files are never overwritten. A failure does not fail the
/// session.
pub(crate) fn sync(source: &Path, project: &Path, cli: Cli) -> Synced {
    let mut synced = Synced::default();
    let profile = cli.profile();
    let top = match Dir::at(project) {
        Ok(top) => Target { dir: top, path: project.to_owned() },
        Err(errno) => {
            synced.failed.push(format!("{}: {errno}", project.display()));
            return synced;
        }
    };
    copy(&source.join(profile.instructions), &top, OsStr::new(profile.instructions), &mut synced);
    let skills: PathBuf = std::iter::once(source).chain(profile.skills.iter().map(Path::new)).collect();
    if !profile.skills.is_empty() && skills.is_dir() {
        match profile.skills.iter().try_fold(top, |dir, name| dir.below(name.as_ref())) {
            Ok(target) => copy_tree(&skills, &target, DEPTH_MAX, &mut synced),
            Err(why) => synced.failed.push(why),
        }
    }
    synced
}

/// An open directory of the project. Symlinks in the project, also ones created concurrently, must not redirect a copy.
struct Target {
    dir: Dir,
    path: PathBuf,
}

impl Target {
    /// Opens or creates a subdirectory. Never follows a symlink.
    fn below(&self, name: &OsStr) -> Result<Target, String> {
        let path = self.path.join(name);
        let dir = match self.dir.make_dir(name) {
            Err(Errno::EXIST) => self.dir.open_dir(Path::new(name)),
            made => made,
        };
        match dir {
            Ok(dir) => Ok(Target { dir, path }),
            Err(errno) => Err(format!("{}: {errno}", path.display())),
        }
    }
}

fn copy(from: &Path, to: &Target, name: &OsStr, synced: &mut Synced) {
    if !from.is_file() {
        return;
    }
    match copy_new(from, to, name) {
        Ok(()) => synced.copied += 1,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => synced.kept += 1,
        Err(error) => synced.failed.push(format!("{}: {error}", to.path.join(name).display())),
    }
}

/// Creates the file exclusively, so that an existing file or a dangling symlink makes it fail.
fn copy_new(from: &Path, to: &Target, name: &OsStr) -> io::Result<()> {
    let mut source = fs::File::open(from)?;
    let mut target = fs::File::from(to.dir.create_new_file(name)?);
    let copied = io::copy(&mut source, &mut target).and_then(|_| {
        let permissions = source.metadata()?.permissions();
        target.set_permissions(permissions)
    });
    if copied.is_err() {
        let _half = to.dir.remove_file(name);
    }
    copied
}

fn copy_tree(from: &Path, to: &Target, depth: usize, synced: &mut Synced) {
    if depth == 0 || synced.copied + synced.kept > FILES_MAX {
        synced.failed.push(format!("{}: too deep or too many files", to.path.display()));
        return;
    }
    let Ok(entries) = fs::read_dir(from) else { return };
    for entry in entries.flatten() {
        let (source, name) = (entry.path(), entry.file_name());
        match source.metadata() {
            Ok(metadata) if metadata.is_dir() => match to.below(&name) {
                Ok(below) => copy_tree(&source, &below, depth - 1, synced),
                Err(why) => synced.failed.push(why),
            },
            Ok(_) => copy(&source, to, &name, synced),
            Err(error) => synced.failed.push(format!("{}: {error}", source.display())),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn missing_files_are_copied_and_existing_ones_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (source, project) = (dir.path().join("skills"), dir.path().join("project"));
        fs::create_dir_all(source.join(".claude/skills/a")).unwrap();
        fs::create_dir_all(&project).unwrap();
        fs::write(source.join("CLAUDE.md"), "theirs").unwrap();
        fs::write(source.join("AGENTS.md"), "agents").unwrap();
        let script = source.join(".claude/skills/a/run.sh");
        fs::write(&script, "run").unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(0o750)).unwrap();
        fs::write(project.join("CLAUDE.md"), "mine").unwrap();
        let synced = sync(&source, &project, Cli::Claude);
        assert_eq!((synced.copied, synced.kept, synced.failed.len()), (1, 1, 0));
        assert_eq!(fs::read_to_string(project.join("CLAUDE.md")).unwrap(), "mine");
        let copied = project.join(".claude/skills/a/run.sh");
        assert_eq!(fs::metadata(copied).unwrap().permissions().mode() & 0o777, 0o750);
        assert!(!project.join("AGENTS.md").exists());
        let again = sync(&source, &project, Cli::Claude);
        assert_eq!((again.copied, again.kept), (0, 2));
    }

    #[test]
    fn a_symlink_in_the_project_redirects_no_copy() {
        let dir = tempfile::tempdir().unwrap();
        let (source, project, outside) =
            (dir.path().join("skills"), dir.path().join("project"), dir.path().join("outside"));
        fs::create_dir_all(source.join(".claude/skills/a")).unwrap();
        fs::write(source.join(".claude/skills/a/x"), "x").unwrap();
        fs::write(source.join("CLAUDE.md"), "theirs").unwrap();
        fs::create_dir_all(project.join(".claude")).unwrap();
        fs::create_dir_all(&outside).unwrap();
        std::os::unix::fs::symlink(&outside, project.join(".claude/skills")).unwrap();
        std::os::unix::fs::symlink(outside.join("made"), project.join("CLAUDE.md")).unwrap();
        let synced = sync(&source, &project, Cli::Claude);
        assert_eq!((synced.copied, synced.kept, synced.failed.len()), (0, 1, 1));
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
        // A symlink in place of `.claude` itself is not followed either.
        fs::remove_file(project.join(".claude/skills")).unwrap();
        fs::remove_dir(project.join(".claude")).unwrap();
        std::os::unix::fs::symlink(&outside, project.join(".claude")).unwrap();
        assert_eq!(sync(&source, &project, Cli::Claude).failed.len(), 1);
        assert_eq!(fs::read_dir(&outside).unwrap().count(), 0);
    }
}
