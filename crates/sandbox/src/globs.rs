//! Deny patterns: their syntax, and which paths they match now.
//!
//! The syntax is that of the `globset` crate with `literal_separator`: `*` and `?` stay within a component,
//! `**` crosses components, `[a-z]`, `[!a]` and `{a,b}` are as usual, `\` escapes. A relative pattern starts
//! at the policy's directory. Files, links and directories match. A directory that matches is denied with
//! everything below it. Hidden names match like others; ignore files have no effect. A link that matches
//! denies its target. A link on the path is followed, but not by `**`, which could loop or traverse the whole
//! host.
//!
//! Matches at the start of the command are masked. A pattern without special characters is a path, which is
//! denied also while it is missing. Other names that appear later cannot be masked. Where such a pattern
//! reaches a writable directory, the plan reports or refuses it, as the policy requests.

use crate::host_fs::{FileKind, HostFs};
use crate::resolve::resolve;
use crate::{Error, Result};
use globset::{GlobBuilder, GlobMatcher};
use std::path::{Path, PathBuf};

/// More matches are refused.
pub(crate) const MATCHES_MAX: usize = 8192;

/// More visited entries are refused: the start of the command would take seconds.
pub(crate) const VISITED_MAX: usize = 250_000;

/// A parsed pattern.
#[derive(Debug)]
pub(crate) struct Pattern {
    text: String,
    matcher: GlobMatcher,
    /// The directories before the first special character.
    pub(crate) base: PathBuf,
    /// No special characters: the pattern is a plain path.
    pub(crate) literal: bool,
    /// How many levels below the base it can match; `None` for any number.
    levels: Option<usize>,
}

impl Pattern {
    pub(crate) fn read(text: &str, cwd: &Path) -> Result<Pattern> {
        let absolute = if text.starts_with('/') {
            text.to_owned()
        } else {
            let cwd = globset::escape(&cwd.to_string_lossy());
            format!("{}/{}", cwd.trim_end_matches('/'), text.trim_start_matches("./"))
        };
        // Matching compares text, so a path must have one spelling.
        let parts: Vec<&str> =
            absolute.split('/').filter(|component| !matches!(*component, "" | ".")).collect();
        let absolute = format!("/{}", parts.join("/"));
        let syntax = |error: globset::Error| Error::GlobSyntax {
            pattern: text.to_owned(),
            reason: error.kind().to_string(),
        };
        let glob = GlobBuilder::new(&absolute)
            .literal_separator(true)
            .backslash_escape(true)
            .empty_alternates(true)
            .build()
            .map_err(syntax)?;
        let (base, rest) = fixed_part(&absolute);
        Ok(Pattern {
            text: text.to_owned(),
            matcher: glob.compile_matcher(),
            base,
            literal: rest.is_empty(),
            levels: (!rest.contains("**")).then(|| rest.matches('/').count() + 1),
        })
    }

    /// All current matches, without anything below a match. Links are not resolved.
    pub(crate) fn matches(
        &self,
        fs: &dyn HostFs,
        depth_max: Option<usize>,
    ) -> Result<Vec<(PathBuf, FileKind)>> {
        let depth_max = depth_max.unwrap_or(usize::MAX).min(self.levels.unwrap_or(usize::MAX));
        let (mut found, mut visited) = (Vec::new(), 0);
        // Each directory as the pattern spells it, its real path, and its depth.
        let mut ahead =
            Vec::from_iter(real_directory(fs, &self.base).map(|real| (self.base.clone(), real, 1)));
        while let Some((directory, real, depth)) = ahead.pop() {
            let inspect =
                |error: std::io::Error| Error::Inspect { path: directory.clone(), reason: error.to_string() };
            for (name, kind) in fs.names(&real).map_err(inspect)? {
                visited += 1;
                if visited > VISITED_MAX {
                    return Err(self.too_wide(VISITED_MAX, "names to look at"));
                }
                let path = directory.join(&name);
                if self.matcher.is_match(&path) {
                    found.push((path, kind));
                    if found.len() > MATCHES_MAX {
                        return Err(self.too_wide(MATCHES_MAX, "matches"));
                    }
                } else if depth < depth_max && !is_kernels(&path) {
                    let real = match kind {
                        FileKind::Directory => Some(real.join(&name)),
                        FileKind::Link(_) if self.levels.is_some() => real_directory(fs, &path),
                        _ => None,
                    };
                    ahead.extend(real.map(|real| (path, real, depth + 1)));
                }
            }
        }
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        Ok(found)
    }

    fn too_wide(&self, limit: usize, of: &'static str) -> Error {
        Error::GlobTooWide { pattern: self.text.clone(), limit, of }
    }

    /// Whether a matching name could appear in the directory or below it.
    pub(crate) fn reaches(&self, fs: &dyn HostFs, directory: &Path) -> Result<bool> {
        let base = resolve(fs, &self.base)?.path;
        let flat = self.levels == Some(1);
        Ok(directory.starts_with(&base) && !(flat && directory != base) || base.starts_with(directory))
    }
}

/// The real path of the directory at `path`; `None` for link loops and dangling links.
fn real_directory(fs: &dyn HostFs, path: &Path) -> Option<PathBuf> {
    resolve(fs, path).ok().filter(|found| found.kind == FileKind::Directory).map(|found| found.path)
}

/// File systems that are not the host's files. A command has its own `/proc` and `/dev`.
fn is_kernels(path: &Path) -> bool {
    ["/proc", "/dev", "/sys"].iter().any(|kernels| path == Path::new(kernels))
}

/// The directories before the first special character, and the rest. For a plain path, the rest is empty.
fn fixed_part(pattern: &str) -> (PathBuf, String) {
    let mut fixed = PathBuf::from("/");
    let mut components = pattern.split('/').filter(|component| !component.is_empty());
    while let Some(component) = components.next() {
        match unescaped(component) {
            Some(plain) => fixed.push(plain),
            None => {
                let rest: Vec<_> = std::iter::once(component).chain(components).collect();
                return (fixed, rest.join("/"));
            }
        }
    }
    (fixed, String::new())
}

/// The name that a component without wildcards means: escapes and one-letter classes are resolved.
fn unescaped(component: &str) -> Option<String> {
    let mut plain = String::new();
    let mut rest = component.chars();
    while let Some(letter) = rest.next() {
        match letter {
            '\\' => plain.push(rest.next()?),
            '[' => {
                let (inside, close) = (rest.next()?, rest.next()?);
                if close != ']' || inside == '!' || inside == '^' {
                    return None;
                }
                plain.push(inside);
            }
            '*' | '?' | '{' | '}' | ']' => return None,
            other => plain.push(other),
        }
    }
    Some(plain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::host_fs::FakeFs;

    fn matched(pattern: &str, files: &[&str], depth: Option<usize>) -> Vec<String> {
        let pattern = Pattern::read(pattern, Path::new("/w")).unwrap();
        let found = pattern.matches(&FakeFs::of(files), depth).unwrap();
        found.into_iter().map(|(path, _)| path.to_str().unwrap().to_owned()).collect()
    }

    #[test]
    fn a_star_stays_in_its_component() {
        assert_eq!(matched("g/*.txt", &["/w/g/a.txt", "/w/g/d/b.txt", "/w/a.txt"], None), ["/w/g/a.txt"]);
    }

    #[test]
    fn two_stars_cross_and_match_hidden_names_too() {
        let files = ["/w/.env", "/w/a/.b/.env", "/w/a/env", "/v/.env"];
        assert_eq!(matched("**/.env", &files, None), ["/w/.env", "/w/a/.b/.env"]);
    }

    #[test]
    fn directories_and_alternatives_match() {
        let files = ["/w/deny1/x", "/w/deny2/", "/w/keep/deny1"];
        assert_eq!(matched("deny*", &files, None), ["/w/deny1", "/w/deny2"]);
        assert_eq!(matched("{deny1,keep/deny1}", &files, None), ["/w/deny1", "/w/keep/deny1"]);
    }

    #[test]
    fn links_on_the_way_are_followed_but_not_by_two_stars() {
        let files = ["/w/real/s.k", "/w/link -> real", "/out/t.k", "/w/far -> /out", "/w/loop -> /w"];
        assert_eq!(matched("link/*.k", &files, None), ["/w/link/s.k"]);
        assert_eq!(matched("l*/s.k", &files, None), ["/w/link/s.k"]);
        assert_eq!(matched("*/*.k", &files, None), ["/w/far/t.k", "/w/link/s.k", "/w/real/s.k"]);
        assert_eq!(matched("*/real/*.k", &files, None), ["/w/loop/real/s.k"]);
        assert_eq!(matched("**/*.k", &files, None), ["/w/real/s.k"]);
        let through = Pattern::read("*.k", Path::new("/w/link")).unwrap();
        let fake = FakeFs::of(&files);
        assert_eq!(through.matches(&fake, None).unwrap().len(), 1);
        assert!(through.reaches(&fake, Path::new("/w/real")).unwrap());
        assert!(!through.reaches(&fake, Path::new("/out")).unwrap());
    }

    #[test]
    fn a_path_has_one_spelling() {
        let files = ["/w/real/s.k"];
        for pattern in ["real//*.k", "/w//real/*.k", "./real/./*.k", "//w/real///s.*", ".//real/*.k"] {
            assert_eq!(matched(pattern, &files, None), ["/w/real/s.k"], "{pattern}");
        }
    }

    #[test]
    fn the_depth_counts_from_the_fixed_part() {
        let files = ["/w/g/a.k", "/w/g/1/b.k", "/w/g/1/2/c.k"];
        assert_eq!(matched("g/**/*.k", &files, Some(1)), ["/w/g/a.k"]);
        assert_eq!(matched("g/**/*.k", &files, Some(2)), ["/w/g/1/b.k", "/w/g/a.k"]);
    }

    #[test]
    fn a_pattern_without_specials_is_a_path() {
        let pattern = Pattern::read("a/b\\*c", Path::new("/w")).unwrap();
        assert!(pattern.literal);
        assert_eq!(pattern.base, Path::new("/w/a/b*c"));
    }

    #[test]
    fn a_directory_with_special_characters_is_no_pattern() {
        let pattern = Pattern::read("*.k", Path::new("/w/[x]{y}")).unwrap();
        assert_eq!(pattern.base, Path::new("/w/[x]{y}"));
        assert!(!pattern.literal);
    }

    #[test]
    fn an_unclosed_class_is_refused_by_name() {
        let error = Pattern::read("a[b", Path::new("/w")).unwrap_err();
        assert!(error.to_string().contains("a[b"), "{error}");
    }

    #[test]
    fn too_many_matches_are_refused() {
        let names: Vec<String> = (0..=MATCHES_MAX).map(|number| format!("/w/{number}.k")).collect();
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let pattern = Pattern::read("*.k", Path::new("/w")).unwrap();
        assert!(matches!(pattern.matches(&FakeFs::of(&names), None), Err(Error::GlobTooWide { .. })));
    }
}
