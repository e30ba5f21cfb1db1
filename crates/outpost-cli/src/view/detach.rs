//! Detach keys: parses their notation and finds them in typed input.

use std::str::FromStr;

/// Longest key sequence.
const KEYS_MAX: usize = 8;

/// The sequence of keys that detaches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct DetachKeys(Vec<u8>);

impl Default for DetachKeys {
    /// `ctrl-\`.
    fn default() -> DetachKeys {
        DetachKeys(vec![b'\\' & 0x1f])
    }
}

impl FromStr for DetachKeys {
    type Err = String;

    /// One key such as `ctrl-\`, or several separated by commas: `ctrl-a,d`.
    fn from_str(text: &str) -> Result<DetachKeys, String> {
        let keys: Vec<u8> = text.split(',').map(key).collect::<Result<_, _>>()?;
        match keys.len() {
            1..=KEYS_MAX => Ok(DetachKeys(keys)),
            _ => Err(format!("at most {KEYS_MAX} keys")),
        }
    }
}

impl std::fmt::Display for DetachKeys {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        for (at, key) in self.0.iter().enumerate() {
            let comma = if at > 0 { "," } else { "" };
            match key {
                0..0x20 => write!(f, "{comma}ctrl-{}", char::from(key + 0x40).to_ascii_lowercase())?,
                key => write!(f, "{comma}{}", char::from(*key))?,
            }
        }
        Ok(())
    }
}

fn key(text: &str) -> Result<u8, String> {
    let control = text.strip_prefix("ctrl-").or_else(|| text.strip_prefix("Ctrl-"));
    match (control.map(str::as_bytes), text.as_bytes()) {
        (Some([letter @ (b'a'..=b'z' | b'A'..=b'Z')]), _) => Ok(letter & 0x1f),
        (Some([sign @ (b'@' | b'[' | b'\\' | b']' | b'^' | b'_')]), _) => Ok(sign & 0x1f),
        (None, [plain @ b'!'..=b'~']) => Ok(*plain),
        _ => Err(format!(
            "{text:?} is not a key: expected one character, or ctrl- with one of a-z @ [ \\ ] ^ _"
        )),
    }
}

/// Searches typed input for the detach keys.
pub(super) struct DetachMatcher {
    keys: DetachKeys,
    /// Input that may be the start of the detach keys and is not passed on yet.
    withheld: Vec<u8>,
    /// Number of keys in `withheld`.
    pressed: usize,
}

/// Input for the process, and whether the detach keys followed it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Typed {
    pub(super) bytes: Vec<u8>,
    pub(super) detach: bool,
}

impl DetachMatcher {
    pub(super) fn new(keys: DetachKeys) -> DetachMatcher {
        DetachMatcher { keys, withheld: Vec::new(), pressed: 0 }
    }

    pub(super) fn feed(&mut self, mut typed: &[u8]) -> Typed {
        let mut bytes = Vec::with_capacity(typed.len());
        while !typed.is_empty() {
            let wanted = self.keys.0.get(self.pressed).copied().unwrap_or_default();
            let len = length_of(wanted, typed);
            if len == 0 && self.pressed > 0 {
                // A mismatch: pass the withheld keys on and match this key from the start.
                bytes.append(&mut self.withheld);
                self.pressed = 0;
                continue;
            }
            let (now, rest) = typed.split_at(len.max(1));
            typed = rest;
            if len == 0 {
                bytes.extend_from_slice(now);
                continue;
            }
            self.withheld.extend_from_slice(now);
            self.pressed += 1;
            if self.pressed == self.keys.0.len() {
                return Typed { bytes, detach: true };
            }
        }
        Typed { bytes, detach: false }
    }
}

/// The length of this key at the start of the input; 0 if it is another key. A program may switch the terminal to one of
/// two longer encodings of control keys (CSI u, modifyOtherKeys). Each arrives in one read.
fn length_of(key: u8, typed: &[u8]) -> usize {
    if typed.first() == Some(&key) {
        return 1;
    }
    if key >= 0x20 {
        return 0;
    }
    let letter = (key + 0x40).to_ascii_lowercase();
    let forms = [format!("\x1b[{letter};5u"), format!("\x1b[27;5;{letter}~")];
    forms.iter().find(|form| typed.starts_with(form.as_bytes())).map_or(0, String::len)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn matcher(keys: &str) -> DetachMatcher {
        DetachMatcher::new(keys.parse().unwrap())
    }

    fn typed(bytes: &[u8], detach: bool) -> Typed {
        Typed { bytes: bytes.to_vec(), detach }
    }

    #[test]
    fn keys_are_parsed_and_printed() {
        for text in ["ctrl-\\", "ctrl-p,ctrl-q", "ctrl-a,d", "~,."] {
            assert_eq!(text.parse::<DetachKeys>().unwrap().to_string(), text);
        }
        assert_eq!("Ctrl-A".parse::<DetachKeys>().unwrap().0, [1]);
        for text in ["", "ctrl-", "ctrl-1", "ab", "ctrl-a,", "ä", "ctrl-ab", "a,b,c,d,e,f,g,h,i"] {
            assert!(text.parse::<DetachKeys>().is_err(), "{text}");
        }
    }

    #[test]
    fn input_before_the_detach_key_is_passed_on() {
        assert_eq!(matcher("ctrl-\\").feed(b"ls\x1c rm"), typed(b"ls", true));
        assert_eq!(matcher("ctrl-\\").feed(b"ls\n"), typed(b"ls\n", false));
    }

    #[test]
    fn a_partial_match_is_withheld_until_it_fails() {
        let mut keys = matcher("ctrl-p,ctrl-q");
        assert_eq!(keys.feed(b"a\x10"), typed(b"a", false));
        assert_eq!(keys.feed(b"b"), typed(b"\x10b", false));
        assert_eq!(keys.feed(b"\x10\x10"), typed(b"\x10", false));
        assert_eq!(keys.feed(b"\x11"), typed(b"", true));
    }

    #[test]
    fn long_encodings_match_and_escape_is_not_withheld() {
        assert_eq!(matcher("ctrl-\\").feed(b"\x1b[92;5u"), typed(b"", true));
        assert_eq!(matcher("ctrl-\\").feed(b"\x1b[27;5;92~"), typed(b"", true));
        assert_eq!(matcher("ctrl-a,d").feed(b"\x1b[97;5ud"), typed(b"", true));
        assert_eq!(matcher("ctrl-\\").feed(b"\x1b"), typed(b"\x1b", false));
        assert_eq!(matcher("ctrl-\\").feed(b"\x1b[A"), typed(b"\x1b[A", false));
    }
}
