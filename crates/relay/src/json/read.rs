//! Reads JSON as the original's library does, which no parser of the field does by itself: keys match whatever their
//! case, the last duplicate wins, `null` leaves a member as it was, bytes that are no character become U+FFFD, and a
//! member of the wrong type is an error only after the whole text has proved well-formed.
//!
//! The text is checked once, whole ([`super::check`]). After that a [`Value`] is a piece of it, and nothing is copied before
//! it is used.

use crate::json::string::{has_escape, plain_bytes_checked, unquote};
use std::borrow::Cow;

/// A well-formed value, by its text.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Value<'a>(pub(super) &'a [u8]);

/// A member has a type that its place does not take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Mistyped;

impl<'a> Value<'a> {
    pub(crate) fn is_null(self) -> bool {
        self.0 == b"null"
    }

    /// The members of an object in their order.
    pub(crate) fn members(self) -> Result<Members<'a>, Mistyped> {
        match self.0.first() {
            Some(b'{') => Ok(Members(Pieces::new(self.0))),
            _ => Err(Mistyped),
        }
    }

    /// The elements of an array.
    pub(crate) fn elements(self) -> Result<Elements<'a>, Mistyped> {
        match self.0.first() {
            Some(b'[') => Ok(Elements(Pieces::new(self.0))),
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
        self.text().map(Text::read)
    }

    /// The bytes between the quotes, when they stand for themselves: how payload is taken without a copy.
    pub(crate) fn plain_string(self) -> Option<&'a [u8]> {
        self.text().ok().map(|text| text.0).filter(|inner| !has_escape(inner))
    }

    pub(crate) fn bool(self) -> Result<bool, Mistyped> {
        match self.0 {
            b"true" => Ok(true),
            b"false" => Ok(false),
            _ => Err(Mistyped),
        }
    }

    /// `1e3` and `1.0` are numbers, but not integers.
    pub(crate) fn integer(self) -> Result<i64, Mistyped> {
        std::str::from_utf8(self.0).ok().and_then(|text| text.parse().ok()).ok_or(Mistyped)
    }

    /// Appends the text without spaces and with `<`, `>`, `&`, U+2028 and U+2029 escaped, as values are passed on.
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

/// Walks the inside of an array or object that is known to be well-formed.
struct Pieces<'a> {
    text: &'a [u8],
    at: usize,
}

impl<'a> Pieces<'a> {
    fn new(text: &'a [u8]) -> Pieces<'a> {
        Pieces { text, at: 1 }
    }

    fn skip(&mut self) {
        while matches!(self.text.get(self.at), Some(b' ' | b'\t' | b'\r' | b'\n' | b',' | b':')) {
            self.at += 1;
        }
    }

    /// The next value, key or not; none at the closing bracket.
    fn next(&mut self) -> Option<Value<'a>> {
        self.skip();
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
                _ if depth == 0 => self.skip_word(),
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
            self.at += plain_bytes_checked(self.text.get(self.at..)?);
            let end = *self.text.get(self.at)?;
            if end == b'"' {
                self.at += 1;
                return Some(());
            }
            // An escape: what follows its first two bytes stands for itself.
            self.at += 2;
        }
    }

    /// A number, or one of the three words.
    fn skip_word(&mut self) {
        let in_word = |byte: &u8| matches!(byte, b'a'..=b'z' | b'0'..=b'9' | b'E' | b'+' | b'-' | b'.');
        self.at += 1;
        while self.text.get(self.at).is_some_and(in_word) {
            self.at += 1;
        }
    }
}

/// A string, by what stands between its quotes.
#[derive(Clone, Copy, Default)]
pub(crate) struct Text<'a>(pub(super) &'a [u8]);

impl<'a> Text<'a> {
    /// Whether it is written exactly like this.
    pub(crate) fn is_written(self, text: &str) -> bool {
        self.0 == text.as_bytes()
    }

    /// What it stands for.
    pub(crate) fn read(self) -> Cow<'a, str> {
        unquote(self.0)
    }
}

pub(crate) struct Members<'a>(Pieces<'a>);

impl<'a> Iterator for Members<'a> {
    type Item = (Text<'a>, Value<'a>);

    fn next(&mut self) -> Option<Self::Item> {
        let [b'"', key @ .., b'"'] = self.0.next()?.0 else { return None };
        Some((Text(key), self.0.next()?))
    }
}

pub(crate) struct Elements<'a>(Pieces<'a>);

impl<'a> Iterator for Elements<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.0.next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::json::check::{check, check_each};
    use crate::json::string::SHORT_BYTES;

    #[test]
    fn the_pieces_of_a_text_are_whole_values() {
        let text =
            br#" { "a" : [ ] ,"b\"}":"]\\","c":-1.5E+7 , "d":{"e":["}",{"f":"\u007d"}]}, "":null,"g":true} "#;
        let pieces = |text: &[u8]| -> Vec<(String, String)> {
            let members = check(text).unwrap().members().unwrap();
            members
                .map(|(key, value)| (key.read().into_owned(), String::from_utf8_lossy(value.0).into_owned()))
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
        assert_eq!(pieces(text), expected.map(|(key, value)| (key.to_owned(), value.to_owned())));
        assert_eq!(pieces(b"{ }"), []);
        let mut on_the_way = Vec::new();
        let seen = |key: Text<'_>, value: Value<'_>| {
            on_the_way.push((key.read().into_owned(), String::from_utf8_lossy(value.0).into_owned()));
        };
        assert_eq!(check_each(text, seen).unwrap().0, text.trim_ascii());
        assert_eq!(on_the_way, pieces(text));
        let long = "x".repeat(SHORT_BYTES + 9);
        let text = format!(r#"{{"{long}":"{long}\\{long}","{long}\n":[[1],"{long}"]}}"#);
        let expected = [
            (long.clone(), format!(r#""{long}\\{long}""#)),
            (format!("{long}\n"), format!(r#"[[1],"{long}"]"#)),
        ];
        assert_eq!(pieces(text.as_bytes()), expected);
    }

    #[test]
    fn a_value_is_passed_on_compact_and_escaped() {
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
            check(text).unwrap().append_compact(&mut out);
            assert_eq!(String::from_utf8_lossy(&out), String::from_utf8_lossy(expected));
        }
    }
}
