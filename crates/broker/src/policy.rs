//! Evaluation of the operator's rules for a request, whether or not its files could be resolved.

use crate::files;
use crate::pinned_request::{self, PinnedRequest};
use crate::requester::Requester;
use crate::wire::Request;
use jiff::Timestamp;
use outpost_approvals::rules::{RuleInput, Rules, Ruling, Verdict};
use std::path::{Path, PathBuf};

/// A program's path and its arguments, without argument 0.
type Stage<'a> = (String, &'a [String]);

/// The verdict of the rules about a pinned request.
pub(crate) fn evaluate(pinned: &PinnedRequest, rules: &Rules) -> Verdict {
    let stages = pinned.programs.iter().zip(&pinned.request.pipeline);
    let stages: Vec<Stage<'_>> =
        stages.map(|(program, stage)| (text(&program.real_path), arguments(stage))).collect();
    evaluate_stages(&pinned.request, &stages, &pinned.run_as.name.to_string_lossy(), &pinned.cwd, rules)
}

/// The denial message for a request whose files could not be resolved, if the rules would deny it with these files
/// present. A denied client thus cannot probe which files exist on this host.
pub(crate) fn denial_of_unresolved(
    request: &Request,
    requester: &Requester,
    rules: &Rules,
) -> Option<String> {
    let run_as =
        pinned_request::run_as(request, requester).map(|user| user.name.to_string_lossy().into_owned());
    let cwd = canonical(Path::new(request.cwd.as_deref().unwrap_or("/")));
    // Each candidate path is evaluated as a stage of its own: one denied candidate denies the request.
    let stages = request.pipeline.iter().flat_map(|stage| {
        let name = stage.first().map(String::as_str).unwrap_or_default();
        let candidates = files::candidate_paths(name, &cwd).into_iter();
        candidates.map(move |path| (text(&canonical(&path)), arguments(stage)))
    });
    let stages: Vec<Stage<'_>> = stages.collect();
    let verdict = evaluate_stages(request, &stages, &run_as.unwrap_or_default(), &cwd, rules);
    (verdict.ruling == Ruling::Deny).then(|| denial_message(rules, &verdict.rules))
}

/// The message for a denial by the rules with these names.
pub(crate) fn denial_message(rules: &Rules, names: &[String]) -> String {
    match rules.problem() {
        Some(problem) => problem.to_owned(),
        None => format!("denied by rule {}", names.join(", ")),
    }
}

fn evaluate_stages(
    request: &Request,
    stages: &[Stage<'_>],
    run_as: &str,
    cwd: &Path,
    rules: &Rules,
) -> Verdict {
    let stages: Vec<(&str, &[String])> =
        stages.iter().map(|(path, arguments)| (path.as_str(), *arguments)).collect();
    let subject = RuleInput {
        stages: &stages,
        privileged: request.privileged,
        run_as,
        session: &request.session,
        env: &request.env,
        cwd: &cwd.to_string_lossy(),
        has_reason: !request.reason.is_empty(),
    };
    rules.evaluate(&subject, Timestamp::now())
}

fn arguments(stage: &[String]) -> &[String] {
    stage.get(1..).unwrap_or_default()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// The canonical path, or the given path if it cannot be resolved.
fn canonical(path: &Path) -> PathBuf {
    std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}
