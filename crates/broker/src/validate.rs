//! What a request may look like: its shape, its characters, its size. The texts are the original's.

use crate::wire::{Action, Request};
use outpost_approvals::display::{Newlines, forbidden};

/// Limits on a request. Exceeding one means refusal, never a weaker check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub stages_max: usize,
    /// Over all stages.
    pub arguments_max: usize,
    pub argument_bytes_max: usize,
    pub reason_chars_max: usize,
}

impl Default for Shape {
    fn default() -> Shape {
        Shape {
            stages_max: 32,
            arguments_max: 4096,
            argument_bytes_max: 128 * 1024 - 1,
            reason_chars_max: 4096,
        }
    }
}

/// The message for a request that is not to be looked at further.
pub(crate) fn check(request: &Request, shape: &Shape) -> Result<(), String> {
    if request.action == Action::Exec && request.pipeline.is_empty() {
        return Err("pipeline must not be empty".to_owned());
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
            return Err(format!("{field} contains forbidden control/bidi characters"));
        }
    }
    if request.forward_agent && request.privileged {
        return Err("forward_agent is only allowed for unprivileged commands".to_owned());
    }
    check_size(request, shape)
}

fn check_stage(at: usize, stage: &[String]) -> Result<(), String> {
    if stage.is_empty() {
        return Err(format!("pipeline stage {at} must not be empty"));
    }
    for (number, argument) in stage.iter().enumerate() {
        // Scripts have lines; names of programs do not.
        let newlines = if number == 0 { Newlines::Refused } else { Newlines::Allowed };
        if forbidden(argument, newlines).is_some() {
            return Err(format!("pipeline[{at}][{number}] contains forbidden control/bidi characters"));
        }
    }
    Ok(())
}

fn check_environment(request: &Request) -> Result<(), String> {
    for name in request.env.keys() {
        if forbidden(name, Newlines::Refused).is_some() {
            return Err(format!("env key '{name}' contains forbidden characters"));
        }
    }
    match request.env.values().any(|value| forbidden(value, Newlines::Refused).is_some()) {
        true => Err("env value contains forbidden characters".to_owned()),
        false => Ok(()),
    }
}

fn check_size(request: &Request, shape: &Shape) -> Result<(), String> {
    let Shape { stages_max, arguments_max, argument_bytes_max, reason_chars_max } = *shape;
    let stages = request.pipeline.len();
    if stages > stages_max {
        return Err(format!("pipeline has {stages} stages (max {stages_max})"));
    }
    let arguments: usize = request.pipeline.iter().map(Vec::len).sum();
    if arguments > arguments_max {
        return Err(format!("pipeline has {arguments} arguments (max {arguments_max})"));
    }
    for (at, stage) in request.pipeline.iter().enumerate() {
        if let Some(number) = stage.iter().position(|argument| argument.len() > argument_bytes_max) {
            return Err(format!("pipeline[{at}][{number}] is longer than {argument_bytes_max} bytes"));
        }
        check_name(stage, request.privileged)?;
    }
    if request.reason.chars().count() > reason_chars_max {
        return Err(format!("reason is longer than {reason_chars_max} characters"));
    }
    match &request.cwd {
        Some(cwd) if !cwd.starts_with('/') => Err("cwd must be an absolute path".to_owned()),
        _ => Ok(()),
    }
}

/// What sudo would take for one of its own options or for a variable is no name of a command.
fn check_name(stage: &[String], privileged: bool) -> Result<(), String> {
    let name = stage.first().map(String::as_str).unwrap_or_default();
    if privileged && (name.starts_with('-') || name.contains('=')) {
        let shown = outpost_approvals::display::quote(name);
        return Err(format!("{shown} is not the name of a command: it begins with '-' or contains '='"));
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
        check(request, &Shape::default()).unwrap_err()
    }

    #[test]
    fn shapes_are_refused_in_the_originals_words() {
        assert_eq!(message(&request(&[])), "pipeline must not be empty");
        assert_eq!(message(&request(&[&["a"], &[]])), "pipeline stage 1 must not be empty");
        let mut ping = request(&[]);
        ping.action = Action::Ping;
        assert_eq!(check(&ping, &Shape::default()), Ok(()));
    }

    #[test]
    fn a_script_may_have_lines_and_a_name_may_not() {
        assert_eq!(check(&request(&[&["sh", "-c", "a\n\tb"]]), &Shape::default()), Ok(()));
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
    fn every_drawn_field_is_looked_at() {
        for field in ["reason", "session", "host", "version", "id", "time"] {
            let text = format!(r#"{{"pipeline":[["true"]],"{field}":"a\u202eb"}}"#);
            let request: Request = serde_json::from_str(&text).unwrap();
            assert_eq!(message(&request), format!("{field} contains forbidden control/bidi characters"));
        }
    }

    #[test]
    fn what_sudo_would_take_for_its_own_is_no_command() {
        for name in ["-u", "--", "A=b", "/bin/x=y"] {
            let mut privileged = request(&[&[name]]);
            privileged.privileged = true;
            assert!(message(&privileged).contains("is not the name of a command"), "{name}");
            assert_eq!(check(&request(&[&[name]]), &Shape::default()), Ok(()));
        }
    }

    #[test]
    fn more_than_a_limit_is_refused() {
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
