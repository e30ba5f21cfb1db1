//! What the operator's rules say about a request: as it would run, or had its files been there.

use crate::asker::Asker;
use crate::files;
use crate::order::{self, Order};
use crate::wire::Request;
use jiff::Timestamp;
use outpost_approvals::rules::{Rules, Ruling, Subject, Verdict};
use std::path::{Path, PathBuf};

/// A program's path and the arguments after its name.
type Stage<'a> = (String, &'a [String]);

/// What the rules say about an order.
pub(crate) fn verdict(order: &Order, rules: &Rules) -> Verdict {
    let stages = order.programs.iter().zip(&order.request.pipeline);
    let stages: Vec<Stage<'_>> = stages.map(|(program, stage)| (text(&program.path), rest(stage))).collect();
    judge(&order.request, &stages, &order.run_as.name.to_string_lossy(), &order.cwd, rules)
}

/// The message for a request whose files could not be looked up, if it would be denied had they been there: who is
/// refused does not learn which files this host has.
pub(crate) fn denial(request: &Request, asker: &Asker, rules: &Rules) -> Option<String> {
    let run_as = order::run_as(request, asker).map(|user| user.name.to_string_lossy().into_owned());
    let cwd = real(Path::new(request.cwd.as_deref().unwrap_or("/")));
    // Each place where a program could have been is judged like a stage of its own: one that is denied denies all.
    let stages = request.pipeline.iter().flat_map(|stage| {
        let name = stage.first().map(String::as_str).unwrap_or_default();
        let places = files::candidates(name, &cwd).into_iter();
        places.map(move |place| (text(&real(&place)), rest(stage)))
    });
    let stages: Vec<Stage<'_>> = stages.collect();
    let verdict = judge(request, &stages, &run_as.unwrap_or_default(), &cwd, rules);
    (verdict.ruling == Ruling::Deny).then(|| message(rules, &verdict.rules))
}

/// What is told of a denial by these of the rules.
pub(crate) fn message(rules: &Rules, names: &[String]) -> String {
    match rules.problem() {
        Some(problem) => problem.to_owned(),
        None => format!("denied by rule {}", names.join(", ")),
    }
}

fn judge(request: &Request, stages: &[Stage<'_>], run_as: &str, cwd: &Path, rules: &Rules) -> Verdict {
    let stages: Vec<(&str, &[String])> =
        stages.iter().map(|(path, arguments)| (path.as_str(), *arguments)).collect();
    let subject = Subject {
        stages: &stages,
        privileged: request.privileged,
        run_as,
        session: &request.session,
        env: &request.env,
        cwd: &cwd.to_string_lossy(),
        has_reason: !request.reason.is_empty(),
    };
    rules.judge(&subject, Timestamp::now())
}

fn rest(stage: &[String]) -> &[String] {
    stage.get(1..).unwrap_or_default()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// Where a path leads, or the path itself.
fn real(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
