//! Strings: where they end, and what they stand for.

use memchr::{memchr, memchr2};
use std::borrow::Cow;

/// Up to here a string is looked at eight bytes at a time: most end before a search for the end has even been set up.
pub(super) const SHORT_BYTES: usize = 32;

/// A one in each byte of a word.
const EACH: u64 = u64::from_le_bytes([1; 8]);

/// How many bytes at the beginning of `rest`, which is inside of a string, stand for themselves.
pub(super) fn plain_bytes(rest: &[u8]) -> usize {
    let run = plain_bytes_checked(rest);
    match rest.get(SHORT_BYTES..run) {
        Some(long) if has_control(long) => SHORT_BYTES + long.iter().position(ends).unwrap_or(long.len()),
        _ => run,
    }
}

/// The same in a string that is known to be well-formed: where it is long, control characters are not looked for.
pub(super) fn plain_bytes_checked(rest: &[u8]) -> usize {
    let (head, tail) = rest.split_at(rest.len().min(SHORT_BYTES));
    let (words, last) = head.as_chunks::<8>();
    let mut run = 0;
    for word in words {
        let ends = ends_in(u64::from_le_bytes(*word));
        if ends != 0 {
            return run + ends.trailing_zeros() as usize / 8;
        }
        run += 8;
    }
    match last.iter().position(ends) {
        Some(end) => run + end,
        None => head.len() + memchr2(b'"', b'\\', tail).unwrap_or(tail.len()),
    }
}

/// Whether a byte inside of a string does not stand for itself.
fn ends(byte: &u8) -> bool {
    matches!(byte, ..0x20 | b'"' | b'\\')
}

/// The same for eight: the first byte that has its highest bit set here is the first that does not.
fn ends_in(word: u64) -> u64 {
    below(word, 0x20) | below(word ^ (EACH * u64::from(b'"')), 1) | below(word ^ (EACH * u64::from(b'\\')), 1)
}

/// Marks the bytes of a word that are below `limit` with their highest bits. A byte that is below borrows when the limit is
/// taken from it and shows it there, unless its own bit was set before; only bytes behind it can be marked wrongly.
fn below(word: u64, limit: u64) -> u64 {
    word.wrapping_sub(limit * EACH) & !word & (0x80 * EACH)
}

/// Whether there is a control character among the bytes, eight at a time: payload passes here.
fn has_control(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<8>();
    let seen = words.iter().fold(0, |seen, word| seen | below(u64::from_le_bytes(*word), 0x20));
    seen != 0 || rest.iter().any(|byte| *byte < 0x20)
}

/// Whether something between the quotes does not stand for itself.
pub(super) fn has_escape(inner: &[u8]) -> bool {
    match inner.len() {
        0..SHORT_BYTES => inner.contains(&b'\\'),
        _ => memchr(b'\\', inner).is_some(),
    }
}

/// The string that stands between quotes.
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

/// Takes one escape at the beginning of `rest`; says how long it is.
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

/// `\uXXXX`, or two of them that are one character together. Half of a pair stands for no character.
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
    use crate::json::check::check;

    #[test]
    fn a_control_character_is_refused_wherever_it_stands_in_a_string() {
        for at in 0..3 * SHORT_BYTES {
            let mut text = format!("\"{}\"", "x".repeat(3 * SHORT_BYTES)).into_bytes();
            for byte in [0x20, 0x7f, 0x80, 0xff] {
                text[at + 1] = byte;
                assert!(check(&text).is_some(), "{byte} at {at}");
            }
            text[at + 1] = 0x1f;
            assert!(check(&text).is_none(), "{at}");
        }
    }

    #[test]
    fn a_string_ends_at_its_quote_and_not_before() {
        // Neighbours that differ from what ends a string in one bit, or borrow from what follows.
        for plain in [0x20, 0x21, 0x23, 0x5b, 0x5d, 0x7f, 0x80, 0xa2, 0xdc, 0xff] {
            for end in [b'"', b'\\', 0x00, 0x1f] {
                for at in 0..2 * SHORT_BYTES {
                    let mut rest = vec![plain; 3 * SHORT_BYTES];
                    rest[at] = end;
                    assert_eq!(plain_bytes(&rest), at, "{plain:#x}, then {end:#x} at {at}");
                }
            }
            let rest = vec![plain; 3 * SHORT_BYTES];
            assert_eq!(plain_bytes(&rest), rest.len(), "{plain:#x}");
        }
    }

    fn string(text: &[u8]) -> String {
        check(text).unwrap().string().unwrap().into_owned()
    }

    #[test]
    fn escapes_and_broken_characters_become_what_the_original_makes_of_them() {
        assert_eq!(string(br#""a\"\\\/\b\f\n\r\t\u0041\u00e9""#), "a\"\\/\u{8}\u{c}\n\r\tA\u{e9}");
        assert_eq!(string(br#""\ud83d\ude00""#), "\u{1f600}");
        assert_eq!(
            string(br#""\ud800\u0041|\udc00|\ud800\ud800\udc00""#),
            "\u{fffd}A|\u{fffd}|\u{fffd}\u{10000}"
        );
        assert_eq!(string(b"\"a\xffb\xe2\x82\""), "a\u{fffd}b\u{fffd}\u{fffd}");
    }
}
