//! What a program has changed about its terminal: to change it back when we leave, and to have it so when we come.

use std::collections::BTreeMap;

/// The longest sequence that is looked at; pictures and the like are longer.
const SEQUENCE_BYTES_MAX: usize = 4096;

/// Modes that matter to whoever comes after and are off by themselves: cursor keys, mouse, focus, marked pastes, drawing
/// in one go, news of colours and sizes, other screens.
const OFF: [u16; 18] =
    [1, 9, 1000, 1002, 1003, 1004, 1005, 1006, 1007, 1015, 1016, 2004, 2026, 2031, 2048, 47, 1047, 1049];

/// Those that are on: wrapping, the cursor is seen.
const ON: [u16; 2] = [7, 25];

/// The other screens.
const SCREENS: [u16; 3] = [47, 1047, 1049];

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum State {
    #[default]
    Ground,
    /// Of a character of several bytes, so many are missing.
    Character(u8),
    Escape,
    Control,
    /// Until its terminator.
    Text,
    TextEscape,
}

/// Follows what is written to a terminal.
#[derive(Clone, Debug, Default)]
pub(super) struct Modes {
    state: State,
    /// What has begun and not ended.
    sequence: Vec<u8>,
    /// Those that are not as they are by themselves.
    changed: BTreeMap<u16, bool>,
    keypad: bool,
    /// Ways of sending keys that were put upon each other.
    keyboards: u16,
    keyboard_flags: bool,
    longer_keys: bool,
    cursor_shape: bool,
    margins: bool,
    other_characters: bool,
    in_line: bool,
}

impl Modes {
    pub(super) fn follow(&mut self, bytes: &[u8]) {
        for byte in bytes {
            self.follow_byte(*byte);
        }
        self.in_line = bytes.last().map_or(self.in_line, |last| *last != b'\n');
    }

    /// What has begun and not ended: it belongs before whatever comes next.
    pub(super) fn unfinished(&self) -> &[u8] {
        &self.sequence
    }

    fn follow_byte(&mut self, byte: u8) {
        let next = match (self.state, byte) {
            (State::Text, 0x1b) => State::TextEscape,
            (State::TextEscape, b'\\') => State::Ground,
            (_, 0x1b) => {
                self.sequence.clear();
                State::Escape
            }
            (_, 0x18 | 0x1a) => State::Ground,
            (State::Ground | State::Character(_), _) => self.character(byte),
            (State::Escape | State::TextEscape, _) => self.escape(byte),
            (State::Control, 0x40..=0x7e) => {
                self.sequence.push(byte);
                self.control();
                State::Ground
            }
            (State::Text, 0x07) => State::Ground,
            (state @ (State::Control | State::Text), _) => state,
        };
        self.state = next;
        match next {
            State::Ground => self.sequence.clear(),
            _ if self.sequence.len() < SEQUENCE_BYTES_MAX => self.sequence.push(byte),
            _ => {}
        }
    }

    fn character(&mut self, byte: u8) -> State {
        match (self.state, byte) {
            (State::Character(left @ 2..), 0x80..0xc0) => State::Character(left - 1),
            (_, 0xc0..0xe0) => State::Character(1),
            (_, 0xe0..0xf0) => State::Character(2),
            (_, 0xf0..0xf8) => State::Character(3),
            (_, 0x0e | 0x0f) => {
                self.other_characters = byte == 0x0e;
                State::Ground
            }
            _ => State::Ground,
        }
    }

    fn escape(&mut self, byte: u8) -> State {
        match byte {
            b'[' => State::Control,
            b']' | b'P' | b'X' | b'^' | b'_' => State::Text,
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
                    self.other_characters = designated != b'B';
                }
                State::Ground
            }
        }
    }

    /// A whole control sequence: `ESC [`, parameters, its final byte.
    fn control(&mut self) {
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
            (b'>', b'u') => self.keyboards = self.keyboards.saturating_add(1),
            (b'<', b'u') => self.keyboards = self.keyboards.saturating_sub(number(rest).unwrap_or(1)),
            (b'=', b'u') => self.keyboard_flags = !matches!(rest, b"" | b"0"),
            (b'>', b'm') if rest.starts_with(b"4") => self.longer_keys = !matches!(rest, b"4" | b"4;0"),
            (b' ', b'q') if rest.ends_with(b" ") => self.cursor_shape = !matches!(rest, b" " | b"0 "),
            (b' ', b'r') => self.margins = !rest.is_empty(),
            (b'!', b'p') => {
                [1, 7, 25].iter().for_each(|mode| {
                    self.changed.remove(mode);
                });
                (self.keypad, self.margins, self.other_characters) = (false, false, false);
            }
            _ => {}
        }
    }

    fn set(&mut self, mode: u16, set: bool) {
        match (OFF.contains(&mode), ON.contains(&mode)) {
            (false, false) => {}
            (_, on) if on == set => {
                self.changed.remove(&mode);
            }
            _ => {
                self.changed.insert(mode, set);
            }
        }
    }

    fn on_another_screen(&self) -> bool {
        SCREENS.iter().any(|screen| self.changed.contains_key(screen))
    }

    /// Makes a terminal that is as it is by itself into this one, apart from what is seen on it.
    pub(super) fn enter(&self) -> Vec<u8> {
        let mut text = String::new();
        for (mode, set) in self.screens().chain(self.others()) {
            text += &format!("\x1b[?{mode}{}", if set { 'h' } else { 'l' });
        }
        if self.keypad {
            text += "\x1b=";
        }
        text.into_bytes()
    }

    /// Makes this one into a terminal as it is by itself, at the beginning of a line.
    pub(super) fn leave(&self) -> Vec<u8> {
        // What has begun is ended first.
        let mut text = String::from("\x1b\\\x1b[0m");
        if self.margins {
            text += "\x1b7\x1b[r\x1b8";
        }
        if self.other_characters {
            text += "\x0f\x1b(B";
        }
        if self.keyboards > 0 {
            text += &format!("\x1b[<{}u", self.keyboards);
        }
        if self.keyboard_flags {
            text += "\x1b[=0u";
        }
        if self.longer_keys {
            text += "\x1b[>4;0m";
        }
        if self.cursor_shape {
            text += "\x1b[0 q";
        }
        if self.keypad {
            text += "\x1b>";
        }
        // The screen last: some of the others belong to it.
        for (mode, set) in self.others().chain(self.screens()) {
            text += &format!("\x1b[?{mode}{}", if set { 'l' } else { 'h' });
        }
        if self.in_line && !self.on_another_screen() {
            text += "\r\n";
        }
        text.into_bytes()
    }

    fn screens(&self) -> impl Iterator<Item = (u16, bool)> {
        self.changed.iter().filter(|(mode, _)| SCREENS.contains(mode)).map(|(mode, set)| (*mode, *set))
    }

    fn others(&self) -> impl Iterator<Item = (u16, bool)> {
        self.changed.iter().filter(|(mode, _)| !SCREENS.contains(mode)).map(|(mode, set)| (*mode, *set))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn after(pieces: &[&[u8]]) -> Modes {
        let mut modes = Modes::default();
        pieces.iter().for_each(|piece| modes.follow(piece));
        modes
    }

    fn left(pieces: &[&[u8]]) -> String {
        String::from_utf8(after(pieces).leave()).unwrap()
    }

    const NOTHING: &str = "\x1b\\\x1b[0m\r\n";

    #[test]
    fn a_line_that_has_begun_is_ended() {
        assert_eq!(left(&[b"text\r\n"]), "\x1b\\\x1b[0m");
        assert_eq!(left(&[]), "\x1b\\\x1b[0m");
        assert_eq!(left(&[b"prompt> "]), NOTHING);
    }

    #[test]
    fn what_was_changed_is_changed_back_and_nothing_else() {
        assert_eq!(left(&[b"plain \x1b[31mred\x1b[0m text"]), NOTHING);
        let full = left(&[b"\x1b[?1049h\x1b[?1000;1006h\x1b[?2004h\x1b[?25l\x1b=\x1b[>1u\x1b[4 q\x1b[2;5r"]);
        assert_eq!(
            full,
            "\x1b\\\x1b[0m\x1b7\x1b[r\x1b8\x1b[<1u\x1b[0 q\x1b>\x1b[?25h\x1b[?1000l\x1b[?1006l\x1b[?2004l\x1b[?1049l"
        );
    }

    #[test]
    fn what_the_program_changed_back_itself_is_left_alone() {
        let program: &[&[u8]] = &[b"\x1b[?1049h\x1b[?25l\x1b[>1u", b"\x1b[<u\x1b[?25h\x1b[?1049l\x1b[r\x1b>"];
        assert_eq!(left(program), NOTHING);
        assert_eq!(left(&[b"\x1b[?1049h\x1b[?1003h", b"\x1bc"]), NOTHING);
    }

    #[test]
    fn sequences_may_come_in_pieces_and_inside_of_texts_they_are_none() {
        assert!(left(&[b"\x1b[?10", b"49h"]).ends_with("\x1b[?1049l"));
        assert_eq!(left(&[b"\x1b]0;\x1b", b"\\", b"\x1bP[?1049h\x1b\\", b"\x1b]2;[?1049h\x07"]), NOTHING);
    }

    #[test]
    fn what_has_not_ended_is_known() {
        assert_eq!(after(&[b"abc"]).unfinished(), b"");
        assert_eq!(after(&[b"abc\x1b[1;3"]).unfinished(), b"\x1b[1;3");
        assert_eq!(after(&[b"abc\x1b]0;title"]).unfinished(), b"\x1b]0;title");
        assert_eq!(after(&[b"\xe2\x82"]).unfinished(), b"\xe2\x82");
        assert_eq!(after(&[b"\xe2\x82\xac"]).unfinished(), b"");
        assert_eq!(after(&[b"\xff\xfe"]).unfinished(), b"");
    }

    #[test]
    fn a_screen_is_entered_as_the_program_left_it() {
        assert_eq!(after(&[b"\x1b[?25l\x1b[?1049h\x1b="]).enter(), b"\x1b[?1049h\x1b[?25l\x1b=");
    }
}
