//! The way to a file: whether users other than the trusted ones could make its name stand for something else.

mod acl;
mod mount;
mod trusted;

use acl::Acl;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use trusted::Trusted;

/// Names looked at on the way to one file; more is a loop of links.
const STEPS_MAX: usize = 256;

/// Whether only root can change the file and everything on the way to it.
pub fn is_root_only(path: &Path) -> bool {
    weak_spot(path).is_none()
}

/// The first file, directory or link on the way that others than root can change.
pub fn weak_spot(path: &Path) -> Option<PathBuf> {
    weak_spot_for(path, &[])
}

/// The same where root and these users are trusted. A path that does not exist is its own weak spot.
pub fn weak_spot_for(path: &Path, uids: &[u32]) -> Option<PathBuf> {
    walk(path, &Trusted::new(uids)).unwrap_or_else(Some)
}

/// The first directory or link on the way by which others could replace the file. Writing to the file itself may be open
/// to all, as it is for a socket.
pub fn weak_way_for(path: &Path, uids: &[u32]) -> Option<PathBuf> {
    walk(path, &Trusted::new(uids)).err()
}

/// Follows the path name by name. The error is the weak spot on the way; the value is the file itself if that is weak.
fn walk(path: &Path, trusted: &Trusted<'_>) -> Result<Option<PathBuf>, PathBuf> {
    let mut at = PathBuf::from("/");
    // What is still to be walked, the next part last.
    let mut parts: Vec<OsString> = parts_of(path);
    let mut weak_above: Option<PathBuf> = look(&at, trusted);
    for _ in 0..STEPS_MAX {
        let Some(part) = parts.pop() else { return Ok(weak_above) };
        if part == ".." {
            at.pop();
            continue;
        }
        let step = at.join(&part);
        let Ok(of) = std::fs::symlink_metadata(&step) else { return Err(step) };
        // Where only owners may rename, what a trusted user owns stays where it is.
        match weak_above.take() {
            Some(above) if !is_sticky(&above, trusted) => return Err(above),
            Some(_) if !trusted.has_user(of.uid()) => return Err(step),
            _ => {}
        }
        if of.file_type().is_symlink() {
            if !trusted.has_user(of.uid()) {
                return Err(step);
            }
            let Ok(target) = std::fs::read_link(&step) else { return Err(step) };
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            parts.extend(parts_of(&target));
            continue;
        }
        weak_above = look(&step, trusted);
        at = step;
    }
    Err(path.to_owned())
}

fn parts_of(path: &Path) -> Vec<OsString> {
    let named = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(named).collect()
}

/// The path, if others than the trusted users can write what is there.
fn look(path: &Path, trusted: &Trusted<'_>) -> Option<PathBuf> {
    let safe = std::fs::symlink_metadata(path).is_ok_and(|of| {
        trusted.has_user(of.uid())
            && only_trusted_write(path, &of, trusted)
            && mount::is_trusted(path, of.dev(), trusted)
    });
    (!safe).then(|| path.to_owned())
}

/// Where there is a list, the mode's bits of the group are the list's mask, and say nothing about that group.
fn only_trusted_write(path: &Path, of: &Metadata, trusted: &Trusted<'_>) -> bool {
    match Acl::of(path) {
        Acl::None => of.mode() & 0o002 == 0 && (of.mode() & 0o020 == 0 || trusted.has_group(of.gid())),
        Acl::Some(list) => acl::only_trusted_write(&list, of.gid(), trusted),
        Acl::Unknown => false,
    }
}

/// Also a directory of a trusted user: its owner can rename what is in it.
fn is_sticky(path: &Path, trusted: &Trusted<'_>) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|of| of.is_dir() && trusted.has_user(of.uid()) && of.mode() & 0o1000 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn the_systems_programs_are_guarded() {
        assert!(is_root_only(&std::fs::canonicalize("/bin/true").unwrap()));
        assert!(is_root_only(Path::new("/")));
    }

    #[test]
    fn what_others_can_change_is_not() {
        assert!(!is_root_only(Path::new("/no/such/file")));
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::canonicalize(dir.path()).unwrap();
        let file = dir.join("tool");
        std::fs::write(&file, "x").unwrap();
        let mode =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        mode(&file, 0o755);
        let by_root = crate::limits::effective_uid() == 0;
        assert_eq!(is_root_only(&file), by_root, "in a sticky directory, what root owns is safe");
        mode(&file, 0o757);
        assert!(!is_root_only(&file));
        mode(&file, 0o755);
        mode(&dir, 0o777);
        assert!(!is_root_only(&file), "the directory decides what the name stands for");
        mode(&dir, 0o755);
        let link = dir.join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(is_root_only(&link), by_root);
        if by_root {
            std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
            assert!(!is_root_only(&link), "whose link it is decides where it leads");
        }
    }

    /// `setfacl -m u:1000:rw tool` sets the mode's group bits, which say nothing about the group then.
    #[test]
    fn a_list_that_lets_a_user_write_is_not_taken_for_roots_group() {
        if crate::limits::effective_uid() != 0 {
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::canonicalize(dir.path()).unwrap();
        let file = dir.join("tool");
        std::fs::write(&file, "x").unwrap();
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o755)).unwrap();
        assert!(is_root_only(&file));
        let list = |user_may: u16| {
            let entries: [(u16, u16, u32); 5] = [
                (1, 7, u32::MAX),
                (2, user_may, 1000),
                (4, 5, u32::MAX),
                (16, 7, u32::MAX),
                (32, 5, u32::MAX),
            ];
            let mut list = 2_u32.to_le_bytes().to_vec();
            for (tag, perm, id) in entries {
                list.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
                list.extend(id.to_le_bytes());
            }
            list
        };
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&file, "system.posix_acl_access", &list(7), flags).unwrap();
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o020, 0o020, "the mask stands in the mode");
        assert!(!is_root_only(&file));
        assert_eq!(weak_spot(&file), Some(file.clone()));
        rustix::fs::setxattr(&file, "system.posix_acl_access", &list(5), flags).unwrap();
        assert!(is_root_only(&file), "a list that lets others only read is none to be afraid of");
    }
}
