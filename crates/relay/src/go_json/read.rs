//! Borrowed JSON values with the decoding rules of Go's `encoding/json`.
//!
//! No Rust parser implements these rules: keys match case-insensitively, and the last duplicate wins. `null` leaves a
//! field unchanged. Each invalid UTF-8 byte becomes U+FFFD. A member of the wrong type is an error only after the
//! whole text has been validated.
//!
//! [`super::validate`] validates the text once. A [`Value`] is a slice of validated text; nothing is copied until it is
//! decoded.

use crate::go_json::string::{has_escape, plain_len_validated, unquote};
use std::borrow::Cow;

/// The source text of a well-formed value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value<'a>(pub(super) &'a [u8]);

/// The value has a type that the field does not accept.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mistyped;

impl<'a> Value<'a> {
    pub(crate) fn is_null(self) -> bool {
        self.0 == b"null"
    }

    /// The members of an object, in source order.
    pub(crate) fn members(self) -> Result<Members<'a>, Mistyped> {
        match self.0.first() {
            Some(b'{') => Ok(Members(Scanner::new(self.0))),
            _ => Err(Mistyped),
        }
    }

    /// The elements of an array.
    pub(crate) fn elements(self) -> Result<Elements<'a>, Mistyped> {
        match self.0.first() {
            Some(b'[') => Ok(Elements(Scanner::new(self.0))),
            _ => Err(Mistyped),
        }
    }

    pub(crate) fn text(self) -> Result<Text<'a>, Mistyped> {
        match self.0 {
            [b'"', inner @ .., b'"'] => Ok(Text(inner)),
            _ => Err(Mistyped),
        }
    }

    pub(crate) fn string(self) -> Result<Cow<'a, str>, Mistyped> {
        self.text().map(Text::decode)
    }

    /// The bytes between the quotes if the string has no escapes. Avoids a copy of large payloads.
    pub(crate) fn unescaped_bytes(self) -> Option<&'a [u8]> {
        self.text().ok().map(|text| text.0).filter(|inner| !has_escape(inner))
    }

    pub(crate) fn bool(self) -> Result<bool, Mistyped> {
        match self.0 {
            b"true" => Ok(true),
            b"false" => Ok(false),
            _ => Err(Mistyped),
        }
    }

    /// As in Go, `1e3` and `1.0` are not integers.
    pub(crate) fn integer(self) -> Result<i64, Mistyped> {
        std::str::from_utf8(self.0).ok().and_then(|text| text.parse().ok()).ok_or(Mistyped)
    }

    /// Appends the text without whitespace and with `<`, `>`, `&`, U+2028 and U+2029 escaped, as Go's
    /// `json.RawMessage` is marshalled.
    pub(crate) fn append_compact(self, out: &mut Vec<u8>) {
        out.reserve(self.0.len());
        let mut quoted = false;
        let mut bytes = self.0.iter().copied().enumerate();
        while let Some((at, byte)) = bytes.next() {
            match byte {
                b'"' => {
                    quoted = !quoted;
                    out.push(byte);
                }
                b'\\' => {
                    out.push(byte);
                    out.extend(bytes.next().map(|(_, escaped)| escaped));
                }
                b' ' | b'\t' | b'\r' | b'\n' if !quoted => {}
                b'<' => out.extend_from_slice(b"\\u003c"),
                b'>' => out.extend_from_slice(b"\\u003e"),
                b'&' => out.extend_from_slice(b"\\u0026"),
                0xe2 if matches!(self.0.get(at + 1..at + 3), Some([0x80, 0xa8 | 0xa9])) => {
                    let _continuation = bytes.next();
                    let last = bytes.next().map_or(0, |(_, last)| last & 0xf);
                    out.extend_from_slice(if last == 8 { b"\\u2028" } else { b"\\u2029" });
                }
                _ => out.push(byte),
            }
        }
    }
}

/// Scans the values inside a well-formed array or object.
struct Scanner<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Scanner<'a> {
    fn new(text: &'a [u8]) -> Scanner<'a> {
        Scanner { text, at: 1 }
    }

    fn skip_separators(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n' | b',' | b':')) {
            self.at += 1;
        }
    }

    /// The next key or value; `None` at the closing bracket.
    fn next(&mut self) -> Option<Value<'a>> {
        self.skip_separators();
        let begin = self.at;
        let mut depth = 0usize;
        loop {
            match *self.text.get(self.at)? {
                b'"' => self.skip_string()?,
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' if depth == 0 => return None,
                b'}' | b']' => {
                    depth -= 1;
                    self.at += 1;
                }
                _ if depth == 0 => self.skip_number_or_literal(),
                _ => self.at += 1,
            }
            if depth == 0 {
                return self.text.get(begin..self.at).map(Value);
            }
        }
    }

    fn skip_string(&mut self) -> Option<()> {
        self.at += 1;
        loop {
            self.at += plain_len_validated(self.text.get(self.at..)?);
            let end = *self.text.get(self.at)?;
            if end == b'"' {
                self.at += 1;
                return Some(());
            }
            // Two bytes are enough for every escape: the hex digits of `\u` need no special treatment.
            self.at += 2;
        }
    }

    fn skip_number_or_literal(&mut self) {
        let is_part = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'E' | b'+' | b'-' | b'.');
        self.at += 1;
        while self.text.get(self.at).is_some_and(is_part) {
            self.at += 1;
        }
    }
}

/// The source text of a string, without its quotes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Text<'a>(pub(super) &'a [u8]);

impl<'a> Text<'a> {
    /// Whether the source text equals `text`, without decoding escapes.
    pub(crate) fn source_equals(self, text: &str) -> bool {
        self.0 == text.as_bytes()
    }

    pub(crate) fn decode(self) -> Cow<'a, str> {
        unquote(self.0)
    }
}

pub(crate) struct Members<'a>(Scanner<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = (Text<'a>, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let [b'"', key @ .., b'"'] = self.0.next()?.0 else { return None };
        Some((Text(key), self.0.next()?))
    }
}

pub(crate) struct Elements<'a>(Scanner<'a>);

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.0.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::go_json::string::SHORT_BYTES;
    use crate::go_json::validate::{validate, validate_members};

    #[test]
    fn members_are_whole_values() {
        let text =
            br#" { "a" : [ ] ,"b\"}":"]\\","c":-1.5E+7 , "d":{"e":["}",{"f":"\u007d"}]}, "":null,"g":true} "#;
        let members_of = |text: &[u8]| -> Vec<(String, String)> {
            let members = validate(text).unwrap().members().unwrap();
            members
                .map(|(key, value)| {
                    (key.decode().into_owned(), String::from_utf8_lossy(value.0).into_owned())
                })
                .collect()
        };
        let expected = [
            ("a", "[ ]"),
            ("b\"}", r#""]\\""#),
            ("c", "-1.5E+7"),
            ("d", r#"{"e":["}",{"f":"\u007d"}]}"#),
            ("", "null"),
            ("g", "true"),
        ];
        assert_eq!(members_of(text), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(members_of(b"{ }"), []);
        let mut visited = Vec::new();
        let visit = |key: Text<'_>, value: Value<'_>| {
            visited.push((key.decode().into_owned(), String::from_utf8_lossy(value.0).into_owned()));
        };
        assert_eq!(validate_members(text, visit).unwrap().0, text.trim_ascii());
        assert_eq!(visited, members_of(text));
        let long = "x".repeat(SHORT_BYTES + 9);
        let text = format!(r#"{{"{long}":"{long}\\{long}","{long}\n":[[1],"{long}"]}}"#);
        let expected = [
            (long.clone(), format!(r#""{long}\\{long}""#)),
            (format!("{long}\n"), format!(r#"[[1],"{long}"]"#)),
        ];
        assert_eq!(members_of(text.as_bytes()), expected);
    }

    #[test]
    fn append_compact_removes_whitespace_and_escapes_html() {
        let cases = [
            (&b"{ \"a\" : [ 1 , 2 ] }"[..], &br#"{"a":[1,2]}"#[..]),
            (b"\"<a b> & \\\" \"", br#""\u003ca b\u003e \u0026 \" ""#),
            ("\"\u{2028}\u{2029}é\"".as_bytes(), "\"\\u2028\\u2029é\"".as_bytes()),
            (b"12345678901234567890", b"12345678901234567890"),
            (b"1.0", b"1.0"),
            (b"\"\\\\\" ", b"\"\\\\\""),
        ];
        for (text, expected) in cases {
            let mut out = Vec::new();
            validate(text).unwrap().append_compact(&mut out);
            assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(expected));
        }
    }
}
