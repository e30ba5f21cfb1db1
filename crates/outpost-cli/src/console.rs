//! Standard output and standard error: the only code of this crate and the binary that writes text to a terminal.
//!
//! The text may come from another host. This module escapes every character that a terminal interprets or that misleads
//! a reader. EPIPE on standard output ends the program by SIGPIPE, as in coreutils. Lints of this crate and of the binary
//! forbid other ways of printing.

use outpost_approvals::display::{self, Newlines, forbidden};
use outpost_sys::signal::{Signal, exit_by_signal};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};

/// Like [`print!`], escaped.
#[macro_export]
macro_rules! out {
    ($($text:tt)*) => { $crate::console::out(&format!($($text)*)) };
}

/// Like [`println!`], escaped.
#[macro_export]
macro_rules! outln {
    ($($text:tt)*) => { $crate::console::out(&(format!($($text)*) + "\n")) };
}

/// Like [`eprint!`], escaped.
#[macro_export]
macro_rules! err {
    ($($text:tt)*) => { $crate::console::err(&format!($($text)*)) };
}

/// Like [`eprintln!`], escaped.
#[macro_export]
macro_rules! errln {
    ($($text:tt)*) => { $crate::console::err(&(format!($($text)*) + "\n")) };
}

/// Writes to standard output. The error message is for the caller to report.
pub(crate) fn try_out(text: &str) -> Result<(), String> {
    pass(visible(text).as_bytes())
}

/// Writes to standard output and ignores errors.
pub fn out(text: &str) {
    let _unwritable = try_out(text);
}

/// Writes control sequences of our own. The text between them must already be [`visible`].
pub(crate) fn draw(text: &str) -> Result<(), String> {
    pass(text.as_bytes())
}

/// Writes the output of a process as it is.
pub(crate) fn pass(bytes: &[u8]) -> Result<(), String> {
    let mut out = io::stdout().lock();
    out.write_all(bytes).and_then(|()| out.flush()).map_err(|error| unwritable(&error))
}

/// The message for a failed write to standard output. EPIPE ends the program.
pub(crate) fn unwritable(error: &io::Error) -> String {
    match error.kind() {
        ErrorKind::BrokenPipe => exit_by_signal(Signal::PIPE),
        _ => format!("cannot write to standard output: {error}"),
    }
}

/// Writes to standard error and ignores errors.
pub fn err(text: &str) {
    let _closed = io::stderr().write_all(visible(text).as_bytes());
}

/// Prints an error message, with `hint:` lines, on standard error. Lines after the first are indented, so that text from
/// another host cannot imitate a message of this program.
pub fn print_error(message: &str) {
    let message = without_os_errors(message.trim_end()).replace('\n', "\n  ");
    err(&format!("error: {message}\n"));
}

/// Removes the `(os error N)` that the standard library appends to the text of an I/O error.
fn without_os_errors(text: &str) -> String {
    const START: &str = " (os error ";
    let mut parts = text.split(START);
    let mut kept = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let rest = part.trim_start_matches(|digit: char| digit.is_ascii_digit());
        match rest.strip_prefix(')').filter(|_| rest.len() < part.len()) {
            Some(rest) => kept += rest,
            None => kept = kept + START + part,
        }
    }
    kept
}

/// Escapes control characters (C0 and C1), bidirectional overrides and invisible characters as `\u{…}`. Newlines stay.
/// Joiners stay too, because emoji and some scripts need them.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, Newlines::Allowed, |number, shown| {
        let _infallible = write!(shown, "\\u{{{number:x}}}");
    })
}

/// Like [`visible`], and escapes newlines: for foreign text within a line of ours.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    escaped(text, Newlines::Refused, |number, shown| match number {
        0x0a => shown.push_str("\\n"),
        number => {
            let _infallible = write!(shown, "\\u{{{number:x}}}");
        }
    })
}

/// Like [`visible`] for JSON text, with JSON's escapes. Outside of strings JSON contains none of these characters but
/// newlines.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    escaped(text, Newlines::Allowed, |number, shown| {
        let Some(character) = char::from_u32(number) else { return };
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _infallible = write!(shown, "\\u{unit:04x}");
        }
    })
}

/// Text of a question. Daemons send it as printable ASCII; anything else is escaped.
pub(crate) fn printable(text: &str) -> String {
    match text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        true => text.to_owned(),
        false => display::escape_untrusted(text, usize::MAX),
    }
}

fn escaped(text: &str, newlines: Newlines, escape: impl Fn(u32, &mut String)) -> Cow<'_, str> {
    const JOINERS: [char; 2] = ['\u{200c}', '\u{200d}'];
    if forbidden(text, newlines).is_none() {
        return text.into();
    }
    let mut shown = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match forbidden(character.encode_utf8(&mut [0; 4]), newlines) {
            Some(character) if !JOINERS.contains(&character) => escape(character.into(), &mut shown),
            _ => shown.push(character),
        }
    }
    shown.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clipboard (OSC 52), clear screen, their C1 forms, title, bell, carriage return, bidi, tags, byte order mark.
    const HOSTILE: &str = "a\u{1b}]52;c;aGk=\u{7}\u{1b}[2J\u{9b}2J\u{9d}0;t\u{9c}\r\u{8}\u{7f}\u{202e}\u{2066}\u{feff}\u{e0041}\u{2028}z";

    #[test]
    fn control_characters_are_escaped() {
        for text in [visible(HOSTILE), line(HOSTILE), json(HOSTILE)] {
            assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
            assert!(text.starts_with('a') && text.ends_with('z'), "{text:?}");
        }
        assert_eq!(visible("\u{1b}[2J\u{9b}\u{202e}"), r"\u{1b}[2J\u{9b}\u{202e}");
    }

    #[test]
    fn ordinary_text_is_unchanged() {
        let text = "tab\there, line\nthere: \u{e9} \u{4e2d}\u{6587} \u{1f468}\u{200d}\u{1f469} \u{627}\u{200c}\u{628}";
        assert!(matches!(visible(text), Cow::Owned(_) | Cow::Borrowed(_)));
        assert_eq!(visible(text), text);
        assert_eq!(line("a\nb"), r"a\nb");
    }

    #[test]
    fn os_error_numbers_are_removed() {
        let text = "a: No such file (os error 2); b (os error x) (os error )";
        assert_eq!(without_os_errors(text), "a: No such file; b (os error x) (os error )");
    }

    #[test]
    fn escaped_json_parses_to_the_same_value() {
        let value = serde_json::json!({ "text": HOSTILE, "plain": "\u{e9}\n" });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = json(&text);
        assert_ne!(shown, text);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
