//! Validates a JSON text in one pass, without recursion.

use crate::go_json::nesting::{Container, Nesting};
use crate::go_json::read::{Text, Value};
use crate::go_json::string::plain_len;

/// The nesting limit of Go's `encoding/json`.
const DEPTH_MAX: usize = 10_000;

/// Returns the value if `text` is exactly one well-formed value. Calls `each` for every member of the outermost object
/// during validation, which avoids a second scan. The caller must discard these members if the result is `None`.
pub(crate) fn validate_members<'a>(
    text: &'a [u8],
    each: impl FnMut(Text<'a>, Value<'a>),
) -> Option<Value<'a>> {
    let mut validator = Validator { text, at: 0, open: Nesting::default() };
    validator.space();
    let begin = validator.at;
    match validator.peek()? {
        b'{' => validator.outermost_object(each)?,
        _ => validator.value()?,
    }
    let value = Value(validator.since(begin));
    validator.space();
    (validator.at == text.len()).then_some(value)
}

#[cfg(test)]
pub(crate) fn validate(text: &[u8]) -> Option<Value<'_>> {
    validate_members(text, |_, _| ())
}

struct Validator<'a> {
    text: &'a [u8],
    at: usize,
    open: Nesting,
}

impl<'a> Validator<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    fn since(&self, begin: usize) -> &'a [u8] {
        self.text.get(begin..self.at).unwrap_or_default()
    }

    fn space(&mut self) {
        while matches!(self.peek(), Some(b' ' | b'\t' | b'\r' | b'\n')) {
            self.at += 1;
        }
    }

    fn take(&mut self, byte: u8) -> Option<()> {
        (self.peek()? == byte).then(|| self.at += 1)
    }

    fn outermost_object(&mut self, mut each: impl FnMut(Text<'a>, Value<'a>)) -> Option<()> {
        self.enter(Container::Object)?;
        let mut more = self.peek()? != b'}';
        while more {
            let key = self.key()?;
            let begin = self.at;
            self.value()?;
            each(key, Value(self.since(begin)));
            self.space();
            more = self.peek()? == b',';
            if more {
                self.at += 1;
                self.space();
            }
        }
        self.open.pop();
        self.take(b'}')
    }

    /// Without recursion: a client must not be able to overflow the stack.
    fn value(&mut self) -> Option<()> {
        let around = self.open.depth;
        loop {
            // At the start of a value.
            match self.peek()? {
                b'{' => {
                    self.enter(Container::Object)?;
                    if self.peek()? != b'}' {
                        self.key()?;
                        continue;
                    }
                }
                b'[' => {
                    self.enter(Container::Array)?;
                    if self.peek()? != b']' {
                        continue;
                    }
                }
                _ => self.scalar()?,
            }
            // After a value, or at the end of an empty array or object.
            loop {
                if self.open.depth == around {
                    return Some(());
                }
                let open = self.open.last()?;
                self.space();
                match (self.peek()?, open) {
                    (b',', _) => {
                        self.at += 1;
                        self.space();
                        if open == Container::Object {
                            self.key()?;
                        }
                        break;
                    }
                    (b'}', Container::Object) | (b']', Container::Array) => {
                        self.at += 1;
                        self.open.pop();
                    }
                    _ => return None,
                }
            }
        }
    }

    fn enter(&mut self, container: Container) -> Option<()> {
        self.at += 1;
        self.open.push(container);
        self.space();
        (self.open.depth <= DEPTH_MAX).then_some(())
    }

    fn key(&mut self) -> Option<Text<'a>> {
        let begin = self.at;
        self.string()?;
        let [b'"', key @ .., b'"'] = self.since(begin) else { return None };
        self.space();
        self.take(b':')?;
        self.space();
        Some(Text(key))
    }

    fn scalar(&mut self) -> Option<()> {
        match self.peek()? {
            b'"' => self.string(),
            b'-' | b'0'..=b'9' => self.number(),
            b't' => self.literal(b"true"),
            b'f' => self.literal(b"false"),
            b'n' => self.literal(b"null"),
            _ => None,
        }
    }

    fn literal(&mut self, literal: &[u8]) -> Option<()> {
        let found = self.text.get(self.at..)?.starts_with(literal);
        found.then(|| self.at += literal.len())
    }

    fn digits(&mut self) -> Option<()> {
        let begin = self.at;
        while matches!(self.peek(), Some(b'0'..=b'9')) {
            self.at += 1;
        }
        (self.at > begin).then_some(())
    }

    fn number(&mut self) -> Option<()> {
        if self.peek()? == b'-' {
            self.at += 1;
        }
        match self.peek()? {
            b'0' => self.at += 1,
            _ => self.digits()?,
        }
        if self.peek() == Some(b'.') {
            self.at += 1;
            self.digits()?;
        }
        if matches!(self.peek(), Some(b'e' | b'E')) {
            self.at += 1;
            if matches!(self.peek(), Some(b'+' | b'-')) {
                self.at += 1;
            }
            self.digits()?;
        }
        Some(())
    }

    fn string(&mut self) -> Option<()> {
        self.take(b'"')?;
        loop {
            self.at += plain_len(self.text.get(self.at..)?);
            let end = self.peek()?;
            self.at += 1;
            match end {
                b'"' => return Some(()),
                b'\\' => self.escape()?,
                _ => return None,
            }
        }
    }

    fn escape(&mut self) -> Option<()> {
        match self.peek()? {
            b'"' | b'\\' | b'/' | b'b' | b'f' | b'n' | b'r' | b't' => self.at += 1,
            b'u' => {
                let digits = self.text.get(self.at + 1..self.at + 5)?;
                digits.iter().all(u8::is_ascii_hexdigit).then_some(())?;
                self.at += 5;
            }
            _ => return None,
        }
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_well_formed_text_passes() {
        for text in [
            "{}",
            " [ ] ",
            "null",
            "-0",
            "1e3",
            "1.5E-7",
            r#""\u00e9\n\/""#,
            r#"{"a":[1,{"b":null}],"c":""}"#,
            "\"\x7f\"",
        ] {
            assert!(validate(text.as_bytes()).is_some(), "{text}");
        }
        let bad = [
            "",
            " ",
            "{",
            "}",
            "[1,]",
            "[,1]",
            r#"{"a":1,}"#,
            r#"{"a"}"#,
            r#"{a:1}"#,
            r#"{"a":}"#,
            "01",
            "1.",
            ".5",
            "+1",
            "1e",
            "--1",
            "nul",
            "nullx",
            "{} {}",
            r#""\x""#,
            r#""\u12g4""#,
            "\"a\nb\"",
            "\"",
            r#""\"#,
            "'a'",
            "[1 2]",
            r#"{"a":1 "b":2}"#,
            "[}",
            "{]",
            "\u{feff}{}",
            "NaN",
            "Infinity",
            "// c",
            "[1}",
            "tru",
        ];
        for text in bad {
            assert!(validate(text.as_bytes()).is_none(), "{text:?}");
            let within = format!("[{text}]");
            assert!(text.trim().is_empty() || validate(within.as_bytes()).is_none(), "{within:?}");
        }
        assert!(validate(b"\"\xff\xfe\"").is_some(), "invalid UTF-8 is decoded as U+FFFD");
    }

    #[test]
    fn nesting_is_limited_as_in_go() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(validate(nested(10_000).as_bytes()).is_some());
        assert!(validate(nested(10_001).as_bytes()).is_none());
        assert!(validate("[".repeat(1_000_000).as_bytes()).is_none());
        let in_object = |depth: usize| format!("{{\"a\":{}}}", nested(depth));
        assert!(validate(in_object(9_999).as_bytes()).is_some());
        assert!(validate(in_object(10_000).as_bytes()).is_none());
    }
}
