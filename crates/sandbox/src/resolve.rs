//! Finding the real place of a path: links on the way, and the first component that is missing.

use crate::look::{Kind, Look};
use crate::{Error, Result};
use std::collections::VecDeque;
use std::ffi::OsString;
use std::path::{Component, Path, PathBuf};

/// As many as the kernel follows.
const LINKS_MAX: usize = 40;

/// Where a path leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Resolved {
    /// Without links, as far as it exists, and the rest as it was written.
    pub(crate) path: PathBuf,
    pub(crate) kind: Kind,
    /// The first component that does not exist.
    pub(crate) missing: Option<PathBuf>,
    /// The links on the way: where each lies, and what it says.
    pub(crate) links: Vec<(PathBuf, PathBuf)>,
    /// Why the way could not be looked at to its end.
    pub(crate) unseen: Option<String>,
}

/// Without `.` and `..`, as text.
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

pub(crate) fn resolve(look: &dyn Look, path: &Path) -> Result<Resolved> {
    let names = |path: &Path| -> Vec<OsString> { path.iter().map(Into::into).collect() };
    let mut ahead: VecDeque<OsString> = names(&normal(path)?).into();
    let mut at = PathBuf::from("/");
    let (mut kind, mut missing, mut links, mut unseen) = (Kind::Directory, None, Vec::new(), None);
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
        kind = look.kind(&at).unwrap_or_else(|reason| {
            unseen = Some(reason);
            Kind::Missing
        });
        match &kind {
            Kind::Link(target) => {
                links.push((at.clone(), target.clone()));
                if links.len() > LINKS_MAX {
                    return Err(Error::LinkLoop { path: path.into() });
                }
                at.pop();
                names(target).into_iter().rev().for_each(|name| ahead.push_front(name));
                kind = Kind::Directory;
            }
            Kind::Missing if unseen.is_none() => missing = Some(at.clone()),
            // Something below a file: it is not there, and cannot be while the file is.
            Kind::File if !ahead.is_empty() => {
                kind = Kind::Missing;
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
    use crate::look::Told;

    #[test]
    fn links_are_followed_wherever_they_stand() {
        let told = Told::of(&["/data/ws/", "/home/u/link -> ../../data/ws", "/x -> /home/u", "/data/ws/f"]);
        let found = resolve(&told, Path::new("/x/link/f")).unwrap();
        assert_eq!(
            (found.path.to_str(), &found.kind, &found.missing),
            (Some("/data/ws/f"), &Kind::File, &None)
        );
        let at: Vec<_> = found.links.iter().map(|(at, _)| at.to_str().unwrap()).collect();
        assert_eq!(at, ["/x", "/home/u/link"]);
    }

    #[test]
    fn the_first_missing_component_is_told() {
        let found = resolve(&Told::of(&["/w/"]), Path::new("/w/a/b/../c")).unwrap();
        assert_eq!(found.missing, Some("/w/a".into()));
        assert_eq!(found.path, Path::new("/w/a/c"));
    }

    #[test]
    fn a_loop_of_links_ends() {
        let told = Told::of(&["/a -> /b", "/b -> /a"]);
        assert!(matches!(resolve(&told, Path::new("/a")), Err(Error::LinkLoop { .. })));
    }
}
