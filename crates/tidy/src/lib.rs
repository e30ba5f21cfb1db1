//! Checks of the source tree that no compiler makes: words, file lengths, headers, commit subjects.
//!
//! `tests/tidy.rs` applies them to the whole repository. Each check returns its findings as lines of the form
//! `path:line: reason`, so that an editor can jump to them. Function length is clippy's check (`clippy.toml`).

#![forbid(unsafe_code)]

mod rust_text;
mod words;

pub use rust_text::prose;
pub use words::personified;

/// Longest Rust source file, in lines.
pub const FILE_LINES_MAX: usize = 500;
/// Longest subject of a commit, in characters.
pub const SUBJECT_CHARS_MAX: usize = 72;
/// Longest `ARCHITECTURE.md`, in words.
pub const ARCHITECTURE_WORDS_MAX: usize = 2_500;

/// A piece of prose in a file: a comment, a string literal, or a line of a document.
#[derive(Debug, PartialEq, Eq)]
pub struct Prose<'a> {
    /// Line on which it starts, from 1.
    pub line: usize,
    /// The text with its delimiters.
    pub text: &'a str,
}

/// Findings of the checks on one Rust source file.
pub fn rust_file(path: &str, source: &str) -> Vec<String> {
    let mut findings = Vec::new();
    let lines = source.lines().count();
    if lines > FILE_LINES_MAX {
        findings
            .push(format!("{path}:1: {lines} lines, at most {FILE_LINES_MAX}: split the file by subject"));
    }
    if !source.starts_with("//!") {
        findings.push(format!("{path}:1: no header: open the file with one `//!` sentence on what it owns"));
    }
    for piece in prose(source) {
        findings.extend(unfinished(path, &piece));
        findings.extend(words(path, &piece));
    }
    for (index, line) in source.lines().enumerate() {
        if let Some(name) = function_name(line) {
            findings.extend(words(path, &Prose { line: index + 1, text: &name.replace('_', " ") }));
        }
    }
    findings
}

/// Findings of the word checks on a document or a script, line by line.
pub fn text_file(path: &str, content: &str) -> Vec<String> {
    let pieces = content.lines().enumerate().map(|(index, text)| Prose { line: index + 1, text });
    pieces.flat_map(|piece| words(path, &piece)).collect()
}

/// The finding on a commit, if its subject is too long.
pub fn commit(id: &str, subject: &str) -> Option<String> {
    let chars = subject.chars().count();
    (chars > SUBJECT_CHARS_MAX).then(|| {
        format!("commit {id}: subject of {chars} characters, at most {SUBJECT_CHARS_MAX}: {subject}")
    })
}

/// The name of the function that a line declares.
fn function_name(line: &str) -> Option<&str> {
    let (before, after) = line.split_once("fn ")?;
    let is_declaration = before.is_empty() || before.ends_with(' ');
    let name = after.split(|character: char| !character.is_alphanumeric() && character != '_').next()?;
    (is_declaration && !name.is_empty()).then_some(name)
}

fn words(path: &str, piece: &Prose<'_>) -> Option<String> {
    let (offset, word) = personified(piece.text)?;
    let line = piece.line + piece.text.get(..offset).unwrap_or_default().matches('\n').count();
    Some(format!(
        "{path}:{line}: \"{word}\" writes of a process as a person: name the actor and use the field's term"
    ))
}

fn unfinished(path: &str, piece: &Prose<'_>) -> Option<String> {
    let is_comment = piece.text.starts_with("//") || piece.text.starts_with("/*");
    let marker = ["TODO", "FIXME", "XXX"].into_iter().find(|marker| piece.text.contains(marker))?;
    is_comment.then(|| format!("{path}:{}: {marker}: finish it, or open an issue", piece.line))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_without_a_header_is_found() {
        assert_eq!(rust_file("a.rs", "//! Owns a.\nfn a() {}\n"), Vec::<String>::new());
        assert!(rust_file("a.rs", "fn a() {}\n")[0].contains("no header"));
    }

    #[test]
    fn a_file_of_more_than_500_lines_is_found() {
        let mut source = String::from("//! Owns a.\n");
        source.push_str(&"\n".repeat(FILE_LINES_MAX - 1));
        assert!(rust_file("a.rs", &source).is_empty());
        source.push('\n');
        assert!(rust_file("a.rs", &source)[0].contains("501 lines"));
    }

    #[test]
    fn a_marker_of_unfinished_work_is_found_in_comments_only() {
        let marker = ["TO", "DO"].concat();
        assert!(rust_file("a.rs", &format!("//! Owns a.\n// {marker}: later\n"))[0].starts_with("a.rs:2:"));
        assert!(rust_file("a.rs", &format!("//! Owns a.\nconst A: &str = \"{marker}\";\n")).is_empty());
    }

    #[test]
    fn a_word_is_reported_with_the_line_it_is_on() {
        let word = ["who", "ever"].concat();
        let source = format!("//! Owns a.\nconst A: &str = \"one\ntwo {word}\";\n");
        assert!(rust_file("a.rs", &source)[0].starts_with("a.rs:3:"));
        assert!(text_file("a.md", &format!("one\n{word} waits"))[0].starts_with("a.md:2:"));
    }

    #[test]
    fn a_word_in_the_name_of_a_function_is_found() {
        let word = ["no", "body"].concat();
        let source = format!("//! Owns a.\n\n    async fn input_of_{word}() {{}}\n");
        assert!(rust_file("a.rs", &source)[0].starts_with("a.rs:3:"));
        assert!(rust_file("a.rs", &format!("//! Owns a.\nlet input_of_{word} = 1;\n")).is_empty());
    }

    #[test]
    fn a_subject_of_more_than_72_characters_is_found() {
        assert_eq!(commit("1", &"a".repeat(72)), None);
        assert!(commit("1", &"a".repeat(73)).is_some());
    }
}
