//! Escapes single characters and runs of spaces.

use std::fmt::Write;

/// Escapes a sequence of characters. Runs of spaces are written when they end.
pub(super) struct Escaper<'a> {
    escaped: &'a mut String,
    spaces: usize,
    /// Longer runs of spaces are written as a count.
    spaces_max: usize,
    quote: Option<char>,
}

impl<'a> Escaper<'a> {
    pub(super) fn new(escaped: &'a mut String, spaces_max: usize, quote: Option<char>) -> Escaper<'a> {
        Escaper { escaped, spaces: 0, spaces_max, quote }
    }

    pub(super) fn push(&mut self, character: char) {
        if character == ' ' {
            self.spaces += 1;
            return;
        }
        self.push_spaces();
        if Some(character) == self.quote {
            self.escaped.push('\\');
            self.escaped.push(character);
        } else {
            push_escaped(character, self.escaped);
        }
    }

    /// Writes pending spaces.
    pub(super) fn finish(mut self) {
        self.push_spaces();
    }

    fn push_spaces(&mut self) {
        match std::mem::take(&mut self.spaces) {
            few if few <= self.spaces_max => self.escaped.extend(std::iter::repeat_n(' ', few)),
            many => push_format(self.escaped, format_args!("\\u{{20*{many}}}")),
        }
    }
}

/// Escapes a character that is neither a space in a run nor a quote.
pub(super) fn push_escaped(character: char, escaped: &mut String) {
    match character {
        '\\' => escaped.push_str("\\\\"),
        '\n' => escaped.push_str("\\n"),
        '\t' => escaped.push_str("\\t"),
        '\r' => escaped.push_str("\\r"),
        ' '..='~' => escaped.push(character),
        other => push_format(escaped, format_args!("\\u{{{:x}}}", u32::from(other))),
    }
}

/// Escapes a byte that is not valid UTF-8.
pub(super) fn push_byte(byte: u8, escaped: &mut String) {
    push_format(escaped, format_args!("\\x{byte:02x}"));
}

fn push_format(escaped: &mut String, number: std::fmt::Arguments<'_>) {
    // Writing to a `String` cannot fail.
    let _ = escaped.write_fmt(number);
}
