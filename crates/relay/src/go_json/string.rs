//! JSON string scanning (eight bytes at a time) and escape decoding.

use memchr::{memchr, memchr2};
use std::borrow::Cow;

/// Strings up to this length are scanned word by word. Most strings are short, and the setup of `memchr` costs more than
/// their scan.
pub(super) const SHORT_BYTES: usize = 32;

/// 0x01 in every byte of a word.
const ONES: u64 = u64::from_le_bytes([1; 8]);

/// The length of the prefix of `rest`, inside a string, that has no quote, backslash or control character.
pub(super) fn plain_len(rest: &[u8]) -> usize {
    let run = plain_len_validated(rest);
    match rest.get(SHORT_BYTES..run) {
        Some(long) if has_control(long) => {
            SHORT_BYTES + long.iter().position(is_special).unwrap_or(long.len())
        }
        _ => run,
    }
}

/// Like [`plain_len`], but for a validated string: behind the first `SHORT_BYTES` it does not look for control
/// characters.
pub(super) fn plain_len_validated(rest: &[u8]) -> usize {
    let (head, tail) = rest.split_at(rest.len().min(SHORT_BYTES));
    let (words, last) = head.as_chunks::<8>();
    let mut run = 0;
    for word in words {
        let special = special_in(u64::from_le_bytes(*word));
        if special != 0 {
            return run + special.trailing_zeros() as usize / 8;
        }
        run += 8;
    }
    match last.iter().position(is_special) {
        Some(end) => run + end,
        None => head.len() + memchr2(b'"', b'\\', tail).unwrap_or(tail.len()),
    }
}

/// Whether a byte ends a run of plain characters.
fn is_special(byte: &u8) -> bool {
    matches!(byte, ..0x20 | b'"' | b'\\')
}

/// Like [`is_special`] for eight bytes: the lowest byte with its high bit set is the first special one.
fn special_in(word: u64) -> u64 {
    less_than(word, 0x20)
        | less_than(word ^ (ONES * u64::from(b'"')), 1)
        | less_than(word ^ (ONES * u64::from(b'\\')), 1)
}

/// Sets the high bit of each byte that is less than `limit` (the SWAR `hasless` test). The borrow can set the bit of a
/// higher byte by mistake, so only the lowest set bit is exact.
fn less_than(word: u64, limit: u64) -> u64 {
    word.wrapping_sub(limit * ONES) & !word & (0x80 * ONES)
}

/// Whether there is a control character. Payloads pass here, so it works on eight bytes at a time.
fn has_control(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let seen = words.iter().fold(0, |seen, word| seen | less_than(u64::from_le_bytes(*word), 0x20));
    seen != 0 || rest.iter().any(|byte| *byte < 0x20)
}

pub(super) fn has_escape(inner: &[u8]) -> bool {
    match inner.len() {
        0..SHORT_BYTES => inner.contains(&b'\\'),
        _ => memchr(b'\\', inner).is_some(),
    }
}

/// Decodes the text between the quotes.
pub(super) fn unquote(inner: &[u8]) -> Cow<'_, str> {
    if !has_escape(inner)
        && let Ok(text) = std::str::from_utf8(inner)
    {
        return Cow::Borrowed(text);
    }
    let mut text = String::with_capacity(inner.len());
    let mut at = 0;
    while let Some(rest) = inner.get(at..).filter(|rest| !rest.is_empty()) {
        let run = memchr(b'\\', rest).unwrap_or(rest.len());
        push_characters(&mut text, rest.get(..run).unwrap_or_default());
        at += run;
        if run < rest.len() {
            at += push_escape(&mut text, inner.get(at..).unwrap_or_default());
        }
    }
    Cow::Owned(text)
}

fn push_characters(text: &mut String, bytes: &[u8]) {
    for chunk in bytes.utf8_chunks() {
        text.push_str(chunk.valid());
        text.extend(chunk.invalid().iter().map(|_| char::REPLACEMENT_CHARACTER));
    }
}

/// Decodes the escape at the start of `rest` and returns its length.
fn push_escape(text: &mut String, rest: &[u8]) -> usize {
    let character = match rest.get(1) {
        Some(b'b') => '\u{8}',
        Some(b'f') => '\u{c}',
        Some(b'n') => '\n',
        Some(b'r') => '\r',
        Some(b't') => '\t',
        Some(b'u') => return push_unicode(text, rest),
        Some(byte) => char::from(*byte),
        None => return 1,
    };
    text.push(character);
    2
}

/// Decodes a `\u` escape with four digits or a surrogate pair. An unpaired surrogate becomes U+FFFD.
fn push_unicode(text: &mut String, rest: &[u8]) -> usize {
    let unit = |at: usize| {
        let digits = rest.get(at..at + 6)?.strip_prefix(b"\\u")?;
        u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
    };
    let first = unit(0).unwrap_or(0xfffd);
    if let (0xd800..0xdc00, Some(second @ 0xdc00..0xe000)) = (first, unit(6)) {
        let point = 0x10000 + ((first - 0xd800) << 10) + (second - 0xdc00);
        text.push(char::from_u32(point).unwrap_or(char::REPLACEMENT_CHARACTER));
        return 12;
    }
    text.push(char::from_u32(first).unwrap_or(char::REPLACEMENT_CHARACTER));
    6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::go_json::validate::validate;

    #[test]
    fn a_control_character_is_refused_at_every_position() {
        for at in 0..3 * SHORT_BYTES {
            let mut text = format!("\"{}\"", "x".repeat(3 * SHORT_BYTES)).into_bytes();
            for byte in [0x20, 0x7f, 0x80, 0xff] {
                text[at + 1] = byte;
                assert!(validate(&text).is_some(), "{byte} at {at}");
            }
            text[at + 1] = 0x1f;
            assert!(validate(&text).is_none(), "{at}");
        }
    }

    #[test]
    fn a_plain_run_ends_at_the_first_special_byte() {
        // Bytes that differ from a special byte in one bit, and bytes that cause a borrow.
        for plain in [0x20, 0x21, 0x23, 0x5b, 0x5d, 0x7f, 0x80, 0xa2, 0xdc, 0xff] {
            for end in [b'"', b'\\', 0x00, 0x1f] {
                for at in 0..2 * SHORT_BYTES {
                    let mut rest = vec![plain; 3 * SHORT_BYTES];
                    rest[at] = end;
                    assert_eq!(plain_len(&rest), at, "{plain:#x}, then {end:#x} at {at}");
                }
            }
            let rest = vec![plain; 3 * SHORT_BYTES];
            assert_eq!(plain_len(&rest), rest.len(), "{plain:#x}");
        }
    }

    fn string(text: &[u8]) -> String {
        validate(text).unwrap().string().unwrap().into_owned()
    }

    #[test]
    fn escapes_and_invalid_utf8_decode_as_in_go() {
        assert_eq!(string(br#""a\"\\\/\b\f\n\r\t\u0041\u00e9""#), "a\"\\/\u{8}\u{c}\n\r\tA\u{e9}");
        assert_eq!(string(br#""\ud83d\ude00""#), "\u{1f600}");
        assert_eq!(
            string(br#""\ud800\u0041|\udc00|\ud800\ud800\udc00""#),
            "\u{fffd}A|\u{fffd}|\u{fffd}\u{10000}"
        );
        assert_eq!(string(b"\"a\xffb\xe2\x82\""), "a\u{fffd}b\u{fffd}\u{fffd}");
    }
}
