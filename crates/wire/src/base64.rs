//! Base64 directly into and out of message buffers, so that payload never passes through a JSON escaper.

use base64_turbo::STANDARD;

/// Appends `data` in base64 to `out`.
pub fn append(out: &mut Vec<u8>, data: &[u8]) {
    let begin = out.len();
    out.resize(begin + data.len().div_ceil(3) * 4, 0);
    let Some(target) = out.get_mut(begin..) else { return };
    // The target has exactly the encoded length.
    let written = STANDARD.encode_slice(data, target).unwrap_or(0);
    out.truncate(begin + written);
}

/// Decodes strict, padded base64; `None` for anything else.
pub fn decode(text: &[u8]) -> Option<Vec<u8>> {
    STANDARD.decode(text).ok()
}

/// Decodes leniently: skips line breaks and ignores the unused bits of the last character.
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
        let position = text.len().checked_sub(from_end)?;
        let letter = text.get_mut(position)?;
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
    fn appended_bytes_round_trip() {
        let data: Vec<u8> = (0..=255).cycle().take(100_000).collect();
        for len in (0..200).chain([32 * 1024, 99_999]) {
            let mut out = b"before".to_vec();
            append(&mut out, &data[..len]);
            assert_eq!(&out[..6], b"before");
            assert_eq!(decode(&out[6..]).as_deref(), Some(&data[..len]), "{len} bytes");
        }
    }

    #[test]
    fn invalid_base64_is_refused() {
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
    fn lenient_decoding_accepts_line_breaks_and_unused_bits() {
        for (text, bytes) in
            [("YR==", "a"), ("YW\r\nI=\n", "ab"), ("YWJ=", "ab"), ("", ""), ("\n", ""), ("YWJj", "abc")]
        {
            assert_eq!(decode_leniently(text.as_bytes()).as_deref(), Some(bytes.as_bytes()), "{text:?}");
        }
    }
}
