//! Paths as text: what an absolute path names once `.` and `..` are taken out, without asking the file system.

/// The names of an absolute path after cleaning; none for the root.
pub(super) fn names(path: &[u8]) -> Vec<&[u8]> {
    let mut names = Vec::new();
    for name in path.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." => drop(names.pop()),
            name => names.push(name),
        }
    }
    names
}

/// What `name` means below the absolute directory `base`, whose path is clean: the names from there on, none for `base`
/// itself. `None` when it leads out. A name that leaves and comes back is inside: the document allows it.
pub(super) fn below<'a>(base: &[u8], name: &'a [u8]) -> Option<Vec<&'a [u8]>> {
    let base = names(base);
    // The path is the first `kept` names of the base and then those of `path`.
    let (mut kept, mut path) = (base.len(), Vec::new());
    for name in name.split(|&byte| byte == b'/') {
        match name {
            b"" | b"." => {}
            b".." if path.pop().is_some() => {}
            b".." => kept = kept.saturating_sub(1),
            name => path.push(name),
        }
    }
    let left = base.get(kept..)?;
    path.starts_with(left).then(|| path.split_off(left.len()))
}

/// Bytes of an archive as text on the wire: each byte that is no text becomes one replacement character.
pub(super) fn text(bytes: &[u8]) -> String {
    let mut text = String::with_capacity(bytes.len());
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dots_are_taken_out_and_the_root_has_no_parent() {
        let cases = [
            ("/", ""),
            ("//", ""),
            ("/..", ""),
            ("/a/../..", ""),
            ("/a//b/./c/", "a|b|c"),
            ("/../x/../y", "y"),
        ];
        for (path, clean) in cases {
            assert_eq!(names(path.as_bytes()).join(&b'|'), clean.as_bytes(), "{path}");
        }
    }

    #[test]
    fn only_what_ends_inside_is_inside() {
        let cases = [
            ("x", Some("x")),
            ("a/b", Some("a|b")),
            ("/etc/x", Some("etc|x")),
            ("a/../b", Some("b")),
            ("../dest/x", Some("x")),
            ("../../base/dest/x/", Some("x")),
            (".", Some("")),
            ("", Some("")),
            ("a/..", Some("")),
            ("...", Some("...")),
            ("..", None),
            ("../x", None),
            ("a/../../x", None),
            ("../destiny/x", None),
            ("../../../../../../etc/passwd", None),
        ];
        for (name, expected) in cases {
            let found = below(b"/base/dest", name.as_bytes()).map(|names| names.join(&b'|'));
            assert_eq!(found.as_deref(), expected.map(str::as_bytes), "{name}");
        }
    }

    #[test]
    fn every_byte_that_is_no_text_shows() {
        assert_eq!(text(b"a\xe2\x98b\xff"), "a\u{fffd}\u{fffd}b\u{fffd}");
        assert_eq!(text("é☃".as_bytes()), "é☃");
    }
}
