//! Escapes untrusted text into printable ASCII. The escaping is unambiguous: different inputs have different
//! outputs.
//!
//! An argument of safe characters is printed as it is. Every other argument is quoted with single quotes,
//! including the empty one. Inside the quotes, printable ASCII is printed as it is, except the quote and the
//! backslash:
//!
//! | output | input |
//! | --- | --- |
//! | `\\`, `\'` | the character after the backslash |
//! | `\n`, `\t`, `\r` | newline, tab, carriage return |
//! | `\u{202e}` | the character with this code point; used for all other characters |
//! | `\u{20*40}` | 40 spaces; used for runs of more than 16, because padding can push text off the screen |
//!
//! Arguments are joined by a space, and stages by ` | `. A safe character never starts a quote, so the parts
//! can be separated again.

mod characters;
mod escape;
mod lines;
mod spoofing;

pub use characters::{Newlines, forbidden};
pub use lines::{output_lines, wrap};
pub use spoofing::warnings;

use escape::Escaper;

/// Longest run of spaces in an argument that is printed as it is: scripts use indentation.
const ARGUMENT_SPACES_MAX: usize = 16;
/// Longest run of spaces in untrusted text that is printed as it is.
const UNTRUSTED_SPACES_MAX: usize = 3;

/// Escapes one argument.
pub fn quote(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len() + 2);
    push_quoted(text, &mut escaped);
    escaped
}

/// Escapes all arguments of all stages. Never truncated. A stage without arguments is printed as `()`.
pub fn command(pipeline: &[Vec<String>]) -> String {
    let mut escaped = String::new();
    for (number, stage) in pipeline.iter().enumerate() {
        if number > 0 {
            escaped.push_str(" | ");
        }
        if stage.is_empty() {
            escaped.push_str("()");
        }
        for (number, argument) in stage.iter().enumerate() {
            if number > 0 {
                escaped.push(' ');
            }
            push_quoted(argument, &mut escaped);
        }
    }
    escaped
}

/// Escapes untrusted text like an argument, but without quotes. Text after `chars_max` characters is replaced
/// by a note with its length. The note starts with a lone backslash, which escaped text never contains, so it
/// cannot be forged.
pub fn escape_untrusted(text: &str, chars_max: usize) -> String {
    let mut escaped = String::new();
    let mut escaper = Escaper::new(&mut escaped, UNTRUSTED_SPACES_MAX, None);
    let mut characters = text.chars();
    characters.by_ref().take(chars_max).for_each(|character| escaper.push(character));
    escaper.finish();
    match characters.count() {
        0 => {}
        1 => escaped.push_str("\\... (1 more character)"),
        more => escaped.push_str(&format!("\\... ({more} more characters)")),
    }
    escaped
}

fn push_quoted(text: &str, escaped: &mut String) {
    if !text.is_empty() && text.bytes().all(is_safe) {
        return escaped.push_str(text);
    }
    escaped.push('\'');
    let mut escaper = Escaper::new(escaped, ARGUMENT_SPACES_MAX, Some('\''));
    text.chars().for_each(|character| escaper.push(character));
    escaper.finish();
    escaped.push('\'');
}

/// Characters without a special meaning, here or in any shell that the output may be pasted into.
fn is_safe(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || b"_@%+=:,./-".contains(&byte)
}

#[cfg(test)]
mod tests;
