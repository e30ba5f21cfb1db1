//! Go's standard library texts: system errors, file modes, quoted strings, cleaned paths.
//!
//! The original daemon is written in Go, and these texts are on the wire: "open …: no such file or directory",
//! "-rw-r--r--", `destDir must be …: "x"`.

use outpost_sys::Errno;
use std::fmt::Write;
use std::io;

/// The text of `syscall.Errno.Error`: lower case, without the number.
pub fn errno_text(errno: Errno) -> String {
    let text = io::Error::from(errno).to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    match (letters.next(), letters.clone().next()) {
        // Keep the case of an abbreviation.
        (Some(first), Some(second)) if first.is_uppercase() && !second.is_uppercase() => {
            first.to_lowercase().collect::<String>() + letters.as_str()
        }
        _ => text.to_owned(),
    }
}

/// The text of an I/O error. Rust's standard library rejects a path with a NUL byte, or one too long for a socket, without
/// an errno; Go reports EINVAL.
pub fn io_text(error: &io::Error) -> String {
    let errno = match error.kind() {
        io::ErrorKind::InvalidInput => Some(Errno::INVAL),
        _ => Errno::from_io_error(error),
    };
    errno.map_or_else(|| error.to_string(), errno_text)
}

/// The text of `os.PathError`: `open /x: permission denied`.
pub fn path_error(operation: &str, path: &str, error: &io::Error) -> String {
    format!("{operation} {path}: {}", io_text(error))
}

/// `runtime.GOARCH`.
pub fn architecture() -> &'static str {
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

/// `path.Clean`: lexically removes `.`, resolvable `..` and repeated slashes.
pub fn clean(path: &[u8]) -> Vec<u8> {
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

/// `path.Base`: the last component.
pub(crate) fn base(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|byte| *byte != b'/').map_or(0, |last| last + 1);
    let trimmed = path.get(..end).unwrap_or_default();
    match (path.is_empty(), trimmed.is_empty()) {
        (true, _) => b".",
        (_, true) => b"/",
        _ => trimmed.rsplit(|byte| *byte == b'/').next().unwrap_or(trimmed),
    }
}

/// `path.Join`: ignores an empty part and cleans the result.
pub fn join(dir: &[u8], name: &[u8]) -> Vec<u8> {
    match dir.is_empty() {
        true => clean(name),
        false => clean(&[dir, b"/", name].concat()),
    }
}

const SETUID: u32 = 0o4000;
const SETGID: u32 = 0o2000;
const STICKY: u32 = 0o1000;
const TYPE: u32 = 0o170_000;

/// `fs.FileMode.String`: type and special letters, then nine permission letters.
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
    for (bit, letter) in (0..9).rev().zip("rwxrwxrwx".chars()) {
        text.push(if mode & (1 << bit) != 0 { letter } else { '-' });
    }
    text
}

/// `strconv.Quote`: double quotes, unprintable characters escaped.
pub fn quote(text: &str) -> String {
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

/// `strconv.IsPrint`, by means of `escape_debug`. That function also escapes a leading combining mark, hence the `a` before
/// it. In Go, the only printable space is U+0020.
fn is_printable(letter: char) -> bool {
    let after_base = ['a', letter].iter().collect::<String>();
    letter == ' ' || letter == '\'' || (!letter.is_whitespace() && after_base.escape_debug().count() == 2)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn system_errors_have_the_text_of_go() {
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
        let without_errno = std::os::unix::net::SocketAddr::from_pathname("x".repeat(200)).unwrap_err();
        assert_eq!(io_text(&without_errno), "invalid argument");
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
    fn paths_are_joined_lexically() {
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
    fn quoting_escapes_unprintable_characters() {
        assert_eq!(quote("a\"b\\c\n\u{1}é☃\u{2028}"), r#""a\"b\\c\n\x01é☃\u2028""#);
        assert_eq!(quote("e\u{301}\u{e31}'\u{a0}\u{200b}"), "\"e\u{301}\u{e31}'\\u00a0\\u200b\"");
    }
}
