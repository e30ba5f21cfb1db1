//! Terminal modes: tracks what a program changes, to reset it on detach and to set it on attach.

use std::collections::BTreeMap;

/// Longest sequence that is kept; inline images are longer.
const SEQUENCE_BYTES_MAX: usize = 4096;

/// DEC private modes that are off by default and must be reset: cursor keys, mouse, focus, bracketed paste, synchronized
/// output, color and size reports, alternate screens.
const DEFAULT_OFF: [u16; 18] =
    [1, 9, 1000, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 2004, 2026, 2031, 2048, 47, 1047, 1049];

/// Modes that are on by default: autowrap, cursor visible.
const DEFAULT_ON: [u16; 2] = [7, 25];

const ALTERNATE_SCREENS: [u16; 3] = [47, 1047, 1049];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Ground,
    /// Inside a UTF-8 character; the number of missing bytes.
    Utf8(u8),
    Escape,
    Csi,
    /// OSC, DCS, SOS, PM or APC, until its terminator.
    String,
    StringEscape,
}

/// The terminal state after the output tracked so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Modes {
    state: State,
    /// The unfinished escape sequence or UTF-8 character.
    sequence: Vec<u8>,
    /// Private modes that differ from their default.
    changed: BTreeMap<u16, bool>,
    keypad: bool,
    /// Depth of the kitty keyboard stack.
    keyboard_stack: u16,
    keyboard_flags: bool,
    modify_other_keys: bool,
    cursor_shape: bool,
    margins: bool,
    alternate_charset: bool,
    /// The last byte was not a newline.
    mid_line: bool,
}

impl Modes {
    pub(super) fn track(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.track_byte(*byte);
        }
        self.mid_line = bytes.last().map_or(self.mid_line, |last| *last != b'\n');
    }

    /// The unfinished sequence; later output continues it.
    pub(super) fn unfinished(&self) -> &[u8] {
        &self.sequence
    }

    fn track_byte(&mut self, byte: u8) {
        let next = match (self.state, byte) {
            (State::String, 0x1b) => State::StringEscape,
            (State::StringEscape, b'\\') => State::Ground,
            (_, 0x1b) => {
                self.sequence.clear();
                State::Escape
            }
            (_, 0x18 | 0x1a) => State::Ground,
            (State::Ground | State::Utf8(_), _) => self.on_ground(byte),
            (State::Escape | State::StringEscape, _) => self.on_escape(byte),
            (State::Csi, 0x40..=0x7e) => {
                self.sequence.push(byte);
                self.on_csi();
                State::Ground
            }
            (State::String, 0x07) => State::Ground,
            (state @ (State::Csi | State::String), _) => state,
        };
        self.state = next;
        match next {
            State::Ground => self.sequence.clear(),
            _ if self.sequence.len() < SEQUENCE_BYTES_MAX => self.sequence.push(byte),
            _ => {}
        }
    }

    fn on_ground(&mut self, byte: u8) -> State {
        match (self.state, byte) {
            (State::Utf8(left @ 2..), 0x80..0xc0) => State::Utf8(left - 1),
            (_, 0xc0..0xe0) => State::Utf8(1),
            (_, 0xe0..0xf0) => State::Utf8(2),
            (_, 0xf0..0xf8) => State::Utf8(3),
            (_, 0x0e | 0x0f) => {
                self.alternate_charset = byte == 0x0e;
                State::Ground
            }
            _ => State::Ground,
        }
    }

    fn on_escape(&mut self, byte: u8) -> State {
        match byte {
            b'[' => State::Csi,
            b']' | b'P' | b'X' | b'^' | b'_' => State::String,
            0x20..=0x2f => State::Escape,
            b'=' | b'>' => {
                self.keypad = byte == b'=';
                State::Ground
            }
            b'c' => {
                *self = Modes::default();
                State::Ground
            }
            designated => {
                if self.sequence.last() == Some(&b'(') {
                    self.alternate_charset = designated != b'B';
                }
                State::Ground
            }
        }
    }

    /// Handles a complete control sequence: `ESC [`, parameters, final byte.
    fn on_csi(&mut self) {
        let Some((last, parameters)) = self.sequence.get(2..).and_then(<[u8]>::split_last) else { return };
        let number = |text: &[u8]| std::str::from_utf8(text).ok().and_then(|text| text.parse::<u16>().ok());
        let (mark, rest) = match parameters.split_first() {
            Some((mark @ (b'?' | b'>' | b'<' | b'=' | b'!'), rest)) => (*mark, rest),
            _ => (b' ', parameters),
        };
        match (mark, last) {
            (b'?', b'h' | b'l') => {
                let set = *last == b'h';
                let numbers: Vec<u16> = rest.split(|byte| *byte == b';').filter_map(number).collect();
                numbers.into_iter().for_each(|mode| self.set(mode, set));
            }
            (b'>', b'u') => self.keyboard_stack = self.keyboard_stack.saturating_add(1),
            (b'<', b'u') => {
                self.keyboard_stack = self.keyboard_stack.saturating_sub(number(rest).unwrap_or(1))
            }
            (b'=', b'u') => self.keyboard_flags = !matches!(rest, b"" | b"0"),
            (b'>', b'm') if rest.starts_with(b"4") => self.modify_other_keys = !matches!(rest, b"4" | b"4;0"),
            (b' ', b'q') if rest.ends_with(b" ") => self.cursor_shape = !matches!(rest, b" " | b"0 "),
            (b' ', b'r') => self.margins = !rest.is_empty(),
            (b'!', b'p') => {
                [1, 7, 25].iter().for_each(|mode| {
                    self.changed.remove(mode);
                });
                (self.keypad, self.margins, self.alternate_charset) = (false, false, false);
            }
            _ => {}
        }
    }

    fn set(&mut self, mode: u16, set: bool) {
        match (DEFAULT_OFF.contains(&mode), DEFAULT_ON.contains(&mode)) {
            (false, false) => {}
            (_, on) if on == set => {
                self.changed.remove(&mode);
            }
            _ => {
                self.changed.insert(mode, set);
            }
        }
    }

    fn on_alternate_screen(&self) -> bool {
        ALTERNATE_SCREENS.iter().any(|screen| self.changed.contains_key(screen))
    }

    /// The sequences that set these modes on a terminal with default modes. The screen content is not included.
    pub(super) fn enter(&self) -> Vec<u8> {
        let mut text = String::new();
        for (mode, set) in self.changed_screens().chain(self.other_changes()) {
            text += &format!("\x1b[?{mode}{}", if set { 'h' } else { 'l' });
        }
        if self.keypad {
            text += "\x1b=";
        }
        text.into_bytes()
    }

    /// The sequences that reset these modes to the defaults and move to the start of a line.
    pub(super) fn leave(&self) -> Vec<u8> {
        // ST first: it terminates an unfinished string sequence.
        let mut text = String::from("\x1b\\\x1b[0m");
        if self.margins {
            text += "\x1b7\x1b[r\x1b8";
        }
        if self.alternate_charset {
            text += "\x0f\x1b(B";
        }
        if self.keyboard_stack > 0 {
            text += &format!("\x1b[<{}u", self.keyboard_stack);
        }
        if self.keyboard_flags {
            text += "\x1b[=0u";
        }
        if self.modify_other_keys {
            text += "\x1b[>4;0m";
        }
        if self.cursor_shape {
            text += "\x1b[0 q";
        }
        if self.keypad {
            text += "\x1b>";
        }
        // The alternate screen last, because some modes belong to a screen.
        for (mode, set) in self.other_changes().chain(self.changed_screens()) {
            text += &format!("\x1b[?{mode}{}", if set { 'l' } else { 'h' });
        }
        if self.mid_line && !self.on_alternate_screen() {
            text += "\r\n";
        }
        text.into_bytes()
    }

    fn changed_screens(&self) -> impl Iterator<Item = (u16, bool)> {
        self.changed
            .iter()
            .filter(|(mode, _)| ALTERNATE_SCREENS.contains(mode))
            .map(|(mode, set)| (*mode, *set))
    }

    fn other_changes(&self) -> impl Iterator<Item = (u16, bool)> {
        self.changed
            .iter()
            .filter(|(mode, _)| !ALTERNATE_SCREENS.contains(mode))
            .map(|(mode, set)| (*mode, *set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(chunks: &[&[u8]]) -> Modes {
        let mut modes = Modes::default();
        chunks.iter().for_each(|chunk| modes.track(chunk));
        modes
    }

    fn reset_after(chunks: &[&[u8]]) -> String {
        String::from_utf8(after(chunks).leave()).unwrap()
    }

    const DEFAULTS: &str = "\x1b\\\x1b[0m\r\n";

    #[test]
    fn an_unfinished_line_is_terminated() {
        assert_eq!(reset_after(&[b"text\r\n"]), "\x1b\\\x1b[0m");
        assert_eq!(reset_after(&[]), "\x1b\\\x1b[0m");
        assert_eq!(reset_after(&[b"prompt> "]), DEFAULTS);
    }

    #[test]
    fn only_changed_modes_are_reset() {
        assert_eq!(reset_after(&[b"plain \x1b[31mred\x1b[0m text"]), DEFAULTS);
        let full =
            reset_after(&[b"\x1b[?1049h\x1b[?1000;1006h\x1b[?2004h\x1b[?25l\x1b=\x1b[>1u\x1b[4 q\x1b[2;5r"]);
        assert_eq!(
            full,
            "\x1b\\\x1b[0m\x1b7\x1b[r\x1b8\x1b[<1u\x1b[0 q\x1b>\x1b[?25h\x1b[?1000l\x1b[?1006l\x1b[?2004l\x1b[?1049l"
        );
    }

    #[test]
    fn modes_that_the_program_reset_itself_are_left_alone() {
        let program: &[&[u8]] = &[b"\x1b[?1049h\x1b[?25l\x1b[>1u", b"\x1b[<u\x1b[?25h\x1b[?1049l\x1b[r\x1b>"];
        assert_eq!(reset_after(program), DEFAULTS);
        assert_eq!(reset_after(&[b"\x1b[?1049h\x1b[?1003h", b"\x1bc"]), DEFAULTS);
    }

    #[test]
    fn split_sequences_are_tracked_and_string_contents_are_not() {
        assert!(reset_after(&[b"\x1b[?10", b"49h"]).ends_with("\x1b[?1049l"));
        assert_eq!(
            reset_after(&[b"\x1b]0;\x1b", b"\\", b"\x1bP[?1049h\x1b\\", b"\x1b]2;[?1049h\x07"]),
            DEFAULTS
        );
    }

    #[test]
    fn an_unfinished_sequence_is_kept() {
        assert_eq!(after(&[b"abc"]).unfinished(), b"");
        assert_eq!(after(&[b"abc\x1b[1;3"]).unfinished(), b"\x1b[1;3");
        assert_eq!(after(&[b"abc\x1b]0;title"]).unfinished(), b"\x1b]0;title");
        assert_eq!(after(&[b"\xe2\x82"]).unfinished(), b"\xe2\x82");
        assert_eq!(after(&[b"\xe2\x82\xac"]).unfinished(), b"");
        assert_eq!(after(&[b"\xff\xfe"]).unfinished(), b"");
    }

    #[test]
    fn entering_sets_the_modes_of_the_program() {
        assert_eq!(after(&[b"\x1b[?25l\x1b[?1049h\x1b="]).enter(), b"\x1b[?1049h\x1b[?25l\x1b=");
    }
}
