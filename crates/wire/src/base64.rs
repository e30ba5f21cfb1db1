//! Base64 straight into and out of the buffers it belongs in: payload never passes through a JSON escaper.

use base64_turbo::STANDARD;

/// Appends `data` in base64 to `out`.
pub fn append(out: &mut Vec<u8>, data: &[u8]) {
    let begin = out.len();
    out.resize(begin + data.len().div_ceil(3) * 4, 0);
    let Some(place) = out.get_mut(begin..) else { return };
    // The place has exactly the length that the encoding has.
    let written = STANDARD.encode_slice(data, place).unwrap_or(0);
    out.truncate(begin + written);
}

/// The bytes of strict, padded base64; `None` for anything else.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// The same, as generous as some writers need it: line breaks are skipped, and what the last character has left over is
/// not looked at.
pub fn decode_leniently(text: &[u8]) -> Option<Vec<u8>> {
    if let Some(bytes) = decode(text) {
        return Some(bytes);
    }
    let mut text: Vec<u8> = text.iter().copied().filter(|byte| !matches!(byte, b'\r' | b'\n')).collect();
    // Of the last character before the padding, four or two bits belong to no byte.
    let left_over = match text.as_slice() {
        [.., b'=', b'='] => Some((3, 0b1111)),
        [.., b'='] => Some((2, 0b11)),
        _ => None,
    };
    if let Some((from_end, mask)) = left_over {
        let place = text.len().checked_sub(from_end)?;
        let letter = text.get_mut(place)?;
        let value = ALPHABET.iter().position(|known| known == letter)?;
        *letter = *ALPHABET.get(value & !mask)?;
    }
    decode(&text)
}

const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_appended_decodes_to_the_same() {
        let data: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        for len in (0..200).chain([32 * 1024, 99_999]) {
            let mut out = b"before".to_vec();
            append(&mut out, &data[..len]);
            assert_eq!(&out[..6], b"before");
            assert_eq!(decode(&out[6..]).as_deref(), Some(&data[..len]), "{len} bytes");
        }
    }

    #[test]
    fn what_is_not_base64_is_refused() {
        for text in ["a", "ab", "abc", "ab=c", "a===", "ab\n==", "ab-_", "YQ", "YR=="] {
            assert_eq!(decode(text.as_bytes()), None, "{text:?}");
        }
        assert_eq!(decode(b"YQ=="), Some(b"a".to_vec()));
        for text in
            ["a", "ab", "abc", "ab=c", "a===", "ab-_", "YQ", "YQ=", "====", "=", "==", "YQ==YQ==", "Y Q=="]
        {
            assert_eq!(decode_leniently(text.as_bytes()), None, "{text:?}");
        }
    }

    #[test]
    fn line_breaks_and_left_over_bits_are_forgiven_where_that_is_asked_for() {
        for (text, bytes) in
            [("YR==", "a"), ("YW\r\nI=\n", "ab"), ("YWJ=", "ab"), ("", ""), ("\n", ""), ("YWJj", "abc")]
        {
            assert_eq!(decode_leniently(text.as_bytes()).as_deref(), Some(bytes.as_bytes()), "{text:?}");
        }
    }
}
