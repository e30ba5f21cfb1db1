//! The way to a file: whether anybody but root could make its name stand for something else.

mod acl;
mod mount;

use acl::Acl;
use std::ffi::OsString;
use std::fs::Metadata;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Names looked at on the way to one file; more is a loop of links.
const STEPS_MAX: usize = 256;

/// Whether only root can change the file and everything on the way to it.
pub fn is_root_only(path: &Path) -> bool {
    weak_spot(path).is_none()
}

/// The first file, directory or link on the way that others can change.
pub fn weak_spot(path: &Path) -> Option<PathBuf> {
    let mut at = PathBuf::from("/");
    // What is still to be walked, the next part last.
    let mut parts: Vec<OsString> = parts_of(path);
    let mut weak_above: Option<PathBuf> = look(&at);
    for _ in 0..STEPS_MAX {
        let Some(part) = parts.pop() else { return weak_above };
        if part == ".." {
            at.pop();
            continue;
        }
        let step = at.join(&part);
        let Ok(of) = std::fs::symlink_metadata(&step) else { return Some(step) };
        // Where only owners may rename, what root owns stays where it is.
        match weak_above.take() {
            Some(above) if !(is_sticky(&above) && of.uid() == 0) => return Some(above),
            _ => {}
        }
        if of.file_type().is_symlink() {
            if of.uid() != 0 {
                return Some(step);
            }
            let Ok(target) = std::fs::read_link(&step) else { return Some(step) };
            if target.is_absolute() {
                at = PathBuf::from("/");
            }
            parts.extend(parts_of(&target));
            continue;
        }
        weak_above = look(&step);
        at = step;
    }
    Some(path.to_owned())
}

fn parts_of(path: &Path) -> Vec<OsString> {
    let named = |part: Component<'_>| match part {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
    };
    path.components().rev().filter_map(named).collect()
}

/// The path, if others than root can write what is there.
fn look(path: &Path) -> Option<PathBuf> {
    let safe = std::fs::symlink_metadata(path)
        .is_ok_and(|of| of.uid() == 0 && only_root_writes(path, &of) && mount::is_roots(path, of.dev()));
    (!safe).then(|| path.to_owned())
}

/// Where there is a list, the mode's bits of the group are the list's mask, and say nothing about that group.
fn only_root_writes(path: &Path, of: &Metadata) -> bool {
    match Acl::of(path) {
        Acl::None => of.mode() & 0o002 == 0 && (of.mode() & 0o020 == 0 || of.gid() == 0),
        Acl::Some(list) => acl::only_root_writes(&list, of.gid()),
        Acl::Unknown => false,
    }
}

fn is_sticky(path: &Path) -> bool {
    std::fs::symlink_metadata(path).is_ok_and(|of| of.is_dir() && of.uid() == 0 && of.mode() & 0o1000 != 0)
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
