//! Path trust: whether a user other than the trusted ones could change a file or what its path resolves to.

mod acl;
mod mount;
mod trusted;

use acl::Acl;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};
use trusted::Trusted;

/// Path components visited per file, including those of links. More means a loop of links.
const STEPS_MAX: usize = 256;

/// Whether only root can change the file and every directory and link on its path.
pub fn is_root_only(path: &Path) -> bool {
    weak_spot(path).is_none()
}

/// The first file, directory or link on the path that a user other than root can change.
pub fn weak_spot(path: &Path) -> Option<PathBuf> {
    weak_spot_for(path, &[])
}

/// The same where root and these users are trusted. A path that does not exist is its own weak spot.
pub fn weak_spot_for(path: &Path, uids: &[u32]) -> Option<PathBuf> {
    walk(path, &Trusted::new(uids)).unwrap_or_else(Some)
}

/// The first directory or link on the path through which an untrusted user could replace the file. The file
/// itself may be world-writable, as a socket is.
pub fn weak_ancestor_for(path: &Path, uids: &[u32]) -> Option<PathBuf> {
    walk(path, &Trusted::new(uids)).err()
}

/// Resolves the path component by component. The error is the weak spot on the path; the value is the file
/// itself if it is weak.
fn walk(path: &Path, trusted: &Trusted<'_>) -> Result<Option<PathBuf>, PathBuf> {
    let mut at = PathBuf::from("/");
    // Components still to visit, the next one last.
    let mut parts: Vec<OsString> = parts_of(path);
    let mut weak_above: Option<PathBuf> = check_writers(&at, trusted);
    for _ in 0..STEPS_MAX {
        let Some(part) = parts.pop() else { return Ok(weak_above) };
        if part == ".." {
            at.pop();
            continue;
        }
        let step = at.join(&part);
        let Ok(of) = std::fs::symlink_metadata(&step) else { return Err(step) };
        // In a sticky directory, only the owner can rename a file.
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
        weak_above = check_writers(&step, trusted);
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

/// The path, if an untrusted user can write to the file.
fn check_writers(path: &Path, trusted: &Trusted<'_>) -> Option<PathBuf> {
    let safe = std::fs::symlink_metadata(path).is_ok_and(|of| {
        trusted.has_user(of.uid())
            && only_trusted_write(path, &of, trusted)
            && mount::is_trusted(path, of.dev(), trusted)
    });
    (!safe).then(|| path.to_owned())
}

/// With an ACL, the group bits of the mode are the ACL's mask and not the permissions of the owning group.
fn only_trusted_write(path: &Path, of: &Metadata, trusted: &Trusted<'_>) -> bool {
    match Acl::of(path) {
        Acl::None => of.mode() & 0o002 == 0 && (of.mode() & 0o020 == 0 || trusted.has_group(of.gid())),
        Acl::Some(list) => acl::only_trusted_write(&list, of.gid(), trusted),
        Acl::Unknown => false,
    }
}

/// Whether this is a sticky directory of a trusted user. The owner of a sticky directory can rename its
/// entries.
fn is_sticky(path: &Path, trusted: &Trusted<'_>) -> bool {
    std::fs::symlink_metadata(path)
        .is_ok_and(|of| of.is_dir() && trusted.has_user(of.uid()) && of.mode() & 0o1000 != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn system_programs_are_root_only() {
        assert!(is_root_only(&std::fs::canonicalize("/bin/true").unwrap()));
        assert!(is_root_only(Path::new("/")));
    }

    #[test]
    fn a_file_that_others_can_change_is_not_root_only() {
        assert!(!is_root_only(Path::new("/no/such/file")));
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::canonicalize(dir.path()).unwrap();
        let file = dir.join("tool");
        std::fs::write(&file, "x").unwrap();
        let mode =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        mode(&file, 0o755);
        let by_root = crate::process::effective_uid() == 0;
        assert_eq!(is_root_only(&file), by_root, "in a sticky directory, root's files are safe");
        mode(&file, 0o757);
        assert!(!is_root_only(&file));
        mode(&file, 0o755);
        mode(&dir, 0o777);
        assert!(!is_root_only(&file), "the owner of the directory decides what the name resolves to");
        mode(&dir, 0o755);
        let link = dir.join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(is_root_only(&link), by_root);
        if by_root {
            std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
            assert!(!is_root_only(&link), "the owner of a link decides where it leads");
        }
    }

    /// `setfacl -m u:1000:rw tool` sets the group bits of the mode, which are then the ACL's mask.
    #[test]
    fn an_acl_that_lets_a_user_write_is_recognised() {
        if crate::process::effective_uid() != 0 {
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
        assert_eq!(std::fs::metadata(&file).unwrap().mode() & 0o020, 0o020, "the mask is in the mode");
        assert!(!is_root_only(&file));
        assert_eq!(weak_spot(&file), Some(file.clone()));
        rustix::fs::setxattr(&file, "system.posix_acl_access", &list(5), flags).unwrap();
        assert!(is_root_only(&file), "an ACL that lets others only read is safe");
    }
}
