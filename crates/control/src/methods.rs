//! The methods of the control socket: dispatch by name, and those that need no module of their own.

use crate::client_bound;
use crate::input_lock::{InputGuard, LockedByOther};
use crate::lookup::find;
use crate::peer::{ConnectionId, Peer};
use crate::server::{Context, DaemonOps, Response};
use crate::spawn;
use crate::stream::Attachment;
use crate::wire::{
    Attach, Attached, ExitStatus, Failure, InputClaim, KeepReport, Kill, Killed, ProcessInfo, ProcessRef,
    Resize, Signal, Status, StatusQuery, Stdin, StdinApplied, StdinOutcome, Stop, TerminalSize,
    UpgradeBinary, Usage,
};
use outpost_engine::{
    Accepted, Engine, Error, Exit, ExitCause, ExitUnknown, Ladder, Process, Reach, Signal as Number, Size,
};
use outpost_sys::procfs;
use outpost_wire::base64;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const FACE: &str = "control";

/// Default time between the first signal of a kill and SIGKILL for the tree.
const GRACE: Duration = Duration::from_secs(3);

pub(crate) type MethodResult = Result<Response, Failure>;

pub(crate) async fn call<P: DaemonOps>(
    context: &Arc<Context<P>>,
    peer: &Peer,
    method: &str,
    params: Option<&RawValue>,
) -> MethodResult {
    let (engine, connection) = (&context.engine, peer.id);
    match method {
        "spawn" if context.daemon.keeps_children() => Err(Failure {
            kind: "keep".into(),
            message: "the daemon was stopped and only keeps its processes; `outpost serve` resumes it".into(),
        }),
        "spawn" => spawn::spawn(context, parse(params)?).await,
        "list" => list(engine).await,
        "describe" => response(&describe(&find(engine, &parse::<ProcessRef>(params)?.process).await?)),
        "attach" => attach(context, connection, parse(params)?).await,
        "stdin" => stdin(context, peer, parse(params)?).await,
        "closeStdin" => close_stdin(context, connection, parse(params)?).await,
        "resize" => resize(context, connection, parse(params)?).await,
        "signal" => signal(engine, parse(params)?).await,
        "kill" => kill(engine, parse(params)?).await,
        "forget" => {
            find(engine, &parse::<ProcessRef>(params)?.process).await?.forget().await.map_err(failure)?;
            response(&())
        }
        "status" => status(engine, &context.daemon, parse(params)?).await,
        "upgrade" => upgrade(&context.daemon, parse(params)?).await,
        "wakeRelay" => {
            let resumed = context.daemon.wake_relay(parse(params)?).await;
            resumed.map_err(|declined| declined.failure("relay"))?;
            response(&())
        }
        "keepChildren" => {
            let kept = context.daemon.keep_children().await;
            let processes = kept.map_err(|declined| declined.failure("keep"))?;
            response(&KeepReport { processes })
        }
        "serveAgain" => {
            let resumed = context.daemon.resume_serving().await;
            resumed.map_err(|declined| declined.failure("keep"))?;
            response(&())
        }
        "settings" => {
            let settings = context.daemon.settings();
            response(&settings.ok_or_else(|| Failure {
                kind: "settings".into(),
                message: "this daemon has no configuration".into(),
            })?)
        }
        "reload" => {
            let reloaded = context.daemon.reload().await;
            response(&reloaded.map_err(|declined| declined.failure("settings"))?)
        }
        "stop" => {
            let grace = parse::<Option<Stop>>(params)?.unwrap_or_default().grace_ms;
            let stopped = context.daemon.stop(grace.map(Duration::from_millis)).await;
            response(&stopped.map_err(|declined| declined.failure("stop"))?)
        }
        _ => Err(Failure { kind: "method".into(), message: format!("unknown method: {method:?}") }),
    }
}

fn parse<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, Failure> {
    let text = params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|error| Failure { kind: "params".into(), message: error.to_string() })
}

pub(crate) fn response(result: &impl Serialize) -> MethodResult {
    // Serialized directly: a `Value` tree of thousands of processes takes many times the memory of the text.
    let result = serde_json::value::to_raw_value(result);
    let result = result.map_err(|error| Failure { kind: "internal".into(), message: error.to_string() })?;
    Ok(Response { result, attachment: None })
}

pub(crate) fn failure(error: Error) -> Failure {
    let kind = match &error {
        Error::Start { .. } => "start",
        Error::Taken { .. } => "taken",
        Error::NotRunning => "notRunning",
        Error::NoStdin => "noStdin",
        Error::NoTerminal => "noTerminal",
        Error::Gone => "unknown",
        Error::Busy => "busy",
        Error::Stopping => Failure::STOPPING,
        Error::Invalid { .. } => "params",
        Error::Io { .. } | Error::Journal(_) | Error::Stopped => "internal",
    };
    Failure { kind: kind.into(), message: error.to_string() }
}

async fn attach<P>(context: &Context<P>, connection: ConnectionId, params: Attach) -> MethodResult {
    let process = find(&context.engine, &params.process).await?;
    let after = match params.tail_bytes {
        Some(bytes) => process.tail(bytes).await.map_err(failure)?,
        None => params.after,
    };
    let input = match params.write {
        None => None,
        Some(write) => Some(acquire_input(context, connection, &process, write).await),
    };
    let (first_seq, last_seq) = process.sequence();
    let size = process.size().map(|size| TerminalSize { rows: size.rows, cols: size.cols });
    let attached = Attached {
        process: process.slot().to_string(),
        first_seq,
        last_seq,
        stdin_accepted: process.stdin_accepted(),
        running: process.status().exit().is_none(),
        size,
        terminal: process.info().terminal,
        writer: matches!(input, Some(Ok(_))),
        read_only_because: input.as_ref().and_then(|input| input.as_ref().err().cloned()),
    };
    let owns = params.owns && process.key().scope == client_bound::SCOPE && process.key().face == FACE;
    let attachment = Attachment { process, after, input: input.and_then(Result::ok), owns };
    Ok(Response { attachment: Some(attachment), ..response(&attached)? })
}

/// The input lock of a process, or the reason for a read-only attach.
async fn acquire_input<P>(
    context: &Context<P>,
    connection: ConnectionId,
    process: &Process,
    write: InputClaim,
) -> Result<InputGuard, String> {
    let face = &process.key().face;
    if face != FACE {
        // The other face numbers the stdin bytes it writes. Input from here would shift its offsets.
        return Err(format!("its input belongs to a client of the {face} face"));
    }
    let acquired = context.input_locks.acquire(process.slot(), connection, write == InputClaim::Steal).await;
    acquired.map_err(|LockedByOther| "another terminal has its input; `--steal` takes it over".to_owned())
}

/// Waits for room in the stdin pipe while the client is connected. A client that disconnects has no reply yet, so its
/// input may be dropped.
async fn stdin<P>(context: &Context<P>, peer: &Peer, params: Stdin) -> MethodResult {
    let Stdin { process, offset, data } = params;
    let bytes = base64::decode(data.as_bytes());
    drop(data);
    let bytes =
        bytes.ok_or_else(|| Failure { kind: "params".into(), message: "data is not base64".into() })?;
    let bytes = Arc::new(bytes);
    let process = find(&context.engine, &process).await?;
    loop {
        if offset.is_none() && peer.has_dropped_input() {
            return Err(client_left());
        }
        let permit = context.input_locks.write_permit(process.slot(), peer.id).await.map_err(not_writer)?;
        let accepted = process.write_stdin(offset, bytes.clone()).await.map_err(failure)?;
        drop(permit);
        let (outcome, applied) = match accepted {
            Accepted::Applied { applied } => (StdinOutcome::Applied, applied),
            Accepted::Duplicate { applied } => (StdinOutcome::Duplicate, applied),
            Accepted::Gap { applied } => (StdinOutcome::Gap, applied),
            Accepted::Full { applied, .. } => {
                tokio::select! {
                    room = process.stdin_room(applied, bytes.len() as u64) => room.map_err(failure)?,
                    () = peer.outbox.closed() => {
                        peer.drop_input();
                        return Err(client_left());
                    }
                }
                continue;
            }
        };
        return response(&StdinApplied { outcome, applied });
    }
}

/// The client cannot read this reply; the request still needs a result.
fn client_left() -> Failure {
    Failure {
        kind: "gone".into(),
        message: "the client disconnected before stdin had room for its input".into(),
    }
}

fn not_writer(LockedByOther: LockedByOther) -> Failure {
    Failure { kind: "notWriter".into(), message: "another terminal holds the input of this process".into() }
}

async fn close_stdin<P>(context: &Context<P>, connection: ConnectionId, params: ProcessRef) -> MethodResult {
    let process = find(&context.engine, &params.process).await?;
    let _permit = context.input_locks.write_permit(process.slot(), connection).await.map_err(not_writer)?;
    process.close_stdin().await.map_err(failure)?;
    response(&())
}

async fn resize<P>(context: &Context<P>, connection: ConnectionId, params: Resize) -> MethodResult {
    let size = Size { rows: params.size.rows, cols: params.size.cols };
    let process = find(&context.engine, &params.process).await?;
    let _permit = context.input_locks.write_permit(process.slot(), connection).await.map_err(not_writer)?;
    process.resize(size).map_err(failure)?;
    response(&())
}

fn signal_number(name: &str) -> Result<Number, Failure> {
    let number = Number::from_name(name).or_else(|| Number::from_number(name.parse().ok()?));
    number.ok_or_else(|| Failure {
        kind: "params".into(),
        message: format!("unknown signal: {name:?}; `kill -l` lists the names"),
    })
}

async fn signal(engine: &Engine, params: Signal) -> MethodResult {
    let number = signal_number(&params.signal)?;
    let reach = if params.group { Reach::Group } else { Reach::Leader };
    find(engine, &params.process).await?.signal(number, reach).await.map_err(failure)?;
    response(&())
}

async fn kill(engine: &Engine, params: Kill) -> MethodResult {
    let ladder = Ladder {
        signal: params.signal.as_deref().map_or(Ok(Number::TERM), signal_number)?,
        reach: Reach::Tree,
        grace: params.grace_ms.map_or(GRACE, Duration::from_millis),
        escalate: true,
    };
    let process = find(engine, &params.process).await?;
    let mut report = process.kill_and_wait(ladder).await.map_err(failure)?;
    if report.already_exited {
        // A worker that died during a kill may have left part of the tree.
        report.survivors = process.kill_tree().await.map_err(failure)?;
    }
    response(&Killed {
        already_exited: report.already_exited,
        died: report.died,
        escalated: report.escalated,
        survivors: report.survivors,
    })
}

pub fn exit_status(exit: Exit) -> ExitStatus {
    let (code, signal) = match exit.cause {
        ExitCause::Code(code) => (Some(code), None),
        ExitCause::Signal(signal) => (None, Some(signal)),
        ExitCause::Unknown => (None, None),
    };
    ExitStatus { code, signal, user_ms: exit.user_ms, system_ms: exit.system_ms, rss_max_kb: exit.rss_max_kb }
}

fn unknown_exit_reason(why: ExitUnknown) -> &'static str {
    match why {
        ExitUnknown::HostRestarted => "host restarted",
        ExitUnknown::RecordDamaged => "record damaged",
        ExitUnknown::KeeperDied => "keeper died",
    }
}

async fn list(engine: &Engine) -> MethodResult {
    let processes: Vec<ProcessInfo> = engine.list_known().await.iter().map(describe).collect();
    response(&processes)
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
        exit_unknown_because: info.exit_unknown.map(|why| unknown_exit_reason(why).into()),
        command: info.arguments,
        directory: info.directory,
        terminal: info.terminal,
        started_ms: info.started_ms,
        started_by: info.started_by,
        rss_bytes: info.rss_bytes,
        cpu_ms: info.cpu_ms,
        output_bytes: info.bytes_total,
        kept_bytes: info.bytes_kept,
        first_seq: info.first_seq,
        last_seq: info.last_seq,
        stdin_accepted: info.stdin_accepted,
        readers: info.readers,
        stalled: info.stalled,
    }
}

async fn status<P: DaemonOps>(engine: &Engine, daemon: &P, query: Option<StatusQuery>) -> MethodResult {
    if query.unwrap_or_default().await_faces {
        daemon.faces_started().await;
    }
    let processes = engine.list_known().await;
    response(&Status {
        version: env!("CARGO_PKG_VERSION").into(),
        worker_pid: std::process::id(),
        keeper_pid: engine.keeper_pid(),
        running: processes.iter().filter(|process| process.status().exit().is_none()).count(),
        processes: processes.len(),
        relay: daemon.relay(),
        keeping: daemon.keeps_children(),
        arguments: std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect(),
        worker: usage(std::process::id()),
        keeper: usage(engine.keeper_pid()),
        journal_bytes: engine.counts().journal_bytes,
        faces: daemon.faces(),
    })
}

fn usage(pid: u32) -> Option<Usage> {
    let stat = procfs::stat(pid.cast_signed())?;
    let age_ms = procfs::age(pid.cast_signed()).map_or(0, |age| age.as_millis() as u64);
    Some(Usage { rss_bytes: stat.rss_pages * procfs::page_size(), age_ms })
}

async fn upgrade<P: DaemonOps>(daemon: &P, params: UpgradeBinary) -> MethodResult {
    let internal = |message: String| Failure { kind: "upgrade".into(), message };
    let binary = outpost_sys::file::open(&params.path, outpost_sys::file::Open::Program);
    let binary = binary.map_err(|errno| internal(format!("cannot open {}: {errno}", params.path)))?;
    daemon.upgrade(binary).await.map_err(|declined| declined.failure("upgrade"))?;
    response(&())
}
