//! The one way in which a character is drawn.

use std::fmt::Write;

/// Draws characters one after the other; runs of spaces only once they have ended.
pub(super) struct Escaper<'a> {
    drawn: &'a mut String,
    blanks: usize,
    /// Of more spaces than this in a row the number is drawn.
    blanks_max: usize,
    quote: Option<char>,
}

impl<'a> Escaper<'a> {
    pub(super) fn new(drawn: &'a mut String, blanks_max: usize, quote: Option<char>) -> Escaper<'a> {
        Escaper { drawn, blanks: 0, blanks_max, quote }
    }

    pub(super) fn push(&mut self, character: char) {
        if character == ' ' {
            self.blanks += 1;
            return;
        }
        self.push_blanks();
        if Some(character) == self.quote {
            self.drawn.push('\\');
            self.drawn.push(character);
        } else {
            push_escaped(character, self.drawn);
        }
    }

    /// The end: spaces may still be due.
    pub(super) fn finish(mut self) {
        self.push_blanks();
    }

    fn push_blanks(&mut self) {
        match std::mem::take(&mut self.blanks) {
            few if few <= self.blanks_max => self.drawn.extend(std::iter::repeat_n(' ', few)),
            many => push_number(self.drawn, format_args!("\\u{{20*{many}}}")),
        }
    }
}

/// A character outside of runs and quotes.
pub(super) fn push_escaped(character: char, drawn: &mut String) {
    match character {
        '\\' => drawn.push_str("\\\\"),
        '\n' => drawn.push_str("\\n"),
        '\t' => drawn.push_str("\\t"),
        '\r' => drawn.push_str("\\r"),
        ' '..='~' => drawn.push(character),
        other => push_number(drawn, format_args!("\\u{{{:x}}}", u32::from(other))),
    }
}

/// A byte that is part of no character.
pub(super) fn push_byte(byte: u8, drawn: &mut String) {
    push_number(drawn, format_args!("\\x{byte:02x}"));
}

fn push_number(drawn: &mut String, number: std::fmt::Arguments<'_>) {
    // A string takes everything.
    let _ = drawn.write_fmt(number);
}
