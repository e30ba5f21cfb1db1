//! `process.*`: starting, feeding, ending and following processes.

use crate::connection::{Connection, Pending};
use crate::follow::ReplyAfter;
use crate::go;
use crate::input::{Fed, Job};
use crate::json::write::Object;
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

/// The face's name in the engine's table.
const FACE: &str = "relay";

/// "Non-positive or absent → the 3000 ms default".
const GRACE_MS: u64 = 3000;
/// "claustrum caps an absurd value at 600000 ms".
const GRACE_MS_MAX: u64 = 600_000;

/// How long a descendant that holds the pipes keeps the exit frame back: "then at most 5 s for the pipes".
const DRAIN: Duration = Duration::from_secs(5);

/// A child that takes nothing for so long does not hold up what else its connection has to say: its input is taken ahead
/// of its time, onto the disk, up to so much.
const STUCK_AFTER: Duration = Duration::from_millis(200);
const AHEAD_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// How long an answer that says that a process is gone waits for the frame that says the same.
const EXIT_FRAME_PATIENCE: Duration = Duration::from_millis(250);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Spawn,
    Stdin,
    Kill,
    KillAndWait,
    Reattach,
}

/// Takes a request on; an error is its answer.
pub(crate) fn begin(method: Method, request: &Request<'_>, pending: Pending) -> Result<(), Failure> {
    match method {
        Method::Spawn => begin_spawn(SpawnParams::parse(request)?, pending),
        Method::Stdin => begin_stdin(StdinParams::parse(request)?, pending),
        Method::Kill => begin_kill(KillParams::parse(request)?, pending),
        Method::KillAndWait => begin_kill_and_wait(KillAndWaitParams::parse(request)?, pending),
        Method::Reattach => begin_reattach(ReattachParams::parse(request)?, pending),
    }
}

fn key(id: &str) -> Key {
    Key::new(FACE, "", id)
}

fn required(id: &str) -> Result<(), Failure> {
    if id.is_empty() { Err(Failure::params("Process ID is required")) } else { Ok(()) }
}

fn begin_spawn(params: SpawnParams<'_>, pending: Pending) -> Result<(), Failure> {
    required(&params.id)?;
    if params.command.is_empty() {
        return Err(Failure::params("Command is required"));
    }
    let id = params.id.clone().into_owned();
    let arguments =
        std::iter::once(&params.command).chain(&params.args).map(|text| OsString::from(text.as_ref()));
    let mut spawn = Spawn::bare(key(&id), arguments);
    spawn.directory = Some(params.cwd.as_ref()).filter(|cwd| !cwd.is_empty()).map(PathBuf::from);
    spawn.stdio = Stdio::Pipes { stdin: true };
    spawn.on_taken = OnTaken::Replace;
    // What children see in their environment is part of the contract.
    spawn.marked = false;
    spawn.started_by = "relay".into();
    spawn.drain = Drain { quiet: DRAIN, longest: DRAIN };
    let own: Vec<(OsString, OsString)> =
        params.env.iter().map(|(name, value)| (name.as_ref().into(), value.as_ref().into())).collect();
    let want_pid = params.want_pid;
    let connection = pending.connection.clone();
    connection.inputs.enqueue(&id, Job::Start(Box::pin(run_spawn(spawn, own, want_pid, pending))));
    Ok(())
}

async fn run_spawn(mut spawn: Spawn, own: Vec<(OsString, OsString)>, want_pid: bool, pending: Pending) {
    let relay = pending.connection.relay.clone();
    let outcome = match relay.environment.prepare(&mut spawn, own).await {
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
    // The reply first, "then stream frames".
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
        // Whatever step failed, the original names the program and the kernel's reason.
        Error::Start { failure, .. } => {
            failed(format!("fork/exec {program}: {}", go::errno_text(failure.errno)))
        }
        Error::Invalid { .. } => failed(format!("fork/exec {program}: invalid argument")),
        other => failed(other.to_string()),
    })?;
    relay.metrics.spawned();
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
fn begin_stdin(params: StdinParams<'_>, pending: Pending) -> Result<(), Failure> {
    let data = base64::decode_leniently(&params.data.0).ok_or(Failure::params("Invalid base64 data"))?;
    let (id, offset) = (params.id.into_owned(), params.offset);
    let connection = pending.connection.clone();
    let queue = id.clone();
    let job = async move {
        match stdin(&pending.connection, &id, data, offset).await {
            Ok(Taken::Now(result)) => pending.reply(Ok(result)).await,
            // Those behind it need not wait with it.
            Ok(Taken::Ahead(result, ahead)) => drop(tokio::spawn(answer_in_time(pending, result, ahead))),
            Ok(Taken::Dropped) => return Fed::Dropped,
            Err(failure) => pending.reply(Err(failure)).await,
        }
        Fed::Answered
    };
    connection.inputs.enqueue(&queue, Job::Feed(Box::pin(job)));
    Ok(())
}

/// How a piece of input was taken, and its result.
enum Taken {
    Now(Vec<u8>),
    Ahead(Vec<u8>, Ahead),
    /// The client left while its input waited for room. It has no answer, so it cannot count on it.
    Dropped,
}

/// Input that was taken ahead of its time, from a byte on.
struct Ahead {
    process: Process,
    from: u64,
    bytes: u64,
}

/// "queue cap 8 MiB, beyond it the request blocks": it is answered when it would have been taken.
async fn answer_in_time(mut pending: Pending, result: Vec<u8>, ahead: Ahead) {
    pending.weighs_little();
    let room = tokio::select! {
        room = ahead.process.stdin_room(ahead.from, ahead.bytes) => room,
        () = pending.connection.outbox.closed() => return,
    };
    // Who waits is left without an answer when the process ends.
    let taken = room.map_err(|_| not_running()).and_then(|()| running(&ahead.process));
    pending.reply(taken.map(|()| result)).await;
}

fn running(process: &Process) -> Result<(), Failure> {
    match process.status().exit() {
        Some(_) => Err(not_running()),
        None => Ok(()),
    }
}

fn not_running() -> Failure {
    Failure::params("Process not running")
}

/// Takes a piece of input, waiting for room while the client is there.
async fn stdin(
    connection: &Connection,
    id: &str,
    data: Vec<u8>,
    offset: Option<i64>,
) -> Result<Taken, Failure> {
    let relay = &connection.relay;
    let process = relay.engine.find(&key(id)).await.ok_or(Failure::params("Process not found"))?;
    running(&process)?;
    let before = process.stdin_accepted();
    let (data, offset) = match offset.map(u64::try_from) {
        None => (data, None),
        Some(Ok(offset)) => (data, Some(offset)),
        // It begins before everything: all of it is old, or its tail is fresh.
        Some(Err(_)) => {
            let skipped = offset.map_or(0, i64::unsigned_abs).try_into().unwrap_or(usize::MAX);
            match data.get(skipped..).filter(|tail| !tail.is_empty()) {
                Some(tail) => (tail.to_vec(), Some(0)),
                None => return Ok(Taken::Now(applied_result(before, true))),
            }
        }
    };
    let data = Arc::new(data);
    let mut ahead = None;
    loop {
        let written = match ahead {
            None => process.write_stdin(offset, data.clone()).await,
            Some(_) => process.write_stdin_up_to(AHEAD_BYTES_MAX, offset, data.clone()).await,
        };
        match written {
            Ok(Accepted::Applied { applied }) => {
                relay.metrics.fed(applied.saturating_sub(before));
                let result = applied_result(applied, false);
                return Ok(match ahead {
                    Some(ahead) => Taken::Ahead(result, ahead),
                    None => Taken::Now(result),
                });
            }
            Ok(Accepted::Duplicate { applied }) => return Ok(Taken::Now(applied_result(applied, true))),
            Ok(Accepted::Gap { .. }) => {
                return Err(Failure::new(STDIN_GAP, "stdin offset gap: offset ahead of applied bytes"));
            }
            Ok(Accepted::Full { applied, beyond }) => {
                let end = offset.unwrap_or(applied) + data.len() as u64;
                let (from, bytes) = (applied, end.saturating_sub(applied));
                let room = process.stdin_room(from, bytes);
                if ahead.take().is_some() {
                    tokio::select! {
                        _ended = room => {}
                        () = connection.outbox.closed() => return Ok(Taken::Dropped),
                    }
                } else if beyond || is_stuck(connection, room).await {
                    ahead = Some(Ahead { process: process.clone(), from, bytes });
                }
                running(&process)?;
            }
            Err(Error::NotRunning | Error::NoStdin | Error::Gone) => return Err(not_running()),
            Err(error) => return Err(Failure::internal(error.to_string())),
        }
    }
}

/// Whether no room comes for a while. For a client that has left nothing is waited for.
async fn is_stuck<T>(connection: &Connection, room: impl Future<Output = T>) -> bool {
    tokio::select! {
        waited = tokio::time::timeout(STUCK_AFTER, room) => waited.is_err(),
        () = connection.outbox.closed() => true,
    }
}

fn applied_result(applied: u64, duplicate: bool) -> Vec<u8> {
    let mut out = Vec::new();
    Object::begin(&mut out)
        .bool("success", true)
        .number("applied", applied)
        .flag("duplicate", duplicate)
        .end();
    out
}

/// An optional SIG prefix, then the name in any case. "empty and anything else = TERM".
fn signal(name: &str) -> Signal {
    let name = name.strip_prefix("SIG").unwrap_or(name).to_uppercase();
    match name.as_str() {
        "KILL" => Signal::KILL,
        "INT" => Signal::INT,
        "HUP" => Signal::HUP,
        "QUIT" => Signal::QUIT,
        _ => Signal::TERM,
    }
}

/// A signal that may be caught goes to the process group; the one that may not ends the whole tree, also those who left
/// the group.
fn reach(signal: Signal) -> Reach {
    if signal == Signal::KILL { Reach::Tree } else { Reach::Group }
}

/// "Best-effort, fire-and-forget".
fn begin_kill(params: KillParams<'_>, pending: Pending) -> Result<(), Failure> {
    let (id, signal) = (params.id.into_owned(), signal(&params.signal));
    tokio::spawn(async move {
        if let Some(process) = pending.connection.relay.engine.find(&key(&id)).await {
            let _ended_already = process.signal(signal, reach(signal)).await;
        }
        pending.reply(Ok(b"{\"success\":true}".to_vec())).await;
    });
    Ok(())
}

fn begin_kill_and_wait(params: KillAndWaitParams<'_>, pending: Pending) -> Result<(), Failure> {
    required(&params.id)?;
    let id = params.id.into_owned();
    let signal = signal(&params.signal);
    let grace_ms =
        u64::try_from(params.timeout_ms).ok().filter(|ms| *ms > 0).unwrap_or(GRACE_MS).min(GRACE_MS_MAX);
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

async fn kill_and_wait(pending: &Pending, id: &str, ladder: Ladder) -> Outcome {
    let mut out = Vec::new();
    let mut object = Object::begin(&mut out);
    let Some(process) = pending.connection.relay.engine.find(&key(id)).await else {
        object.bool("found", false).bool("died", false).end();
        return Ok(out);
    };
    let report = process.kill_and_wait(ladder).await.map_err(|error| Failure::internal(error.to_string()))?;
    if report.died && !report.already_exited {
        // As in the original, who waits for the end has seen the exit frame when the answer comes.
        let frame = async {
            let _gone = process.finished().await;
            pending.connection.followers.ended(&process).await;
        };
        let _late = tokio::time::timeout(EXIT_FRAME_PATIENCE, frame).await;
    }
    object
        .bool("found", true)
        .bool("died", report.died)
        .flag("alreadyExited", report.already_exited)
        .flag("escalated", report.escalated)
        .end();
    Ok(out)
}

fn begin_reattach(params: ReattachParams<'_>, pending: Pending) -> Result<(), Failure> {
    required(&params.id)?;
    let (id, from_seq, want_pid) = (params.id.into_owned(), params.from_seq, params.want_pid);
    tokio::spawn(async move {
        let connection = pending.connection.clone();
        let Some(process) = connection.relay.engine.find(&key(&id)).await else {
            return pending.reply(Ok(reattach_result(None, (0, 0), want_pid))).await;
        };
        connection.relay.metrics.reattached();
        let finished = matches!(process.status(), Status::Finished(_));
        let sequence = process.sequence();
        let (_, last_seq) = sequence;
        let outcome = Ok(reattach_result(Some(&process), sequence, want_pid));
        // Frames that are still to come are sent whatever the client says it has seen.
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
