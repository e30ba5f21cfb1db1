//! Redaction: removes secrets from logs, lists and messages.

use serde_json::Value;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::sync::{Mutex, PoisonError};

pub(crate) const HIDDEN: &str = "[redacted]";

/// Shortest secret; a shorter one would redact ordinary words.
const SECRET_CHARS_MIN: usize = 8;

/// Prefixes of the tokens of known services.
const PREFIXES: [&str; 9] = ["sk-", "sk_", "ghp_", "gho_", "github_pat_", "xoxb-", "xoxp-", "AIza", "AKIA"];
const PREFIXED_CHARS_MIN: usize = 16;

/// Suffixes of the names of variables with secrets.
const NAMES: [&str; 8] =
    ["_KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"];

/// The secrets that this process has read.
static KNOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Registers a secret; later messages are redacted.
pub fn learn(secret: &str) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if secret.chars().count() >= SECRET_CHARS_MIN && !known.iter().any(|old| old == secret) {
        known.push(secret.to_owned());
    }
}

/// Registers the values of variables whose names indicate a secret.
pub fn learn_environment(variables: impl Iterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>) {
    for (name, value) in variables {
        if let (Some(name), Some(value)) = (name.as_ref().to_str(), value.as_ref().to_str())
            && names_secret(name)
        {
            learn(value);
        }
    }
}

/// Whether the name of a variable or member indicates a secret.
pub(crate) fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    NAMES.iter().any(|end| name.ends_with(end))
}

/// The text without registered secrets and without words that look like secrets.
pub(crate) fn text(text: &str) -> Cow<'_, str> {
    let known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    let mut text = Cow::Borrowed(text);
    for secret in known.iter().filter(|secret| !secret.is_empty()) {
        if text.contains(secret.as_str()) {
            text = text.replace(secret.as_str(), HIDDEN).into();
        }
    }
    drop(known);
    let suspicious = suspicious(&text);
    if suspicious.is_empty() {
        return text;
    }
    let mut shown = String::with_capacity(text.len());
    let mut from = 0;
    for (start, end) in suspicious {
        shown.push_str(text.get(from..start).unwrap_or_default());
        shown.push_str(HIDDEN);
        from = end;
    }
    shown.push_str(text.get(from..).unwrap_or_default());
    shown.into()
}

/// The byte ranges of words that look like secrets.
fn suspicious(text: &str) -> Vec<(usize, usize)> {
    let is_word = |letter: char| letter.is_ascii_alphanumeric() || "-_.~+/".contains(letter);
    let mut found = Vec::new();
    let (mut before, mut before_end) = ("", 0);
    let mut rest = 0;
    while let Some(start) = text.get(rest..).and_then(|tail| tail.find(is_word)).map(|at| rest + at) {
        let tail = text.get(start..).unwrap_or_default();
        let end = start + tail.find(|letter| !is_word(letter)).unwrap_or(tail.len());
        let word = text.get(start..end).unwrap_or_default();
        let between = text.get(before_end..start).unwrap_or_default();
        let is_prefixed =
            word.len() >= PREFIXED_CHARS_MIN && PREFIXES.iter().any(|begin| word.starts_with(begin));
        let is_credential = ["bearer", "basic"].iter().any(|scheme| before.eq_ignore_ascii_case(scheme))
            && between.chars().all(|letter| letter == ' ')
            && word.len() >= SECRET_CHARS_MIN;
        // Matches `NAME=value` and `"name": "value"`, but not prose such as `the token: value`.
        let is_named = names_secret(before) && (between.contains('=') || between.contains("\":"));
        if is_prefixed || is_credential || is_named {
            found.push((start, end));
        }
        (before, before_end, rest) = (word, end, end);
    }
    found
}

/// A configuration value for display. Values of environment variables are always redacted, because any may be a secret.
pub(crate) fn setting(key: &str, value: &Value) -> Value {
    match value {
        Value::String(_) if key.ends_with(".env") => HIDDEN.into(),
        Value::String(value) => text(value).into_owned().into(),
        Value::Array(values) => values.iter().map(|value| setting(key, value)).collect(),
        Value::Object(values) => {
            values.iter().map(|(name, value)| (name.clone(), setting(key, value))).collect()
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => value.clone(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_words_that_look_like_secrets_are_redacted() {
        for (message, redacted) in [
            ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer [redacted]"),
            ("basic dXNlcjpwYXNz", "basic [redacted]"),
            ("ANTHROPIC_API_KEY=abc run", "ANTHROPIC_API_KEY=[redacted] run"),
            ("{\"token\":\"abc\",\"x\":1}", "{\"token\":\"[redacted]\",\"x\":1}"),
            ("key sk-ant-0123456789abcdef!", "key [redacted]!"),
            ("failed to persist token: denied", "failed to persist token: denied"),
            ("the bearer token in /run/x", "the bearer token in /run/x"),
            ("monkey=1 state/turkey", "monkey=1 state/turkey"),
        ] {
            assert_eq!(text(message), redacted);
        }
    }

    #[test]
    fn registered_secrets_are_redacted_within_words() {
        learn("hunter2-hunter2");
        learn("short");
        assert_eq!(text("xhunter2-hunter2y short"), "x[redacted]y short");
        learn_environment([("SOME_TOKEN", "tok-tok-tok"), ("HOME", "/home/user")].into_iter());
        assert_eq!(text("tok-tok-tok /home/user"), "[redacted] /home/user");
    }
}
