//! What this program writes for people: the one place where text leaves for a terminal.
//!
//! The text may come from another host. Whatever a terminal would act upon, or show as something else than it is, is
//! escaped here. An output that was closed ends the program without a word, as it ends coreutils. The lints that `main.rs`
//! sets keep other ways of printing out of this crate.

use outpost_approvals::display::{self, Newlines, forbidden};
use outpost_sys::signal::{Signal, end_by};
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, ErrorKind, Write};

/// Text on standard output, as [`print!`] has it.
macro_rules! out {
    ($($text:tt)*) => { $crate::console::out(&format!($($text)*)) };
}

/// A line on standard output, as [`println!`] has it.
macro_rules! outln {
    ($($text:tt)*) => { $crate::console::out(&(format!($($text)*) + "\n")) };
}

/// Text on standard error, as [`eprint!`] has it.
macro_rules! err {
    ($($text:tt)*) => { $crate::console::err(&format!($($text)*)) };
}

/// A line on standard error, as [`eprintln!`] has it.
macro_rules! errln {
    ($($text:tt)*) => { $crate::console::err(&(format!($($text)*) + "\n")) };
}

/// Writes to standard output. A failure that is not a closed pipe is the caller's to report, who may have no other use for it.
pub(crate) fn try_out(text: &str) -> io::Result<()> {
    write(visible(text).as_bytes())
}

/// The same where a failure is of no interest.
pub(crate) fn out(text: &str) {
    let _unwritable = try_out(text);
}

/// Sequences of our own to a terminal. What they draw must be [`visible`] already.
pub(crate) fn draw(text: &str) -> io::Result<()> {
    write(text.as_bytes())
}

fn write(bytes: &[u8]) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(bytes).and_then(|()| out.flush()) {
        Err(error) if error.kind() == ErrorKind::BrokenPipe => end_by(Signal::PIPE),
        written => written,
    }
}

/// Writes to standard error. There is nowhere to report a failure.
pub(crate) fn err(text: &str) {
    let _closed = io::stderr().write_all(visible(text).as_bytes());
}

/// A message of this program on standard error. Lines after the first are indented, so that text from elsewhere cannot pass
/// for a message of its own.
pub(crate) fn complain(message: &str) {
    err(&format!("outpost: {}\n", message.trim_end().replace('\n', "\n  ")));
}

/// A text of several lines with everything in it visible: controls, also those of 8 bits, characters that turn the
/// direction of reading and invisible ones are shown by their numbers. Joiners, which emoji and some scripts need, stay.
pub(crate) fn visible(text: &str) -> Cow<'_, str> {
    escaped(text, Newlines::Allowed, |number, drawn| {
        let _infallible = write!(drawn, "\\u{{{number:x}}}");
    })
}

/// The same on one line: text from elsewhere that stands among ours.
pub(crate) fn line(text: &str) -> Cow<'_, str> {
    escaped(text, Newlines::Refused, |number, drawn| match number {
        0x0a => drawn.push_str("\\n"),
        number => {
            let _infallible = write!(drawn, "\\u{{{number:x}}}");
        }
    })
}

/// JSON text with the same characters in JSON's own escapes. Outside of strings JSON has none of them but newlines.
pub(crate) fn json(text: &str) -> Cow<'_, str> {
    escaped(text, Newlines::Allowed, |number, drawn| {
        let Some(character) = char::from_u32(number) else { return };
        for unit in character.encode_utf16(&mut [0; 2]) {
            let _infallible = write!(drawn, "\\u{unit:04x}");
        }
    })
}

/// What a daemon sends to be decided about, which is printable ASCII. Should it not be, it is escaped.
pub(crate) fn printable(text: &str) -> String {
    match text.bytes().all(|byte| (b' '..=b'~').contains(&byte)) {
        true => text.to_owned(),
        false => display::claim(text, usize::MAX),
    }
}

fn escaped(text: &str, newlines: Newlines, escape: impl Fn(u32, &mut String)) -> Cow<'_, str> {
    const JOINERS: [char; 2] = ['\u{200c}', '\u{200d}'];
    if forbidden(text, newlines).is_none() {
        return text.into();
    }
    let mut drawn = String::with_capacity(text.len() + 16);
    for character in text.chars() {
        match forbidden(character.encode_utf8(&mut [0; 4]), newlines) {
            Some(character) if !JOINERS.contains(&character) => escape(character.into(), &mut drawn),
            _ => drawn.push(character),
        }
    }
    drawn.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Clipboard (OSC 52), title, clear screen, the same in 8 bits, bell, carriage return, direction, tags, byte order mark.
    const HOSTILE: &str = "a\u{1b}]52;c;aGk=\u{7}\u{1b}[2J\u{9b}2J\u{9d}0;t\u{9c}\r\u{8}\u{7f}\u{202e}\u{2066}\u{feff}\u{e0041}\u{2028}z";

    #[test]
    fn nothing_that_a_terminal_acts_upon_is_left() {
        for text in [visible(HOSTILE), line(HOSTILE), json(HOSTILE)] {
            assert!(text.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{text:?}");
            assert!(text.starts_with('a') && text.ends_with('z'), "{text:?}");
        }
        assert_eq!(visible("\u{1b}[2J\u{9b}\u{202e}"), r"\u{1b}[2J\u{9b}\u{202e}");
    }

    #[test]
    fn what_people_write_stays_as_it_is() {
        let text = "tab\there, line\nthere: \u{e9} \u{4e2d}\u{6587} \u{1f468}\u{200d}\u{1f469} \u{627}\u{200c}\u{628}";
        assert!(matches!(visible(text), Cow::Owned(_) | Cow::Borrowed(_)));
        assert_eq!(visible(text), text);
        assert_eq!(line("a\nb"), r"a\nb");
    }

    #[test]
    fn json_stays_the_same_json() {
        let value = serde_json::json!({ "text": HOSTILE, "plain": "\u{e9}\n" });
        let text = serde_json::to_string_pretty(&value).unwrap();
        let shown = json(&text);
        assert_ne!(shown, text);
        assert_eq!(serde_json::from_str::<serde_json::Value>(&shown).unwrap(), value);
    }
}
