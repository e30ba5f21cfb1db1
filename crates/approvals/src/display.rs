//! Text from elsewhere, drawn for a human in printable ASCII so that one drawing stands for one text only.
//!
//! An argument of harmless characters stands for itself. Any other is between single quotes, and so is the empty one.
//! Within the quotes every printable ASCII character stands for itself, except the quote and the backslash:
//!
//! | drawn | is |
//! | --- | --- |
//! | `\\`, `\'` | the character after the backslash |
//! | `\n`, `\t`, `\r` | newline, tab, carriage return |
//! | `\u{202e}` | the character of that number; so are drawn all others |
//! | `\u{20*40}` | 40 spaces: longer runs than of 16 are drawn so, since padding pushes text out of sight |
//!
//! No character outside of quotes begins one, so arguments joined by a space, and stages by ` | `, can be told apart.

mod characters;
mod escape;
mod lines;
mod suspicion;

pub use characters::{Newlines, forbidden};
pub use lines::{output_lines, wrap};
pub use suspicion::warnings;

use escape::Escaper;

/// The longest run of spaces in an argument that is drawn as it is: scripts indent.
const ARGUMENT_BLANKS_MAX: usize = 16;
/// The longest run of spaces in a claim that is drawn as it is: words have one between them.
const CLAIM_BLANKS_MAX: usize = 3;

/// One argument.
pub fn quote(text: &str) -> String {
    let mut drawn = String::with_capacity(text.len() + 2);
    push_quoted(text, &mut drawn);
    drawn
}

/// The arguments of every stage, all of them and whole. A stage without arguments, which cannot be run, is drawn `()`.
pub fn command(pipeline: &[Vec<String>]) -> String {
    let mut drawn = String::new();
    for (number, stage) in pipeline.iter().enumerate() {
        if number > 0 {
            drawn.push_str(" | ");
        }
        if stage.is_empty() {
            drawn.push_str("()");
        }
        for (number, argument) in stage.iter().enumerate() {
            if number > 0 {
                drawn.push(' ');
            }
            push_quoted(argument, &mut drawn);
        }
    }
    drawn
}

/// A client's own words: escaped like an argument, but without quotes around them. Of more than `chars_max` characters
/// the rest is counted. A lone backslash begins the note about it, which therefore nobody can forge.
pub fn claim(text: &str, chars_max: usize) -> String {
    let mut drawn = String::new();
    let mut escaper = Escaper::new(&mut drawn, CLAIM_BLANKS_MAX, None);
    let mut characters = text.chars();
    characters.by_ref().take(chars_max).for_each(|character| escaper.push(character));
    escaper.finish();
    match characters.count() {
        0 => {}
        1 => drawn.push_str("\\... (1 more character)"),
        more => drawn.push_str(&format!("\\... ({more} more characters)")),
    }
    drawn
}

fn push_quoted(text: &str, drawn: &mut String) {
    if !text.is_empty() && text.bytes().all(is_plain) {
        return drawn.push_str(text);
    }
    drawn.push('\'');
    let mut escaper = Escaper::new(drawn, ARGUMENT_BLANKS_MAX, Some('\''));
    text.chars().for_each(|character| escaper.push(character));
    escaper.finish();
    drawn.push('\'');
}

/// What means nothing special, to us or to any shell that somebody might paste it into.
fn is_plain(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte)
}

#[cfg(test)]
mod tests;
