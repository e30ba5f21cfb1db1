//! One command from start to reply: one task streams it, applies its limits, ends it and answers.

mod output;
mod start;
mod stdin;

pub(crate) use output::Output;
pub(crate) use start::Start;
use start::start_failure;
pub(crate) use stdin::{Input, Stdin};

use crate::connection::Connection;
use crate::wire::{CommandExecTerminalSize, Failure};
use outpost_engine::{Exit, ExitCause, Key, Process, Size};
use serde::Serialize;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};
use tokio::sync::{Notify, mpsc, watch};

/// "timeout (pipe, PTY, sandbox)".
const TIMED_OUT: i32 = 124;

/// A validated `command/exec` request.
pub(crate) struct CheckedExec {
    pub(crate) start: Start,
    pub(crate) output: Output,
    pub(crate) timeout: Option<Duration>,
}

/// Handle of a command for `write`, `resize` and `terminate`.
pub(crate) struct Command {
    pub(crate) terminal: bool,
    pub(crate) stdin: Option<Stdin>,
    /// The process, once started.
    process: watch::Sender<Option<Process>>,
    /// True when the process was never started, or has ended.
    over: watch::Sender<bool>,
    terminating: AtomicBool,
    terminated: Notify,
}

/// The reply. "exitCode, stdout, stderr", and additional members that clients of the original ignore.
#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Completed {
    exit_code: i32,
    stdout: String,
    stderr: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<String>,
    #[serde(skip_serializing_if = "is_false")]
    timed_out: bool,
    #[serde(skip_serializing_if = "is_false")]
    stdout_truncated: bool,
    #[serde(skip_serializing_if = "is_false")]
    stderr_truncated: bool,
    stdout_bytes: u64,
    stderr_bytes: u64,
    duration_ms: u64,
    sandbox: crate::policy::Layers,
}

fn is_false(flag: &bool) -> bool {
    !flag
}

/// Why the server killed a command.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Cause {
    Timeout,
    Terminate,
}

impl Command {
    pub(crate) fn new(terminal: bool, takes_input: bool) -> (Command, Option<mpsc::Receiver<Input>>) {
        let (stdin, input) = match takes_input {
            true => {
                let (stdin, input) = Stdin::new();
                (Some(stdin), Some(input))
            }
            false => (None, None),
        };
        let command = Command {
            terminal,
            stdin,
            process: watch::Sender::new(None),
            over: watch::Sender::new(false),
            terminating: AtomicBool::new(false),
            terminated: Notify::new(),
        };
        (command, input)
    }

    pub(crate) fn has_ended(&self) -> bool {
        let exited = |process: &Option<Process>| {
            process.as_ref().is_some_and(|process| process.status().exit().is_some())
        };
        *self.over.borrow() || exited(&self.process.borrow())
    }

    /// Waits for the process; `None` if it is never started.
    pub(crate) async fn started(&self) -> Option<Process> {
        let (mut process, mut over) = (self.process.subscribe(), self.over.subscribe());
        tokio::select! {
            biased;
            started = process.wait_for(Option::is_some) => started.ok().and_then(|process| process.clone()),
            _never = over.wait_for(|over| *over) => None,
        }
    }

    /// True for the first caller only.
    pub(crate) fn begin_termination(&self) -> bool {
        !self.terminating.swap(true, Ordering::Relaxed)
    }

    pub(crate) fn terminate(&self) {
        self.terminated.notify_one();
    }

    /// Drops the record of the process. The reply does not wait for it.
    pub(crate) async fn forget(&self) {
        let process = self.process.borrow().clone();
        if let Some(process) = process {
            let _stopping = process.forget().await;
        }
    }

    /// Runs the command until it has ended.
    pub(crate) async fn run(
        &self,
        connection: &Connection,
        asked: CheckedExec,
        name: Option<&str>,
        input: Option<mpsc::Receiver<Input>>,
    ) -> Result<Completed, Failure> {
        let running = self.run_to_end(connection, asked, name);
        let outcome = match input {
            None => running.await,
            Some(input) => {
                tokio::select! {
                    outcome = running => outcome,
                    () = stdin::feed(self, input) => std::future::pending().await,
                }
            }
        };
        self.over.send_replace(true);
        outcome
    }

    async fn run_to_end(
        &self,
        connection: &Connection,
        asked: CheckedExec,
        name: Option<&str>,
    ) -> Result<Completed, Failure> {
        let cancelled = || Failure::internal("the client closed the connection before the command started");
        let turn = tokio::select! {
            turn = connection.server.command_slots.acquire() => turn,
            () = connection.closing() => return Err(cancelled()),
        };
        let _turn = turn.map_err(|_| cancelled())?;
        let engine = connection.server.engine().await;
        let engine =
            engine.ok_or_else(|| Failure::internal("the engine could not be started; see the log"))?;
        let CheckedExec { start, mut output, timeout } = asked;
        let (confined, began) = (start.confinement.is_confined(), Instant::now());
        let ready = Arc::new(OnceLock::new());
        let started = {
            let (server, ready) = (connection.server.clone(), ready.clone());
            let key = Key::new("exec", &connection.number.to_string(), name.unwrap_or_default());
            match start.needs_no_blocking(&server) {
                true => engine.spawn(start.prepare(&server, key, &ready)?).await,
                false => engine.spawn_made(move || start.prepare(&server, key, &ready)).await?,
            }
        };
        let process = started.map_err(|error| start_failure(&error, ready.get()))?;
        self.process.send_replace(Some(process.clone()));
        let watched = self.watch(connection, &process, &mut output, timeout, name).await;
        // Kill only after the subscription is dropped: at its cap a process waits for its readers, also with its exit.
        let (exit, cause) = match watched {
            Ok(ended) => ended,
            Err(failure) => {
                end(&process).await;
                let _gone = process.finished().await;
                return Err(failure);
            }
        };
        let [stdout, stderr] = output.taken();
        Ok(Completed {
            exit_code: exit_code(exit, cause, self.terminal, confined),
            stdout: stdout.text,
            stderr: stderr.text,
            signal: exit.cause.signal_name(),
            timed_out: cause == Some(Cause::Timeout),
            stdout_truncated: stdout.truncated,
            stderr_truncated: stderr.truncated,
            stdout_bytes: stdout.bytes,
            stderr_bytes: stderr.bytes,
            duration_ms: u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX),
            // Kept until now: dropping it removes the placeholders on the host.
            sandbox: ready.get().map(|ready| ready.layers.clone()).unwrap_or_default(),
        })
    }

    /// Streams output until the process has ended; kills it at its time limit or on `terminate`. After an error the caller
    /// must end the process.
    async fn watch(
        &self,
        connection: &Connection,
        process: &Process,
        output: &mut Output,
        timeout: Option<Duration>,
        name: Option<&str>,
    ) -> Result<(Exit, Option<Cause>), Failure> {
        let streaming = output.stream(process, &connection.outbox, name);
        tokio::pin!(streaming);
        let mut cause = None;
        let time_is_up = async {
            match timeout {
                // A timeout beyond the clock's range is none.
                Some(timeout) if Instant::now().checked_add(timeout).is_some() => {
                    tokio::time::sleep(timeout).await
                }
                _ => std::future::pending().await,
            }
        };
        tokio::pin!(time_is_up);
        loop {
            cause = Some(tokio::select! {
                ended = &mut streaming => {
                    let ended = ended.map_err(|error| Failure::internal(error.to_string()));
                    return ended.map(|exit| (exit, cause));
                }
                () = &mut time_is_up, if cause.is_none() => Cause::Timeout,
                () = self.terminated.notified(), if cause.is_none() => Cause::Terminate,
                () = connection.closing() => return Err(Failure::internal("the client closed the connection")),
            });
            end(process).await;
        }
    }
}

/// "SIGKILL at once, no grace", to the whole tree, also to descendants of an ended command.
async fn end(process: &Process) {
    match process.kill_tree().await {
        Ok(0) => {}
        Ok(left) => {
            tracing::warn!(process = %process.slot(), left, "descendants of a command survive the kill")
        }
        Err(error) => tracing::warn!(process = %process.slot(), %error, "cannot kill a command"),
    }
}

/// "killed by signal / terminate, pipe: -1", "PTY: 1", "signal inside the sandbox: 128+n".
fn exit_code(exit: Exit, cause: Option<Cause>, terminal: bool, sandboxed: bool) -> i32 {
    match (exit.cause, cause) {
        (_, Some(Cause::Timeout)) => TIMED_OUT,
        (ExitCause::Code(code), _) => code,
        (ExitCause::Signal(signal), None) if sandboxed => 128 + signal,
        (ExitCause::Signal(_) | ExitCause::Unknown, _) => {
            if terminal {
                1
            } else {
                -1
            }
        }
    }
}

pub(crate) fn size(asked: CommandExecTerminalSize) -> Result<Size, Failure> {
    match asked {
        CommandExecTerminalSize { rows: 0, .. } | CommandExecTerminalSize { cols: 0, .. } => {
            Err(Failure::invalid_params("command/exec size rows and cols must be greater than 0"))
        }
        CommandExecTerminalSize { rows, cols } => Ok(Size { rows, cols }),
    }
}
