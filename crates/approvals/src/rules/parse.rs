//! Parses a rules file, or returns its first error with the position.

use super::rule::{Command, Rule, Token};
use super::{Ruling, is_interpreter};
use crate::display::quote;
use crate::toml_diagnostics::{self, Diagnostic};
use jiff::Timestamp;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

const NAME_CHARS_MAX: usize = 64;
const KEYS: [&str; 12] = [
    "name",
    "decision",
    "command",
    "privileged",
    "run_as",
    "session",
    "env",
    "cwd",
    "expires",
    "reason_required",
    "matches",
    "differs",
];

type Parsed<T> = Result<T, Diagnostic>;
type Value<'t> = Spanned<DeValue<'t>>;

pub(super) fn rules(text: &str) -> Parsed<Vec<Rule>> {
    let document = toml_diagnostics::parse(text).map_err(first)?;
    let document = document.get_ref();
    check_keys(document, &["rule"])?;
    let Some(listed) = value(document, "rule") else { return Ok(Vec::new()) };
    let tables = array(listed, "rule")
        .map_err(|_| Diagnostic::new(listed.span().start, "begin each rule with [[rule]]"))?;
    let mut names = HashSet::new();
    let mut rules = Vec::new();
    for listed in tables {
        let table = listed.get_ref().as_table();
        let table =
            table.ok_or_else(|| Diagnostic::new(listed.span().start, "begin each rule with [[rule]]"))?;
        let rule = rule(table, listed.span().start)?;
        if !names.insert(rule.name.clone()) {
            let at = value(table, "name").map_or(0, |name| name.span().start);
            return Err(Diagnostic::new(at, format!("a second rule has the name {}", quote(&rule.name))));
        }
        rules.push(rule);
    }
    Ok(rules)
}

fn rule(table: &DeTable<'_>, at: usize) -> Parsed<Rule> {
    check_keys(table, &KEYS)?;
    let needed = |key| value(table, key).ok_or_else(|| Diagnostic::new(at, format!("the rule has no {key}")));
    let ruling = ruling(needed("decision")?)?;
    let rule = Rule {
        name: name(needed("name")?)?,
        ruling,
        command: command(needed("command")?, ruling)?,
        privileged: optional(table, "privileged", boolean)?,
        run_as: optional(table, "run_as", string)?,
        session: optional(table, "session", string)?,
        env: optional(table, "env", env)?,
        cwd: optional(table, "cwd", absolute)?,
        expires: optional(table, "expires", timestamp)?,
        reason_required: optional(table, "reason_required", boolean)?.unwrap_or(false),
    };
    if ruling == Ruling::Allow && rule.privileged.is_none() {
        return Err(Diagnostic::new(at, "an allow rule must set privileged = true or privileged = false"));
    }
    if let Some(required) = value(table, "reason_required").filter(|_| ruling != Ruling::Allow) {
        return Err(Diagnostic::new(required.span().start, "reason_required is only for allow rules"));
    }
    check_examples(table, &rule.command)?;
    Ok(rule)
}

fn check_keys(table: &DeTable<'_>, known: &[&str]) -> Parsed<()> {
    match toml_diagnostics::unknown_keys(table, known) {
        unknown if unknown.is_empty() => Ok(()),
        unknown => Err(first(unknown)),
    }
}

fn first(diagnostics: Vec<Diagnostic>) -> Diagnostic {
    diagnostics.into_iter().next().unwrap_or_else(|| Diagnostic::new(0, "the file cannot be parsed"))
}

fn ruling(value: &Value<'_>) -> Parsed<Ruling> {
    match value.get_ref().as_str() {
        Some("allow") => Ok(Ruling::Allow),
        Some("ask") => Ok(Ruling::Ask),
        Some("deny") => Ok(Ruling::Deny),
        _ => Err(Diagnostic::new(value.span().start, "a decision is \"allow\", \"ask\" or \"deny\"")),
    }
}

/// The name appears in replies and audit records, so its characters are restricted.
fn name(value: &Value<'_>) -> Parsed<String> {
    let name = string(value, "name")?;
    let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    match (1..=NAME_CHARS_MAX).contains(&name.len()) && name.bytes().all(is_plain) {
        true => Ok(name),
        false => {
            let why =
                format!("a name has 1 to {NAME_CHARS_MAX} letters, digits, dots, hyphens and underscores");
            Err(Diagnostic::new(value.span().start, why))
        }
    }
}

fn command(value: &Value<'_>, ruling: Ruling) -> Parsed<Command> {
    let values = array(value, "command")?;
    let Some((first, rest)) = values.split_first() else {
        return Err(Diagnostic::new(value.span().start, "the command has no program"));
    };
    let (rest, allows_more) = match rest.split_last() {
        Some((last, before)) if marker(last, "rest")? => (before, true),
        _ => (rest, false),
    };
    let program = program(first, ruling)?;
    let arguments: Parsed<Vec<Token>> = rest.iter().map(|value| token(value, ruling)).collect();
    Ok(Command { program, arguments: arguments?, allows_more })
}

fn token(value: &Value<'_>, ruling: Ruling) -> Parsed<Token> {
    if marker(value, "any")? {
        return Ok(if ruling == Ruling::Allow { Token::Operand } else { Token::Anything });
    }
    let wrong =
        "a token is a string, a list of strings or { any = true }; { rest = true } can only be the last";
    let wrong = || Diagnostic::new(value.span().start, wrong);
    match value.get_ref() {
        DeValue::String(text) => Ok(Token::OneOf(vec![text.clone().into_owned()])),
        DeValue::Array(_) => match strings(value, "token").map_err(|_| wrong())? {
            none if none.is_empty() => {
                Err(Diagnostic::new(value.span().start, "a list of no alternatives matches nothing"))
            }
            texts => Ok(Token::OneOf(texts)),
        },
        _ => Err(wrong()),
    }
}

/// The first token: the program. A deny or ask rule for a symlink also matches its target.
fn program(value: &Value<'_>, ruling: Ruling) -> Parsed<Token> {
    let at = value.span().start;
    let mut paths = match token(value, ruling)? {
        Token::OneOf(paths) => paths,
        _ if ruling == Ruling::Allow => {
            return Err(Diagnostic::new(at, "an allow rule must name the program"));
        }
        anything => return Ok(anything),
    };
    let mut real = Vec::new();
    for path in &paths {
        check_absolute(path, at)?;
        let leads_to = Path::new(path).canonicalize().ok().and_then(|path| Some(path.to_str()?.to_owned()));
        let runs_others = is_interpreter(path) || leads_to.as_deref().is_some_and(is_interpreter);
        if ruling == Ruling::Allow && runs_others {
            let path = quote(path);
            let why = format!("{path} runs other commands, so no rule can allow it; use ask or deny");
            return Err(Diagnostic::new(at, why));
        }
        real.extend(leads_to);
    }
    if ruling != Ruling::Allow {
        paths.extend(real);
    }
    Ok(Token::OneOf(paths))
}

/// Whether the value is `{ NAME = true }`. Any other table with that name is an error.
fn marker(value: &Value<'_>, name: &str) -> Parsed<bool> {
    let Some(table) = value.get_ref().as_table() else { return Ok(false) };
    check_keys(table, &["any", "rest"])?;
    let Some(marked) = self::value(table, name) else { return Ok(false) };
    match table.len() == 1 && marked.get_ref().as_bool() == Some(true) {
        true => Ok(true),
        false => Err(Diagnostic::new(value.span().start, format!("this is written {{ {name} = true }}"))),
    }
}

fn check_examples(table: &DeTable<'_>, command: &Command) -> Parsed<()> {
    for (key, expected) in [("matches", true), ("differs", false)] {
        let Some(examples) = value(table, key) else { continue };
        for example in array(examples, key)? {
            let words = strings(example, key)?;
            let Some((program, arguments)) = words.split_first() else {
                return Err(Diagnostic::new(example.span().start, "an example has a program at least"));
            };
            if command.matches(program, arguments) != expected {
                let why = if expected {
                    "the rule does not match this example"
                } else {
                    "the rule matches this example"
                };
                return Err(Diagnostic::new(example.span().start, why));
            }
        }
    }
    Ok(())
}

fn env(value: &Value<'_>, key: &str) -> Parsed<BTreeMap<String, String>> {
    let table = value.get_ref().as_table();
    let table = table
        .ok_or_else(|| Diagnostic::new(value.span().start, format!("{key} is a table of names and texts")))?;
    let mut variables = BTreeMap::new();
    for (name, text) in table {
        let is_letter = |(at, byte): (usize, u8)| {
            byte == b'_' || byte.is_ascii_alphabetic() || at > 0 && byte.is_ascii_digit()
        };
        let name_text: &str = name.get_ref();
        if name_text.is_empty() || !name_text.bytes().enumerate().all(is_letter) {
            return Err(Diagnostic::new(
                name.span().start,
                format!("{} cannot name a variable", quote(name_text)),
            ));
        }
        variables.insert(name_text.to_owned(), string(text, name_text)?);
    }
    Ok(variables)
}

fn absolute(value: &Value<'_>, key: &str) -> Parsed<String> {
    let path = string(value, key)?;
    check_absolute(&path, value.span().start)?;
    Ok(path)
}

/// Paths are compared as text, so only the canonical spelling is accepted.
fn check_absolute(path: &str, at: usize) -> Parsed<()> {
    let is_plain = |name: &str| !matches!(name, "" | "." | "..");
    match path.strip_prefix('/') {
        Some("") => Ok(()),
        Some(names) if names.split('/').all(is_plain) => Ok(()),
        _ => {
            let why = format!("{} is not an absolute path without empty parts, . and ..", quote(path));
            Err(Diagnostic::new(at, why))
        }
    }
}

fn timestamp(value: &Value<'_>, key: &str) -> Parsed<Timestamp> {
    let written = value.get_ref().as_datetime().and_then(|time| time.to_string().parse().ok());
    let why = || format!("{key} is a time with its offset, such as 2027-01-31T00:00:00Z");
    written.ok_or_else(|| Diagnostic::new(value.span().start, why()))
}

fn boolean(value: &Value<'_>, key: &str) -> Parsed<bool> {
    value
        .get_ref()
        .as_bool()
        .ok_or_else(|| Diagnostic::new(value.span().start, format!("{key} is true or false")))
}

fn string(value: &Value<'_>, key: &str) -> Parsed<String> {
    let text = value.get_ref().as_str().map(str::to_owned);
    text.ok_or_else(|| Diagnostic::new(value.span().start, format!("{key} is a text in quotes")))
}

fn strings(value: &Value<'_>, key: &str) -> Parsed<Vec<String>> {
    array(value, key)?.iter().map(|value| string(value, key)).collect()
}

fn array<'v, 't>(value: &'v Value<'t>, key: &str) -> Parsed<&'v [Value<'t>]> {
    let list = value.get_ref().as_array().map(|list| list.as_ref());
    list.ok_or_else(|| Diagnostic::new(value.span().start, format!("{key} is a list")))
}

fn optional<T>(
    table: &DeTable<'_>,
    key: &str,
    read: impl Fn(&Value<'_>, &str) -> Parsed<T>,
) -> Parsed<Option<T>> {
    value(table, key).map(|value| read(value, key)).transpose()
}

fn value<'v, 't>(table: &'v DeTable<'t>, key: &str) -> Option<&'v Value<'t>> {
    table.iter().find(|(name, _)| name.get_ref() == key).map(|(_, value)| value)
}
