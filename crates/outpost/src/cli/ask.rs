//! `outpost ask`: one command that a human approves, for people and scripts; its output and exit status are passed through.

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

/// Nothing was run: nobody answered, something was wrong, or the answer was no. As timeout(1) and env(1) have them.
const TIMEOUT: u8 = 124;
const ERROR: u8 = 125;
const DENIED: u8 = 126;

#[derive(Args)]
pub(super) struct Ask {
    /// What it is good for, in words for the human who decides
    #[arg(short, long, default_value = "")]
    reason: String,
    /// As the daemon's own user instead of root
    #[arg(long)]
    unprivileged: bool,
    /// The broker to ask [default: that of `outpost serve`]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

/// Whoever is ended while it waits withdraws the question.
pub(super) fn run(paths: &Paths, options: Ask) -> Outcome {
    let broker = match paths.broker(options.socket) {
        Ok(broker) => broker,
        Err(why) => {
            errln!("error: {}", redact::text(&why));
            return Ok(ExitCode::from(ERROR));
        }
    };
    say_mode(paths);
    let here = std::env::current_dir().map_err(|error| format!("the current directory: {error}"))?;
    let text = |error: outpost_mcp::Error| explain(paths, error);
    let response = block_on(async {
        // The original runs everything in `/`, and a directory of ours is none elsewhere.
        let knows_cwd = paths.host.is_none() && broker.knows_cwd().await.map_err(text)?;
        let cwd = knows_cwd.then(|| here.display().to_string());
        let request = Request {
            pipeline: vec![options.command],
            reason: options.reason,
            privileged: !options.unprivileged,
            session: "outpost ask".into(),
            cwd,
            ..outpost_mcp::request(Action::Exec)
        };
        broker.ask(&request).await.map_err(text)
    });
    match response {
        Ok(response) => Ok(pass_through(&response)),
        // Not 1, which may be the command's own.
        Err(why) => {
            crate::console::complain(&redact::text(&why));
            Ok(ExitCode::from(ERROR))
        }
    }
}

/// Tells a person, at the first use and when it has changed, what an approval is worth here.
fn say_mode(paths: &Paths) {
    if paths.host.is_some() || !std::io::stderr().is_terminal() {
        return;
    }
    let (mode, noted) = (paths.guard.find().mode(), paths.state.join("approvals-mode"));
    if std::fs::read_to_string(&noted).is_ok_and(|known| known == mode) {
        return;
    }
    errln!("outpost: {mode}");
    // Where there is no state directory, the next use says it again.
    let _not_noted = std::fs::write(&noted, mode);
}

/// What an agent is told to ask its human for, the human here can do.
fn explain(paths: &Paths, error: outpost_mcp::Error) -> String {
    match error {
        outpost_mcp::Error::NoBroker { socket, error } => format!(
            "nothing was run: no daemon answers on {} ({error}); {}",
            socket.display(),
            paths.remedy()
        ),
        outpost_mcp::Error::Untrusted(reason) => {
            format!("nothing was run, and {reason}\nhint: {}", reason.hint())
        }
        error => error.to_string(),
    }
}

fn pass_through(response: &Response) -> ExitCode {
    let decode = |text: &str| base64::decode(text.as_bytes()).unwrap_or_default();
    let said = response.message.as_deref().unwrap_or("it gave no reason").escape_debug().to_string();
    let code = match response.status {
        Status::Ok => {
            let stdout = response.stdout.as_deref().map(decode).unwrap_or_default();
            let _nobody_reads = std::io::stdout().write_all(&stdout);
            for stage in &response.stages {
                let _nobody_reads = std::io::stderr().write_all(&decode(&stage.stderr));
            }
            if response.stdout_truncated || response.stages.iter().any(|stage| stage.stderr_truncated) {
                errln!("outpost: it wrote more than the broker passes on");
            }
            response.stages.last().map_or(ERROR, exit_code)
        }
        Status::Denied => {
            errln!("outpost: denied: {said}");
            DENIED
        }
        Status::Timeout => {
            errln!("outpost: nobody answered in time, nothing was run: {said}");
            TIMEOUT
        }
        Status::Error => {
            errln!("outpost: {said}");
            ERROR
        }
    };
    ExitCode::from(code)
}

/// A shell's convention for signals.
fn exit_code(stage: &Stage) -> u8 {
    let signal = stage.signal.as_deref().and_then(Signal::from_name).map(|signal| 128 + signal.number());
    u8::try_from(signal.unwrap_or(stage.exit_code)).unwrap_or(u8::MAX)
}
