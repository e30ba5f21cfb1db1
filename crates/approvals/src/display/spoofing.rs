//! Warnings about text that may deceive its reader (compare Unicode UTS #39).

use std::collections::BTreeSet;
use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};
use unicode_script::{Script, UnicodeScript};

/// Characters of other scripts that most fonts render like the ASCII character.
const CONFUSABLES: [(char, &str); 47] = [
    ('a', "\u{430}\u{3b1}\u{251}"),
    ('c', "\u{441}\u{3f2}"),
    ('d', "\u{501}"),
    ('e', "\u{435}"),
    ('g', "\u{261}"),
    ('h', "\u{4bb}"),
    ('i', "\u{456}\u{3b9}"),
    ('j', "\u{458}\u{3f3}"),
    ('k', "\u{43a}\u{3ba}"),
    ('l', "\u{4cf}\u{5c0}\u{5d5}\u{1c0}"),
    ('n', "\u{578}"),
    ('o', "\u{43e}\u{3bf}\u{585}\u{5e1}"),
    ('p', "\u{440}\u{3c1}"),
    ('q', "\u{51b}\u{566}"),
    ('r', "\u{433}"),
    ('s', "\u{455}"),
    ('u', "\u{3c5}\u{57d}"),
    ('v', "\u{475}\u{3bd}"),
    ('w', "\u{51d}\u{461}"),
    ('x', "\u{445}\u{3c7}"),
    ('y', "\u{443}\u{3b3}"),
    ('A', "\u{410}\u{391}\u{13aa}"),
    ('B', "\u{412}\u{392}\u{13f4}"),
    ('C', "\u{421}\u{3f9}\u{13df}"),
    ('D', "\u{13a0}"),
    ('E', "\u{415}\u{395}\u{13ac}"),
    ('H', "\u{41d}\u{397}\u{13bb}"),
    ('I', "\u{406}\u{399}"),
    ('J', "\u{408}\u{13ab}"),
    ('K', "\u{41a}\u{39a}\u{13e6}"),
    ('M', "\u{41c}\u{39c}\u{13b7}"),
    ('N', "\u{39d}"),
    ('O', "\u{41e}\u{39f}\u{555}"),
    ('P', "\u{420}\u{3a1}\u{13e2}"),
    ('S', "\u{405}\u{13da}"),
    ('T', "\u{422}\u{3a4}\u{13a2}"),
    ('X', "\u{425}\u{3a7}"),
    ('Y', "\u{423}\u{3a5}"),
    ('Z', "\u{396}\u{13c3}"),
    ('/', "\u{2044}\u{2215}\u{29f8}\u{ff0f}"),
    ('.', "\u{2024}\u{ff0e}"),
    ('-', "\u{2010}\u{2011}\u{2012}\u{2013}\u{2014}\u{2015}\u{2212}\u{ff0d}"),
    ('\'', "\u{2018}\u{2019}\u{2032}\u{ff07}"),
    ('"', "\u{201c}\u{201d}\u{2033}\u{ff02}"),
    (':', "\u{2236}\u{a789}\u{ff1a}"),
    (';', "\u{37e}\u{ff1b}"),
    ('|', "\u{2223}\u{2502}\u{ff5c}"),
];

/// Scripts that one language mixes within a word.
const COMPATIBLE_SCRIPTS: [&[Script]; 3] = [
    &[Script::Han, Script::Hiragana, Script::Katakana],
    &[Script::Han, Script::Hangul],
    &[Script::Han, Script::Bopomofo],
];

/// Returns warnings about a text. `label` names the text, such as `argument 2 of stage 1`.
pub fn warnings(label: &str, text: &str) -> Vec<String> {
    if text.is_ascii() {
        return Vec::new();
    }
    let mut found = Vec::new();
    let bidi = code_points(text.chars().filter(|&character| is_bidi_control(character)));
    if !bidi.is_empty() {
        found.push(format!("{label} has characters that turn the direction of reading: {bidi}"));
    }
    let invisible = code_points(text.chars().filter(|&character| is_invisible(character)));
    if !invisible.is_empty() {
        found.push(format!("{label} has invisible characters: {invisible}"));
    }
    let mixed: BTreeSet<String> = words(text).filter_map(mixed_scripts).collect();
    found.extend(mixed.iter().map(|mixed_scripts| format!("{label} mixes {mixed_scripts} letters")));
    let confusables = confusables(text);
    if !confusables.is_empty() {
        found.push(format!("{label} has characters that look like others: {confusables}"));
    }
    found
}

fn is_bidi_control(character: char) -> bool {
    matches!(character, '\u{61c}' | '\u{200e}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

/// Zero-width characters: formatting, variation selectors and fillers.
fn is_invisible(character: char) -> bool {
    let is_filler = matches!(
        character,
        '\u{34f}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}' | '\u{2800}'
            | '\u{3164}' | '\u{fe00}'..='\u{fe0f}' | '\u{ffa0}' | '\u{e0100}'..='\u{e01ef}'
    );
    is_filler || character.general_category() == GeneralCategory::Format && !is_bidi_control(character)
}

/// Lists the distinct characters by code point.
fn code_points(characters: impl Iterator<Item = char>) -> String {
    let distinct: BTreeSet<char> = characters.collect();
    let named: Vec<String> = distinct.into_iter().map(code_point).collect();
    named.join(", ")
}

fn code_point(character: char) -> String {
    format!("\\u{{{:x}}}", u32::from(character))
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let is_between = |character: char| !character.is_alphanumeric() && !joins_words(character);
    text.split(is_between).filter(|word| !word.is_empty())
}

/// Combining marks and invisible characters do not end a word.
fn joins_words(character: char) -> bool {
    character.script() == Script::Inherited || is_invisible(character) || is_bidi_control(character)
}

/// The scripts of a word, if they are not compatible.
fn mixed_scripts(word: &str) -> Option<String> {
    let mut scripts: Vec<Script> = word.chars().map(|character| character.script()).collect();
    scripts.retain(|script| !matches!(script, Script::Common | Script::Inherited | Script::Unknown));
    // Latin first: most commands are written in it.
    scripts.sort_by_key(|script| (*script != Script::Latin, script.full_name()));
    scripts.dedup();
    if COMPATIBLE_SCRIPTS.iter().any(|set| scripts.iter().all(|script| set.contains(script))) {
        return None;
    }
    let names: Vec<&str> = scripts.iter().map(|script| script.full_name()).collect();
    match names.split_last()? {
        (_, []) => None,
        (last, others) => Some(format!("{} and {last}", others.join(", "))),
    }
}

/// Lists words that consist only of ASCII lookalikes, and lookalike symbols and styled letters. Empty if the
/// text has no ASCII letters to imitate.
fn confusables(text: &str) -> String {
    if !text.bytes().any(|byte| byte.is_ascii_alphabetic()) {
        return String::new();
    }
    let in_words = words(text).filter(|word| word.chars().all(looks_ascii)).flat_map(str::chars);
    let signs = text.chars().filter(|character| !character.is_alphanumeric() || is_styled_ascii(*character));
    let distinct: BTreeSet<char> = in_words.chain(signs).filter(|character| !character.is_ascii()).collect();
    let named: Vec<String> = distinct.into_iter().filter_map(describe_confusable).collect();
    named.join(", ")
}

fn looks_ascii(character: char) -> bool {
    character.is_ascii() || ascii_like(character).is_some()
}

fn describe_confusable(character: char) -> Option<String> {
    let ascii = ascii_like(character);
    let is_blank = character.general_category() == GeneralCategory::SpaceSeparator;
    match ascii {
        Some(ascii) => Some(format!("{} like {ascii}", code_point(character))),
        None if is_blank => Some(format!("{} like a space", code_point(character))),
        None if is_styled_ascii(character) => Some(format!("{} like a plain letter", code_point(character))),
        None => None,
    }
}

fn ascii_like(character: char) -> Option<char> {
    CONFUSABLES.iter().find(|(_, others)| others.contains(character)).map(|(ascii, _)| *ascii)
}

/// ASCII letters and digits in other widths and styles, such as mathematical ones.
fn is_styled_ascii(character: char) -> bool {
    matches!(character, '\u{ff10}'..='\u{ff19}' | '\u{ff21}'..='\u{ff3a}' | '\u{ff41}'..='\u{ff5a}'
        | '\u{1d400}'..='\u{1d7ff}' | '\u{24b6}'..='\u{24e9}' | '\u{1f130}'..='\u{1f189}')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mixed_scripts_in_a_word_are_reported() {
        let found = warnings("argument 2 of stage 1", "/usr/bin/p\u{436}sswd");
        assert_eq!(found, ["argument 2 of stage 1 mixes Latin and Cyrillic letters"]);
        let found = warnings("x", "p\u{430}sswd");
        assert_eq!(found[1], "x has characters that look like others: \\u{430} like a");
        let found = warnings("x", "\u{430}\u{3b1}b");
        assert_eq!(found[0], "x mixes Latin, Cyrillic and Greek letters");
    }

    #[test]
    fn an_invisible_character_does_not_split_a_word() {
        let found = warnings("x", "pa\u{200b}\u{441}\u{441}");
        assert_eq!(found, ["x has invisible characters: \\u{200b}", "x mixes Latin and Cyrillic letters"]);
    }

    #[test]
    fn ascii_lookalikes_are_reported() {
        let found = warnings("x", "/bin/\u{441}\u{440}");
        assert_eq!(found, ["x has characters that look like others: \\u{440} like p, \\u{441} like c"]);
        let found = warnings("x", "a\u{2215}b\u{a0}c");
        assert_eq!(found, ["x has characters that look like others: \\u{a0} like a space, \\u{2215} like /"]);
        let found = warnings("x", "rm \u{ff41}\u{1d41a}");
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains("\\u{ff41} like a plain letter"), "{found:?}");
    }

    #[test]
    fn bidi_and_zero_width_are_reported_by_code_point() {
        let found = warnings("reason", "a\u{202e}b\u{2066}\u{200b}\u{feff}\u{3164}");
        assert_eq!(
            found[0],
            "reason has characters that turn the direction of reading: \\u{202e}, \\u{2066}"
        );
        assert_eq!(found[1], "reason has invisible characters: \\u{200b}, \\u{3164}, \\u{feff}");
    }

    #[test]
    fn text_of_one_language_has_no_warnings() {
        for text in
            ["grün café", "Привет, мир", "日本語のテスト", "한국어 漢字", "e\u{301}", "install ライブラリ"]
        {
            assert!(warnings("x", text).is_empty(), "{text}: {:?}", warnings("x", text));
        }
    }

    #[test]
    fn every_warning_is_printable_ascii() {
        for number in (0x80..0x10000).filter_map(char::from_u32) {
            for warning in warnings("x", &format!("a{number}b")) {
                assert!(warning.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{warning}");
            }
        }
    }
}
