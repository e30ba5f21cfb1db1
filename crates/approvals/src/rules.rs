//! The operator's rules: a file that says what is allowed, denied or asked about without, or in spite of, a human's answer.
//!
//! `docs/rules.example.toml` shows every key. In short:
//!
//! - `command` is the whole argument vector. Its first token is the absolute path of the program, links resolved, in
//!   text that is compared byte by byte. A token is a string, a list of strings of which one must be there, or
//!   `{ any = true }` for exactly one argument; in a rule that allows, not for one that begins with `-`, since that may be
//!   an option. `{ rest = true }` at the end stands for any further arguments. Without it the arguments must end there.
//! - `decision` is `allow`, `ask` or `deny`. Where several rules match, the strictest counts. Of a pipeline every stage is
//!   judged: one that is denied denies all, and only if all are allowed, all are.
//! - What a rule that denies or asks does not mention, it matches. What one that allows does not mention must not be
//!   there: no `env`, no working directory but `/`; and `privileged` it must say.
//! - A link that gives a program another name makes it another command, which a rule for that program does not allow:
//!   `reboot` may be `systemctl`. Rules that deny or ask count for it all the same.
//! - `session` is what the client claims to be. It is no protection in a rule that allows.
//! - Shells, interpreters and whatever else runs what it is given cannot be allowed; see [`is_interpreter`].
//! - Where root has a directory for policy, only rules there can allow; see [`Sources`].
//! - `matches` and `differs` are examples, checked when the file is read.
//!
//! A file that is not there has no rules, and everything is asked about. One that cannot be trusted or understood denies
//! everything: nobody knows what it would have denied. A rule that denies is no wall: whoever may copy a program has it
//! under another path.

mod file;
mod interpreters;
mod parse;
mod rule;
mod sources;

pub use interpreters::is_interpreter;
pub use sources::Sources;
pub(crate) use sources::Stamp;

use jiff::Timestamp;
use rule::Rule;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::path::Path;

/// What a rule, or all of them together, say; the stricter the greater.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Ruling {
    Allow,
    Ask,
    Deny,
}

/// What is judged. All of it is what would be run, not what was asked for, where the two can differ.
#[derive(Clone, Copy, Debug)]
pub struct Subject<'a> {
    /// Of each stage the program's absolute path, links resolved, and the arguments after the program's name.
    pub stages: &'a [(&'a str, &'a [String])],
    pub privileged: bool,
    /// The name of the user it would run as.
    pub run_as: &'a str,
    /// As the client claims.
    pub session: &'a str,
    /// What the client wants in the environment.
    pub env: &'a BTreeMap<String, String>,
    pub cwd: &'a str,
    /// Whether the client gave a reason.
    pub has_reason: bool,
}

/// What the rules say about a subject, and the names of those that say so. No rule has to be behind [`Ruling::Ask`], and
/// none is behind [`Ruling::Deny`] where [`Rules::problem`] is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    pub ruling: Ruling,
    pub rules: Vec<String>,
}

/// The rules of a file, as it was when it was read.
#[derive(Debug, Default)]
pub struct Rules {
    rules: Vec<Rule>,
    problem: Option<String>,
    /// Of the file that can allow, in hexadecimal digits; empty where there is none.
    sha256: String,
}

impl Rules {
    /// Reads a file. Whatever is wrong with it becomes the [`problem`](Rules::problem) of the rules.
    pub fn load(path: &Path) -> Rules {
        let parsed = match file::read(path) {
            Ok(Some(text)) => Rules::from_text(&text).map_err(|why| format!(", {why}")),
            Ok(None) => Ok(Rules::default()),
            Err(why) => Err(format!(": {why}")),
        };
        match parsed {
            Ok(rules) => rules,
            Err(why) => Rules::denying(path, &why),
        }
    }

    /// Rules that deny everything, because of a file.
    fn denying(path: &Path, why: &str) -> Rules {
        let file = crate::display::quote(&path.to_string_lossy());
        let problem = format!("rules file {file}{why}; every request is denied until it is mended");
        Rules { problem: Some(problem), ..Rules::default() }
    }

    /// The rules of a text, or the first mistake in it with its line and column.
    pub fn from_text(text: &str) -> Result<Rules, String> {
        let rules = parse::rules(text).map_err(|mistake| {
            let (line, column) = mistake.place(text);
            format!("line {line}, column {column}: {}", mistake.why)
        })?;
        let sha256 = crate::hex(&Sha256::digest(text.as_bytes()));
        Ok(Rules { rules, problem: None, sha256 })
    }

    /// Names the file that can allow by its content: the SHA-256 in hexadecimal digits.
    pub fn sha256(&self) -> &str {
        &self.sha256
    }

    /// Why every request is denied, if it is.
    pub fn problem(&self) -> Option<&str> {
        self.problem.as_deref()
    }

    /// What the rules say about a subject at a time.
    pub fn judge(&self, subject: &Subject<'_>, now: Timestamp) -> Verdict {
        if self.problem.is_some() {
            return Verdict { ruling: Ruling::Deny, rules: Vec::new() };
        }
        let candidates: Vec<&Rule> = self.rules.iter().filter(|rule| rule.applies(subject, now)).collect();
        let judged: Vec<(Ruling, Vec<&Rule>)> =
            subject.stages.iter().map(|(program, rest)| judge_stage(&candidates, program, rest)).collect();
        // No stages at all are nothing that anybody allowed.
        let ruling = judged.iter().map(|(ruling, _)| *ruling).max().unwrap_or(Ruling::Ask);
        let mut rules: Vec<String> = Vec::new();
        for rule in judged.iter().filter(|(of_stage, _)| *of_stage == ruling).flat_map(|(_, rules)| rules) {
            if !rules.contains(&rule.name) {
                rules.push(rule.name.clone());
            }
        }
        Verdict { ruling, rules }
    }
}

/// What the strictest of the rules that match a stage say, and which they are.
fn judge_stage<'r>(candidates: &[&'r Rule], program: &str, rest: &[String]) -> (Ruling, Vec<&'r Rule>) {
    let mut matching = candidates.to_vec();
    matching.retain(|rule| rule.command.matches(program, rest));
    let ruling = matching.iter().map(|rule| rule.ruling).max().unwrap_or(Ruling::Ask);
    matching.retain(|rule| rule.ruling == ruling);
    (ruling, matching)
}

#[cfg(test)]
mod tests;
