//! Names: what a version may be called, and which names are ours.

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

#[cfg(test)]
mod tests {
    use super::*;

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
