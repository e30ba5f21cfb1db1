//! Validation of a request's structure, characters and sizes. The message texts are those of sudo-proxy.

use crate::wire::{Action, Request};
use outpost_approvals::display::{Newlines, forbidden, quote};
use thiserror::Error;

/// Size limits of a request. A request beyond one is refused, never checked less strictly.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RequestLimits {
    pub stages_max: usize,
    /// Sum over all stages.
    pub arguments_max: usize,
    pub argument_bytes_max: usize,
    pub reason_chars_max: usize,
}

impl Default for RequestLimits {
    fn default() -> RequestLimits {
        RequestLimits {
            stages_max: 32,
            arguments_max: 4096,
            argument_bytes_max: 128 * 1024 - 1,
            reason_chars_max: 4096,
        }
    }
}

/// Why a request is not valid, as the message for the client.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub(crate) enum InvalidRequest {
    #[error("pipeline must not be empty")]
    EmptyPipeline,
    #[error("pipeline stage {0} must not be empty")]
    EmptyStage(usize),
    #[error("pipeline[{stage}][{number}] contains forbidden control/bidi characters")]
    ArgumentCharacters { stage: usize, number: usize },
    #[error("{0} contains forbidden control/bidi characters")]
    FieldCharacters(&'static str),
    #[error("env key '{0}' contains forbidden characters")]
    EnvKeyCharacters(String),
    #[error("env value contains forbidden characters")]
    EnvValueCharacters,
    #[error("forward_agent is only allowed for unprivileged commands")]
    ForwardAgent,
    #[error("pipeline has {stages} stages (max {max})")]
    TooManyStages { stages: usize, max: usize },
    #[error("pipeline has {arguments} arguments (max {max})")]
    TooManyArguments { arguments: usize, max: usize },
    #[error("pipeline[{stage}][{number}] is longer than {max} bytes")]
    LongArgument { stage: usize, number: usize, max: usize },
    #[error("{} is not the name of a command: it begins with '-' or contains '='", quote(.0))]
    Name(String),
    #[error("reason is longer than {0} characters")]
    LongReason(usize),
    #[error("cwd must be an absolute path")]
    RelativeCwd,
}

pub(crate) fn check(request: &Request, limits: &RequestLimits) -> Result<(), InvalidRequest> {
    if request.action == Action::Exec && request.pipeline.is_empty() {
        return Err(InvalidRequest::EmptyPipeline);
    }
    for (at, stage) in request.pipeline.iter().enumerate() {
        check_stage(at, stage)?;
    }
    check_environment(request)?;
    let fields = [
        ("reason", &request.reason),
        ("session", &request.session),
        ("host", &request.host),
        ("version", &request.version),
        ("id", &request.id),
        ("time", &request.time),
    ];
    let cwd = request.cwd.iter().map(|cwd| ("cwd", cwd));
    for (field, value) in fields.into_iter().chain(cwd) {
        if forbidden(value, Newlines::Refused).is_some() {
            return Err(InvalidRequest::FieldCharacters(field));
        }
    }
    if request.forward_agent && request.privileged {
        return Err(InvalidRequest::ForwardAgent);
    }
    check_size(request, limits)
}

fn check_stage(at: usize, stage: &[String]) -> Result<(), InvalidRequest> {
    if stage.is_empty() {
        return Err(InvalidRequest::EmptyStage(at));
    }
    for (number, argument) in stage.iter().enumerate() {
        // Arguments may be multi-line scripts. Program names may not contain newlines.
        let newlines = if number == 0 { Newlines::Refused } else { Newlines::Allowed };
        if forbidden(argument, newlines).is_some() {
            return Err(InvalidRequest::ArgumentCharacters { stage: at, number });
        }
    }
    Ok(())
}

fn check_environment(request: &Request) -> Result<(), InvalidRequest> {
    for name in request.env.keys() {
        if forbidden(name, Newlines::Refused).is_some() {
            return Err(InvalidRequest::EnvKeyCharacters(name.clone()));
        }
    }
    match request.env.values().any(|value| forbidden(value, Newlines::Refused).is_some()) {
        true => Err(InvalidRequest::EnvValueCharacters),
        false => Ok(()),
    }
}

fn check_size(request: &Request, limits: &RequestLimits) -> Result<(), InvalidRequest> {
    let RequestLimits { stages_max, arguments_max, argument_bytes_max, reason_chars_max } = *limits;
    let stages = request.pipeline.len();
    if stages > stages_max {
        return Err(InvalidRequest::TooManyStages { stages, max: stages_max });
    }
    let arguments: usize = request.pipeline.iter().map(Vec::len).sum();
    if arguments > arguments_max {
        return Err(InvalidRequest::TooManyArguments { arguments, max: arguments_max });
    }
    for (at, stage) in request.pipeline.iter().enumerate() {
        if let Some(number) = stage.iter().position(|argument| argument.len() > argument_bytes_max) {
            return Err(InvalidRequest::LongArgument { stage: at, number, max: argument_bytes_max });
        }
        check_name(stage, request.privileged)?;
    }
    if request.reason.chars().count() > reason_chars_max {
        return Err(InvalidRequest::LongReason(reason_chars_max));
    }
    match &request.cwd {
        Some(cwd) if !cwd.starts_with('/') => Err(InvalidRequest::RelativeCwd),
        _ => Ok(()),
    }
}

/// Refuses program names that sudo would parse as an option or as a variable assignment.
fn check_name(stage: &[String], privileged: bool) -> Result<(), InvalidRequest> {
    let name = stage.first().map(String::as_str).unwrap_or_default();
    if privileged && (name.starts_with('-') || name.contains('=')) {
        return Err(InvalidRequest::Name(name.to_owned()));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(pipeline: &[&[&str]]) -> Request {
        let stage = |stage: &&[&str]| stage.iter().map(|argument| (*argument).to_owned()).collect();
        Request { pipeline: pipeline.iter().map(stage).collect(), ..Request::default() }
    }

    fn message(request: &Request) -> String {
        check(request, &RequestLimits::default()).unwrap_err().to_string()
    }

    #[test]
    fn empty_pipelines_are_refused_with_the_contracts_messages() {
        assert_eq!(message(&request(&[])), "pipeline must not be empty");
        assert_eq!(message(&request(&[&["a"], &[]])), "pipeline stage 1 must not be empty");
        let mut ping = request(&[]);
        ping.action = Action::Ping;
        assert_eq!(check(&ping, &RequestLimits::default()), Ok(()));
    }

    #[test]
    fn newlines_are_allowed_in_arguments_but_not_in_names() {
        assert_eq!(check(&request(&[&["sh", "-c", "a\n\tb"]]), &RequestLimits::default()), Ok(()));
        assert_eq!(
            message(&request(&[&["s\nh"]])),
            "pipeline[0][0] contains forbidden control/bidi characters"
        );
        assert_eq!(
            message(&request(&[&["a"], &["b", "x\u{9b}y"]])),
            "pipeline[1][1] contains forbidden control/bidi characters"
        );
    }

    #[test]
    fn every_displayed_field_is_checked() {
        for field in ["reason", "session", "host", "version", "id", "time"] {
            let text = format!(r#"{{"pipeline":[["true"]],"{field}":"a\u202eb"}}"#);
            let request: Request = serde_json::from_str(&text).unwrap();
            assert_eq!(message(&request), format!("{field} contains forbidden control/bidi characters"));
        }
    }

    #[test]
    fn names_that_sudo_would_parse_are_refused() {
        for name in ["-u", "--", "A=b", "/bin/x=y"] {
            let mut privileged = request(&[&[name]]);
            privileged.privileged = true;
            assert!(message(&privileged).contains("is not the name of a command"), "{name}");
            assert_eq!(check(&request(&[&[name]]), &RequestLimits::default()), Ok(()));
        }
    }

    #[test]
    fn sizes_beyond_a_limit_are_refused() {
        let stages = vec![vec!["a".to_owned()]; 33];
        assert_eq!(
            message(&Request { pipeline: stages, ..Request::default() }),
            "pipeline has 33 stages (max 32)"
        );
        let arguments = vec![vec!["a".to_owned(); 4097]];
        assert!(message(&Request { pipeline: arguments, ..Request::default() }).contains("4097 arguments"));
        let long = vec![vec!["a".to_owned(), "x".repeat(128 * 1024)]];
        assert!(
            message(&Request { pipeline: long, ..Request::default() })
                .starts_with("pipeline[0][1] is longer")
        );
    }
}
