//! Whether a text is JSON, looked at once from its beginning to its end.

use crate::json::nesting::{Nesting, Open};
use crate::json::read::{Text, Value};
use crate::json::string::plain_bytes;

/// How deep arrays and objects may nest.
const DEPTH_MAX: usize = 10_000;

/// The value that `text` is, if it is one and nothing else. The members of an object are given to `each` on the way, before
/// it is known whether all of it is well-formed: so that they need not be looked for again.
pub(crate) fn check_each<'a>(text: &'a [u8], each: impl FnMut(Text<'a>, Value<'a>)) -> Option<Value<'a>> {
    let mut checker = Checker { text, at: 0, open: Nesting::default() };
    checker.space();
    let begin = checker.at;
    match checker.peek()? {
        b'{' => checker.outermost(each)?,
        _ => checker.value()?,
    }
    let value = Value(checker.since(begin));
    checker.space();
    (checker.at == text.len()).then_some(value)
}

#[cfg(test)]
pub(crate) fn check(text: &[u8]) -> Option<Value<'_>> {
    check_each(text, |_, _| ())
}

struct Checker<'a> {
    text: &'a [u8],
    at: usize,
    open: Nesting,
}

impl<'a> Checker<'a> {
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

    /// The object that the whole text is.
    fn outermost(&mut self, mut each: impl FnMut(Text<'a>, Value<'a>)) -> Option<()> {
        self.enter(Open::Object)?;
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

    /// A value with everything in it, without recursion: the text may nest deeper than our stack.
    fn value(&mut self) -> Option<()> {
        let around = self.open.depth;
        loop {
            // At the beginning of a value.
            match self.peek()? {
                b'{' => {
                    self.enter(Open::Object)?;
                    if self.peek()? != b'}' {
                        self.key()?;
                        continue;
                    }
                }
                b'[' => {
                    self.enter(Open::Array)?;
                    if self.peek()? != b']' {
                        continue;
                    }
                }
                _ => self.scalar()?,
            }
            // Behind a value, or at the end of an empty array or object.
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
                        if open == Open::Object {
                            self.key()?;
                        }
                        break;
                    }
                    (b'}', Open::Object) | (b']', Open::Array) => {
                        self.at += 1;
                        self.open.pop();
                    }
                    _ => return None,
                }
            }
        }
    }

    fn enter(&mut self, what: Open) -> Option<()> {
        self.at += 1;
        self.open.push(what);
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
            b't' => self.word(b"true"),
            b'f' => self.word(b"false"),
            b'n' => self.word(b"null"),
            _ => None,
        }
    }

    fn word(&mut self, word: &[u8]) -> Option<()> {
        let found = self.text.get(self.at..)?.starts_with(word);
        found.then(|| self.at += word.len())
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
            self.at += plain_bytes(self.text.get(self.at..)?);
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
            assert!(check(text.as_bytes()).is_some(), "{text}");
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
            assert!(check(text.as_bytes()).is_none(), "{text:?}");
            let within = format!("[{text}]");
            assert!(text.trim().is_empty() || check(within.as_bytes()).is_none(), "{within:?}");
        }
        assert!(check(b"\"\xff\xfe\"").is_some(), "bytes that are no character are read as U+FFFD");
    }

    #[test]
    fn nesting_ends_at_the_same_depth() {
        let nested = |depth: usize| "[".repeat(depth) + &"]".repeat(depth);
        assert!(check(nested(10_000).as_bytes()).is_some());
        assert!(check(nested(10_001).as_bytes()).is_none());
        assert!(check("[".repeat(1_000_000).as_bytes()).is_none());
        let in_object = |depth: usize| format!("{{\"a\":{}}}", nested(depth));
        assert!(check(in_object(9_999).as_bytes()).is_some());
        assert!(check(in_object(10_000).as_bytes()).is_none());
    }
}
