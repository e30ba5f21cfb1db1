//! Resolves paths: links on the path, and the first missing component.

use crate::host_fs::{FileKind, HostFs};
use crate::{Error, Result};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// The kernel's limit.
const LINKS_MAX: usize = 40;

/// The result of a resolution.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Without links as far as it exists; the missing rest as written.
    pub(crate) path: PathBuf,
    pub(crate) kind: FileKind,
    /// The first component that does not exist.
    pub(crate) missing: Option<PathBuf>,
    /// The links on the path: path and target.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
    /// Why the path could not be inspected to its end.
    pub(crate) unseen: Option<String>,
}

/// Removes `.` and `..` lexically.
pub(crate) fn normal(path: &Path) -> Result<PathBuf> {
    if !path.is_absolute() {
        return Err(Error::Relative { path: path.into() });
    }
    let mut normal = PathBuf::from("/");
    for component in path.components() {
        match component {
            Component::Normal(name) => normal.push(name),
            Component::ParentDir => {
                normal.pop();
            }
            Component::RootDir | Component::CurDir | Component::Prefix(_) => {}
        }
    }
    Ok(normal)
}

pub(crate) fn resolve(fs: &dyn HostFs, path: &Path) -> Result<Resolved> {
    let names = |path: &Path| -> Vec<OsString> { path.iter().map(Into::into).collect() };
    let mut ahead: VecDeque<OsString> = names(&normal(path)?).into();
    let mut at = PathBuf::from("/");
    let (mut kind, mut missing, mut links, mut unseen) = (FileKind::Directory, None, Vec::new(), None);
    while let Some(name) = ahead.pop_front() {
        if name == "/" {
            at = PathBuf::from("/");
            continue;
        }
        if name == ".." {
            at.pop();
            continue;
        }
        at.push(&name);
        if missing.is_some() || unseen.is_some() {
            continue;
        }
        kind = fs.kind(&at).unwrap_or_else(|error| {
            unseen = Some(error.to_string());
            FileKind::Missing
        });
        match &kind {
            FileKind::Link(target) => {
                links.push((at.clone(), target.clone()));
                if links.len() > LINKS_MAX {
                    return Err(Error::LinkLoop { path: path.into() });
                }
                at.pop();
                names(target).into_iter().rev().for_each(|name| ahead.push_front(name));
                kind = FileKind::Directory;
            }
            FileKind::Missing if unseen.is_none() => missing = Some(at.clone()),
            // A path below a regular file: it does not exist, and cannot while the file does.
            FileKind::File if !ahead.is_empty() => {
                kind = FileKind::Missing;
                missing = Some(ahead.iter().take(1).fold(at.clone(), |path, name| path.join(name)));
            }
            _ => {}
        }
    }
    Ok(Resolved { path: at, kind, missing, links, unseen })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_fs::FakeFs;

    #[test]
    fn links_are_followed_in_every_component() {
        let fake = FakeFs::of(&["/data/ws/", "/home/u/link -> ../../data/ws", "/x -> /home/u", "/data/ws/f"]);
        let found = resolve(&fake, Path::new("/x/link/f")).unwrap();
        assert_eq!(
            (found.path.to_str(), &found.kind, &found.missing),
            (Some("/data/ws/f"), &FileKind::File, &None)
        );
        let at: Vec<_> = found.links.iter().map(|(at, _)| at.to_str().unwrap()).collect();
        assert_eq!(at, ["/x", "/home/u/link"]);
    }

    #[test]
    fn the_first_missing_component_is_found() {
        let found = resolve(&FakeFs::of(&["/w/"]), Path::new("/w/a/b/../c")).unwrap();
        assert_eq!(found.missing, Some("/w/a".into()));
        assert_eq!(found.path, Path::new("/w/a/c"));
    }

    #[test]
    fn a_link_loop_is_an_error() {
        let fake = FakeFs::of(&["/a -> /b", "/b -> /a"]);
        assert!(matches!(resolve(&fake, Path::new("/a")), Err(Error::LinkLoop { .. })));
    }
}
