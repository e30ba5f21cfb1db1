//! The keys that leave a process without ending it: how they are written, and finding them among what is typed.

use std::str::FromStr;

/// As many as anybody wants to press.
const KEYS_MAX: usize = 8;

/// Keys to be pressed one after the other.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::cli) struct DetachKeys(Vec<u8>);

impl Default for DetachKeys {
    /// `ctrl-\`.
    fn default() -> DetachKeys {
        DetachKeys(vec![b'\\' & 0x1f])
    }
}

impl FromStr for DetachKeys {
    type Err = String;

    /// `ctrl-\`, or several with commas between them: `ctrl-a,d`.
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
        _ => Err(format!("{text:?} is no key: a character, or ctrl- and one of a-z @ [ \\ ] ^ _")),
    }
}

/// What is typed, and how much of the keys has been pressed so far.
pub(super) struct Watch {
    keys: DetachKeys,
    /// Pressed, and kept back: they may be the beginning.
    held: Vec<u8>,
    /// How many keys those are.
    pressed: usize,
}

/// What is to be passed on, and whether the keys were pressed after it.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Typed {
    pub(super) bytes: Vec<u8>,
    pub(super) detach: bool,
}

impl Watch {
    pub(super) fn new(keys: DetachKeys) -> Watch {
        Watch { keys, held: Vec::new(), pressed: 0 }
    }

    pub(super) fn take(&mut self, mut typed: &[u8]) -> Typed {
        let mut bytes = Vec::with_capacity(typed.len());
        while !typed.is_empty() {
            let wanted = self.keys.0.get(self.pressed).copied().unwrap_or_default();
            let len = length_of(wanted, typed);
            if len == 0 && self.pressed > 0 {
                // They were not the beginning; this may be another one.
                bytes.append(&mut self.held);
                self.pressed = 0;
                continue;
            }
            let (now, rest) = typed.split_at(len.max(1));
            typed = rest;
            if len == 0 {
                bytes.extend_from_slice(now);
                continue;
            }
            self.held.extend_from_slice(now);
            self.pressed += 1;
            if self.pressed == self.keys.0.len() {
                return Typed { bytes, detach: true };
            }
        }
        Typed { bytes, detach: false }
    }
}

/// How many bytes this key is at the beginning of what was typed; 0 when it is another one. Programs may have the
/// terminal send keys with ctrl in one of two longer forms, each of which comes in one piece.
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

    fn watch(keys: &str) -> Watch {
        Watch::new(keys.parse().unwrap())
    }

    fn typed(bytes: &[u8], detach: bool) -> Typed {
        Typed { bytes: bytes.to_vec(), detach }
    }

    #[test]
    fn keys_are_written_as_one_reads_them() {
        for text in ["ctrl-\\", "ctrl-p,ctrl-q", "ctrl-a,d", "~,."] {
            assert_eq!(text.parse::<DetachKeys>().unwrap().to_string(), text);
        }
        assert_eq!("Ctrl-A".parse::<DetachKeys>().unwrap().0, [1]);
        for text in ["", "ctrl-", "ctrl-1", "ab", "ctrl-a,", "ä", "ctrl-ab", "a,b,c,d,e,f,g,h,i"] {
            assert!(text.parse::<DetachKeys>().is_err(), "{text}");
        }
    }

    #[test]
    fn one_key_detaches_and_what_was_typed_before_it_is_passed_on() {
        assert_eq!(watch("ctrl-\\").take(b"ls\x1c rm"), typed(b"ls", true));
        assert_eq!(watch("ctrl-\\").take(b"ls\n"), typed(b"ls\n", false));
    }

    #[test]
    fn the_beginning_is_kept_back_until_it_is_known_to_be_none() {
        let mut keys = watch("ctrl-p,ctrl-q");
        assert_eq!(keys.take(b"a\x10"), typed(b"a", false));
        assert_eq!(keys.take(b"b"), typed(b"\x10b", false));
        assert_eq!(keys.take(b"\x10\x10"), typed(b"\x10", false));
        assert_eq!(keys.take(b"\x11"), typed(b"", true));
    }

    #[test]
    fn longer_forms_of_a_key_are_the_same_key_and_escape_is_not_kept_back() {
        assert_eq!(watch("ctrl-\\").take(b"\x1b[92;5u"), typed(b"", true));
        assert_eq!(watch("ctrl-\\").take(b"\x1b[27;5;92~"), typed(b"", true));
        assert_eq!(watch("ctrl-a,d").take(b"\x1b[97;5ud"), typed(b"", true));
        assert_eq!(watch("ctrl-\\").take(b"\x1b"), typed(b"\x1b", false));
        assert_eq!(watch("ctrl-\\").take(b"\x1b[A"), typed(b"\x1b[A", false));
    }
}
