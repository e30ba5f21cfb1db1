//! Wraps text to the screen width, and truncates command output.

use super::escape::{push_byte, push_escaped};

/// Margins of the first line of a text and of its continuation lines.
const FIRST_MARGIN: &str = "  ";
const CONTINUED_MARGIN: &str = "> ";
const ELLIPSIS: &str = "...";

/// Wraps a text at `columns`, including a margin of two. The margin marks continuation lines, so one text never
/// looks like two. The input is printable ASCII, so each character is one column wide.
pub fn wrap(text: &str, columns: usize) -> Vec<String> {
    let width = columns.saturating_sub(FIRST_MARGIN.len()).max(1);
    let mut lines = Vec::with_capacity(text.len() / width + 1);
    let mut rest = text;
    loop {
        let end = rest.char_indices().nth(width).map_or(rest.len(), |(end, _)| end);
        let (line, further) = rest.split_at(end);
        let margin = if lines.is_empty() { FIRST_MARGIN } else { CONTINUED_MARGIN };
        lines.push(format!("{margin}{line}"));
        if further.is_empty() {
            return lines;
        }
        rest = further;
    }
}

/// Escapes the first `lines_max` lines of a command's output and truncates each at `columns_max`. A last line
/// counts the omitted ones.
pub fn output_lines(bytes: &[u8], lines_max: usize, columns_max: usize) -> Vec<String> {
    let bytes = bytes.strip_suffix(b"\n").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    let mut lines = bytes.split(|&byte| byte == b'\n');
    let mut escaped: Vec<String> =
        lines.by_ref().take(lines_max).map(|line| truncate_line(line, columns_max)).collect();
    match lines.count() {
        0 => {}
        1 => escaped.push("... (1 more line)".to_owned()),
        more => escaped.push(format!("... ({more} more lines)")),
    }
    escaped
}

/// Escapes as much of a line as fits, and never splits an escape. Reads only a prefix: a line may have
/// megabytes.
fn truncate_line(line: &[u8], columns_max: usize) -> String {
    // `fits` is the length that leaves room for the ellipsis.
    let (mut escaped, mut fits) = (String::new(), 0);
    // Each byte needs at least one column. A character has at most four bytes, so a split one lies beyond the
    // last column.
    let near = line.get(..columns_max.saturating_add(4)).unwrap_or(line);
    for chunk in near.utf8_chunks() {
        let invalid = chunk.invalid().iter().map(|&byte| Err(byte));
        for piece in chunk.valid().chars().map(Ok).chain(invalid) {
            match piece {
                Ok(character) => push_escaped(character, &mut escaped),
                Err(byte) => push_byte(byte, &mut escaped),
            }
            if escaped.len() > columns_max {
                escaped.truncate(fits);
                return escaped + ELLIPSIS;
            }
            if escaped.len() + ELLIPSIS.len() <= columns_max {
                fits = escaped.len();
            }
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    fn joined(lines: &[String]) -> String {
        let without = |line: &String| line.get(FIRST_MARGIN.len()..).unwrap().to_owned();
        lines.iter().map(without).collect()
    }

    #[test]
    fn wrapping_loses_no_text_at_any_width() {
        let text: String = (0..500u32).map(|n| char::from(b' ' + (n % 95) as u8)).collect();
        for length in [0, 1, 2, 9, 10, 11, 500] {
            let text = &text[..length];
            for columns in [0, 1, 2, 3, 4, 10, 12, 80, 502, 1000] {
                let lines = wrap(text, columns);
                assert_eq!(joined(&lines), text);
                assert!(lines.iter().all(|line| line.len() <= columns.max(3)));
                assert!(lines[0].starts_with(FIRST_MARGIN));
                assert!(lines[1..].iter().all(|line| line.starts_with(CONTINUED_MARGIN) && line.len() > 2));
            }
        }
    }

    #[test]
    fn continuation_lines_cannot_be_forged() {
        let one = wrap("abcdef", 5);
        let two = [wrap("abc", 5), wrap("> def", 80)].concat();
        assert_eq!(one, ["  abc", "> def"]);
        assert_eq!(two, ["  abc", "  > def"]);
    }

    #[test]
    fn output_is_escaped() {
        let lines = output_lines(b"ok\x1b[2J\x9b\xc3\xa9\r\nnext\tx\\\n", 9, 80);
        assert_eq!(lines, ["ok\\u{1b}[2J\\x9b\\u{e9}\\r", "next\\tx\\\\"]);
        let all: Vec<u8> = (0..=255).collect();
        for line in output_lines(&all, 99, 9999) {
            assert!(line.bytes().all(|byte| (b' '..=b'~').contains(&byte)), "{line}");
        }
    }

    #[test]
    fn omitted_lines_are_counted() {
        assert_eq!(output_lines(b"a\nb\nc\nd\n", 2, 80), ["a", "b", "... (2 more lines)"]);
        assert_eq!(output_lines(b"a\nb\nc", 2, 80), ["a", "b", "... (1 more line)"]);
        assert_eq!(output_lines(b"a\n\n", 2, 80), ["a", ""]);
        assert!(output_lines(b"", 2, 80).is_empty());
    }

    #[test]
    fn a_line_is_truncated_at_the_width_outside_of_escapes() {
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
