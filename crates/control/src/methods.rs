//! The methods of the control socket, by name.

use crate::server::{Answer, Context, Program};
use crate::wire::{
    Attach, Attached, ExitStatus, Failure, Kill, Killed, ProcessInfo, Resize, Signal, Spawn, Spawned, Status,
    Stdin, StdinApplied, StdinOutcome, UpgradeBinary, Which,
};
use outpost_engine::{
    Accepted, Engine, Error, Exit, How, Key, Ladder, OnTaken, Process, Reach, Signal as Number, Size, Slot,
    Stdio,
};
use outpost_wire::base64;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

const FACE: &str = "control";

/// How long a process may take to end by itself before its tree is killed.
const GRACE: Duration = Duration::from_secs(3);

type Outcome = Result<Answer, Failure>;

pub(crate) async fn call<P: Program>(
    context: &Context<P>,
    method: &str,
    params: Option<&RawValue>,
) -> Outcome {
    let engine = &context.engine;
    match method {
        "spawn" => spawn(engine, parse(params)?).await,
        "list" => list(engine).await,
        "attach" => attach(engine, parse(params)?).await,
        "stdin" => stdin(engine, parse(params)?).await,
        "closeStdin" => {
            find(engine, &parse::<Which>(params)?.process).await?.close_stdin().await.map_err(failure)?;
            answer(&())
        }
        "resize" => resize(engine, parse(params)?).await,
        "signal" => signal(engine, parse(params)?).await,
        "kill" => kill(engine, parse(params)?).await,
        "forget" => {
            find(engine, &parse::<Which>(params)?.process).await?.forget().await.map_err(failure)?;
            answer(&())
        }
        "status" => status(engine, &context.program).await,
        "upgrade" => upgrade(&context.program, parse(params)?).await,
        "wakeRelay" => {
            let woken = context.program.wake_relay(parse(params)?).await;
            woken.map_err(|message| Failure { kind: "relay".into(), message })?;
            answer(&())
        }
        "settings" => {
            let settings = context.program.settings();
            answer(&settings.ok_or_else(|| Failure {
                kind: "settings".into(),
                message: "this daemon has no configuration".into(),
            })?)
        }
        "reload" => {
            let reloaded = context.program.reload().await;
            answer(&reloaded.map_err(|message| Failure { kind: "settings".into(), message })?)
        }
        "stop" => {
            context.program.stop();
            answer(&())
        }
        _ => Err(Failure { kind: "method".into(), message: format!("there is no method {method:?}") }),
    }
}

fn parse<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, Failure> {
    let text = params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|error| Failure { kind: "params".into(), message: error.to_string() })
}

fn answer(result: &impl Serialize) -> Outcome {
    // As text at once: a list of thousands would be many times as large as a tree of values.
    let result = serde_json::value::to_raw_value(result);
    let result = result.map_err(|error| Failure { kind: "internal".into(), message: error.to_string() })?;
    Ok(Answer { result, follow: None })
}

fn failure(error: Error) -> Failure {
    let kind = match &error {
        Error::Start { .. } => "start",
        Error::Taken { .. } => "taken",
        Error::NotRunning => "notRunning",
        Error::NoStdin => "noStdin",
        Error::NoTerminal => "noTerminal",
        Error::Gone => "unknown",
        Error::Busy => "busy",
        Error::Invalid { .. } => "params",
        Error::Io { .. } | Error::Journal(_) | Error::Stopped => "internal",
    };
    Failure { kind: kind.into(), message: error.to_string() }
}

/// By the engine's number, or by the id of a process of this face.
async fn find(engine: &Engine, name: &str) -> Result<Process, Failure> {
    if let Ok(slot) = name.parse::<Slot>()
        && let Some(process) = engine.get(slot).await
    {
        return Ok(process);
    }
    let found = engine.find(&Key::new(FACE, "", name)).await;
    found.ok_or_else(|| Failure {
        kind: "unknown".into(),
        message: format!("there is no process {name:?}; `outpost ps` lists them"),
    })
}

async fn spawn(engine: &Engine, params: Spawn) -> Outcome {
    let mut spawn = outpost_engine::Spawn::new(Key::new(FACE, "", &params.id), &params.command);
    if let Some(environment) = params.environment {
        spawn.environment =
            environment.into_iter().map(|(name, value)| (name.into(), value.into())).collect();
    }
    spawn.program = look_up(&spawn)?;
    spawn.directory = params.directory.map(PathBuf::from);
    spawn.stdio = match params.terminal {
        Some(size) => Stdio::Terminal(Size { rows: size.rows, cols: size.cols }),
        None => Stdio::Pipes { stdin: params.stdin },
    };
    spawn.new_session = params.new_session;
    spawn.on_taken = if params.replace { OnTaken::Replace } else { OnTaken::Refuse };
    spawn.started_by = "command line".into();
    let process = engine.spawn(spawn).await.map_err(failure)?;
    answer(&Spawned { process: process.slot().to_string(), pid: process.pid() })
}

/// A name without a slash is looked up in the PATH the process will have.
fn look_up(spawn: &outpost_engine::Spawn) -> Result<PathBuf, Failure> {
    let name = &spawn.program;
    if name.as_os_str().is_empty() {
        return Err(Failure { kind: "params".into(), message: "the command is empty".into() });
    }
    if name.components().count() > 1 || name.is_absolute() {
        return Ok(name.clone());
    }
    let path = spawn.environment.iter().find(|(name, _)| name == "PATH").map(|(_, value)| value.clone());
    let path = path.unwrap_or_else(|| "/usr/local/bin:/usr/bin:/bin".into());
    let found = std::env::split_paths(&path)
        .filter(|dir| dir.is_absolute())
        .map(|dir| dir.join(name))
        .find(|path| is_program(path));
    found.ok_or_else(|| Failure {
        kind: "start".into(),
        message: format!("start {}: not found in PATH", name.display()),
    })
}

fn is_program(path: &Path) -> bool {
    use std::os::unix::fs::PermissionsExt;
    path.metadata().is_ok_and(|metadata| metadata.is_file() && metadata.permissions().mode() & 0o111 != 0)
}

async fn attach(engine: &Engine, params: Attach) -> Outcome {
    let process = find(engine, &params.process).await?;
    let (first_seq, last_seq) = process.sequence();
    let attached = Attached {
        process: process.slot().to_string(),
        first_seq,
        last_seq,
        stdin_accepted: process.stdin_accepted(),
        running: process.status().exit().is_none(),
    };
    Ok(Answer { follow: Some((process, params.after)), ..answer(&attached)? })
}

async fn stdin(engine: &Engine, params: Stdin) -> Outcome {
    let data = base64::decode(params.data.as_bytes());
    let data = data.ok_or_else(|| Failure { kind: "params".into(), message: "data is not base64".into() })?;
    let data = Arc::new(data);
    let process = find(engine, &params.process).await?;
    loop {
        let (outcome, applied) =
            match process.write_stdin(params.offset, data.clone()).await.map_err(failure)? {
                Accepted::Applied { applied } => (StdinOutcome::Applied, applied),
                Accepted::Duplicate { applied } => (StdinOutcome::Duplicate, applied),
                Accepted::Gap { applied } => (StdinOutcome::Gap, applied),
                Accepted::Full { .. } => {
                    process.stdin_room().await.map_err(failure)?;
                    continue;
                }
            };
        return answer(&StdinApplied { outcome, applied });
    }
}

async fn resize(engine: &Engine, params: Resize) -> Outcome {
    let size = Size { rows: params.size.rows, cols: params.size.cols };
    find(engine, &params.process).await?.resize(size).map_err(failure)?;
    answer(&())
}

fn signal_number(name: &str) -> Result<Number, Failure> {
    let number = Number::from_name(name).or_else(|| Number::from_number(name.parse().ok()?));
    number.ok_or_else(|| Failure { kind: "params".into(), message: format!("there is no signal {name:?}") })
}

async fn signal(engine: &Engine, params: Signal) -> Outcome {
    let number = signal_number(&params.signal)?;
    let reach = if params.group { Reach::Group } else { Reach::Leader };
    find(engine, &params.process).await?.signal(number, reach).await.map_err(failure)?;
    answer(&())
}

async fn kill(engine: &Engine, params: Kill) -> Outcome {
    let ladder = Ladder {
        signal: params.signal.as_deref().map_or(Ok(Number::TERM), signal_number)?,
        reach: Reach::Tree,
        grace: params.grace_ms.map_or(GRACE, Duration::from_millis),
        escalate: true,
    };
    let report = find(engine, &params.process).await?.kill_and_wait(ladder).await.map_err(failure)?;
    answer(&Killed {
        already_exited: report.already_exited,
        died: report.died,
        escalated: report.escalated,
        survivors: report.survivors,
    })
}

pub(crate) fn exit_status(exit: Exit) -> ExitStatus {
    let (code, signal) = match exit.how {
        How::Code(code) => (Some(code), None),
        How::Signal(signal) => (None, Some(signal)),
        How::Unknown => (None, None),
    };
    ExitStatus { code, signal, user_ms: exit.user_ms, system_ms: exit.system_ms, rss_max_kb: exit.rss_max_kb }
}

async fn list(engine: &Engine) -> Outcome {
    let processes: Vec<ProcessInfo> = engine.list().await.iter().map(describe).collect();
    answer(&processes)
}

fn describe(process: &Process) -> ProcessInfo {
    let info = process.info();
    ProcessInfo {
        process: info.slot.to_string(),
        face: info.key.face,
        scope: info.key.scope,
        id: info.key.id,
        pid: info.pid,
        state: match info.status.exit() {
            Some(_) => "exited".into(),
            None if info.stalled => "stalled".into(),
            None => "running".into(),
        },
        exit: info.status.exit().map(exit_status),
        command: info.arguments,
        directory: info.directory,
        terminal: info.terminal,
        started_ms: info.started_ms,
        started_by: info.started_by,
        rss_bytes: info.rss_bytes,
        cpu_ticks: info.cpu_ticks,
        output_bytes: info.bytes_total,
        kept_bytes: info.bytes_kept,
        first_seq: info.first_seq,
        last_seq: info.last_seq,
        stdin_accepted: info.stdin_accepted,
        readers: info.readers,
        stalled: info.stalled,
    }
}

async fn status<P: Program>(engine: &Engine, program: &P) -> Outcome {
    let processes = engine.list().await;
    answer(&Status {
        version: env!("CARGO_PKG_VERSION").into(),
        worker_pid: std::process::id(),
        keeper_pid: engine.keeper_pid(),
        running: processes.iter().filter(|process| process.status().exit().is_none()).count(),
        processes: processes.len(),
        relay: program.relay(),
        uptime_s: outpost_sys::procfs::age(engine.keeper_pid().cast_signed()).map_or(0, |age| age.as_secs()),
        worker_uptime_s: outpost_sys::procfs::age(std::process::id().cast_signed())
            .map_or(0, |age| age.as_secs()),
        journal_bytes: engine.counts().journal_bytes,
        faces: program.faces(),
    })
}

async fn upgrade<P: Program>(program: &P, params: UpgradeBinary) -> Outcome {
    let internal = |message: String| Failure { kind: "upgrade".into(), message };
    let binary = outpost_sys::file::open(&params.path, outpost_sys::file::Open::Program);
    let binary = binary.map_err(|errno| internal(format!("open {}: {errno}", params.path)))?;
    program.upgrade(binary).await.map_err(internal)?;
    answer(&())
}
