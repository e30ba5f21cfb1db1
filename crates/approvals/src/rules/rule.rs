//! One rule and its matching.

use super::{RuleInput, Ruling};
use jiff::Timestamp;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) ruling: Ruling,
    pub(super) command: Command,
    pub(super) privileged: Option<bool>,
    pub(super) run_as: Option<String>,
    /// A pattern; `*` matches any characters.
    pub(super) session: Option<String>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) cwd: Option<String>,
    pub(super) expires: Option<Timestamp>,
    pub(super) reason_required: bool,
}

/// The argument vectors that a rule matches.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) program: Token,
    pub(super) arguments: Vec<Token>,
    /// Whether further arguments may follow.
    pub(super) allows_more: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    OneOf(Vec<String>),
    /// Any argument that is not an option.
    Operand,
    Anything,
}

impl Token {
    fn matches(&self, argument: &str) -> bool {
        match self {
            Token::OneOf(texts) => texts.iter().any(|text| text == argument),
            Token::Operand => !argument.starts_with('-'),
            Token::Anything => true,
        }
    }
}

impl Command {
    pub(super) fn matches(&self, program: &str, arguments: &[String]) -> bool {
        let has_right_length = match self.allows_more {
            true => arguments.len() >= self.arguments.len(),
            false => arguments.len() == self.arguments.len(),
        };
        let mut pairs = self.arguments.iter().zip(arguments);
        has_right_length
            && self.program.matches(program)
            && pairs.all(|(token, argument)| token.matches(argument))
    }
}

impl Rule {
    /// Whether everything except the command matches.
    pub(super) fn applies(&self, input: &RuleInput<'_>, now: Timestamp) -> bool {
        self.expires.is_none_or(|end| now < end)
            && self.privileged.is_none_or(|wanted| wanted == input.privileged)
            && self.run_as.as_ref().is_none_or(|user| user == input.run_as)
            && self.session.as_ref().is_none_or(|pattern| matches_wildcard(pattern, input.session))
            && (input.has_reason || !self.reason_required)
            && self.matches_env(input.env)
            && self.matches_cwd(input.cwd)
    }

    fn matches_env(&self, env: &BTreeMap<String, String>) -> bool {
        match (self.ruling, &self.env) {
            (Ruling::Allow, None) => env.is_empty(),
            (Ruling::Allow, Some(known)) => is_subset(env, known),
            (_, None) => true,
            (_, Some(wanted)) => is_subset(wanted, env),
        }
    }

    fn matches_cwd(&self, cwd: &str) -> bool {
        match (self.ruling, &self.cwd) {
            (_, Some(wanted)) => wanted == cwd,
            (Ruling::Allow, None) => cwd == "/",
            (_, None) => true,
        }
    }
}

fn is_subset(few: &BTreeMap<String, String>, many: &BTreeMap<String, String>) -> bool {
    few.iter().all(|(name, value)| many.get(name) == Some(value))
}

/// Matches a pattern; `*` matches any characters, including none.
fn matches_wildcard(pattern: &str, text: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(begin) else { return false };
    let mut parts = rest.split('*');
    let end = parts.next_back().unwrap_or_default();
    // Leftmost matching: it leaves the most text for the remaining parts.
    for part in parts {
        let Some(at) = text.find(part) else { return false };
        text = text.get(at + part.len()..).unwrap_or_default();
    }
    text.ends_with(end)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_star_matches_any_text() {
        let table = [
            ("ci", "ci", true),
            ("ci", "ci2", false),
            ("ci-*", "ci-", true),
            ("ci-*", "ci-7", true),
            ("ci-*", "xci-7", false),
            ("*", "", true),
            ("*", "anything", true),
            ("a*b*c", "abc", true),
            ("a*b*c", "a1b2b3c", true),
            ("a*b*c", "acb", false),
            ("a*a", "a", false),
            ("a*a", "aa", true),
            ("*ab*ab", "ab", false),
            ("*ab*ab", "xabyab", true),
            ("**", "x", true),
            ("", "", true),
            ("", "x", false),
        ];
        for (pattern, text, expected) in table {
            assert_eq!(matches_wildcard(pattern, text), expected, "{pattern} {text}");
        }
    }
}
