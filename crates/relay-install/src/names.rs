//! File names in the versions directory: valid version names and the names of temporary files.

/// Prefix of an incomplete download.
pub(super) const DOWNLOAD_PREFIX: &str = ".blob-";
/// Prefix of a program that is not yet installed.
pub(super) const PROGRAM_PREFIX: &str = ".fetch-";
const COMPRESSED_SUFFIX: &str = ".zst";

/// Whether the name is that of a temporary file and not of a version.
pub(super) fn is_temporary(name: &[u8]) -> bool {
    name.starts_with(DOWNLOAD_PREFIX.as_bytes())
        || name.starts_with(PROGRAM_PREFIX.as_bytes())
        || name.ends_with(COMPRESSED_SUFFIX.as_bytes())
}

/// A version must be a single path component, or the installation could write or delete outside of the directory.
pub(super) fn check_version(version: &str) -> Result<(), String> {
    let refused = if version.is_empty() || version == "." || version == ".." {
        "it names a directory"
    } else if version.contains(['/', '\0']) {
        "it is not a single path component"
    } else if is_temporary(version.as_bytes()) {
        "the name is used for temporary files"
    } else {
        return Ok(());
    };
    Err(format!("invalid --cli-version {}: {refused}", outpost_relay::go_compat::quote(version)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_version_is_a_single_component_and_no_temporary_name() {
        for good in ["1.0.0", "latest", "...", "a b", ".hidden", "zst", "-x", "1.0\n"] {
            assert_eq!(check_version(good), Ok(()), "{good:?}");
        }
        for bad in ["", ".", "..", "a/b", "/", "a/", "../x", "a\0b", ".fetch-1", ".blob-", "x.zst", ".zst"] {
            let text = check_version(bad).unwrap_err();
            assert!(text.starts_with("invalid --cli-version \""), "{bad:?}: {text}");
        }
    }
}
