//! Access to the host's files, behind a trait, so that tests can plan without any.

#[cfg(test)]
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::{self, ErrorKind::PermissionDenied};
use std::path::{Path, PathBuf};

/// The type of a file, without following links.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum FileKind {
    Missing,
    Directory,
    File,
    Link(PathBuf),
}

pub(crate) trait HostFs {
    fn kind(&self, path: &Path) -> io::Result<FileKind>;
    /// The first bytes of a file.
    fn head(&self, path: &Path) -> Option<String>;
    fn names(&self, directory: &Path) -> io::Result<Vec<(OsString, FileKind)>>;
    /// Whether this user, and so the command, could create a file in a directory.
    fn can_create_in(&self, directory: &Path) -> bool;
    /// Mount points of file systems whose files are kernel settings.
    fn kernel_mounts(&self) -> io::Result<Vec<PathBuf>>;
    /// Whether the path is a placeholder of a running command.
    fn is_placeholder(&self, path: &Path) -> bool;
}

/// The real host.
pub(crate) struct RealFs;

const HEAD_BYTES: u64 = 4096;

impl RealFs {
    fn of(path: &Path, kind: std::fs::FileType) -> FileKind {
        match kind {
            kind if kind.is_symlink() => {
                // Removed meanwhile: as good as dangling.
                std::fs::read_link(path).map_or(FileKind::Missing, FileKind::Link)
            }
            kind if kind.is_dir() => FileKind::Directory,
            _ => FileKind::File,
        }
    }
}

impl HostFs for RealFs {
    fn kind(&self, path: &Path) -> io::Result<FileKind> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        match std::fs::symlink_metadata(path) {
            Ok(found) => Ok(RealFs::of(path, found.file_type())),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(FileKind::Missing),
            Err(error) => Err(error),
        }
    }

    fn head(&self, path: &Path) -> Option<String> {
        use outpost_sys::file::{self, Open};
        use std::io::Read;
        let mut text = String::new();
        // It may be a FIFO without a writer.
        let file = std::fs::File::from(file::open(path, Open::Foreign).ok()?);
        file.take(HEAD_BYTES).read_to_string(&mut text).ok()?;
        Some(text)
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<(OsString, FileKind)>> {
        let entries = match std::fs::read_dir(directory) {
            // The command has the same user, so it sees nothing there either, unless that user owns the
            // directory.
            Err(error) if error.kind() == PermissionDenied && !is_ours(directory) => return Ok(Vec::new()),
            entries => entries?,
        };
        let kind = |entry: std::fs::DirEntry| {
            let kind = entry.file_type()?;
            Ok((entry.file_name(), RealFs::of(&entry.path(), kind)))
        };
        entries.map(|entry| kind(entry?)).collect()
    }

    fn can_create_in(&self, directory: &Path) -> bool {
        // An owner can grant itself the right.
        outpost_sys::file::can_write(directory) || is_ours(directory)
    }

    fn kernel_mounts(&self) -> io::Result<Vec<PathBuf>> {
        let table = std::fs::read(MOUNTS)?;
        Ok(table.split(|byte| *byte == b'\n').filter_map(kernel_mount).collect())
    }

    fn is_placeholder(&self, path: &Path) -> bool {
        // A directory that has disappeared since it was found was a placeholder.
        crate::placeholder::is_placeholder(path) || self.kind(path).ok() == Some(FileKind::Missing)
    }
}

/// The mount table of this process.
pub(crate) const MOUNTS: &str = "/proc/self/mountinfo";

/// File systems whose files root can write without any capability.
const KERNEL_TYPES: &[&[u8]] = &[
    b"proc",
    b"sysfs",
    b"cgroup",
    b"cgroup2",
    b"debugfs",
    b"tracefs",
    b"securityfs",
    b"configfs",
    b"bpf",
    b"efivarfs",
    b"pstore",
    b"binfmt_misc",
    b"selinuxfs",
    b"smackfs",
    b"fusectl",
    b"nfsd",
];

/// The mount point of a line, if its type is one of these. The fields are `… root mountpoint options … - type
/// source …`.
fn kernel_mount(line: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let mut fields = line.split(|byte| *byte == b' ');
    let mount_point = fields.nth(4)?;
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    KERNEL_TYPES.contains(&kind).then(|| OsString::from_vec(unescaped(mount_point)).into())
}

/// Resolves the octal escapes of the table (`\040` is a space).
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut plain = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits =
            after.get(..3).filter(|_| *first == b'\\').and_then(|digits| std::str::from_utf8(digits).ok());
        match digits.and_then(|digits| u8::from_str_radix(digits, 8).ok()) {
            Some(byte) => {
                plain.push(byte);
                rest = after.get(3..).unwrap_or_default();
            }
            None => {
                plain.push(*first);
                rest = after;
            }
        }
    }
    plain
}

fn is_ours(path: &Path) -> bool {
    use std::os::unix::fs::MetadataExt;
    let owner = std::fs::symlink_metadata(path).map(|metadata| metadata.uid());
    owner.is_ok_and(|owner| owner == outpost_sys::process::effective_uid())
}

/// A fake file tree and its kernel mount points.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct FakeFs(pub(crate) BTreeMap<PathBuf, (FileKind, String)>, pub(crate) Vec<PathBuf>);

#[cfg(test)]
impl FakeFs {
    /// Parses lines: `directory/`, `link -> target`, `file: text`, `directory/: placeholder`. Parents are
    /// created.
    pub(crate) fn of(lines: &[&str]) -> FakeFs {
        let mut fake = FakeFs::default();
        for line in lines {
            let (path, what) = match (line.split_once(" -> "), line.split_once(": "), line.strip_suffix('/'))
            {
                (Some((path, target)), ..) => (path, (FileKind::Link(target.into()), String::new())),
                (_, Some((path, text)), _) => match path.strip_suffix('/') {
                    Some(directory) => (directory, (FileKind::Directory, text.to_owned())),
                    None => (path, (FileKind::File, text.to_owned())),
                },
                (.., Some(path)) => (path, (FileKind::Directory, String::new())),
                _ => (*line, (FileKind::File, String::new())),
            };
            for parent in Path::new(path).ancestors().skip(1) {
                fake.0.entry(parent.into()).or_insert((FileKind::Directory, String::new()));
            }
            fake.0.insert(path.into(), what);
        }
        fake
    }
}

#[cfg(test)]
impl HostFs for FakeFs {
    fn kind(&self, path: &Path) -> io::Result<FileKind> {
        Ok(self.0.get(path).map_or(FileKind::Missing, |(kind, _)| kind.clone()))
    }

    fn head(&self, path: &Path) -> Option<String> {
        self.0.get(path).map(|(_, text)| text.clone())
    }

    fn names(&self, directory: &Path) -> io::Result<Vec<(OsString, FileKind)>> {
        let inside = self.0.iter().filter(|(path, _)| path.parent() == Some(directory));
        Ok(inside.filter_map(|(path, (kind, _))| Some((path.file_name()?.into(), kind.clone()))).collect())
    }

    fn can_create_in(&self, directory: &Path) -> bool {
        self.0.contains_key(directory)
    }

    fn kernel_mounts(&self) -> io::Result<Vec<PathBuf>> {
        Ok(self.1.clone())
    }

    /// A directory with the text `placeholder`.
    fn is_placeholder(&self, path: &Path) -> bool {
        self.0.get(path).is_some_and(|(kind, text)| *kind == FileKind::Directory && text == "placeholder")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_file_systems_are_found_in_the_table() {
        let line = |text: &str| kernel_mount(text.as_bytes());
        let proc = "36 35 0:30 / /srv/a\\040b/proc rw,relatime shared:1 master:2 - proc none rw";
        assert_eq!(line(proc), Some("/srv/a b/proc".into()));
        assert_eq!(line("36 35 0:30 / /x rw - cgroup2 none rw"), Some("/x".into()));
        assert_eq!(line("36 35 8:1 / /proc2 rw - ext4 /dev/sda proc"), None);
        assert_eq!(line(""), None);
    }
}
