//! Finds the comments and string literals of a Rust source file.

use crate::Prose;

/// The comments and string literals of `source`, in order.
pub fn prose(source: &str) -> Vec<Prose<'_>> {
    let mut found = Vec::new();
    let mut rest = source;
    let mut line = 1;
    let mut previous = ' ';
    while let Some(next) = rest.chars().next() {
        let length = piece_length(rest, previous);
        let taken = length.unwrap_or(next.len_utf8());
        let (text, after) = rest.split_at(taken);
        if length.is_some() && !text.starts_with('\'') {
            found.push(Prose { line, text });
        }
        line += text.matches('\n').count();
        previous = text.chars().next_back().unwrap_or(' ');
        rest = after;
    }
    found
}

/// Length of the comment, string or character literal at the start of `rest`.
fn piece_length(rest: &str, previous: char) -> Option<usize> {
    if rest.starts_with("//") {
        return Some(rest.find('\n').unwrap_or(rest.len()));
    }
    if rest.starts_with("/*") {
        return Some(rest.find("*/").map_or(rest.len(), |end| end + 2));
    }
    if rest.starts_with('"') {
        return Some(quoted_length(rest, '"'));
    }
    if rest.starts_with('\'') {
        return character_length(rest);
    }
    let in_identifier = previous.is_alphanumeric() || previous == '_';
    if in_identifier { None } else { raw_string_length(rest) }
}

fn quoted_length(rest: &str, quote: char) -> usize {
    let mut escaped = false;
    for (index, character) in rest.char_indices().skip(1) {
        match character {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            _ if character == quote => return index + 1,
            _ => {}
        }
    }
    rest.len()
}

/// Length of a character literal; `None` for a lifetime.
fn character_length(rest: &str) -> Option<usize> {
    let mut characters = rest.char_indices().skip(1);
    let (_, first) = characters.next()?;
    if first == '\\' {
        return Some(quoted_length(rest, '\''));
    }
    let (index, second) = characters.next()?;
    (second == '\'').then_some(index + 1)
}

fn raw_string_length(rest: &str) -> Option<usize> {
    let after_prefix = ["br", "cr", "r"].into_iter().find_map(|prefix| rest.strip_prefix(prefix))?;
    let hashes = after_prefix.len() - after_prefix.trim_start_matches('#').len();
    let body = after_prefix.get(hashes..)?.strip_prefix('"')?;
    let close = format!("\"{}", "#".repeat(hashes));
    let end = body.find(&close).map_or(body.len(), |end| end + close.len());
    Some(rest.len() - body.len() + end)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(source: &str) -> Vec<(usize, &str)> {
        prose(source).into_iter().map(|piece| (piece.line, piece.text)).collect()
    }

    #[test]
    fn comments_and_literals_are_found_with_their_lines() {
        let source = "//! a\nlet b = \"c\\\"d\"; // e\n/* f\ng */ let h = r#\"i\"j\"#;\n";
        let expected =
            vec![(1, "//! a"), (2, "\"c\\\"d\""), (2, "// e"), (3, "/* f\ng */"), (4, "r#\"i\"j\"#")];
        assert_eq!(texts(source), expected);
    }

    #[test]
    fn a_quote_as_a_character_or_a_lifetime_opens_no_string() {
        assert_eq!(texts("let a = '\"'; let b: &'a str = '\\''; // c"), vec![(1, "// c")]);
        assert_eq!(texts("let bar = \"r\"; for_r\"x\""), vec![(1, "\"r\""), (1, "\"x\"")]);
    }

    #[test]
    fn an_address_in_a_string_is_no_comment() {
        assert_eq!(texts("let a = \"http://b\"; c"), vec![(1, "\"http://b\"")]);
    }
}
