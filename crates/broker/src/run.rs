//! Running an order: one process for each stage, joined by pipes, without a shell.

mod collect;
mod ending;

use crate::order::Order;
use crate::password::{Desk, Password};
use crate::server::Settings;
use crate::sudo;
use crate::wire::{Resolved, Response, Stage, Status};
use collect::Collected;
pub(crate) use ending::kill;
use outpost_approvals::display;
use outpost_engine::{AtCap, Drain, Engine, Error, Given, How, Key, Process, ResourceLimit, Spawn, Stdio};
use outpost_sys::spawn::CORE_LIMIT;
use std::ffi::OsString;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::time::{Duration, SystemTime};
use tokio::time::Instant;

/// The face's name in the engine's table.
pub(crate) const FACE: &str = "broker";

/// What a stage's journal takes on disk before the stage waits for us.
const JOURNAL_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Raw output of all stages that one answer may hold.
const ANSWER_BYTES_MAX: usize = 128 * 1024 * 1024;

/// How long what a command has left behind may hold its output.
const DRAIN: Drain = Drain { quiet: Duration::from_millis(500), longest: Duration::from_secs(2) };

/// How long killed processes may take to be gone.
const KILL_PATIENCE: Duration = Duration::from_secs(2);

/// Stages that have been started.
pub(crate) struct Running {
    stages: Vec<Process>,
    deadline: Instant,
    through_sudo: bool,
    /// Sudo may ask for it while it runs.
    password: Option<Arc<Password>>,
}

/// A pipeline that has ended, one way or the other.
pub(crate) struct Finished {
    pub(crate) response: Response,
    /// For the chain: sizes and digests of what was written, not what it was.
    pub(crate) summary: serde_json::Value,
    stages: Vec<Process>,
}

impl Finished {
    /// Its processes have no further use for anybody.
    pub(crate) async fn forget(self) {
        for stage in self.stages {
            let _stopping = stage.forget().await;
        }
    }
}

/// Starts every stage, or none that would live on.
pub(crate) async fn start(
    engine: &Engine,
    settings: &Settings,
    order: &Order,
    key: &str,
    passwords: &Arc<Desk>,
) -> Result<Running, Response> {
    let id = &order.request.id;
    let through_sudo = order.request.privileged && outpost_sys::limits::effective_uid() != 0;
    let sudo = match through_sudo {
        false => None,
        true => {
            let found = tokio::task::spawn_blocking(sudo::find).await;
            let found = found.unwrap_or_else(|_| Err("the daemon is ending".into()));
            Some(found.map_err(|reason| Response::error(id, reason))?)
        }
    };
    let password = match settings.askpass.clone().filter(|_| through_sudo) {
        None => None,
        Some(askpass) => {
            let what = format!("Password for sudo, to run {}:", display::command(&order.request.pipeline));
            let desk = passwords.clone();
            let made = tokio::task::spawn_blocking(move || desk.password(askpass, what)).await;
            let made = made.unwrap_or_else(|_| Err("the daemon is ending".into()));
            Some(made.map_err(|reason| Response::error(id, reason))?)
        }
    };
    let count = order.request.pipeline.len();
    let mut stages: Vec<Process> = Vec::with_capacity(count);
    let mut input: Option<OwnedFd> = None;
    for at in 0..count {
        let (output, next) = match at + 1 < count {
            true => match outpost_sys::pipe::pipe() {
                Ok(pipe) => (Some(pipe.write), Some(pipe.read)),
                Err(errno) => return Err(abandon(stages, failure(id, count, at, &errno)).await),
            },
            false => (None, None),
        };
        let given =
            Given { stdin: input.take().map(Arc::new), stdout: output.map(Arc::new), ..Given::default() };
        let spawn = match &sudo {
            Some(sudo) => through(sudo, order, at, key, given, settings, password.as_deref()),
            None => direct(order, at, key, given, settings),
        };
        match engine.spawn(spawn).await {
            Ok(process) => {
                if let Some(password) = &password {
                    password.may_be_asked_for(process.pid());
                }
                stages.push(process);
            }
            Err(error) => return Err(abandon(stages, failure(id, count, at, &reason(&error))).await),
        }
        input = next;
    }
    let deadline = Instant::now() + settings.run_patience;
    Ok(Running { stages, deadline, through_sudo, password })
}

/// As the original words it, with the kernel's reason where there is one.
fn failure(id: &str, count: usize, at: usize, reason: &dyn std::fmt::Display) -> Response {
    match count {
        1 => Response::error(id, format!("failed to execute command: {reason}")),
        _ => Response::error(id, format!("failed to spawn pipeline stage {at}: {reason}")),
    }
}

/// The same for a program that was not even found.
pub(crate) fn not_executable(id: &str, count: usize, at: usize, errno: i32) -> Response {
    failure(id, count, at, &std::io::Error::from_raw_os_error(errno))
}

fn reason(error: &Error) -> String {
    match error {
        Error::Start { failure, .. } => {
            std::io::Error::from_raw_os_error(failure.errno.raw_os_error()).to_string()
        }
        other => other.to_string(),
    }
}

/// Ends what was started before the stage that could not be.
async fn abandon(stages: Vec<Process>, response: Response) -> Response {
    let _told_in_the_log = kill(&stages).await;
    for stage in stages {
        let _late = tokio::time::timeout(KILL_PATIENCE, stage.finished()).await;
        let _stopping = stage.forget().await;
    }
    response
}

fn spawn(
    order: &Order,
    at: usize,
    key: &str,
    arguments: Vec<String>,
    given: Given,
    settings: &Settings,
) -> Spawn {
    let arguments: Vec<OsString> = arguments.into_iter().map(OsString::from).collect();
    let pair = |(name, value): (&String, &String)| (OsString::from(name), OsString::from(value));
    let core = ResourceLimit { resource: CORE_LIMIT, soft: 0, hard: 0 };
    Spawn {
        environment: order.environment.iter().map(pair).collect(),
        directory: Some(order.cwd.clone()),
        stdio: Stdio::Pipes { stdin: false },
        given: Given { directory: Some(order.directory.clone()), ..given },
        new_session: true,
        limits: settings.limits.iter().copied().chain([core]).collect(),
        // Root's files are for others to read, unless somebody says otherwise.
        credentials: order.credentials.clone(),
        umask: Some(if order.request.privileged { 0o022 } else { 0o077 }),
        at_cap: AtCap::WaitForReaders,
        journal_bytes_max: Some(JOURNAL_BYTES_MAX),
        drain: DRAIN,
        // Commands start services.
        marked: false,
        started_by: format!("broker request {key}"),
        ..Spawn::bare(Key::new(FACE, key, &at.to_string()), arguments)
    }
}

/// The very file that was looked at, whatever its name stands for by now.
fn direct(order: &Order, at: usize, key: &str, given: Given, settings: &Settings) -> Spawn {
    let arguments = order.request.pipeline.get(at).cloned().unwrap_or_default();
    let mut spawn = spawn(order, at, key, arguments, given, settings);
    let Some(program) = order.programs.get(at) else { return spawn };
    spawn.program = program.found.clone();
    match (program.is_script, program.is_guarded) {
        (false, _) => spawn.given.program = Some(program.file.clone()),
        // Its interpreter is given a name. Nobody but root could make this one stand for something else.
        (true, true) => {}
        (true, false) => {
            const PLACE: u8 = 3;
            spawn.descriptors = vec![(program.file.clone(), PLACE)];
            spawn.program = format!("/proc/self/fd/{PLACE}").into();
        }
    }
    spawn
}

fn through(
    sudo: &crate::files::Pinned,
    order: &Order,
    at: usize,
    key: &str,
    given: Given,
    settings: &Settings,
    password: Option<&Password>,
) -> Spawn {
    let stage = order.request.pipeline.get(at).map(Vec::as_slice).unwrap_or_default();
    let names: Vec<String> = order.request.env.keys().cloned().collect();
    let program = order.programs.get(at).map(|program| program.found.clone()).unwrap_or_default();
    let arguments = sudo::arguments(&program, stage, &names, password.is_some());
    let mut spawn = spawn(order, at, key, arguments, given, settings);
    spawn.program = sudo.path.clone();
    spawn.given.program = Some(sudo.file.clone());
    // Sudo makes the command's own HOME, USER and PATH; these are sudo's.
    if let Some(password) = password {
        spawn.environment = spawn.environment.iter().cloned().chain(password.environment()).collect();
    }
    spawn
}

impl Running {
    /// The stages that an earlier worker has started, if all of them were.
    pub(crate) async fn find(
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
        let ran = now.saturating_sub(Duration::from_millis(began));
        let deadline = Instant::now() + settings.run_patience.saturating_sub(ran);
        Ok(Running { stages, deadline, through_sudo: false, password: None })
    }

    pub(crate) fn stages(&self) -> Vec<Process> {
        self.stages.clone()
    }

    /// Waits for every stage, and takes what it writes.
    pub(crate) async fn finish(self, order_id: &str, resolved: &[Resolved], settings: &Settings) -> Finished {
        let budget = Arc::new(AtomicUsize::new(ANSWER_BYTES_MAX));
        let mut readers: Vec<_> = self
            .stages
            .iter()
            .map(|stage| tokio::spawn(collect::collect(stage.clone(), budget.clone())))
            .collect();
        let mut timed_out = false;
        let mut stuck = Vec::new();
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
                stuck = kill(&self.stages).await;
            }
            match tokio::time::timeout(KILL_PATIENCE, &mut *reader).await {
                Ok(done) => collected.push(done.unwrap_or_default()),
                Err(_) => {
                    reader.abort();
                    if !stuck.contains(&stage.pid()) {
                        stuck.push(stage.pid());
                    }
                    collected.push(collect::so_far(stage, &budget).await);
                }
            }
        }
        let mut response = self.response(order_id, resolved, &mut collected);
        if timed_out {
            let what = if self.stages.len() == 1 { "command" } else { "pipeline" };
            response.status = Status::Error;
            response.timed_out = true;
            let mut message = format!("{what} timed out after {}s", settings.run_patience.as_secs());
            if !stuck.is_empty() {
                message.push_str(&format!(
                    "; it could not be ended, since it runs with more rights than this daemon (pids {stuck:?})"
                ));
            }
            response.message = Some(message);
        }
        let summary = summary(&response, &collected);
        Finished { response, summary, stages: self.stages }
    }

    fn response(&self, id: &str, resolved: &[Resolved], collected: &mut [Collected]) -> Response {
        let mut response = Response::new(id, Status::Ok);
        for (at, stage) in collected.iter().enumerate() {
            let (exit_code, signal) = match stage.exit.map(|exit| exit.how) {
                Some(How::Code(code)) => (code, None),
                Some(how) => (-1, how.signal_name()),
                None => (-1, None),
            };
            response.stages.push(Stage {
                exit_code,
                stderr: encoded(&stage.stderr.bytes),
                stderr_truncated: stage.stderr.truncated,
                signal,
                duration_ms: self.stages.get(at).and_then(|process| stage.duration_ms(process)),
                resolved: resolved.get(at).cloned(),
            });
        }
        if let Some(last) = collected.last() {
            response.stdout = Some(encoded(&last.stdout.bytes));
            response.stdout_truncated = last.stdout.truncated;
        }
        if self.through_sudo
            && let Some(refusal) = self.refusal(&response, collected)
        {
            response.status = Status::Error;
            response.message = Some(refusal);
        }
        response
    }

    fn refusal(&self, response: &Response, collected: &[Collected]) -> Option<String> {
        let stages = response.stages.iter().zip(collected);
        stages.into_iter().find_map(|(stage, collected)| {
            let silent = collected.stdout.bytes.is_empty();
            sudo::refusal(stage.exit_code, &collected.stderr.bytes, silent, self.password.is_some())
        })
    }
}

fn encoded(bytes: &[u8]) -> String {
    let mut text = Vec::new();
    outpost_wire::base64::append(&mut text, bytes);
    // Base64 is ASCII.
    String::from_utf8(text).unwrap_or_default()
}

fn summary(response: &Response, collected: &[Collected]) -> serde_json::Value {
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
