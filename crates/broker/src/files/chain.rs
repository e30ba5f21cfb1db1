//! The way to a file: whether anybody but root could make its name stand for something else.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt;
use std::path::{Component, Path, PathBuf};

/// Names looked at on the way to one file; more is a loop of links.
const STEPS_MAX: usize = 256;

/// Whether only root can change the file and everything on the way to it.
pub(super) fn is_guarded(path: &Path) -> bool {
    weak_spot(path).is_none()
}

/// What is to be told of a file that is not guarded.
pub(super) fn complaint(path: &Path) -> String {
    let at = weak_spot(path).unwrap_or_else(|| path.to_owned());
    let [path, at] =
        [path, at.as_path()].map(|path| outpost_approvals::display::quote(&path.to_string_lossy()));
    format!("{path} is not run with root's rights: others than root can change {at}")
}

/// The first file, directory or link on the way that others can change.
fn weak_spot(path: &Path) -> Option<PathBuf> {
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
    let safe = std::fs::symlink_metadata(path).is_ok_and(|of| {
        let others = of.mode() & 0o002 != 0 || (of.mode() & 0o020 != 0 && of.gid() != 0);
        of.uid() == 0 && !others
    });
    (!safe).then(|| path.to_owned())
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
        assert!(is_guarded(&std::fs::canonicalize("/bin/true").unwrap()));
        assert!(is_guarded(Path::new("/")));
    }

    #[test]
    fn what_others_can_change_is_not() {
        assert!(!is_guarded(Path::new("/no/such/file")));
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::canonicalize(dir.path()).unwrap();
        let file = dir.join("tool");
        std::fs::write(&file, "x").unwrap();
        let mode =
            |path: &Path, mode| std::fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        mode(&file, 0o755);
        let by_root = outpost_sys::limits::effective_uid() == 0;
        assert_eq!(is_guarded(&file), by_root, "in a sticky directory, what root owns is safe");
        mode(&file, 0o757);
        assert!(!is_guarded(&file));
        mode(&file, 0o755);
        mode(&dir, 0o777);
        assert!(!is_guarded(&file), "the directory decides what the name stands for");
        mode(&dir, 0o755);
        let link = dir.join("link");
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert_eq!(is_guarded(&link), by_root);
        if by_root {
            std::os::unix::fs::lchown(&link, Some(65534), None).unwrap();
            assert!(!is_guarded(&link), "whose link it is decides where it leads");
        }
        mode(&dir, 0o777);
        assert!(complaint(&file).contains("others than root can change"));
    }
}
