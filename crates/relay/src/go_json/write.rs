//! Writes JSON as Go's `encoding/json` does: `<`, `>`, `&`, U+2028 and U+2029 escaped, invalid bytes as `\ufffd`.
//!
//! Members are appended in the contract's order, without an intermediate tree.

use std::io::Write;

/// Appends a string. The bytes need not be valid UTF-8.
pub(crate) fn string(out: &mut Vec<u8>, text: &[u8]) {
    out.push(b'"');
    for chunk in text.utf8_chunks() {
        append_escaped(out, chunk.valid().as_bytes());
        // As in Go, one replacement for each invalid byte.
        for _ in chunk.invalid() {
            out.extend_from_slice(b"\\ufffd");
        }
    }
    out.push(b'"');
}

/// Appends valid UTF-8; copies the runs between escaped characters in one piece.
fn append_escaped(out: &mut Vec<u8>, text: &[u8]) {
    let mut begin = 0;
    let mut at = 0;
    while let Some(&byte) = text.get(at) {
        let (escape, len): (&[u8], usize) = match byte {
            b'"' => (b"\\\"", 1),
            b'\\' => (b"\\\\", 1),
            b'\n' => (b"\\n", 1),
            b'\r' => (b"\\r", 1),
            b'\t' => (b"\\t", 1),
            0x08 => (b"\\b", 1),
            0x0c => (b"\\f", 1),
            b'<' => (b"\\u003c", 1),
            b'>' => (b"\\u003e", 1),
            b'&' => (b"\\u0026", 1),
            0..0x20 => (b"", 1),
            // The first byte of U+2028 and U+2029.
            0xe2 => match text.get(at + 1..at + 3) {
                Some([0x80, 0xa8]) => (b"\\u2028", 3),
                Some([0x80, 0xa9]) => (b"\\u2029", 3),
                _ => {
                    at += 1;
                    continue;
                }
            },
            _ => {
                at += 1;
                continue;
            }
        };
        out.extend_from_slice(text.get(begin..at).unwrap_or_default());
        if escape.is_empty() {
            let _infallible = write!(out, "\\u{byte:04x}");
        } else {
            out.extend_from_slice(escape);
        }
        at += len;
        begin = at;
    }
    out.extend_from_slice(text.get(begin..).unwrap_or_default());
}

/// Writes one object to a buffer.
pub struct Object<'a> {
    out: &'a mut Vec<u8>,
    empty: bool,
}

impl<'a> Object<'a> {
    pub fn begin(out: &'a mut Vec<u8>) -> Object<'a> {
        out.push(b'{');
        Object { out, empty: true }
    }

    /// Writes the name of the next member. The caller appends its value to the returned buffer. Names are literals of
    /// this crate and are not escaped.
    pub fn key(&mut self, name: &str) -> &mut Vec<u8> {
        if !std::mem::take(&mut self.empty) {
            self.out.push(b',');
        }
        self.out.push(b'"');
        self.out.extend_from_slice(name.as_bytes());
        self.out.extend_from_slice(b"\":");
        self.out
    }

    pub fn string(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Self {
        string(self.key(name), value.as_ref());
        self
    }

    /// Like Go's `omitempty`.
    pub fn string_unless_empty(&mut self, name: &str, value: impl AsRef<[u8]>) -> &mut Self {
        if !value.as_ref().is_empty() {
            self.string(name, value);
        }
        self
    }

    pub fn bool(&mut self, name: &str, value: bool) -> &mut Self {
        self.key(name).extend_from_slice(if value { b"true" } else { b"false" });
        self
    }

    /// Like Go's `omitempty`.
    pub fn bool_if_true(&mut self, name: &str, value: bool) -> &mut Self {
        if value {
            self.bool(name, true);
        }
        self
    }

    pub fn number(&mut self, name: &str, value: impl std::fmt::Display) -> &mut Self {
        let _infallible = write!(self.key(name), "{value}");
        self
    }

    pub fn strings(&mut self, name: &str, values: impl IntoIterator<Item = impl AsRef<[u8]>>) -> &mut Self {
        let out = self.key(name);
        out.push(b'[');
        for (index, value) in values.into_iter().enumerate() {
            if index > 0 {
                out.push(b',');
            }
            string(out, value.as_ref());
        }
        out.push(b']');
        self
    }

    pub fn end(&mut self) {
        self.out.push(b'}');
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(bytes: &[u8]) -> String {
        let mut out = Vec::new();
        string(&mut out, bytes);
        String::from_utf8(out).unwrap()
    }

    #[test]
    fn html_and_line_separators_are_escaped() {
        assert_eq!(text(b"<a href='x'>&</a>"), r#""\u003ca href='x'\u003e\u0026\u003c/a\u003e""#);
        assert_eq!(text("\u{2028}\u{2029}\u{2027}☃".as_bytes()), "\"\\u2028\\u2029\u{2027}☃\"");
    }

    #[test]
    fn control_characters_are_escaped_and_del_is_not() {
        assert_eq!(text(b"\"\\\n\r\t\x08\x0c\x00\x1f\x7f"), "\"\\\"\\\\\\n\\r\\t\\b\\f\\u0000\\u001f\x7f\"");
    }

    #[test]
    fn each_invalid_byte_gets_its_own_replacement() {
        assert_eq!(
            text(b"a\xff\xfeb\xe2\x82c\xed\xa0\x80"),
            r#""a\ufffd\ufffdb\ufffd\ufffdc\ufffd\ufffd\ufffd""#
        );
    }

    #[test]
    fn members_keep_their_order() {
        let mut out = Vec::new();
        Object::begin(&mut out)
            .bool("b", true)
            .bool_if_true("f", false)
            .number("a", -1)
            .strings("s", ["x", "<"])
            .end();
        assert_eq!(String::from_utf8(out).unwrap(), r#"{"b":true,"a":-1,"s":["x","\u003c"]}"#);
    }
}
