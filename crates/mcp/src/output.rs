//! Conversion of a command's output bytes to text of bounded size.

use outpost_wire::base64;
use rmcp::schemars::JsonSchema;
use serde::Serialize;

/// Longest binary output that is included. Only a client that decodes it can use it.
const BASE64_BYTES_MAX: usize = 3 * 1024;

/// The representation of an output stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
#[schemars(crate = "rmcp::schemars")]
pub(crate) enum Form {
    /// The output unchanged.
    Text,
    /// Invalid UTF-8 is replaced by U+FFFD.
    LossyText,
    /// Binary output in base64.
    Base64,
    /// Binary output that is too long to include.
    Omitted,
}

#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Rendered {
    pub(crate) text: String,
    pub(crate) form: Form,
    /// Bytes in the broker's response.
    pub(crate) bytes: usize,
    /// Bytes that `text` does not represent.
    pub(crate) left_out_bytes: usize,
}

/// Renders output. If it is longer than `bytes_max`, only its head and tail are included.
pub(crate) fn render(bytes: &[u8], bytes_max: usize) -> Rendered {
    // A NUL byte marks binary output.
    if bytes.contains(&0) {
        return render_binary(bytes);
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
    Rendered { text, form, bytes: bytes.len(), left_out_bytes }
}

fn join(head: &str, tail: &str, left_out_bytes: usize) -> String {
    format!("{head}\n[... {left_out_bytes} bytes left out ...]\n{tail}")
}

fn render_binary(bytes: &[u8]) -> Rendered {
    if bytes.len() > BASE64_BYTES_MAX {
        let left_out_bytes = bytes.len();
        return Rendered { text: String::new(), form: Form::Omitted, bytes: bytes.len(), left_out_bytes };
    }
    let mut encoded = Vec::new();
    base64::append(&mut encoded, bytes);
    let text = String::from_utf8(encoded).unwrap_or_default();
    Rendered { text, form: Form::Base64, bytes: bytes.len(), left_out_bytes: 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_output_is_unchanged() {
        for text in ["", "a", "Grüße\r\n\u{1b}[31m", "0123456789"] {
            let expected =
                Rendered { text: text.into(), form: Form::Text, bytes: text.len(), left_out_bytes: 0 };
            assert_eq!(render(text.as_bytes(), 16), expected);
        }
    }

    #[test]
    fn long_output_keeps_its_ends_and_counts_the_rest() {
        let rendered = render(b"0123456789abcdef", 8);
        assert_eq!(rendered.text, "0123\n[... 8 bytes left out ...]\ncdef");
        assert_eq!((rendered.bytes, rendered.left_out_bytes), (16, 8));
    }

    #[test]
    fn characters_are_not_split() {
        for bytes_max in 0..24 {
            let text = "äöü€𝄞äöü€𝄞";
            let rendered = render(text.as_bytes(), bytes_max);
            assert_eq!(rendered.form, Form::Text, "{rendered:?}");
            assert!(!rendered.text.contains('\u{fffd}'), "{rendered:?}");
            let kept: usize =
                rendered.text.chars().filter(|letter| !letter.is_ascii()).map(char::len_utf8).sum();
            assert_eq!(kept + rendered.left_out_bytes, text.len(), "{rendered:?}");
            assert!(kept <= bytes_max, "{rendered:?}");
        }
    }

    #[test]
    fn invalid_utf8_is_marked() {
        assert_eq!(render(b"a\xffb", 8).form, Form::LossyText);
        assert_eq!(render(b"a\xffb", 8).text, "a\u{fffd}b");
        let long = render(&[0xff; 100], 8);
        assert_eq!((long.form, long.left_out_bytes), (Form::LossyText, 92));
    }

    #[test]
    fn short_binary_is_base64_and_long_binary_is_only_counted() {
        assert_eq!(render(b"\0a", 8).text, "AGE=");
        assert_eq!(render(b"\0a", 8).form, Form::Base64);
        let much = render(&[0; 4000], 8);
        assert_eq!((much.text.as_str(), much.form), ("", Form::Omitted));
        assert_eq!((much.bytes, much.left_out_bytes), (4000, 4000));
    }
}
