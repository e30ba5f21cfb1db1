//! The columns that text takes on a terminal: wide characters take two, combining marks none.

use std::borrow::Cow;
use unicode_truncate::UnicodeTruncateStr;
use unicode_width::UnicodeWidthStr;

pub(crate) fn width(text: &str) -> usize {
    text.width()
}

/// Fills a text with blanks on the right.
pub(crate) fn pad_end(text: &str, columns: usize) -> String {
    text.to_owned() + &blanks(text, columns)
}

/// Fills a text with blanks on the left.
pub(crate) fn pad_start(text: &str, columns: usize) -> String {
    blanks(text, columns) + text
}

fn blanks(text: &str, columns: usize) -> String {
    " ".repeat(columns.saturating_sub(width(text)))
}

/// Cuts a text that is wider than `columns`, and ends it with `mark`. No character is cut from its combining marks.
pub(crate) fn cut<'a>(text: &'a str, columns: usize, mark: &str) -> Cow<'a, str> {
    if width(text) <= columns {
        return text.into();
    }
    let (head, _) = text.unicode_truncate(columns.saturating_sub(width(mark)));
    (head.to_owned() + mark).into()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Texts with their columns: wide characters, combining marks, emoji of one and of several characters.
    const TEXTS: [(&str, usize); 7] = [
        ("plain", 5),
        ("\u{65e5}\u{672c}\u{8a9e}", 6),
        ("e\u{301}a\u{308}\u{332}", 2),
        ("\u{ff71}\u{ac00}", 3),
        ("\u{1f680}!", 3),
        ("\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}", 2),
        ("\u{2764}\u{fe0f}", 2),
    ];

    #[test]
    fn wide_characters_combining_marks_and_emoji_are_measured() {
        for (text, columns) in TEXTS {
            assert_eq!(width(text), columns, "{text}");
            assert_eq!(width(&pad_end(text, 9)), 9, "{text}");
            assert_eq!(width(&pad_start(text, 9)), 9, "{text}");
            assert_eq!(pad_end(text, 1), text);
        }
        assert_eq!(pad_end("\u{65e5}", 4), "\u{65e5}  ");
        assert_eq!(pad_start("e\u{301}", 2), " e\u{301}");
    }

    #[test]
    fn a_text_is_cut_between_whole_characters() {
        for (text, columns) in TEXTS {
            assert!(matches!(cut(text, columns, "..."), Cow::Borrowed(whole) if whole == text), "{text}");
            for less in 1..columns {
                let shown = cut(text, less, "\u{2026}");
                assert!(width(&shown) <= less && shown.ends_with('\u{2026}'), "{shown}");
            }
        }
        assert_eq!(cut("\u{65e5}\u{672c}\u{8a9e}", 4, "\u{2026}"), "\u{65e5}\u{2026}");
        assert_eq!(cut("e\u{301}\u{308}xyz", 2, "\u{2026}"), "e\u{301}\u{308}\u{2026}");
        let family = "\u{1f468}\u{200d}\u{1f469}\u{200d}\u{1f467}";
        assert_eq!(cut(&format!("{family}abcd"), 4, "\u{2026}"), format!("{family}a\u{2026}"));
    }
}
