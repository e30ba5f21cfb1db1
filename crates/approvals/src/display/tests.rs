//! Decodes escaped text with a decoder written from the module's documentation.

use super::*;

/// Decodes an escaped pipeline; `None` if it is malformed.
fn decode(mut escaped: &str) -> Option<Vec<Vec<String>>> {
    let mut pipeline = Vec::new();
    if escaped.is_empty() {
        return Some(pipeline);
    }
    let mut stage = Vec::new();
    loop {
        if escaped.starts_with("()") {
            escaped = &escaped[2..];
        } else {
            let (argument, rest) = decode_argument(escaped)?;
            stage.push(argument);
            escaped = rest;
        }
        if escaped.is_empty() {
            pipeline.push(stage);
            return Some(pipeline);
        } else if let Some(rest) = escaped.strip_prefix(" | ") {
            pipeline.push(std::mem::take(&mut stage));
            escaped = rest;
        } else {
            escaped = escaped.strip_prefix(' ')?;
        }
    }
}

fn decode_argument(escaped: &str) -> Option<(String, &str)> {
    let Some(inside) = escaped.strip_prefix('\'') else {
        let end = escaped.bytes().position(|byte| !is_safe(byte)).unwrap_or(escaped.len());
        return (end > 0).then(|| (escaped[..end].to_owned(), &escaped[end..]));
    };
    decode_text(inside, Some('\''))
}

/// Decodes up to the closing quote, or to the end if there is no quote.
fn decode_text(escaped: &str, quote: Option<char>) -> Option<(String, &str)> {
    let (mut text, mut rest) = (String::new(), escaped.chars());
    while let Some(character) = rest.next() {
        match character {
            _ if Some(character) == quote => return Some((text, rest.as_str())),
            '\\' => match rest.next()? {
                'n' => text.push('\n'),
                't' => text.push('\t'),
                'r' => text.push('\r'),
                'u' => {
                    let (number, after) = rest.as_str().strip_prefix('{')?.split_once('}')?;
                    rest = after.chars();
                    match number.split_once('*') {
                        Some((_, count)) => text.push_str(&" ".repeat(count.parse().ok()?)),
                        None => text.push(char::from_u32(u32::from_str_radix(number, 16).ok()?)?),
                    }
                }
                itself => text.push(itself),
            },
            ' '..='~' => text.push(character),
            _ => return None,
        }
    }
    quote.is_none().then_some((text, ""))
}

/// A deterministic random number generator.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    /// Returns a short text of the notation's own symbols, so that many texts are almost equal.
    fn text(&mut self) -> String {
        let pieces = [
            "'",
            "\\",
            " ",
            "|",
            " | ",
            "u",
            "{20*17}",
            "\\u{41}",
            "n",
            "\n",
            "\t",
            "()",
            "A",
            "\"",
            "$",
            "\u{202e}",
            "\u{0}",
            "\u{7f}",
            "\u{9b}",
            "\u{e9}",
            "\u{10ffff}",
            "5",
            "   ",
            "                 ",
        ];
        let count = self.below(5);
        (0..count).map(|_| pieces[self.below(pieces.len() as u64) as usize]).collect()
    }

    fn stage(&mut self) -> Vec<String> {
        let count = self.below(4);
        (0..count).map(|_| self.text()).collect()
    }
}

#[test]
fn safe_arguments_are_not_quoted() {
    for text in ["ls", "-la", "/usr/bin/apt-get", "a=b,c:d", "user@host", "50%", "_x+1"] {
        assert_eq!(quote(text), text);
    }
}

#[test]
fn other_arguments_are_quoted_and_escaped() {
    let table = [
        ("", "''"),
        ("a b", "'a b'"),
        ("|", "'|'"),
        ("it's", "'it\\'s'"),
        ("a\\b", "'a\\\\b'"),
        ("one\ntwo\tx\r", "'one\\ntwo\\tx\\r'"),
        ("\u{1b}[2J", "'\\u{1b}[2J'"),
        ("a\u{202e}b", "'a\\u{202e}b'"),
        ("caf\u{e9}", "'caf\\u{e9}'"),
        ("~", "'~'"),
    ];
    for (text, escaped) in table {
        assert_eq!(quote(text), escaped);
    }
    assert_eq!(quote(&format!("a{}b", " ".repeat(16))), "'a                b'");
    assert_eq!(quote(&format!("a{}7", " ".repeat(17))), "'a\\u{20*17}7'");
}

#[test]
fn different_commands_have_different_escapes() {
    let mut rng = Rng(0x5eed_0001);
    let mut seen = std::collections::HashMap::new();
    for _ in 0..50_000 {
        let count = rng.below(4);
        let pipeline: Vec<Vec<String>> = (0..count).map(|_| rng.stage()).collect();
        let escaped = command(&pipeline);
        assert!(escaped.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{escaped}");
        assert_eq!(decode(&escaped).as_ref(), Some(&pipeline), "{escaped}");
        if let Some(other) = seen.insert(escaped, pipeline.clone()) {
            assert_eq!(other, pipeline);
        }
    }
}

#[test]
fn every_character_can_be_decoded() {
    for character in (0..=0x10ffff).filter_map(char::from_u32) {
        let text = character.to_string();
        let escaped = quote(&text);
        assert_eq!(decode_argument(&escaped), Some((text, "")), "{escaped}");
    }
}

#[test]
fn untruncated_untrusted_text_can_be_decoded() {
    let mut rng = Rng(0x5eed_0002);
    for _ in 0..20_000 {
        let text = rng.text();
        let escaped = escape_untrusted(&text, 1000);
        assert!(escaped.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{escaped}");
        assert_eq!(decode_text(&escaped, None), Some((text, "")), "{escaped}");
    }
}

#[test]
fn long_untrusted_text_is_truncated_with_a_count() {
    assert_eq!(escape_untrusted("abcdef", 6), "abcdef");
    assert_eq!(escape_untrusted("abcdefg", 6), "abcdef\\... (1 more character)");
    assert_eq!(escape_untrusted(&"\u{e9}".repeat(1000), 2), "\\u{e9}\\u{e9}\\... (998 more characters)");
    assert_eq!(escape_untrusted("abcdef\\... (1 more character)", 99), "abcdef\\\\... (1 more character)");
}

#[test]
fn padding_in_untrusted_text_is_collapsed() {
    assert_eq!(escape_untrusted("a   b", 99), "a   b");
    assert_eq!(escape_untrusted(&format!("a{}b", " ".repeat(400)), 999), "a\\u{20*400}b");
    assert_eq!(escape_untrusted("it's \"fine\"", 99), "it's \"fine\"");
}
