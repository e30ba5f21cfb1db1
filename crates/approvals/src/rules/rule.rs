//! One rule, and what it matches.

use super::{Ruling, Subject};
use jiff::Timestamp;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
pub(super) struct Rule {
    pub(super) name: String,
    pub(super) ruling: Ruling,
    pub(super) command: Command,
    pub(super) privileged: Option<bool>,
    pub(super) run_as: Option<String>,
    /// Any characters may stand for a `*` in it.
    pub(super) session: Option<String>,
    pub(super) env: Option<BTreeMap<String, String>>,
    pub(super) cwd: Option<String>,
    pub(super) expires: Option<Timestamp>,
    pub(super) reason_required: bool,
}

/// The argument vectors that a rule is about.
#[derive(Clone, Debug)]
pub(super) struct Command {
    pub(super) program: Token,
    pub(super) arguments: Vec<Token>,
    /// Whether more may follow.
    pub(super) has_rest: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Token {
    OneOf(Vec<String>),
    /// Anything that is no option.
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
        let has_right_length = match self.has_rest {
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
    /// Whether everything but the command is as the rule has it.
    pub(super) fn applies(&self, subject: &Subject<'_>, now: Timestamp) -> bool {
        self.expires.is_none_or(|end| now < end)
            && self.privileged.is_none_or(|wanted| wanted == subject.privileged)
            && self.run_as.as_ref().is_none_or(|user| user == subject.run_as)
            && self.session.as_ref().is_none_or(|pattern| is_like(pattern, subject.session))
            && (subject.has_reason || !self.reason_required)
            && self.fits_env(subject.env)
            && self.fits_cwd(subject.cwd)
    }

    fn fits_env(&self, env: &BTreeMap<String, String>) -> bool {
        match (self.ruling, &self.env) {
            (Ruling::Allow, None) => env.is_empty(),
            (Ruling::Allow, Some(known)) => is_within(env, known),
            (_, None) => true,
            (_, Some(wanted)) => is_within(wanted, env),
        }
    }

    fn fits_cwd(&self, cwd: &str) -> bool {
        match (self.ruling, &self.cwd) {
            (_, Some(wanted)) => wanted == cwd,
            (Ruling::Allow, None) => cwd == "/",
            (_, None) => true,
        }
    }
}

fn is_within(few: &BTreeMap<String, String>, many: &BTreeMap<String, String>) -> bool {
    few.iter().all(|(name, value)| many.get(name) == Some(value))
}

/// Whether a text is a pattern with something, or nothing, in place of each `*`.
fn is_like(pattern: &str, text: &str) -> bool {
    let Some((begin, rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(begin) else { return false };
    let mut parts = rest.split('*');
    let end = parts.next_back().unwrap_or_default();
    // The earliest place leaves most for the parts that follow.
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
    fn stars_stand_for_anything_or_nothing() {
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
            assert_eq!(is_like(pattern, text), expected, "{pattern} {text}");
        }
    }
}
