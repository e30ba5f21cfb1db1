//! A CLI's output as lines, and from where it has to be read again after a restart.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// A longer line is passed over: nobody writes one that means something.
const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// The end of what a CLI says on standard error is kept up to this.
const STDERR_BYTES_MAX: usize = 4 * 1024;

/// A line, unless it was too long, and what is left behind it.
type Next<'a> = (Option<Cow<'a, [u8]>>, &'a [u8]);

/// The beginning of the first line that has not been taken apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Position {
    /// It stands in the first frame of standard output after this one,
    pub(crate) after: u64,
    /// behind so many bytes of that.
    skip: usize,
    /// It is the rest of a line that is passed over.
    is_passing: bool,
    /// Standard error up to here is in the tail.
    stderr_after: u64,
}

pub(crate) struct Lines {
    position: Position,
    /// Bytes still to be skipped after a restart.
    skip: usize,
    /// A line that has not ended yet.
    carry: Vec<u8>,
    /// Bytes of the frame at hand, and of it taken.
    taken: usize,
    stderr_tail: String,
}

impl Lines {
    pub(crate) fn new(position: Position, stderr_tail: String) -> Lines {
        Lines { skip: position.skip, position, carry: Vec::new(), taken: 0, stderr_tail }
    }

    pub(crate) fn position(&self) -> Position {
        self.position
    }

    /// The end of standard error, free of what a terminal would act upon.
    pub(crate) fn stderr_tail(&self) -> &str {
        &self.stderr_tail
    }

    pub(crate) fn stderr(&mut self, seq: u64, bytes: &[u8]) {
        if seq <= self.position.stderr_after {
            return;
        }
        self.position.stderr_after = seq;
        let recent = bytes.get(bytes.len().saturating_sub(STDERR_BYTES_MAX)..).unwrap_or_default();
        self.stderr_tail.push_str(&printable(&String::from_utf8_lossy(recent)));
        let excess = self.stderr_tail.len().saturating_sub(STDERR_BYTES_MAX);
        let cut = (excess..).find(|at| self.stderr_tail.is_char_boundary(*at)).unwrap_or_default();
        self.stderr_tail.drain(..cut);
    }

    /// The part of a frame of standard output that has not been taken before.
    pub(crate) fn begin<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        self.taken = self.skip.min(bytes.len());
        self.skip -= self.taken;
        bytes.get(self.taken..).unwrap_or_default()
    }

    /// The next line that ends within `bytes`.
    pub(crate) fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<Next<'a>> {
        let end = memchr::memchr(b'\n', bytes)?;
        let (head, rest) = bytes.split_at_checked(end + 1)?;
        self.taken += head.len();
        let line = head.get(..end).unwrap_or_default();
        if std::mem::take(&mut self.position.is_passing) {
            return Some((None, rest));
        }
        if self.carry.is_empty() {
            return Some((Some(Cow::Borrowed(line)), rest));
        }
        self.carry.extend_from_slice(line);
        Some((Some(Cow::Owned(std::mem::take(&mut self.carry))), rest))
    }

    /// The frame is over; `rest` is the beginning of a line that goes on in another.
    pub(crate) fn end(&mut self, seq: u64, rest: &[u8]) {
        if self.position.is_passing {
            self.position = Position { after: seq, skip: 0, ..self.position };
            return;
        }
        if self.carry.len() + rest.len() > LINE_BYTES_MAX {
            self.carry = Vec::new();
            self.position = Position { after: seq, skip: 0, is_passing: true, ..self.position };
            return;
        }
        if self.carry.is_empty() {
            self.position = match rest.is_empty() {
                true => Position { after: seq, skip: 0, ..self.position },
                false => Position { after: seq.saturating_sub(1), skip: self.taken, ..self.position },
            };
        }
        self.carry.extend_from_slice(rest);
    }

    /// Whether it ends within a line.
    pub(crate) fn is_open(&self) -> bool {
        self.position.is_passing || !self.carry.is_empty()
    }

    /// What stands after the last line end, once nothing follows.
    pub(crate) fn last(&mut self) -> Option<Vec<u8>> {
        let last = std::mem::take(&mut self.carry);
        (!last.is_empty()).then_some(last)
    }
}

/// Without colours, cursor movements and the like: this is shown on terminals.
fn printable(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => {
                // A sequence with parameters ends with a letter; others have one character.
                if characters.next() == Some('[') {
                    let _sequence = characters.by_ref().find(|next| ('\u{40}'..='\u{7e}').contains(next));
                }
            }
            '\n' | '\t' => plain.push(character),
            _ if character.is_control() => {}
            _ => plain.push(character),
        }
    }
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Cuts frames into lines, as a turn does.
    fn hear(lines: &mut Lines, frames: &[(u64, &[u8])]) -> Vec<String> {
        let mut heard = Vec::new();
        for (seq, bytes) in frames {
            let mut rest = lines.begin(bytes);
            while let Some((line, left)) = lines.next(rest) {
                rest = left;
                heard.push(
                    line.map_or("(too long)".into(), |line| String::from_utf8(line.into_owned()).unwrap()),
                );
            }
            lines.end(*seq, rest);
        }
        heard
    }

    #[test]
    fn lines_are_found_across_frames() {
        let mut lines = Lines::new(Position::default(), String::new());
        let heard = hear(&mut lines, &[(1, b"one\ntw"), (2, b"o"), (4, b"\n\nthree\n"), (5, b"end")]);
        assert_eq!(heard, ["one", "two", "", "three"]);
        assert_eq!(lines.last().unwrap(), b"end");
    }

    /// Wherever a worker is killed, the next one hears what the first has not taken apart, once.
    #[test]
    fn a_restart_at_any_frame_hears_each_line_once() {
        let frames: Vec<(u64, &[u8])> =
            vec![(1, b"a\nbb"), (2, b"bb\ncc\nd"), (3, b"d"), (5, b"d\n"), (6, b"\ne\n"), (9, b"f\ng")];
        let mut whole = Lines::new(Position::default(), String::new());
        let expected = hear(&mut whole, &frames);
        for killed_after in 0..=frames.len() {
            let mut first = Lines::new(Position::default(), String::new());
            let mut heard = hear(&mut first, &frames[..killed_after]);
            let position = first.position();
            let mut second = Lines::new(position, String::new());
            let left: Vec<_> = frames.iter().filter(|(seq, _)| *seq > position.after).copied().collect();
            heard.extend(hear(&mut second, &left));
            assert_eq!(heard, expected, "killed after {killed_after} frames, {position:?}");
            assert_eq!(second.last().unwrap(), b"g");
        }
    }

    #[test]
    fn a_line_without_end_is_passed_over() {
        let mut lines = Lines::new(Position::default(), String::new());
        let piece = vec![b'x'; 16 * 1024 * 1024];
        let frames: Vec<(u64, &[u8])> = (1..=5).map(|seq| (seq, piece.as_slice())).collect();
        assert!(hear(&mut lines, &frames).is_empty());
        let mut second = Lines::new(lines.position(), String::new());
        assert_eq!(hear(&mut second, &[(6, b"xx\nnext\n")]), ["(too long)", "next"]);
    }

    #[test]
    fn the_tail_of_standard_error_is_short_plain_and_heard_once() {
        let mut lines = Lines::new(Position::default(), String::new());
        lines.stderr(1, "\u{1b}[31mred\u{1b}[0m \u{7}bell\r\n".as_bytes());
        assert_eq!(lines.stderr_tail(), "red bell\n");
        let tail = lines.stderr_tail().to_owned();
        let mut again = Lines::new(lines.position(), tail);
        again.stderr(1, b"red bell\n");
        assert_eq!(again.stderr_tail(), "red bell\n");
        again.stderr(2, "ä".repeat(5000).as_bytes());
        assert!(again.stderr_tail().len() <= STDERR_BYTES_MAX && again.stderr_tail().ends_with('ä'));
    }
}
