//! Text cut into the lines of a screen: all of it, or the head of what a command wrote.

use super::escape::{push_byte, push_escaped};

/// What stands before the first line of a text, and before those that go on with it.
const FIRST: &str = "  ";
const FURTHER: &str = "> ";
const CUT: &str = "...";

/// All of a text, each line at most `columns` wide with its margin of two. The margin tells a line that goes on from one
/// that begins, so no text can pass for two. The text is printable ASCII: each character takes one column.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let width = columns.saturating_sub(FIRST.len()).max(1);
    let mut lines = Vec::with_capacity(text.len() / width + 1);
    let mut rest = text;
    loop {
        let end = rest.char_indices().nth(width).map_or(rest.len(), |(end, _)| end);
        let (line, further) = rest.split_at(end);
        let margin = if lines.is_empty() { FIRST } else { FURTHER };
        lines.push(format!("{margin}{line}"));
        if further.is_empty() {
            return lines;
        }
        rest = further;
    }
}

/// The first `lines_max` lines of a command's output, escaped, each at most `columns_max` wide; if there are more, one
/// line more that counts them.
pub fn output_lines(bytes: &[u8], lines_max: usize, columns_max: usize) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    let mut lines = bytes.split(|&byte| byte == b'\n');
    let mut drawn: Vec<String> = lines.by_ref().take(lines_max).map(|line| head(line, columns_max)).collect();
    match lines.count() {
        0 => {}
        1 => drawn.push("... (1 more line)".to_owned()),
        more => drawn.push(format!("... ({more} more lines)")),
    }
    drawn
}

/// What of a line fits, never a part of an escape. Only as much is looked at: a line may be megabytes.
fn head(line: &[u8], columns_max: usize) -> String {
    // `fits`: up to where the line may stay if it has to be cut, since the mark needs room.
    let (mut drawn, mut fits) = (String::new(), 0);
    // Every byte takes a column at least, and a character that this cuts, which has four at most, is beyond the last one.
    let near = line.get(..columns_max.saturating_add(4)).unwrap_or(line);
    for chunk in near.utf8_chunks() {
        let invalid = chunk.invalid().iter().map(|&byte| Err(byte));
        for piece in chunk.valid().chars().map(Ok).chain(invalid) {
            match piece {
                Ok(character) => push_escaped(character, &mut drawn),
                Err(byte) => push_byte(byte, &mut drawn),
            }
            if drawn.len() > columns_max {
                drawn.truncate(fits);
                return drawn + CUT;
            }
            if drawn.len() + CUT.len() <= columns_max {
                fits = drawn.len();
            }
        }
    }
    drawn
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(lines: &[String]) -> String {
        let without = |line: &String| line.get(FIRST.len()..).unwrap().to_owned();
        lines.iter().map(without).collect()
    }

    #[test]
    fn nothing_is_lost_at_any_width() {
        let text: String = (0..500u32).map(|n| char::from(b' ' + (n % 95) as u8)).collect();
        for length in [0, 1, 2, 9, 10, 11, 500] {
            let text = &text[..length];
            for columns in [0, 1, 2, 3, 4, 10, 12, 80, 502, 1000] {
                let lines = wrap(text, columns);
                assert_eq!(joined(&lines), text);
                assert!(lines.iter().all(|line| line.len() <= columns.max(3)));
                assert!(lines[0].starts_with(FIRST));
                assert!(lines[1..].iter().all(|line| line.starts_with(FURTHER) && line.len() > 2));
            }
        }
    }

    #[test]
    fn a_text_cannot_pass_for_the_rest_of_another() {
        let one = wrap("abcdef", 5);
        let two = [wrap("abc", 5), wrap("> def", 80)].concat();
        assert_eq!(one, ["  abc", "> def"]);
        assert_eq!(two, ["  abc", "  > def"]);
    }

    #[test]
    fn output_does_not_reach_the_terminal_as_it_is() {
        let lines = output_lines(b"ok\x1b[2J\x9b\xc3\xa9\r\nnext\tx\\\n", 9, 80);
        assert_eq!(lines, ["ok\\u{1b}[2J\\x9b\\u{e9}\\r", "next\\tx\\\\"]);
        let all: Vec<u8> = (0..=255).collect();
        for line in output_lines(&all, 99, 9999) {
            assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
        }
    }

    #[test]
    fn only_the_head_is_shown_and_the_rest_counted() {
        assert_eq!(output_lines(b"a\nb\nc\nd\n", 2, 80), ["a", "b", "... (2 more lines)"]);
        assert_eq!(output_lines(b"a\nb\nc", 2, 80), ["a", "b", "... (1 more line)"]);
        assert_eq!(output_lines(b"a\n\n", 2, 80), ["a", ""]);
        assert!(output_lines(b"", 2, 80).is_empty());
    }

    #[test]
    fn a_line_is_cut_at_the_width_but_never_within_an_escape() {
        assert_eq!(output_lines(b"1234567890", 1, 10), ["1234567890"]);
        assert_eq!(output_lines(b"12345678901", 1, 10), ["1234567..."]);
        assert_eq!(output_lines(b"12345\x1b78901", 1, 10), ["12345..."]);
        assert_eq!(output_lines(b"12345\x1b", 1, 11), ["12345\\u{1b}"]);
        let long = vec![b'x'; 16 << 20];
        assert_eq!(output_lines(&long, 3, 200)[0].len(), 200);
        let wide = "\u{1d11e}".repeat(100);
        for width in 3..60 {
            let line = &output_lines(wide.as_bytes(), 1, width)[0];
            assert!(line.len() <= width && line.ends_with("..."), "{line}");
            assert!(line.trim_end_matches('.').is_empty() || line.ends_with("}..."), "{line}");
        }
    }
}
