//! Secrets, and how they stay out of what we say: the one place for logs, lists and messages.

use serde_json::Value;
use std::borrow::Cow;
use std::ffi::OsStr;
use std::sync::{Mutex, PoisonError};

pub(crate) const HIDDEN: &str = "[redacted]";

/// Shorter ones would hide ordinary words.
const SECRET_CHARS_MIN: usize = 8;

/// How tokens of known services begin.
const PREFIXES: [&str; 9] = ["sk-", "sk_", "ghp_", "gho_", "github_pat_", "xoxb-", "xoxp-", "AIza", "AKIA"];
const PREFIXED_CHARS_MIN: usize = 16;

/// How names of secrets end.
const NAMES: [&str; 8] =
    ["_KEY", "APIKEY", "TOKEN", "SECRET", "PASSWORD", "PASSWD", "CREDENTIAL", "CREDENTIALS"];

/// Secrets that this process has come to know. Whatever it says of them, it does not say them.
static KNOWN: Mutex<Vec<String>> = Mutex::new(Vec::new());

/// Remembers a secret, to keep it out of everything that is written later.
pub(crate) fn learn(secret: &str) {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if secret.chars().count() >= SECRET_CHARS_MIN && !known.iter().any(|old| old == secret) {
        known.push(secret.to_owned());
    }
}

/// Remembers the values of variables whose names say what they are.
pub(crate) fn learn_environment(variables: impl Iterator<Item = (impl AsRef<OsStr>, impl AsRef<OsStr>)>) {
    for (name, value) in variables {
        if let (Some(name), Some(value)) = (name.as_ref().to_str(), value.as_ref().to_str())
            && names_secret(name)
        {
            learn(value);
        }
    }
}

/// Whether what goes by this name is nobody's business.
pub(crate) fn names_secret(name: &str) -> bool {
    let name = name.to_ascii_uppercase();
    NAMES.iter().any(|end| name.ends_with(end))
}

/// The same text without secrets: those we know, and what looks like one.
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

/// Where words stand that look like secrets.
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
        // `NAME=value` and `"name": "value"`, but not a sentence about a token: such.
        let is_named = names_secret(before) && (between.contains('=') || between.contains("\":"));
        if is_prefixed || is_credential || is_named {
            found.push((start, end));
        }
        (before, before_end, rest) = (word, end, end);
    }
    found
}

/// A value of the configuration as it may be shown. Of variables only the names: nobody knows which are secret.
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
    fn what_looks_like_a_secret_is_hidden_and_the_rest_is_not() {
        for (said, shown) in [
            ("Authorization: Bearer abcdefgh12345", "Authorization: Bearer [redacted]"),
            ("basic dXNlcjpwYXNz", "basic [redacted]"),
            ("ANTHROPIC_API_KEY=abc run", "ANTHROPIC_API_KEY=[redacted] run"),
            ("{\"token\":\"abc\",\"x\":1}", "{\"token\":\"[redacted]\",\"x\":1}"),
            ("key sk-ant-0123456789abcdef!", "key [redacted]!"),
            ("failed to persist token: denied", "failed to persist token: denied"),
            ("the bearer token in /run/x", "the bearer token in /run/x"),
            ("monkey=1 state/turkey", "monkey=1 state/turkey"),
        ] {
            assert_eq!(text(said), shown);
        }
    }

    #[test]
    fn what_was_learnt_is_hidden_wherever_it_stands() {
        learn("hunter2-hunter2");
        learn("short");
        assert_eq!(text("xhunter2-hunter2y short"), "x[redacted]y short");
        learn_environment([("SOME_TOKEN", "tok-tok-tok"), ("HOME", "/home/somebody")].into_iter());
        assert_eq!(text("tok-tok-tok /home/somebody"), "[redacted] /home/somebody");
    }
}
