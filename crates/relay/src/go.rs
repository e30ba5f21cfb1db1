//! Texts as the original's runtime writes them: system errors, file modes, quoted strings.
//!
//! They are on the wire: "open …: no such file or directory", "-rw-r--r--", `destDir must be …: "x"`.

use outpost_sys::Errno;
use std::fmt::Write;
use std::io;

/// What the kernel said, in the words of the original: lower case, without a number.
pub fn errno_text(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match (letters.next(), letters.clone().next()) {
        // An abbreviation stays as it is.
        (Some(first), Some(second)) if first.is_uppercase() && !second.is_uppercase() => {
            first.to_lowercase().collect::<String>() + letters.as_str()
        }
        _ => text.to_owned(),
    }
}

/// The same for an error of the standard library, which does not ask the kernel about a path that is too long for a socket
/// or has a zero in it.
pub fn io_text(error: &io::Error) -> String {
    let errno = match error.kind() {
        io::ErrorKind::InvalidInput => Some(Errno::INVAL),
        _ => Errno::from_io_error(error),
    };
    errno.map_or_else(|| error.to_string(), errno_text)
}

/// An operation on a path that failed: `open /x: permission denied`.
pub fn path_error(operation: &str, path: &str, error: &io::Error) -> String {
    format!("{operation} {path}: {}", io_text(error))
}

/// The name of this machine's architecture.
pub(crate) fn architecture() -> &'static str {
    let little = cfg!(target_endian = "little");
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "x86" => "386",
        "aarch64" => "arm64",
        "loongarch64" => "loong64",
        "powerpc64" if little => "ppc64le",
        "powerpc64" => "ppc64",
        // arm, riscv64, s390x, …
        same => same,
    }
}

/// The shortest path of the same meaning by its text alone: no `.`, no `..` that could be resolved, no double slash.
pub(crate) fn clean(path: &[u8]) -> Vec<u8> {
    let rooted = path.first() == Some(&b'/');
    let mut parts: Vec<&[u8]> = Vec::new();
    for part in path.split(|byte| *byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => match parts.last() {
                Some(last) if *last != b".." => {
                    parts.pop();
                }
                _ if rooted => {}
                _ => parts.push(part),
            },
            _ => parts.push(part),
        }
    }
    let joined = parts.join(&b'/');
    match (rooted, joined.is_empty()) {
        (true, _) => [b"/", joined.as_slice()].concat(),
        (false, true) => b".".to_vec(),
        (false, false) => joined,
    }
}

/// The last part of a path.
pub(crate) fn base(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let trimmed = path.get(..end).unwrap_or_default();
    match (path.is_empty(), trimmed.is_empty()) {
        (true, _) => b".",
        (_, true) => b"/",
        _ => trimmed.rsplit(|byte| *byte == b'/').next().unwrap_or(trimmed),
    }
}

/// Two parts as one clean path. An empty one does not count.
pub(crate) fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir.is_empty() {
        true => clean(name),
        false => clean(&[dir, b"/", name].concat()),
    }
}

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const TYPE: u32 = 0o170_000;

/// A file's mode as ten characters or more: type and special letters, then permissions.
pub(crate) fn mode_text(mode: u32) -> String {
    let mut text = String::with_capacity(12);
    match mode & TYPE {
        0o040_000 => text.push('d'),
        0o120_000 => text.push('L'),
        0o060_000 => text.push('D'),
        0o020_000 => text.push('D'),
        0o010_000 => text.push('p'),
        0o140_000 => text.push('S'),
        _ => {}
    }
    for (bit, letter) in [(SETUID, 'u'), (SETGID, 'g')] {
        if mode & bit != 0 {
            text.push(letter);
        }
    }
    if mode & TYPE == 0o020_000 {
        text.push('c');
    }
    if mode & STICKY != 0 {
        text.push('t');
    }
    if text.is_empty() {
        text.push('-');
    }
    for (place, letter) in (0..9).rev().zip("rwxrwxrwx".chars()) {
        text.push(if mode & (1 << place) != 0 { letter } else { '-' });
    }
    text
}

/// A string in double quotes, everything that cannot be seen escaped.
pub(crate) fn quote(text: &str) -> String {
    let mut quoted = String::with_capacity(text.len() + 2);
    quoted.push('"');
    for letter in text.chars() {
        let _infallible = match letter {
            '"' | '\\' => write!(quoted, "\\{letter}"),
            '\u{7}' => write!(quoted, "\\a"),
            '\u{8}' => write!(quoted, "\\b"),
            '\u{c}' => write!(quoted, "\\f"),
            '\n' => write!(quoted, "\\n"),
            '\r' => write!(quoted, "\\r"),
            '\t' => write!(quoted, "\\t"),
            '\u{b}' => write!(quoted, "\\v"),
            '\u{0}'..='\u{1f}' | '\u{7f}' => write!(quoted, "\\x{:02x}", u32::from(letter)),
            _ if is_printable(letter) => write!(quoted, "{letter}"),
            '\u{0}'..='\u{ffff}' => write!(quoted, "\\u{:04x}", u32::from(letter)),
            _ => write!(quoted, "\\U{:08x}", u32::from(letter)),
        };
    }
    quoted.push('"');
    quoted
}

/// The standard library escapes what cannot be seen, and a mark that has no letter to stand on; spaces other than the plain
/// one count as unseen too.
fn is_printable(letter: char) -> bool {
    let on_a_letter = ['a', letter].iter().collect::<String>();
    letter == ' ' || letter == '\'' || (!letter.is_whitespace() && on_a_letter.escape_debug().count() == 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_read_as_the_original_writes_them() {
        let cases = [
            (Errno::NOENT, "no such file or directory"),
            (Errno::ACCESS, "permission denied"),
            (Errno::NOTDIR, "not a directory"),
            (Errno::NAMETOOLONG, "file name too long"),
            (Errno::NOSPC, "no space left on device"),
            (Errno::IO, "input/output error"),
            (Errno::LOOP, "too many levels of symbolic links"),
        ];
        for (errno, text) in cases {
            assert_eq!(errno_text(errno), text);
            assert_eq!(io_text(&errno.into()), text);
        }
        let unasked = std::os::unix::net::SocketAddr::from_pathname("x".repeat(200)).unwrap_err();
        assert_eq!(io_text(&unasked), "invalid argument");
    }

    #[test]
    fn modes_show_type_and_special_bits_before_permissions() {
        let cases = [
            (0o100_644, "-rw-r--r--"),
            (0o040_755, "drwxr-xr-x"),
            (0o041_777, "dtrwxrwxrwx"),
            (0o104_755, "urwxr-xr-x"),
            (0o020_666, "Dcrw-rw-rw-"),
            (0o060_660, "Drw-rw----"),
            (0o010_600, "prw-------"),
            (0o140_777, "Srwxrwxrwx"),
            (0o042_755, "dgrwxr-xr-x"),
        ];
        for (mode, text) in cases {
            assert_eq!(mode_text(mode), text, "{mode:o}");
        }
    }

    #[test]
    fn paths_are_joined_by_their_text() {
        let cases = [
            ("/a", "b", "/a/b"),
            ("/a//b/../c/.", "n", "/a/c/n"),
            ("", "n", "n"),
            (".", "n", "n"),
            ("..", "n", "../n"),
            ("/", "n", "/n"),
            ("a/../..", "n", "../n"),
            ("/..", "n", "/n"),
            ("/d/", "1.0", "/d/1.0"),
            ("/d", "../x", "/x"),
        ];
        for (dir, name, expected) in cases {
            assert_eq!(join(dir.as_bytes(), name.as_bytes()), expected.as_bytes(), "{dir} {name}");
        }
    }

    #[test]
    fn quoting_hides_nothing() {
        assert_eq!(quote("a\"b\\c\n\u{1}é☃\u{2028}"), r#""a\"b\\c\n\x01é☃\u2028""#);
        assert_eq!(quote("e\u{301}\u{e31}'\u{a0}\u{200b}"), "\"e\u{301}\u{e31}'\\u00a0\\u200b\"");
    }
}
