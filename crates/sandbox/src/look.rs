//! Looking at the host's files: behind a trait, so that a plan can be made without any.

#[cfg(test)]
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::io::ErrorKind::PermissionDenied;
use std::path::{Path, PathBuf};

/// What is at a path, without following it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Missing,
    Directory,
    File,
    Link(PathBuf),
}

pub(crate) trait Look {
    /// The error is why it cannot be seen.
    fn kind(&self, path: &Path) -> Result<Kind, String>;
    /// The first bytes of a file.
    fn head(&self, path: &Path) -> Option<String>;
    fn names(&self, directory: &Path) -> Result<Vec<(OsString, Kind)>, String>;
    /// Whether something could be made in a directory by us, or by a command that acts as the same user.
    fn can_make_in(&self, directory: &Path) -> bool;
    /// Where file systems are mounted whose files are the kernel's settings, wherever that is.
    fn kernel_mounts(&self) -> Result<Vec<PathBuf>, String>;
    /// Whether it is a directory that only stands there because commands run that must not make it.
    fn is_lease(&self, path: &Path) -> bool;
}

/// The host as it is.
pub(crate) struct Real;

const HEAD_BYTES: u64 = 4096;

impl Real {
    fn of(path: &Path, kind: std::fs::FileType) -> Kind {
        match kind {
            kind if kind.is_symlink() => {
                // Gone meanwhile: as good as dangling.
                std::fs::read_link(path).map_or(Kind::Missing, Kind::Link)
            }
            kind if kind.is_dir() => Kind::Directory,
            _ => Kind::File,
        }
    }
}

impl Look for Real {
    fn kind(&self, path: &Path) -> Result<Kind, String> {
        use std::io::ErrorKind::{NotADirectory, NotFound};
        match std::fs::symlink_metadata(path) {
            Ok(found) => Ok(Real::of(path, found.file_type())),
            Err(error) if matches!(error.kind(), NotFound | NotADirectory) => Ok(Kind::Missing),
            Err(error) => Err(error.to_string()),
        }
    }

    fn head(&self, path: &Path) -> Option<String> {
        use outpost_sys::file::{self, Open};
        use std::io::Read;
        let mut text = String::new();
        // It may be a pipe without a writer.
        let file = std::fs::File::from(file::open(path, Open::Foreign).ok()?);
        file.take(HEAD_BYTES).read_to_string(&mut text).ok()?;
        Some(text)
    }

    fn names(&self, directory: &Path) -> Result<Vec<(OsString, Kind)>, String> {
        let entries = match std::fs::read_dir(directory) {
            // Nothing in it for the command either, which is the same user, and cannot open it up unless that owns it.
            Err(error) if error.kind() == PermissionDenied && !is_ours(directory) => return Ok(Vec::new()),
            entries => entries.map_err(|error| error.to_string())?,
        };
        let kind = |entry: std::fs::DirEntry| {
            let kind = entry.file_type().map_err(|error| error.to_string())?;
            Ok((entry.file_name(), Real::of(&entry.path(), kind)))
        };
        entries.map(|entry| entry.map_err(|error| error.to_string()).and_then(kind)).collect()
    }

    fn can_make_in(&self, directory: &Path) -> bool {
        // An owner may give itself the right.
        outpost_sys::file::can_write(directory) || is_ours(directory)
    }

    fn kernel_mounts(&self) -> Result<Vec<PathBuf>, String> {
        let table = std::fs::read(MOUNTS).map_err(|error| error.to_string())?;
        Ok(table.split(|byte| *byte == b'\n').filter_map(kernel_mount).collect())
    }

    fn is_lease(&self, path: &Path) -> bool {
        // One that was there when it was looked at and is gone now was one.
        crate::lease::is_lease(path) || self.kind(path) == Ok(Kind::Missing)
    }
}

/// What is mounted where, as we see it.
pub(crate) const MOUNTS: &str = "/proc/self/mountinfo";

/// Root need not have any right to write to their files: being root is enough.
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

/// Where a line of the table says that one is. Its fields: `… root place options … - type source …`.
fn kernel_mount(line: &[u8]) -> Option<PathBuf> {
    use std::os::unix::ffi::OsStringExt;
    let mut fields = line.split(|byte| *byte == b' ');
    let place = fields.nth(4)?;
    let kind = fields.skip_while(|field| *field != b"-").nth(1)?;
    KERNEL_TYPES.contains(&kind).then(|| OsString::from_vec(unescaped(place)).into())
}

/// Spaces and the like stand in the table as a backslash and three octal digits.
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
    owner.is_ok_and(|owner| owner == outpost_sys::limits::effective_uid())
}

/// Files that are only told of, and where kernel file systems are mounted.
#[cfg(test)]
#[derive(Default)]
pub(crate) struct Told(pub(crate) BTreeMap<PathBuf, (Kind, String)>, pub(crate) Vec<PathBuf>);

#[cfg(test)]
impl Told {
    /// Directories end in a slash, `link -> target`, `file: text`, `directory/: lease`; parents are made.
    pub(crate) fn of(lines: &[&str]) -> Told {
        let mut told = Told::default();
        for line in lines {
            let (path, what) = match (line.split_once(" -> "), line.split_once(": "), line.strip_suffix('/'))
            {
                (Some((path, target)), ..) => (path, (Kind::Link(target.into()), String::new())),
                (_, Some((path, text)), _) => match path.strip_suffix('/') {
                    Some(directory) => (directory, (Kind::Directory, text.to_owned())),
                    None => (path, (Kind::File, text.to_owned())),
                },
                (.., Some(path)) => (path, (Kind::Directory, String::new())),
                _ => (*line, (Kind::File, String::new())),
            };
            for parent in Path::new(path).ancestors().skip(1) {
                told.0.entry(parent.into()).or_insert((Kind::Directory, String::new()));
            }
            told.0.insert(path.into(), what);
        }
        told
    }
}

#[cfg(test)]
impl Look for Told {
    fn kind(&self, path: &Path) -> Result<Kind, String> {
        Ok(self.0.get(path).map_or(Kind::Missing, |(kind, _)| kind.clone()))
    }

    fn head(&self, path: &Path) -> Option<String> {
        self.0.get(path).map(|(_, text)| text.clone())
    }

    fn names(&self, directory: &Path) -> Result<Vec<(OsString, Kind)>, String> {
        let inside = self.0.iter().filter(|(path, _)| path.parent() == Some(directory));
        Ok(inside.filter_map(|(path, (kind, _))| Some((path.file_name()?.into(), kind.clone()))).collect())
    }

    fn can_make_in(&self, directory: &Path) -> bool {
        self.0.contains_key(directory)
    }

    fn kernel_mounts(&self) -> Result<Vec<PathBuf>, String> {
        Ok(self.1.clone())
    }

    /// A directory with the text `lease`.
    fn is_lease(&self, path: &Path) -> bool {
        self.0.get(path).is_some_and(|(kind, text)| *kind == Kind::Directory && text == "lease")
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
