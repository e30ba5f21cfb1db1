//! The operator's rules: which commands are allowed, denied, or always asked about.
//!
//! `docs/rules.example.toml` shows every key. In short:
//!
//! - `command` is the whole argument vector. Its first token is the absolute path of the program without
//!   symlinks, compared byte by byte. A token is a string, a list of alternatives, or `{ any = true }` for
//!   exactly one argument. In an allow rule, `{ any = true }` does not match an argument that starts with `-`,
//!   which may be an option. `{ rest = true }` at the end matches any further arguments.
//! - `decision` is `allow`, `ask` or `deny`. The strictest matching rule wins. Each stage of a pipeline is
//!   evaluated: one denied stage denies the pipeline, and all stages must be allowed to allow it.
//! - A deny or ask rule matches any value of a key that it omits. An allow rule that omits `env` matches only
//!   an empty `env`, and without `cwd` only the working directory `/`. An allow rule must set `privileged`.
//! - A symlink with another name is another command, which an allow rule for its target does not match:
//!   `reboot` may be `systemctl`. Deny and ask rules match both names.
//! - `session` is chosen by the client. It protects nothing in an allow rule.
//! - Shells, interpreters and other programs that run commands cannot be allowed; see [`is_interpreter`].
//! - If root's policy directory exists, only rules there can allow; see [`RuleFiles`].
//! - `matches` and `differs` are examples, checked when the file is loaded.
//!
//! A missing file has no rules, and every request is asked about. A file that cannot be trusted or parsed
//! denies every request, because it might contain deny rules. A deny rule is not a sandbox: a copy of the
//! program under another path does not match it.

mod interpreters;
mod parse;
mod rule;
mod rule_files;
mod trusted_file;

pub use interpreters::is_interpreter;
pub(crate) use rule_files::FileStamps;
pub use rule_files::RuleFiles;

use jiff::Timestamp;
use rule::Rule;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// The decision of a rule, or of all rules together. Stricter is greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ruling {
    Allow,
    Ask,
    Deny,
}

/// The request to evaluate. All values are those of the command that would run.
#[derive(Clone, Copy, Debug)]
pub struct RuleInput<'a> {
    /// For each stage: the program's absolute path without symlinks, and the arguments after the program's
    /// name.
    pub stages: &'a [(&'a str, &'a [String])],
    pub privileged: bool,
    /// The user that the command would run as.
    pub run_as: &'a str,
    /// Chosen by the client; not verified.
    pub session: &'a str,
    /// The variables that the client sets.
    pub env: &'a BTreeMap<String, String>,
    pub cwd: &'a str,
    /// Whether the client gave a reason.
    pub has_reason: bool,
}

/// The result of an evaluation, and the names of the deciding rules. The names are empty if no rule matched, or
/// if [`Rules::problem`] denies every request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub ruling: Ruling,
    pub rules: Vec<String>,
}

/// The first mistake in a rules file.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("line {line}, column {column}: {message}")]
pub struct ParseError {
    line: usize,
    column: usize,
    message: String,
}

/// The rules of a file at the time it was loaded.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    problem: Option<String>,
    /// Hash, in hex, of the file that can allow; empty if there is none.
    sha256: String,
}

impl Rules {
    /// Loads a file. An error becomes the [`problem`](Rules::problem) of the rules.
    pub fn load(path: &Path) -> Rules {
        let parsed = match trusted_file::read(path) {
            Ok(Some(text)) => Rules::from_text(&text).map_err(|why| format!(", {why}")),
            Ok(None) => Ok(Rules::default()),
            Err(why) => Err(format!(": {why}")),
        };
        match parsed {
            Ok(rules) => rules,
            Err(why) => Rules::deny_all(path, &why),
        }
    }

    /// Rules that deny every request because of an invalid file.
    fn deny_all(path: &Path, why: &str) -> Rules {
        let file = crate::display::quote(&path.to_string_lossy());
        let problem = format!("rules file {file}{why}; every request is denied until the file is fixed");
        Rules { problem: Some(problem), ..Rules::default() }
    }

    /// Parses rules.
    pub fn from_text(text: &str) -> Result<Rules, ParseError> {
        let rules = parse::rules(text).map_err(|diagnostic| {
            let (line, column) = diagnostic.line_and_column(text);
            ParseError { line, column, message: diagnostic.message }
        })?;
        let sha256 = outpost_ledger::hex(&Sha256::digest(text.as_bytes()));
        Ok(Rules { rules, problem: None, sha256 })
    }

    /// SHA-256, in hex, of the file that can allow.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Why every request is denied, if the file is invalid.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// Evaluates the rules for a request at a given time.
    pub fn evaluate(&self, input: &RuleInput<'_>, now: Timestamp) -> Verdict {
        if self.problem.is_some() {
            return Verdict { ruling: Ruling::Deny, rules: Vec::new() };
        }
        let candidates: Vec<&Rule> = self.rules.iter().filter(|rule| rule.applies(input, now)).collect();
        let stages: Vec<(Ruling, Vec<&Rule>)> =
            input.stages.iter().map(|(program, rest)| evaluate_stage(&candidates, program, rest)).collect();
        // A request without stages is never allowed.
        let ruling = stages.iter().map(|(ruling, _)| *ruling).max().unwrap_or(Ruling::Ask);
        let mut rules: Vec<String> = Vec::new();
        for rule in stages.iter().filter(|(of_stage, _)| *of_stage == ruling).flat_map(|(_, rules)| rules) {
            if !rules.contains(&rule.name) {
                rules.push(rule.name.clone());
            }
        }
        Verdict { ruling, rules }
    }
}

/// The strictest ruling of the rules that match a stage, and those rules.
fn evaluate_stage<'r>(candidates: &[&'r Rule], program: &str, rest: &[String]) -> (Ruling, Vec<&'r Rule>) {
    let mut matching = candidates.to_vec();
    matching.retain(|rule| rule.command.matches(program, rest));
    let ruling = matching.iter().map(|rule| rule.ruling).max().unwrap_or(Ruling::Ask);
    matching.retain(|rule| rule.ruling == ruling);
    (ruling, matching)
}

#[cfg(test)]
mod tests;
