//! Errors in TOML files that an operator writes: their position, and a suggestion for each unknown key.

use crate::display::{escape_untrusted, quote};
use toml::Spanned;
use toml::de::DeTable;

/// Maximum length of a message from the parser.
const MESSAGE_CHARS_MAX: usize = 300;

/// An error and its byte offset.
#[derive(Debug)]
pub struct Diagnostic {
    pub offset: usize,
    pub message: String,
}

impl Diagnostic {
    pub fn new(offset: usize, message: impl Into<String>) -> Diagnostic {
        Diagnostic { offset, message: message.into() }
    }

    /// Converts a parser error. Its message may quote the file, so it is escaped.
    pub fn from_toml(error: &toml::de::Error, text: &str) -> Diagnostic {
        let offset = error.span().map_or(text.len(), |span| span.start);
        Diagnostic::new(offset, escape_untrusted(error.message(), MESSAGE_CHARS_MAX))
    }

    /// Line and column, both from 1.
    pub fn line_and_column(&self, text: &str) -> (usize, usize) {
        let before = text.get(..self.offset).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        (before.matches('\n').count() + 1, column)
    }
}

/// Parses a file into a table, or returns all errors in file order. The first error is likely the cause of the
/// others.
pub fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Vec<Diagnostic>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut diagnostics: Vec<Diagnostic> =
        errors.iter().map(|error| Diagnostic::from_toml(error, text)).collect();
    diagnostics.sort_by_key(|diagnostic| diagnostic.offset);
    if diagnostics.is_empty() { Ok(document) } else { Err(diagnostics) }
}

/// Returns an error for each key that is not in `known`, in file order.
pub fn unknown_keys(table: &DeTable<'_>, known: &[&str]) -> Vec<Diagnostic> {
    let unknown = table.keys().filter(|key| !known.contains(&key.get_ref().as_ref()));
    let mut diagnostics: Vec<Diagnostic> = unknown
        .map(|key| {
            let hint = nearest(key.get_ref(), known).map(|near| format!("; do you mean {near}?"));
            let message = format!("unknown key {}{}", quote(key.get_ref()), hint.unwrap_or_default());
            Diagnostic::new(key.span().start, message)
        })
        .collect();
    diagnostics.sort_by_key(|diagnostic| diagnostic.offset);
    diagnostics
}

/// Returns the known name that is most similar to a misspelt one, or `None` if no name is similar enough.
fn nearest<'a>(name: &str, known: &[&'a str]) -> Option<&'a str> {
    let near = known.iter().map(|known| (strsim::levenshtein(name, known), *known));
    near.filter(|(distance, known)| *distance <= known.len().div_ceil(3)).min().map(|(_, known)| known)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_typo_is_recognised_and_another_word_is_not() {
        let known = ["command", "decision", "expires", "env"];
        assert_eq!(nearest("comand", &known), Some("command"));
        assert_eq!(nearest("expire", &known), Some("expires"));
        assert_eq!(nearest("en", &known), Some("env"));
        assert_eq!(nearest("user", &known), None);
    }
}
