//! Splits a CLI's output into lines, and tracks the position from which the next worker continues.

use serde::{Deserialize, Serialize};
use std::borrow::Cow;

/// Longest line. A longer one is skipped and counted as unknown.
const LINE_BYTES_MAX: usize = 64 * 1024 * 1024;

/// How much of the end of standard error is kept.
const STDERR_BYTES_MAX: usize = 4 * 1024;

/// A line, or `None` for an oversized one, and the bytes after it.
type NextLine<'a> = (Option<Cow<'a, [u8]>>, &'a [u8]);

/// The start of the first unprocessed line.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct LinePosition {
    /// It is in the first frame of standard output after this one.
    pub(crate) after: u64,
    /// Its offset in that frame.
    skip: usize,
    /// It is the rest of an oversized line.
    in_oversized_line: bool,
    /// The last frame of standard error in the tail.
    stderr_after: u64,
}

pub(crate) struct LineSplitter {
    position: LinePosition,
    /// Bytes still to skip after a restart.
    skip: usize,
    /// The incomplete last line.
    carry: Vec<u8>,
    /// Bytes of the current frame that were processed.
    consumed: usize,
    stderr_tail: String,
}

impl LineSplitter {
    pub(crate) fn new(position: LinePosition, stderr_tail: String) -> LineSplitter {
        LineSplitter { skip: position.skip, position, carry: Vec::new(), consumed: 0, stderr_tail }
    }

    pub(crate) fn position(&self) -> LinePosition {
        self.position
    }

    /// The end of standard error, without control characters.
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

    /// Starts a frame of standard output. Returns the bytes that were not processed before the restart.
    pub(crate) fn begin<'a>(&mut self, bytes: &'a [u8]) -> &'a [u8] {
        self.consumed = self.skip.min(bytes.len());
        self.skip -= self.consumed;
        bytes.get(self.consumed..).unwrap_or_default()
    }

    /// The next complete line in `bytes`.
    pub(crate) fn next<'a>(&mut self, bytes: &'a [u8]) -> Option<NextLine<'a>> {
        let end = memchr::memchr(b'\n', bytes)?;
        let (head, rest) = bytes.split_at_checked(end + 1)?;
        self.consumed += head.len();
        let line = head.get(..end).unwrap_or_default();
        if std::mem::take(&mut self.position.in_oversized_line) {
            return Some((None, rest));
        }
        if self.carry.is_empty() {
            return Some((Some(Cow::Borrowed(line)), rest));
        }
        self.carry.extend_from_slice(line);
        Some((Some(Cow::Owned(std::mem::take(&mut self.carry))), rest))
    }

    /// Ends the frame. `rest` is its incomplete last line.
    pub(crate) fn end(&mut self, seq: u64, rest: &[u8]) {
        if self.position.in_oversized_line {
            self.position = LinePosition { after: seq, skip: 0, ..self.position };
            return;
        }
        if self.carry.len() + rest.len() > LINE_BYTES_MAX {
            self.carry = Vec::new();
            self.position = LinePosition { after: seq, skip: 0, in_oversized_line: true, ..self.position };
            return;
        }
        if self.carry.is_empty() {
            self.position = match rest.is_empty() {
                true => LinePosition { after: seq, skip: 0, ..self.position },
                false => LinePosition { after: seq.saturating_sub(1), skip: self.consumed, ..self.position },
            };
        }
        self.carry.extend_from_slice(rest);
    }

    /// Whether the output so far ends within a line.
    pub(crate) fn is_open(&self) -> bool {
        self.position.in_oversized_line || !self.carry.is_empty()
    }

    /// The last line without a line feed, at the end of the output.
    pub(crate) fn last(&mut self) -> Option<Vec<u8>> {
        let last = std::mem::take(&mut self.carry);
        (!last.is_empty()).then_some(last)
    }
}

/// Removes escape sequences and control characters, because terminals show this text.
fn printable(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut characters = text.chars();
    while let Some(character) = characters.next() {
        match character {
            '\u{1b}' => {
                // A CSI sequence ends with a letter. Other sequences have one character.
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

    /// Splits frames into lines, as a running turn does.
    fn split(lines: &mut LineSplitter, frames: &[(u64, &[u8])]) -> Vec<String> {
        let mut found = Vec::new();
        for (seq, bytes) in frames {
            let mut rest = lines.begin(bytes);
            while let Some((line, left)) = lines.next(rest) {
                rest = left;
                found.push(
                    line.map_or("(too long)".into(), |line| String::from_utf8(line.into_owned()).unwrap()),
                );
            }
            lines.end(*seq, rest);
        }
        found
    }

    #[test]
    fn lines_are_found_across_frames() {
        let mut lines = LineSplitter::new(LinePosition::default(), String::new());
        let found = split(&mut lines, &[(1, b"one\ntw"), (2, b"o"), (4, b"\n\nthree\n"), (5, b"end")]);
        assert_eq!(found, ["one", "two", "", "three"]);
        assert_eq!(lines.last().unwrap(), b"end");
    }

    /// Wherever the worker is killed, both workers together process each line once.
    #[test]
    fn a_restart_at_any_frame_finds_each_line_once() {
        let frames: Vec<(u64, &[u8])> =
            vec![(1, b"a\nbb"), (2, b"bb\ncc\nd"), (3, b"d"), (5, b"d\n"), (6, b"\ne\n"), (9, b"f\ng")];
        let mut whole = LineSplitter::new(LinePosition::default(), String::new());
        let expected = split(&mut whole, &frames);
        for killed_after in 0..=frames.len() {
            let mut first = LineSplitter::new(LinePosition::default(), String::new());
            let mut found = split(&mut first, &frames[..killed_after]);
            let position = first.position();
            let mut second = LineSplitter::new(position, String::new());
            let left: Vec<_> = frames.iter().filter(|(seq, _)| *seq > position.after).copied().collect();
            found.extend(split(&mut second, &left));
            assert_eq!(found, expected, "killed after {killed_after} frames, {position:?}");
            assert_eq!(second.last().unwrap(), b"g");
        }
    }

    #[test]
    fn an_oversized_line_is_skipped() {
        let mut lines = LineSplitter::new(LinePosition::default(), String::new());
        let piece = vec![b'x'; 16 * 1024 * 1024];
        let frames: Vec<(u64, &[u8])> = (1..=5).map(|seq| (seq, piece.as_slice())).collect();
        assert!(split(&mut lines, &frames).is_empty());
        let mut second = LineSplitter::new(lines.position(), String::new());
        assert_eq!(split(&mut second, &[(6, b"xx\nnext\n")]), ["(too long)", "next"]);
    }

    #[test]
    fn the_stderr_tail_is_bounded_printable_and_without_repetition() {
        let mut lines = LineSplitter::new(LinePosition::default(), String::new());
        lines.stderr(1, "\u{1b}[31mred\u{1b}[0m \u{7}bell\r\n".as_bytes());
        assert_eq!(lines.stderr_tail(), "red bell\n");
        let tail = lines.stderr_tail().to_owned();
        let mut again = LineSplitter::new(lines.position(), tail);
        again.stderr(1, b"red bell\n");
        assert_eq!(again.stderr_tail(), "red bell\n");
        again.stderr(2, "ä".repeat(5000).as_bytes());
        assert!(again.stderr_tail().len() <= STDERR_BYTES_MAX && again.stderr_tail().ends_with('ä'));
    }
}
