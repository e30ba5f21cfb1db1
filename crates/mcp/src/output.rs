//! Bytes that a command wrote, as text of a size that a model can use.

use outpost_wire::base64;
use rmcp::schemars::JsonSchema;
use serde::Serialize;

/// Binary output is of use to somebody who can decode it, so only little of it is passed on.
const BASE64_BYTES_MAX: usize = 3 * 1024;

/// How output is written here.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(crate = "rmcp::schemars")]
pub(crate) enum Form {
    /// As it was.
    Text,
    /// Bytes that are not UTF-8 stand as U+FFFD.
    LossyText,
    /// It is binary.
    Base64,
    /// It is binary, and too much to pass on.
    Omitted,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) text: String,
    pub(crate) form: Form,
    /// That the broker kept.
    pub(crate) bytes: usize,
    /// Of those, not in `text`.
    pub(crate) left_out_bytes: usize,
}

/// Head and tail, if it is more than `bytes_max`.
pub(crate) fn show(bytes: &[u8], bytes_max: usize) -> Shown {
    // What no text has.
    if bytes.contains(&0) {
        return show_binary(bytes);
    }
    let head = bytes_max / 2;
    let tail = bytes.len().saturating_sub(bytes_max - head);
    let (text, form, left_out_bytes) = match (std::str::from_utf8(bytes), bytes.len() > bytes_max) {
        (Ok(text), false) => (text.to_owned(), Form::Text, 0),
        (Err(_), false) => (String::from_utf8_lossy(bytes).into_owned(), Form::LossyText, 0),
        (Ok(text), true) => {
            let (head, tail) = (text.floor_char_boundary(head), text.ceil_char_boundary(tail));
            let parts = (text.get(..head).unwrap_or_default(), text.get(tail..).unwrap_or_default());
            (join(parts.0, parts.1, tail - head), Form::Text, tail - head)
        }
        (Err(_), true) => {
            let part = |bytes: Option<&[u8]>| String::from_utf8_lossy(bytes.unwrap_or_default()).into_owned();
            let parts = (part(bytes.get(..head)), part(bytes.get(tail..)));
            (join(&parts.0, &parts.1, tail - head), Form::LossyText, tail - head)
        }
    };
    Shown { text, form, bytes: bytes.len(), left_out_bytes }
}

fn join(head: &str, tail: &str, left_out_bytes: usize) -> String {
    format!("{head}\n[... {left_out_bytes} bytes left out ...]\n{tail}")
}

fn show_binary(bytes: &[u8]) -> Shown {
    if bytes.len() > BASE64_BYTES_MAX {
        let left_out_bytes = bytes.len();
        return Shown { text: String::new(), form: Form::Omitted, bytes: bytes.len(), left_out_bytes };
    }
    let mut encoded = Vec::new();
    base64::append(&mut encoded, bytes);
    let text = String::from_utf8(encoded).unwrap_or_default();
    Shown { text, form: Form::Base64, bytes: bytes.len(), left_out_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fits_is_passed_on_as_it_is() {
        for text in ["", "a", "Grüße\r\n\u{1b}[31m", "0123456789"] {
            let expected =
                Shown { text: text.into(), form: Form::Text, bytes: text.len(), left_out_bytes: 0 };
            assert_eq!(show(text.as_bytes(), 16), expected);
        }
    }

    #[test]
    fn what_does_not_fit_keeps_its_ends_and_says_what_is_missing() {
        let shown = show(b"0123456789abcdef", 8);
        assert_eq!(shown.text, "0123\n[... 8 bytes left out ...]\ncdef");
        assert_eq!((shown.bytes, shown.left_out_bytes), (16, 8));
    }

    #[test]
    fn no_character_is_cut_in_two() {
        for bytes_max in 0..24 {
            let text = "äöü€𝄞äöü€𝄞";
            let shown = show(text.as_bytes(), bytes_max);
            assert_eq!(shown.form, Form::Text, "{shown:?}");
            assert!(!shown.text.contains('\u{fffd}'), "{shown:?}");
            let kept: usize =
                shown.text.chars().filter(|letter| !letter.is_ascii()).map(char::len_utf8).sum();
            assert_eq!(kept + shown.left_out_bytes, text.len(), "{shown:?}");
            assert!(kept <= bytes_max, "{shown:?}");
        }
    }

    #[test]
    fn bytes_that_are_no_text_are_marked() {
        assert_eq!(show(b"a\xffb", 8).form, Form::LossyText);
        assert_eq!(show(b"a\xffb", 8).text, "a\u{fffd}b");
        let long = show(&[0xff; 100], 8);
        assert_eq!((long.form, long.left_out_bytes), (Form::LossyText, 92));
    }

    #[test]
    fn binary_is_base64_when_it_is_little_and_only_counted_when_it_is_much() {
        assert_eq!(show(b"\0a", 8).text, "AGE=");
        assert_eq!(show(b"\0a", 8).form, Form::Base64);
        let much = show(&[0; 4000], 8);
        assert_eq!((much.text.as_str(), much.form), ("", Form::Omitted));
        assert_eq!((much.bytes, much.left_out_bytes), (4000, 4000));
    }
}
