//! What is drawn can be read back, by a decoder that knows only the table in the module's documentation.

use super::*;

/// Decodes a drawn pipeline; `None` where it is not one.
fn decoded(mut drawn: &str) -> Option<Vec<Vec<String>>> {
    let mut pipeline = Vec::new();
    if drawn.is_empty() {
        return Some(pipeline);
    }
    let mut stage = Vec::new();
    loop {
        if drawn.starts_with("()") {
            drawn = &drawn[2..];
        } else {
            let (argument, rest) = decoded_argument(drawn)?;
            stage.push(argument);
            drawn = rest;
        }
        if drawn.is_empty() {
            pipeline.push(stage);
            return Some(pipeline);
        } else if let Some(rest) = drawn.strip_prefix(" | ") {
            pipeline.push(std::mem::take(&mut stage));
            drawn = rest;
        } else {
            drawn = drawn.strip_prefix(' ')?;
        }
    }
}

fn decoded_argument(drawn: &str) -> Option<(String, &str)> {
    let Some(inside) = drawn.strip_prefix('\'') else {
        let end = drawn.bytes().position(|byte| !is_plain(byte)).unwrap_or(drawn.len());
        return (end > 0).then(|| (drawn[..end].to_owned(), &drawn[end..]));
    };
    decoded_text(inside, Some('\''))
}

/// Decodes up to the closing quote, or to the end where there is none.
fn decoded_text(drawn: &str, quote: Option<char>) -> Option<(String, &str)> {
    let (mut text, mut rest) = (String::new(), drawn.chars());
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

/// Numbers that are the same in every run.
struct Dice(u64);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 >> 11) % end
    }

    /// Short and made of what the notation is made of, so that two of them are often nearly the same.
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
fn harmless_arguments_stand_for_themselves() {
    for text in ["ls", "-la", "/usr/bin/apt-get", "a=b,c:d", "user@host", "50%", "_x+1"] {
        assert_eq!(quote(text), text);
    }
}

#[test]
fn anything_else_is_quoted_and_visible() {
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
    for (text, drawn) in table {
        assert_eq!(quote(text), drawn);
    }
    assert_eq!(quote(&format!("a{}b", " ".repeat(16))), "'a                b'");
    assert_eq!(quote(&format!("a{}7", " ".repeat(17))), "'a\\u{20*17}7'");
}

#[test]
fn two_commands_are_never_drawn_the_same() {
    let mut dice = Dice(0x5eed_0001);
    let mut seen = std::collections::HashMap::new();
    for _ in 0..50_000 {
        let count = dice.below(4);
        let pipeline: Vec<Vec<String>> = (0..count).map(|_| dice.stage()).collect();
        let drawn = command(&pipeline);
        assert!(drawn.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{drawn}");
        assert_eq!(decoded(&drawn).as_ref(), Some(&pipeline), "{drawn}");
        if let Some(other) = seen.insert(drawn, pipeline.clone()) {
            assert_eq!(other, pipeline);
        }
    }
}

#[test]
fn every_character_can_be_read_back() {
    for character in (0..=0x10ffff).filter_map(char::from_u32) {
        let text = character.to_string();
        let drawn = quote(&text);
        assert_eq!(decoded_argument(&drawn), Some((text, "")), "{drawn}");
    }
}

#[test]
fn a_claim_can_be_read_back_unless_it_was_cut() {
    let mut dice = Dice(0x5eed_0002);
    for _ in 0..20_000 {
        let text = dice.text();
        let drawn = claim(&text, 1000);
        assert!(drawn.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{drawn}");
        assert_eq!(decoded_text(&drawn, None), Some((text, "")), "{drawn}");
    }
}

#[test]
fn a_long_claim_is_cut_and_says_by_how_much() {
    assert_eq!(claim("abcdef", 6), "abcdef");
    assert_eq!(claim("abcdefg", 6), "abcdef\\... (1 more character)");
    assert_eq!(claim(&"\u{e9}".repeat(1000), 2), "\\u{e9}\\u{e9}\\... (998 more characters)");
    assert_eq!(claim("abcdef\\... (1 more character)", 99), "abcdef\\\\... (1 more character)");
}

#[test]
fn padding_in_a_claim_pushes_nothing_out_of_sight() {
    assert_eq!(claim("a   b", 99), "a   b");
    assert_eq!(claim(&format!("a{}b", " ".repeat(400)), 999), "a\\u{20*400}b");
    assert_eq!(claim("it's \"fine\"", 99), "it's \"fine\"");
}
