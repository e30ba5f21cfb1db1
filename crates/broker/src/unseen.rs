//! What rules deny whether or not it is there: who is refused does not learn which files this host has.

use crate::environment::SECURE_PATH;
use crate::wire::Request;
use jiff::Timestamp;
use outpost_approvals::rules::{Rules, Ruling, Subject};
use std::path::{Path, PathBuf};

/// The message for a request whose files could not be looked up, if it would be denied had they been there.
pub(crate) fn denial(request: &Request, rules: &Rules) -> Option<String> {
    let uid = if request.privileged { 0 } else { outpost_sys::limits::effective_uid() };
    let user = outpost_sys::user::by_uid(uid).ok().flatten();
    let run_as = user.map_or_else(|| uid.to_string(), |user| user.name.to_string_lossy().into_owned());
    let cwd = real(Path::new(request.cwd.as_deref().unwrap_or("/")));
    // Each place where a program could have been is judged like a stage of its own: one that is denied denies all.
    let stages: Vec<(String, &[String])> = request
        .pipeline
        .iter()
        .filter_map(|stage| stage.split_first())
        .flat_map(|(name, arguments)| {
            let places = places(name, &cwd).into_iter();
            places.map(move |place| (real(&place).to_string_lossy().into_owned(), arguments))
        })
        .collect();
    let stages: Vec<(&str, &[String])> =
        stages.iter().map(|(path, arguments)| (path.as_str(), *arguments)).collect();
    let subject = Subject {
        stages: &stages,
        privileged: request.privileged,
        run_as: &run_as,
        session: &request.session,
        env: &request.env,
        cwd: &cwd.to_string_lossy(),
        has_reason: !request.reason.is_empty(),
    };
    let verdict = rules.judge(&subject, Timestamp::now());
    (verdict.ruling == Ruling::Deny).then(|| message(rules, &verdict.rules))
}

/// What is told of a denial by these of the rules.
pub(crate) fn message(rules: &Rules, names: &[String]) -> String {
    match rules.problem() {
        Some(problem) => problem.to_owned(),
        None => format!("denied by rule {}", names.join(", ")),
    }
}

fn places(name: &str, cwd: &Path) -> Vec<PathBuf> {
    match name.contains('/') {
        true => vec![cwd.join(name)],
        false => SECURE_PATH.split(':').map(|dir| Path::new(dir).join(name)).collect(),
    }
}

/// Where a path leads, or the path itself.
fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
