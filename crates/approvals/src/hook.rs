//! The operator's program that is told of each question, for a notice on a desk or a telephone. It decides nothing.

use crate::desk::Settings;
use crate::question::Question;
use crate::queue::Queue;
use crate::wire::Answer;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

/// A notice that takes longer is given up.
const PATIENCE: Duration = Duration::from_secs(10);

/// Tells the program that is settled when a question comes. One notice at a time: a queue that grows faster than the
/// program runs is told of in fewer notices.
pub(crate) async fn run(settings: watch::Receiver<Arc<Settings>>, queue: Queue) {
    let (_, mut events) = queue.watch();
    loop {
        match events.recv().await {
            Ok(Answer::Asked { question }) => {
                let command = settings.borrow().hook.clone();
                if let Some(command) = command {
                    tell(&command, &question, queue.len()).await;
                }
            }
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// In each argument `{id}`, `{digest}`, `{title}`, `{face}` and `{count}` stand for what they say.
async fn tell(command: &[String], question: &Question, count: usize) {
    let count = count.to_string();
    let fill = |argument: &String| {
        let values = [
            ("{id}", &question.id),
            ("{digest}", &question.digest),
            ("{title}", &question.title),
            ("{face}", &question.face),
            ("{count}", &count),
        ];
        // In one pass: what is filled in is not looked at again.
        fill_in(argument, &values)
    };
    let arguments: Vec<String> = command.iter().map(fill).collect();
    let Some((program, arguments)) = arguments.split_first() else { return };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.kill_on_drop(true);
    let ended = async { command.spawn()?.wait().await };
    match tokio::time::timeout(PATIENCE, ended).await {
        Ok(Ok(status)) if status.success() => {}
        Ok(Ok(status)) => tracing::warn!(program, %status, "the notice program failed"),
        Ok(Err(error)) => tracing::warn!(program, %error, "the notice program cannot be run"),
        Err(_) => tracing::warn!(program, "the notice program took more than 10 s and was ended"),
    }
}

fn fill_in(template: &str, values: &[(&str, &String)]) -> String {
    let mut filled = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, after) = rest.split_at(at);
        filled.push_str(before);
        match values.iter().find(|(name, _)| after.starts_with(name)) {
            Some((name, value)) => {
                filled.push_str(value);
                rest = after.get(name.len()..).unwrap_or_default();
            }
            None => {
                filled.push('{');
                rest = after.get(1..).unwrap_or_default();
            }
        }
    }
    filled + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_filled_in_is_not_filled_in_again() {
        let (title, id) = ("run {id}".to_owned(), "7".to_owned());
        let values = [("{title}", &title), ("{id}", &id)];
        assert_eq!(fill_in("{title} is {id}, {other} {", &values), "run {id} is 7, {other} {");
    }
}
