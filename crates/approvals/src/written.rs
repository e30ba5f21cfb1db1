//! Files that an operator writes, in TOML: a mistake has its place, and an unknown key the known one that was likely meant.

mod nearest;

use crate::display::{claim, quote};
use nearest::nearest;
use toml::Spanned;
use toml::de::DeTable;

/// Of the parser's own words.
const MESSAGE_CHARS_MAX: usize = 300;

/// What is wrong, and at which byte.
#[derive(Debug)]
pub struct Mistake {
    pub at: usize,
    pub why: String,
}

impl Mistake {
    pub fn new(at: usize, why: impl Into<String>) -> Mistake {
        Mistake { at, why: why.into() }
    }

    /// In words of the parser, which may repeat what stands in the file.
    pub fn of(error: &toml::de::Error, text: &str) -> Mistake {
        let at = error.span().map_or(text.len(), |span| span.start);
        Mistake::new(at, claim(error.message(), MESSAGE_CHARS_MAX))
    }

    /// Line and column, from 1.
    pub fn place(&self, text: &str) -> (usize, usize) {
        let before = text.get(..self.at).unwrap_or(text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let column = before.get(line_start..).unwrap_or_default().chars().count() + 1;
        (before.matches('\n').count() + 1, column)
    }
}

/// The file as a table, or its mistakes, the first in the file first: it is likely the cause of the others.
pub fn parse(text: &str) -> Result<Spanned<DeTable<'_>>, Vec<Mistake>> {
    let (document, errors) = DeTable::parse_recoverable(text);
    let mut mistakes: Vec<Mistake> = errors.iter().map(|error| Mistake::of(error, text)).collect();
    mistakes.sort_by_key(|mistake| mistake.at);
    if mistakes.is_empty() { Ok(document) } else { Err(mistakes) }
}

/// The keys that nobody knows, the first in the file first.
pub fn unknown_keys(table: &DeTable<'_>, known: &[&str]) -> Vec<Mistake> {
    let unknown = table.keys().filter(|key| !known.contains(&key.get_ref().as_ref()));
    let mut mistakes: Vec<Mistake> = unknown
        .map(|key| {
            let hint = nearest(key.get_ref(), known).map(|near| format!("; do you mean {near}?"));
            let why = format!("unknown key {}{}", quote(key.get_ref()), hint.unwrap_or_default());
            Mistake::new(key.span().start, why)
        })
        .collect();
    mistakes.sort_by_key(|mistake| mistake.at);
    mistakes
}
