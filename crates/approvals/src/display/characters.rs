//! Detects characters that have no legitimate use in a request.

use unicode_properties::{GeneralCategory, UnicodeGeneralCategory};

/// Whether a text may contain newlines. Tabs are always allowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Newlines {
    Allowed,
    Refused,
}

/// Returns the first forbidden character: controls, invisible and bidirectional formatting, line and paragraph
/// separators, private use, and unassigned code points.
pub fn forbidden(text: &str, newlines: Newlines) -> Option<char> {
    text.chars().find(|&character| match character {
        '\t' | ' '..='~' => false,
        '\n' => newlines == Newlines::Refused,
        other => is_forbidden_category(other),
    })
}

fn is_forbidden_category(character: char) -> bool {
    use GeneralCategory::*;
    matches!(
        character.general_category(),
        // Noncharacters have the category Unassigned.
        Control | Format | LineSeparator | ParagraphSeparator | PrivateUse | Surrogate | Unassigned
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_forbidden(character: char) -> bool {
        let text = format!("a{character}b");
        assert_eq!(forbidden(&text, Newlines::Refused).is_some(), is_forbidden_alone(character));
        is_forbidden_alone(character)
    }

    fn is_forbidden_alone(character: char) -> bool {
        forbidden(&character.to_string(), Newlines::Refused) == Some(character)
    }

    fn all(ranges: &[std::ops::RangeInclusive<u32>]) -> impl Iterator<Item = char> {
        ranges.iter().cloned().flatten().filter_map(char::from_u32)
    }

    #[test]
    fn controls_are_forbidden_except_tab() {
        for character in all(&[0..=8, 10..=0x1f, 0x7f..=0x9f]) {
            assert!(is_forbidden(character), "{character:?}");
        }
        assert_eq!(forbidden("a\tb", Newlines::Refused), None);
        assert_eq!(forbidden("a\tb\n", Newlines::Allowed), None);
        assert_eq!(forbidden("a\tb\n", Newlines::Refused), Some('\n'));
        assert_eq!(forbidden("a\r\n", Newlines::Allowed), Some('\r'));
    }

    #[test]
    fn known_invisible_and_bidi_characters_are_forbidden() {
        let known = [
            0xad..=0xad,
            0x600..=0x605,
            0x61c..=0x61c,
            0x6dd..=0x6dd,
            0x70f..=0x70f,
            0x180e..=0x180e,
            0x200b..=0x200f,
            0x2028..=0x202e,
            0x2060..=0x206f,
            0xfeff..=0xfeff,
            0xfff9..=0xfffb,
            0x110bd..=0x110bd,
            0x110cd..=0x110cd,
            0x13430..=0x1343f,
            0x1bca0..=0x1bca3,
            0x1d173..=0x1d17a,
            0xe0000..=0xe007f,
        ];
        for character in all(&known) {
            assert!(is_forbidden(character), "{:x}", u32::from(character));
        }
    }

    #[test]
    fn private_use_and_unassigned_characters_are_forbidden() {
        let private = [0xe000..=0xf8ff, 0xf0000..=0xffffd, 0x100000..=0x10fffd];
        let none = [0xfdd0..=0xfdef, 0xfffe..=0xffff, 0x10fffe..=0x10ffff, 0x378..=0x379, 0x50000..=0x50010];
        for character in all(&private).step_by(97).chain(all(&none)) {
            assert!(is_forbidden(character), "{:x}", u32::from(character));
        }
    }

    #[test]
    fn text_of_any_language_is_allowed() {
        for text in
            ["plain ~text~", "grün", "Привет, мир", "日本語", "안녕", "é with a mark e\u{301}", "✓ 🚀"]
        {
            assert_eq!(forbidden(text, Newlines::Refused), None, "{text}");
        }
    }
}
