//! Names and paths: what a version may be called, which names are ours, and how the original joins a path.

/// A download on its way.
pub(super) const BLOB: &str = ".blob-";
/// A program on its way.
pub(super) const FETCH: &str = ".fetch-";
const COMPRESSED: &str = ".zst";

/// Whether an entry of the directory is a leftover and no version.
pub(super) fn is_leftover(name: &[u8]) -> bool {
    name.starts_with(BLOB.as_bytes())
        || name.starts_with(FETCH.as_bytes())
        || name.ends_with(COMPRESSED.as_bytes())
}

/// A version names one entry of the directory: anything else would let it write, or delete a directory, elsewhere.
pub(super) fn check_version(version: &str) -> Result<(), String> {
    let refused = if version.is_empty() || version == "." || version == ".." {
        "it names a directory"
    } else if version.contains(['/', '\0']) {
        "it is not a single path component"
    } else if is_leftover(version.as_bytes()) {
        "the name is used for temporary files"
    } else {
        return Ok(());
    };
    Err(format!("invalid --cli-version {}: {refused}", crate::go::quote(version)))
}

/// Two elements as one path, cleaned. Neither is empty.
pub(super) fn join(dir: &str, name: &str) -> String {
    clean(&format!("{dir}/{name}"))
}

/// The shortest path that means the same if no part of it is a symbolic link: the original works on the text alone.
pub(super) fn clean(path: &str) -> String {
    let rooted = path.starts_with('/');
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => match parts.last() {
                Some(&last) if last != ".." => {
                    parts.pop();
                }
                // Nothing is above the root.
                _ if rooted => {}
                _ => parts.push(".."),
            },
            _ => parts.push(part),
        }
    }
    match (rooted, parts.join("/")) {
        (true, parts) => format!("/{parts}"),
        (false, parts) if parts.is_empty() => ".".to_owned(),
        (false, parts) => parts,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_cleaned_as_text() {
        let cases = [
            ("", "."),
            ("/", "/"),
            ("//a//b/", "/a/b"),
            ("/a/./b/../c", "/a/c"),
            ("/../a", "/a"),
            ("a/..", "."),
            ("a/../..", ".."),
            ("../../a", "../../a"),
            ("./a", "a"),
        ];
        for (path, cleaned) in cases {
            assert_eq!(clean(path), cleaned, "{path}");
        }
        assert_eq!(join("/d/", "1.0"), "/d/1.0");
        assert_eq!(join(".", "1.0"), "1.0");
        assert_eq!(join("/d", "../x"), "/x");
    }

    #[test]
    fn a_version_cannot_leave_its_directory_or_take_a_name_of_ours() {
        for good in ["1.0.0", "latest", "...", "a b", ".hidden", "zst", "-x", "1.0\n"] {
            assert_eq!(check_version(good), Ok(()), "{good:?}");
        }
        for bad in ["", ".", "..", "a/b", "/", "a/", "../x", "a\0b", ".fetch-1", ".blob-", "x.zst", ".zst"] {
            let text = check_version(bad).unwrap_err();
            assert!(text.starts_with("invalid --cli-version \""), "{bad:?}: {text}");
        }
    }
}
