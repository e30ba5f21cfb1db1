//! Decodes output as text: UTF-8, else the most likely legacy encoding.

use chardetng::EncodingDetector;
use encoding_rs::{Encoding, IBM866, WINDOWS_1252};

/// Punctuation of windows-1252 where IBM866 has letters.
const PUNCTUATION: [u8; 8] = [0x91, 0x92, 0x93, 0x94, 0x95, 0x96, 0x97, 0x99];

/// Decodes captured bytes. A character cut by truncation is dropped: it would make the detector choose another encoding.
pub(crate) fn from_output(mut bytes: Vec<u8>, cut_off: bool) -> String {
    if cut_off {
        bytes.truncate(whole_characters(&bytes));
    }
    match String::from_utf8(bytes) {
        Ok(text) => text,
        Err(error) => decode(&error.into_bytes()),
    }
}

/// Length without an incomplete UTF-8 character at the end.
fn whole_characters(bytes: &[u8]) -> usize {
    match std::str::from_utf8(bytes) {
        // `error_len` is `None` for an incomplete character at the end.
        Err(error) if error.error_len().is_none() => error.valid_up_to(),
        _ => bytes.len(),
    }
}

fn decode(bytes: &[u8]) -> String {
    let (text, _, had_errors) = encoding_of(bytes).decode(bytes);
    match had_errors {
        false => text.into_owned(),
        true => String::from_utf8_lossy(bytes).into_owned(),
    }
}

fn encoding_of(bytes: &[u8]) -> &'static Encoding {
    let mut detector = EncodingDetector::new();
    detector.feed(bytes, true);
    let guess = detector.guess(None, true);
    match guess == IBM866 && is_punctuated_ascii(bytes) {
        true => WINDOWS_1252,
        false => guess,
    }
}

/// Whether all non-ASCII bytes are windows-1252 punctuation and there are ASCII letters.
fn is_punctuated_ascii(bytes: &[u8]) -> bool {
    bytes.iter().all(|byte| byte.is_ascii() || PUNCTUATION.contains(byte))
        && bytes.iter().any(u8::is_ascii_alphabetic)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_utf8_is_read_in_the_likeliest_encoding() {
        let text = |bytes: &[u8]| from_output(bytes.to_vec(), false);
        assert_eq!(text(b"plain \0 text"), "plain \0 text");
        assert_eq!(text("gr\u{fc}n".as_bytes()), "grün");
        assert_eq!(text(b"caf\xe9"), "café");
        assert_eq!(text(b"a\xffb"), "aÿb");
        assert_eq!(text(b"\x80\x81\x82"), "АБВ");
        assert_eq!(text(b"\x93quoted\x94"), "“quoted”");
    }

    #[test]
    fn a_cap_within_a_character_spoils_nothing_before_it() {
        let (whole, cut) = ("éé".as_bytes().to_vec(), "éé".as_bytes()[..3].to_vec());
        assert_eq!(from_output(whole, false), "éé");
        assert_eq!(from_output(cut, true), "é");
        assert_eq!(from_output(b"ab\xf0\x9f\x98".to_vec(), true), "ab");
    }
}
