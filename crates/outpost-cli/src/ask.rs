//! `outpost ask`: runs one command after approval and passes its output and exit status through.

use super::{Outcome, block_on};
use crate::paths::Paths;
use crate::redact;
use clap::Args;
use outpost_broker_wire::{Action, Request, Response, Stage, Status};
use outpost_sys::signal::Signal;
use outpost_wire::base64;
use std::io::{IsTerminal, Write};
use std::path::PathBuf;
use std::process::ExitCode;

/// Exit codes if the command was not run: the question timed out, an error, or a denial. As in timeout(1) and env(1).
const TIMEOUT: u8 = 124;
const ERROR: u8 = 125;
const DENIED: u8 = 126;

#[derive(Args)]
pub(super) struct Ask {
    /// Reason for the command, shown to the approver
    #[arg(short, long, default_value = "")]
    reason: String,
    /// Run as the daemon's user instead of root
    #[arg(long)]
    unprivileged: bool,
    /// Broker socket [default: that of the running daemon]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Command and arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// The end of this process withdraws the question.
pub(super) fn run(paths: &Paths, options: Ask) -> Outcome {
    let broker = match paths.broker(options.socket) {
        Ok(broker) => broker,
        Err(why) => {
            crate::console::print_error(&redact::text(&why));
            return Ok(ExitCode::from(ERROR));
        }
    };
    show_mode_once(paths);
    let here =
        std::env::current_dir().map_err(|error| format!("cannot find the current directory: {error}"))?;
    let text = |error: outpost_broker_client::Error| explain(paths, error);
    let response = block_on(async {
        // The original broker runs every command in `/`. A local directory has no meaning on a remote host.
        let supports_cwd = paths.host.is_none() && broker.supports_cwd().await.map_err(text)?;
        let cwd = supports_cwd.then(|| here.display().to_string());
        let request = Request {
            pipeline: vec![options.command],
            reason: options.reason,
            privileged: !options.unprivileged,
            session: "outpost ask".into(),
            cwd,
            ..outpost_broker_client::new_request(Action::Exec)
        };
        broker.request(&request).await.map_err(text)
    });
    match response {
        Ok(response) => pass_through(&response),
        // Not 1, which is also a common exit code of commands.
        Err(why) => {
            crate::console::print_error(&redact::text(&why));
            Ok(ExitCode::from(ERROR))
        }
    }
}

/// Prints what approvals protect against on this host, at the first use and after a change.
fn show_mode_once(paths: &Paths) {
    if paths.host.is_some() || !std::io::stderr().is_terminal() {
        return;
    }
    let (mode, mode_file) = (paths.guard.status().mode(), paths.state.join("approvals-mode"));
    if std::fs::read_to_string(&mode_file).is_ok_and(|known| known == mode) {
        return;
    }
    errln!("outpost: {mode}");
    // Without a state directory, the next use prints it again.
    let _not_stored = std::fs::write(&mode_file, mode);
}

/// The error message for a user at a shell. The default texts address an agent.
fn explain(paths: &Paths, error: outpost_broker_client::Error) -> String {
    match error {
        outpost_broker_client::Error::NoBroker { socket, error } => {
            format!("the command was not run: {}", super::unreachable(paths, &socket, &error))
        }
        outpost_broker_client::Error::Untrusted(reason) => {
            format!("the command was not run: {reason}\nhint: {}", reason.hint())
        }
        error => error.to_string(),
    }
}

fn pass_through(response: &Response) -> Outcome {
    let decode = |text: &str| base64::decode(text.as_bytes()).unwrap_or_default();
    let reason = response.message.as_deref().map(|text| text.escape_debug().to_string());
    let code = match response.status {
        Status::Ok => {
            let stdout = response.stdout.as_deref().map(decode).unwrap_or_default();
            // Before stdout: a closed one ends this process.
            for stage in &response.stages {
                let _closed = std::io::stderr().write_all(&decode(&stage.stderr));
            }
            if response.stdout_truncated || response.stages.iter().any(|stage| stage.stderr_truncated) {
                errln!("outpost: the output is truncated: it exceeds the broker's limit");
            }
            crate::console::pass(&stdout)?;
            response.stages.last().map_or(ERROR, exit_code)
        }
        Status::Denied => {
            let reason = reason.unwrap_or_else(|| "no reason given".into());
            crate::console::print_error(&format!("denied: {reason}"));
            DENIED
        }
        Status::Timeout => {
            let detail = reason.map(|reason| format!(": {reason}")).unwrap_or_default();
            crate::console::print_error(&format!(
                "no approver answered in time, so the command was not run{detail}"
            ));
            TIMEOUT
        }
        Status::Error => {
            crate::console::print_error(&reason.unwrap_or_else(|| "the broker reported no reason".into()));
            ERROR
        }
    };
    Ok(ExitCode::from(code))
}

/// The shell's convention for signals.
fn exit_code(stage: &Stage) -> u8 {
    let signal = stage.signal.as_deref().and_then(Signal::from_name).map(|signal| 128 + signal.number());
    u8::try_from(signal.unwrap_or(stage.exit_code)).unwrap_or(u8::MAX)
}
