//! Runs the operator's notification command for each new question. The command cannot decide.

use crate::question::Question;
use crate::queue::Queue;
use crate::service::Settings;
use crate::wire::ServerMessage;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;
use tokio::process::Command;
use tokio::sync::broadcast::error::RecvError;
use tokio::sync::watch;

/// The command is killed after this time.
const TIMEOUT: Duration = Duration::from_secs(10);

/// Runs the configured command for each `asked` event, one at a time. If events arrive faster than the command
/// runs, some are skipped.
pub(crate) async fn run(settings: watch::Receiver<Arc<Settings>>, queue: Queue) {
    let (_, mut events) = queue.watch();
    loop {
        match events.recv().await {
            Ok(ServerMessage::Asked { question }) => {
                let command = settings.borrow().hook.clone();
                if let Some(command) = command {
                    notify(&command, &question, queue.len()).await;
                }
            }
            Ok(_) | Err(RecvError::Lagged(_)) => {}
            Err(RecvError::Closed) => return,
        }
    }
}

/// Expands `{id}`, `{digest}`, `{title}`, `{face}` and `{count}` in each argument.
async fn notify(command: &[String], question: &Question, count: usize) {
    let count = count.to_string();
    let expand_argument = |argument: &String| {
        let values = [
            ("{id}", &question.id),
            ("{digest}", &question.digest),
            ("{title}", &question.title),
            ("{face}", &question.face),
            ("{count}", &count),
        ];
        // One pass: placeholders inside an expanded value stay as they are.
        expand(argument, &values)
    };
    let arguments: Vec<String> = command.iter().map(expand_argument).collect();
    let Some((program, arguments)) = arguments.split_first() else { return };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.kill_on_drop(true);
    let ended = async { command.spawn()?.wait().await };
    match tokio::time::timeout(TIMEOUT, ended).await {
        Ok(Ok(status)) if status.success() => {}
        Ok(Ok(status)) => tracing::warn!(program, %status, "the notification command failed"),
        Ok(Err(error)) => tracing::warn!(program, %error, "cannot run the notification command"),
        Err(_) => tracing::warn!(program, "the notification command was killed after 10 s"),
    }
}

fn expand(template: &str, values: &[(&str, &String)]) -> String {
    let mut expanded = String::new();
    let mut rest = template;
    while let Some(at) = rest.find('{') {
        let (before, after) = rest.split_at(at);
        expanded.push_str(before);
        match values.iter().find(|(name, _)| after.starts_with(name)) {
            Some((name, value)) => {
                expanded.push_str(value);
                rest = after.get(name.len()..).unwrap_or_default();
            }
            None => {
                expanded.push('{');
                rest = after.get(1..).unwrap_or_default();
            }
        }
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn placeholders_in_values_are_not_expanded() {
        let (title, id) = ("run {id}".to_owned(), "7".to_owned());
        let values = [("{title}", &title), ("{id}", &id)];
        assert_eq!(expand("{title} is {id}, {other} {", &values), "run {id} is 7, {other} {");
    }
}
