//! Execution of a pinned request: one process per stage, connected by pipes, without a shell.

mod collect;
mod terminate;

use crate::password::{PasswordPrompts, PipelinePassword};
use crate::pinned_request::PinnedRequest;
use crate::server::Settings;
use crate::sudo;
use crate::wire::{Resolved, Response, Stage, Status};
use collect::StageOutput;
use outpost_approvals::display;
use outpost_engine::{
    AtCap, Drain, Engine, Error, ExitCause, Key, OpenFiles, Process, ResourceLimit, Spawn, Stdio,
};
use outpost_sys::spawn::CORE_LIMIT;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime};
pub(crate) use terminate::kill;
use tokio::time::Instant;

/// The face's name in the engine's table.
pub(crate) const FACE: &str = "broker";

/// Journal size on disk at which a stage blocks until its output is read.
const JOURNAL_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Raw output of all stages in one response.
const RESPONSE_BYTES_MAX: usize = 128 * 1024 * 1024;

/// After a command's exit: how long descendants that hold its pipes may still write.
const DRAIN: Drain = Drain { quiet: Duration::from_millis(500), longest: Duration::from_secs(2) };

/// Wait for the exit of killed processes.
const KILL_TIMEOUT: Duration = Duration::from_secs(2);

/// A started pipeline.
pub(crate) struct Running {
    stages: Vec<Process>,
    deadline: Instant,
    through_sudo: bool,
    /// sudo may request it while the pipeline runs.
    password: Option<Arc<PipelinePassword>>,
}

/// A pipeline that exited or was killed.
pub(crate) struct Finished {
    pub(crate) response: Response,
    /// For the audit chain: sizes and hashes of the output, without the output itself.
    pub(crate) summary: serde_json::Value,
    stages: Vec<Process>,
}

impl Finished {
    /// Deletes the engine's records of its processes.
    pub(crate) async fn release(self) {
        for stage in self.stages {
            let _shutting_down = stage.forget().await;
        }
    }
}

/// Starts every stage. If one fails, the started ones are killed.
pub(crate) async fn start(
    engine: &Engine,
    settings: &Settings,
    pinned: &PinnedRequest,
    key: &str,
    passwords: &Arc<PasswordPrompts>,
) -> Result<Running, Response> {
    let id = &pinned.request.id;
    let through_sudo = pinned.request.privileged && outpost_sys::process::effective_uid() != 0;
    let sudo = match through_sudo {
        false => None,
        true => {
            let found = tokio::task::spawn_blocking(sudo::find).await;
            let found = found.unwrap_or_else(|_| Err("the daemon is stopping".into()));
            Some(found.map_err(|reason| Response::error(id, reason))?)
        }
    };
    let password = match settings.askpass.clone().filter(|_| through_sudo) {
        None => None,
        Some(askpass) => {
            let prompt = format!("Password for sudo, to run {}:", display::command(&pinned.request.pipeline));
            let prompts = passwords.clone();
            let created = tokio::task::spawn_blocking(move || prompts.create(askpass, prompt)).await;
            let created = created.unwrap_or_else(|_| Err("the daemon is stopping".into()));
            Some(created.map_err(|reason| Response::error(id, reason))?)
        }
    };
    let count = pinned.request.pipeline.len();
    let mut stages: Vec<Process> = Vec::with_capacity(count);
    let mut input: Option<OwnedFd> = None;
    for at in 0..count {
        let (output, next) = match at + 1 < count {
            true => match outpost_sys::pipe::pipe() {
                Ok(pipe) => (Some(pipe.write), Some(pipe.read)),
                Err(errno) => return Err(kill_started(stages, failure(id, count, at, &errno)).await),
            },
            false => (None, None),
        };
        let files = OpenFiles {
            stdin: input.take().map(Arc::new),
            stdout: output.map(Arc::new),
            ..OpenFiles::default()
        };
        let spawn = match &sudo {
            Some(sudo) => sudo_spawn(sudo, pinned, at, key, files, settings, password.as_deref()),
            None => direct_spawn(pinned, at, key, files, settings),
        };
        match engine.spawn(spawn).await {
            Ok(process) => {
                if let Some(password) = &password {
                    password.register_sudo(process.pid());
                }
                stages.push(process);
            }
            Err(error) => {
                return Err(kill_started(stages, failure(id, count, at, &spawn_error(&error))).await);
            }
        }
        input = next;
    }
    let deadline = Instant::now() + settings.run_timeout;
    Ok(Running { stages, deadline, through_sudo, password })
}

/// The response for a stage that cannot be started, with the contract's text.
fn failure(id: &str, count: usize, at: usize, reason: &dyn std::fmt::Display) -> Response {
    match count {
        1 => Response::error(id, format!("failed to execute command: {reason}")),
        _ => Response::error(id, format!("failed to spawn pipeline stage {at}: {reason}")),
    }
}

/// The response for a program that was not found or is not executable.
pub(crate) fn not_executable_response(id: &str, count: usize, at: usize, errno: i32) -> Response {
    failure(id, count, at, &std::io::Error::from_raw_os_error(errno))
}

/// The reason of a failed spawn. An errno of exec has the text of the contract.
fn spawn_error(error: &Error) -> String {
    match error {
        Error::Start { failure, .. } => {
            std::io::Error::from_raw_os_error(failure.errno.raw_os_error()).to_string()
        }
        other => other.to_string(),
    }
}

/// Kills the stages that were started before the failed one.
async fn kill_started(stages: Vec<Process>, response: Response) -> Response {
    let _logged = kill(&stages).await;
    for stage in stages {
        let _late = tokio::time::timeout(KILL_TIMEOUT, stage.finished()).await;
        let _shutting_down = stage.forget().await;
    }
    response
}

/// The settings that direct stages and stages under sudo share.
fn base_spawn(
    pinned: &PinnedRequest,
    at: usize,
    key: &str,
    arguments: Vec<String>,
    files: OpenFiles,
    settings: &Settings,
) -> Spawn {
    let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
    let pair = |(name, value): (&String, &String)| (OsString::from(name), OsString::from(value));
    let core = ResourceLimit { resource: CORE_LIMIT, soft: 0, hard: 0 };
    Spawn {
        environment: pinned.environment.iter().map(pair).collect(),
        directory: Some(pinned.cwd.clone()),
        stdio: Stdio::Pipes { stdin: false },
        open_files: OpenFiles { directory: Some(pinned.directory.clone()), ..files },
        new_session: true,
        limits: settings.resource_limits.iter().copied().chain([core]).collect(),
        credentials: pinned.credentials.clone(),
        // Other users may read root's files. Files of other users are private.
        umask: Some(if pinned.request.privileged { 0o022 } else { 0o077 }),
        at_cap: AtCap::WaitForReaders,
        journal_bytes_max: Some(JOURNAL_BYTES_MAX),
        drain: DRAIN,
        // Commands may start services, which must survive them.
        marked: false,
        started_by: format!("broker request {key}"),
        ..Spawn::bare(Key::new(FACE, key, &at.to_string()), arguments)
    }
}

/// Executes the pinned descriptor, whatever its path leads to now.
fn direct_spawn(
    pinned: &PinnedRequest,
    at: usize,
    key: &str,
    files: OpenFiles,
    settings: &Settings,
) -> Spawn {
    let arguments = pinned.request.pipeline.get(at).cloned().unwrap_or_default();
    let mut spawn = base_spawn(pinned, at, key, arguments, files, settings);
    let Some(program) = pinned.programs.get(at) else { return spawn };
    spawn.program = program.lookup_path.clone();
    match (program.is_script, program.is_root_only) {
        (false, _) => spawn.open_files.program = Some(program.file.clone()),
        // The interpreter opens the script by its path. Only root can replace the file at this path.
        (true, true) => {}
        (true, false) => {
            const SCRIPT_FD: u8 = 3;
            spawn.descriptors = vec![(program.file.clone(), SCRIPT_FD)];
            spawn.program = format!("/proc/self/fd/{SCRIPT_FD}").into();
        }
    }
    spawn
}

/// Executes the pinned sudo, which executes the program.
fn sudo_spawn(
    sudo: &crate::files::PinnedFile,
    pinned: &PinnedRequest,
    at: usize,
    key: &str,
    files: OpenFiles,
    settings: &Settings,
    password: Option<&PipelinePassword>,
) -> Spawn {
    let stage = pinned.request.pipeline.get(at).map(Vec::as_slice).unwrap_or_default();
    let names: Vec<String> = pinned.request.env.keys().cloned().collect();
    let program = pinned.programs.get(at).map(|program| program.lookup_path.clone()).unwrap_or_default();
    let arguments = sudo::arguments(&program, stage, &names, password.is_some());
    let mut spawn = base_spawn(pinned, at, key, arguments, files, settings);
    spawn.program = sudo.real_path.clone();
    spawn.open_files.program = Some(sudo.file.clone());
    // Variables for sudo itself. sudo sets HOME, USER and PATH of the command.
    if let Some(password) = password {
        spawn.environment = spawn.environment.iter().cloned().chain(password.environment()).collect();
    }
    spawn
}

impl Running {
    /// The pipeline that an earlier worker started. The error has its spawned stages if some are missing.
    pub(crate) async fn reattach(
        engine: &Engine,
        settings: &Settings,
        key: &str,
        count: usize,
    ) -> Result<Running, Vec<Process>> {
        let mut stages = Vec::with_capacity(count);
        for at in 0..count {
            if let Some(stage) = engine.find(&Key::new(FACE, key, &at.to_string())).await {
                stages.push(stage);
            }
        }
        if stages.len() != count {
            return Err(stages);
        }
        let began = stages.first().map_or(0, Process::started_ms);
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let elapsed = now.saturating_sub(Duration::from_millis(began));
        let deadline = Instant::now() + settings.run_timeout.saturating_sub(elapsed);
        Ok(Running { stages, deadline, through_sudo: false, password: None })
    }

    pub(crate) fn stages(&self) -> Vec<Process> {
        self.stages.clone()
    }

    /// Waits for every stage and collects the output. Kills the pipeline at the deadline.
    pub(crate) async fn finish(
        self,
        request_id: &str,
        resolved: &[Resolved],
        settings: &Settings,
    ) -> Finished {
        let budget = Arc::new(AtomicUsize::new(RESPONSE_BYTES_MAX));
        let mut readers: Vec<_> = self
            .stages
            .iter()
            .map(|stage| tokio::spawn(collect::collect(stage.clone(), budget.clone())))
            .collect();
        let mut timed_out = false;
        let mut unkillable = Vec::new();
        let mut collected = Vec::with_capacity(readers.len());
        for (stage, reader) in self.stages.iter().zip(&mut readers) {
            if !timed_out
                && tokio::time::timeout_at(self.deadline, &mut *reader).await.is_ok_and(|done| {
                    collected.push(done.unwrap_or_default());
                    true
                })
            {
                continue;
            }
            if !timed_out {
                timed_out = true;
                unkillable = kill(&self.stages).await;
            }
            match tokio::time::timeout(KILL_TIMEOUT, &mut *reader).await {
                Ok(done) => collected.push(done.unwrap_or_default()),
                Err(_) => {
                    reader.abort();
                    if !unkillable.contains(&stage.pid()) {
                        unkillable.push(stage.pid());
                    }
                    collected.push(collect::collect_available(stage, &budget).await);
                }
            }
        }
        let mut response = self.response(request_id, resolved, &collected);
        if timed_out {
            let what = if self.stages.len() == 1 { "command" } else { "pipeline" };
            response.status = Status::Error;
            response.timed_out = true;
            let mut message = format!("{what} timed out after {}s", settings.run_timeout.as_secs());
            if !unkillable.is_empty() {
                message.push_str(&format!(
                    "; it could not be ended, since it runs with more rights than this daemon (pids {unkillable:?})"
                ));
            }
            response.message = Some(message);
        }
        let summary = summary(&response, &collected);
        Finished { response, summary, stages: self.stages }
    }

    fn response(&self, id: &str, resolved: &[Resolved], collected: &[StageOutput]) -> Response {
        let mut response = Response::new(id, Status::Ok);
        for (at, stage) in collected.iter().enumerate() {
            let (exit_code, signal) = match stage.exit.map(|exit| exit.cause) {
                Some(ExitCause::Code(code)) => (code, None),
                Some(how) => (-1, how.signal_name()),
                None => (-1, None),
            };
            response.stages.push(Stage {
                exit_code,
                stderr: base64_text(&stage.stderr.bytes),
                stderr_truncated: stage.stderr.truncated,
                signal,
                duration_ms: self.stages.get(at).and_then(|process| stage.duration_ms(process)),
                resolved: resolved.get(at).cloned(),
            });
        }
        if let Some(last) = collected.last() {
            response.stdout = Some(base64_text(&last.stdout.bytes));
            response.stdout_truncated = last.stdout.truncated;
        }
        if self.through_sudo
            && let Some(refusal) = self.sudo_refusal(&response, collected)
        {
            response.status = Status::Error;
            response.message = Some(refusal);
        }
        response
    }

    /// The message if sudo refused one of the stages.
    fn sudo_refusal(&self, response: &Response, collected: &[StageOutput]) -> Option<String> {
        let stages = response.stages.iter().zip(collected);
        stages.into_iter().find_map(|(stage, collected)| {
            let stdout_empty = collected.stdout.bytes.is_empty();
            sudo::refusal(stage.exit_code, &collected.stderr.bytes, stdout_empty, self.password.is_some())
        })
    }
}

fn base64_text(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    outpost_wire::base64::append(&mut text, bytes);
    // Base64 is ASCII.
    String::from_utf8(text).unwrap_or_default()
}

fn summary(response: &Response, collected: &[StageOutput]) -> serde_json::Value {
    let stages: Vec<_> = response
        .stages
        .iter()
        .zip(collected)
        .map(|(stage, collected)| {
            serde_json::json!({
                "exit_code": stage.exit_code, "signal": stage.signal,
                "stdout": collected.stdout.summary(), "stderr": collected.stderr.summary(),
            })
        })
        .collect();
    serde_json::json!({ "status": response.status, "timed_out": response.timed_out, "message": response.message, "stages": stages })
}
