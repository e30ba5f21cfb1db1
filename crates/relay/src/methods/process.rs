//! `process.*`: spawn, stdin, kill and reattach, on top of the engine's processes.

use super::ProcessMethod;
use crate::connection::{Connection, PendingRequest};
use crate::follow::ReplyAfter;
use crate::go_compat;
use crate::go_json::write::Object;
use crate::process_queue::{Job, StdinOutcome};
use crate::server::Relay;
use crate::wire::{
    Failure, KillAndWaitParams, KillParams, Outcome, Params, ReattachParams, Request, STDIN_GAP, SpawnParams,
    StdinParams,
};
use outpost_engine::{
    Accepted, Drain, Error, Key, Ladder, OnTaken, Process, Reach, Signal, Spawn, Status, Stdio,
};
use outpost_wire::base64;
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// The name of this face in the engine's process keys.
const FACE: &str = "relay";

/// "Non-positive or absent → the 3000 ms default".
const GRACE_MS_DEFAULT: u64 = 3000;
/// "claustrum caps an absurd value at 600000 ms".
const GRACE_MS_MAX: u64 = 600_000;

/// How long a descendant that holds the pipes can delay the exit frame: "then at most 5 s for the pipes".
const DRAIN_TIMEOUT: Duration = Duration::from_secs(5);

/// If a child does not read its stdin for this long, the stdin log takes its data beyond the 8 MiB queue, so that the
/// request's bytes leave the memory and the connection's load limit. The reply still waits for the queue.
const STDIN_SPILL_AFTER: Duration = Duration::from_millis(200);
const STDIN_SPILL_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// How long the reply of `process.killAndWait` waits for the exit frame.
const EXIT_FRAME_TIMEOUT: Duration = Duration::from_millis(250);

/// Starts a method. An error is the immediate reply; otherwise the method replies through `pending`.
pub(crate) fn begin(
    method: ProcessMethod,
    request: &Request<'_>,
    pending: PendingRequest,
) -> Result<(), Failure> {
    match method {
        ProcessMethod::Spawn => begin_spawn(SpawnParams::parse(request)?, pending),
        ProcessMethod::Stdin => begin_stdin(StdinParams::parse(request)?, pending),
        ProcessMethod::Kill => begin_kill(KillParams::parse(request)?, pending),
        ProcessMethod::KillAndWait => begin_kill_and_wait(KillAndWaitParams::parse(request)?, pending),
        ProcessMethod::Reattach => begin_reattach(ReattachParams::parse(request)?, pending),
    }
}

fn key(id: &str) -> Key {
    Key::new(FACE, "", id)
}

fn require_id(id: &str) -> Result<(), Failure> {
    if id.is_empty() { Err(Failure::invalid_params("Process ID is required")) } else { Ok(()) }
}

fn begin_spawn(params: SpawnParams<'_>, pending: PendingRequest) -> Result<(), Failure> {
    require_id(&params.id)?;
    if params.command.is_empty() {
        return Err(Failure::invalid_params("Command is required"));
    }
    let id = params.id.clone().into_owned();
    let arguments =
        std::iter::once(&params.command).chain(&params.args).map(|text| OsString::from(text.as_ref()));
    let mut spawn = Spawn::bare(key(&id), arguments);
    spawn.directory = Some(params.cwd.as_ref()).filter(|cwd| !cwd.is_empty()).map(PathBuf::from);
    spawn.stdio = Stdio::Pipes { stdin: true };
    spawn.on_taken = OnTaken::Replace;
    // The contract fixes the children's environment, so it cannot contain the marker variable.
    spawn.marked = false;
    spawn.started_by = "relay".into();
    spawn.drain = Drain { quiet: DRAIN_TIMEOUT, longest: DRAIN_TIMEOUT };
    let overrides: Vec<(OsString, OsString)> =
        params.env.iter().map(|(name, value)| (name.as_ref().into(), value.as_ref().into())).collect();
    let want_pid = params.want_pid;
    let connection = pending.connection.clone();
    connection.queues.enqueue(&id, Job::Spawn(Box::pin(run_spawn(spawn, overrides, want_pid, pending))));
    Ok(())
}

async fn run_spawn(
    mut spawn: Spawn,
    overrides: Vec<(OsString, OsString)>,
    want_pid: bool,
    pending: PendingRequest,
) {
    let relay = pending.connection.relay.clone();
    let outcome = match relay.environment.prepare(&mut spawn, overrides).await {
        Ok(()) => start(&relay, spawn).await,
        Err(failure) => Err(failure),
    };
    let process = match outcome {
        Ok(process) => process,
        Err(failure) => return pending.reply(Err(failure)).await,
    };
    let mut out = Vec::new();
    let mut object = Object::begin(&mut out);
    object.bool("success", true);
    if want_pid {
        append_pid(&mut object, &process);
    }
    object.end();
    // The contract's order: the reply, "then stream frames".
    let connection = pending.connection.clone();
    let reply = ReplyAfter { seq: 0, pending, outcome: Ok(out) };
    connection.followers.follow(process, connection.outbox.clone(), 0, reply);
}

async fn start(relay: &Relay, spawn: Spawn) -> Result<Process, Failure> {
    let program = spawn.program.to_string_lossy().into_owned();
    let id = spawn.key.id.clone();
    let failed = |reason: String| {
        tracing::error!("[process.Manager] Failed to start process {}: {reason}", id.escape_debug());
        Failure::internal(reason)
    };
    let process = relay.engine.spawn(spawn).await.map_err(|error| match error {
        // The original reports every failed step in this form.
        Error::Start { failure, .. } => {
            failed(format!("fork/exec {program}: {}", go_compat::errno_text(failure.errno)))
        }
        Error::Invalid { .. } => failed(format!("fork/exec {program}: invalid argument")),
        other => failed(other.to_string()),
    })?;
    relay.metrics.process_spawned();
    let (id, pid, program) = (id.escape_debug(), process.pid(), program.escape_debug());
    tracing::debug!("[process.Manager] Process {id} started, PID={pid}, command={program}");
    Ok(process)
}

/// "startTime is the daemon's wall clock (epoch seconds) captured at spawn".
fn append_pid(object: &mut Object<'_>, process: &Process) {
    if process.pid() != 0 {
        object.number("pid", process.pid());
    }
    object.number("startTime", process.started_ms() as f64 / 1000.0);
}

/// "Checks run in a fixed order: decode → exists → running → offset".
fn begin_stdin(params: StdinParams<'_>, pending: PendingRequest) -> Result<(), Failure> {
    let data =
        base64::decode_leniently(&params.data.0).ok_or(Failure::invalid_params("Invalid base64 data"))?;
    let (id, offset) = (params.id.into_owned(), params.offset);
    let connection = pending.connection.clone();
    let queue = id.clone();
    let job = async move {
        match write_stdin(&pending.connection, &id, data, offset).await {
            Ok(Written::Queued(result)) => pending.reply(Ok(result)).await,
            // A task of its own, so that later jobs of the queue need not wait.
            Ok(Written::Spilled(result, spill)) => {
                drop(tokio::spawn(reply_when_queued(pending, result, spill)));
            }
            Ok(Written::Dropped) => return StdinOutcome::Dropped,
            Err(failure) => pending.reply(Err(failure)).await,
        }
        StdinOutcome::Replied
    };
    connection.queues.enqueue(&queue, Job::Stdin(Box::pin(job)));
    Ok(())
}

/// The result of a stdin write. The bytes are the JSON text of the reply's result.
enum Written {
    /// The data fits into the 8 MiB queue.
    Queued(Vec<u8>),
    /// The data is in the stdin log beyond the queue.
    Spilled(Vec<u8>, Spill),
    /// The client disconnected while the data waited for room. It got no reply, so the data may be dropped.
    Dropped,
}

/// A range of stdin bytes beyond the queue.
struct Spill {
    process: Process,
    offset: u64,
    len: u64,
}

/// "queue cap 8 MiB, beyond it the request blocks": replies when the queue has room for the data. If the process exits
/// first, replies `Process not running`.
async fn reply_when_queued(mut pending: PendingRequest, result: Vec<u8>, spill: Spill) {
    pending.release_weight();
    let room = tokio::select! {
        room = spill.process.stdin_room(spill.offset, spill.len) => room,
        () = pending.connection.outbox.closed() => return,
    };
    let queued = room.map_err(|_| not_running()).and_then(|()| require_running(&spill.process));
    pending.reply(queued.map(|()| result)).await;
}

fn require_running(process: &Process) -> Result<(), Failure> {
    match process.status().exit() {
        Some(_) => Err(not_running()),
        None => Ok(()),
    }
}

fn not_running() -> Failure {
    Failure::invalid_params("Process not running")
}

/// Writes to the stdin log. Waits for room while the client is connected.
async fn write_stdin(
    connection: &Connection,
    id: &str,
    data: Vec<u8>,
    offset: Option<i64>,
) -> Result<Written, Failure> {
    let relay = &connection.relay;
    let process = relay.engine.find(&key(id)).await.ok_or(Failure::invalid_params("Process not found"))?;
    require_running(&process)?;
    let before = process.stdin_accepted();
    let (data, offset) = match offset.map(u64::try_from) {
        None => (data, None),
        Some(Ok(offset)) => (data, Some(offset)),
        // A negative offset: the part before byte 0 counts as already applied.
        Some(Err(_)) => {
            let skipped = offset.map_or(0, i64::unsigned_abs).try_into().unwrap_or(usize::MAX);
            match data.get(skipped..).filter(|tail| !tail.is_empty()) {
                Some(tail) => (tail.to_vec(), Some(0)),
                None => return Ok(Written::Queued(applied_result(before, true))),
            }
        }
    };
    let data = Arc::new(data);
    let mut spill = None;
    loop {
        let written = match spill {
            None => process.write_stdin(offset, data.clone()).await,
            Some(_) => process.write_stdin_up_to(STDIN_SPILL_BYTES_MAX, offset, data.clone()).await,
        };
        match written {
            Ok(Accepted::Applied { applied }) => {
                relay.metrics.stdin_accepted(applied.saturating_sub(before));
                let result = applied_result(applied, false);
                return Ok(match spill {
                    Some(spill) => Written::Spilled(result, spill),
                    None => Written::Queued(result),
                });
            }
            Ok(Accepted::Duplicate { applied }) => return Ok(Written::Queued(applied_result(applied, true))),
            Ok(Accepted::Gap { .. }) => {
                return Err(Failure::new(STDIN_GAP, "stdin offset gap: offset ahead of applied bytes"));
            }
            Ok(Accepted::Full { applied, beyond }) => {
                let end = offset.unwrap_or(applied) + data.len() as u64;
                let len = end.saturating_sub(applied);
                let room = process.stdin_room(applied, len);
                if spill.take().is_some() {
                    tokio::select! {
                        _ended = room => {}
                        () = connection.outbox.closed() => return Ok(Written::Dropped),
                    }
                } else if beyond || must_spill(connection, room).await {
                    spill = Some(Spill { process: process.clone(), offset: applied, len });
                }
                require_running(&process)?;
            }
            Err(Error::NotRunning | Error::NoStdin | Error::Gone) => return Err(not_running()),
            Err(error) => return Err(Failure::internal(error.to_string())),
        }
    }
}

/// Whether the child leaves the queue full for too long. Does not wait if the client has disconnected.
async fn must_spill<T>(connection: &Connection, room: impl Future<Output = T>) -> bool {
    tokio::select! {
        waited = tokio::time::timeout(STDIN_SPILL_AFTER, room) => waited.is_err(),
        () = connection.outbox.closed() => true,
    }
}

fn applied_result(applied: u64, duplicate: bool) -> Vec<u8> {
    let mut out = Vec::new();
    Object::begin(&mut out)
        .bool("success", true)
        .number("applied", applied)
        .bool_if_true("duplicate", duplicate)
        .end();
    out
}

/// Parses a name in any case, with an optional SIG prefix in upper case. "empty and anything else = TERM".
fn parse_signal(name: &str) -> Signal {
    let name = name.strip_prefix("SIG").unwrap_or(name).to_uppercase();
    match name.as_str() {
        "KILL" => Signal::KILL,
        "INT" => Signal::INT,
        "HUP" => Signal::HUP,
        "QUIT" => Signal::QUIT,
        _ => Signal::TERM,
    }
}

/// SIGKILL goes to the whole process tree, also to descendants outside of the process group. Other signals go to the
/// process group.
fn reach(signal: Signal) -> Reach {
    if signal == Signal::KILL { Reach::Tree } else { Reach::Group }
}

/// "Best-effort, fire-and-forget".
fn begin_kill(params: KillParams<'_>, pending: PendingRequest) -> Result<(), Failure> {
    let (id, signal) = (params.id.into_owned(), parse_signal(&params.signal));
    tokio::spawn(async move {
        if let Some(process) = pending.connection.relay.engine.find(&key(&id)).await {
            let _already_exited = process.signal(signal, reach(signal)).await;
        }
        pending.reply(Ok(b"{\"success\":true}".to_vec())).await;
    });
    Ok(())
}

fn begin_kill_and_wait(params: KillAndWaitParams<'_>, pending: PendingRequest) -> Result<(), Failure> {
    require_id(&params.id)?;
    let id = params.id.into_owned();
    let signal = parse_signal(&params.signal);
    let requested_ms = u64::try_from(params.timeout_ms).ok().filter(|ms| *ms > 0);
    let grace_ms = requested_ms.unwrap_or(GRACE_MS_DEFAULT).min(GRACE_MS_MAX);
    let ladder = Ladder {
        signal,
        reach: reach(signal),
        grace: Duration::from_millis(grace_ms),
        escalate: params.escalate.unwrap_or(true),
    };
    tokio::spawn(async move {
        let outcome = kill_and_wait(&pending, &id, ladder).await;
        pending.reply(outcome).await;
    });
    Ok(())
}

async fn kill_and_wait(pending: &PendingRequest, id: &str, ladder: Ladder) -> Outcome {
    let mut out = Vec::new();
    let mut object = Object::begin(&mut out);
    let Some(process) = pending.connection.relay.engine.find(&key(id)).await else {
        object.bool("found", false).bool("died", false).end();
        return Ok(out);
    };
    let report = process.kill_and_wait(ladder).await.map_err(|error| Failure::internal(error.to_string()))?;
    if report.died && !report.already_exited {
        // As in the original, the client receives the exit frame before this reply.
        let exit_frame_sent = async {
            let _gone = process.finished().await;
            pending.connection.followers.ended(&process).await;
        };
        let _late = tokio::time::timeout(EXIT_FRAME_TIMEOUT, exit_frame_sent).await;
    }
    object
        .bool("found", true)
        .bool("died", report.died)
        .bool_if_true("alreadyExited", report.already_exited)
        .bool_if_true("escalated", report.escalated)
        .end();
    Ok(out)
}

fn begin_reattach(params: ReattachParams<'_>, pending: PendingRequest) -> Result<(), Failure> {
    require_id(&params.id)?;
    let (id, from_seq, want_pid) = (params.id.into_owned(), params.from_seq, params.want_pid);
    tokio::spawn(async move {
        let connection = pending.connection.clone();
        let Some(process) = connection.relay.engine.find(&key(&id)).await else {
            return pending.reply(Ok(reattach_result(None, (0, 0), want_pid))).await;
        };
        connection.relay.metrics.process_reattached();
        let finished = matches!(process.status(), Status::Finished(_));
        let sequence = process.sequence();
        let (_, last_seq) = sequence;
        let outcome = Ok(reattach_result(Some(&process), sequence, want_pid));
        // A `fromSeq` beyond the last frame must not suppress future frames.
        let after = u64::try_from(from_seq).unwrap_or(0).min(last_seq);
        if finished && after == last_seq {
            return pending.reply(outcome).await;
        }
        let reply = ReplyAfter { seq: last_seq, pending, outcome };
        connection.followers.follow(process, connection.outbox.clone(), after, reply);
    });
    Ok(())
}

fn reattach_result(process: Option<&Process>, (first_seq, last_seq): (u64, u64), want_pid: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut object = Object::begin(&mut out);
    object
        .bool("found", process.is_some())
        .bool("running", process.is_some_and(|process| process.status().exit().is_none()))
        .number("firstSeq", first_seq)
        .number("lastSeq", last_seq)
        .number("stdinApplied", process.map_or(0, Process::stdin_accepted));
    if let Some(process) = process.filter(|_| want_pid) {
        append_pid(&mut object, process);
    }
    object.end();
    out
}
