//! The methods of the control socket, by name.

use crate::naming::find;
use crate::owned;
use crate::peer::{Connection, Peer};
use crate::pens::{Held, Taken};
use crate::server::{Answer, Context, Program};
use crate::starting;
use crate::stream::Follow;
use crate::wire::{
    Attach, Attached, ExitStatus, Failure, Kept, Kill, Killed, ProcessInfo, Resize, Signal, Status, Stdin,
    StdinApplied, StdinOutcome, Stop, TerminalSize, UpgradeBinary, Usage, Which, Write,
};
use outpost_engine::{
    Accepted, Engine, Error, Exit, ExitUnknown, How, Ladder, Process, Reach, Signal as Number, Size,
};
use outpost_sys::procfs;
use outpost_wire::base64;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::value::RawValue;
use std::sync::Arc;
use std::time::Duration;

pub(crate) const FACE: &str = "control";

/// How long a process may take to end by itself before its tree is killed.
const GRACE: Duration = Duration::from_secs(3);

pub(crate) type Outcome = Result<Answer, Failure>;

pub(crate) async fn call<P: Program>(
    context: &Arc<Context<P>>,
    peer: &Peer,
    method: &str,
    params: Option<&RawValue>,
) -> Outcome {
    let (engine, connection) = (&context.engine, peer.number);
    match method {
        "spawn" if context.program.keeps_children() => Err(Failure {
            kind: "keep".into(),
            message: "the daemon was stopped and only keeps its processes; `outpost serve` goes on with it"
                .into(),
        }),
        "spawn" => starting::spawn(context, parse(params)?).await,
        "list" => list(engine).await,
        "describe" => answer(&describe(&find(engine, &parse::<Which>(params)?.process).await?)),
        "attach" => attach(context, connection, parse(params)?).await,
        "stdin" => stdin(context, peer, parse(params)?).await,
        "closeStdin" => close_stdin(context, connection, parse(params)?).await,
        "resize" => resize(context, connection, parse(params)?).await,
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
            woken.map_err(|declined| declined.failure("relay"))?;
            answer(&())
        }
        "keepChildren" => {
            let kept = context.program.keep_children().await;
            let processes = kept.map_err(|declined| declined.failure("keep"))?;
            answer(&Kept { processes })
        }
        "serveAgain" => {
            let woken = context.program.serve_again().await;
            woken.map_err(|declined| declined.failure("keep"))?;
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
            answer(&reloaded.map_err(|declined| declined.failure("settings"))?)
        }
        "stop" => {
            let grace = parse::<Option<Stop>>(params)?.unwrap_or_default().grace_ms;
            let stopped = context.program.stop(grace.map(Duration::from_millis)).await;
            answer(&stopped.map_err(|declined| declined.failure("stop"))?)
        }
        _ => Err(Failure { kind: "method".into(), message: format!("there is no method {method:?}") }),
    }
}

fn parse<T: DeserializeOwned>(params: Option<&RawValue>) -> Result<T, Failure> {
    let text = params.map_or("{}", RawValue::get);
    serde_json::from_str(text).map_err(|error| Failure { kind: "params".into(), message: error.to_string() })
}

pub(crate) fn answer(result: &impl Serialize) -> Outcome {
    // As text at once: a list of thousands would be many times as large as a tree of values.
    let result = serde_json::value::to_raw_value(result);
    let result = result.map_err(|error| Failure { kind: "internal".into(), message: error.to_string() })?;
    Ok(Answer { result, follow: None })
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

async fn attach<P>(context: &Context<P>, connection: Connection, params: Attach) -> Outcome {
    let process = find(&context.engine, &params.process).await?;
    let after = match params.tail_bytes {
        Some(bytes) => process.tail(bytes).await.map_err(failure)?,
        None => params.after,
    };
    let pen = match params.write {
        None => None,
        Some(write) => Some(take_pen(context, connection, &process, write).await),
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
        writer: matches!(pen, Some(Ok(_))),
        read_only_because: pen.as_ref().and_then(|pen| pen.as_ref().err().cloned()),
    };
    let owns = params.owns && process.key().scope == owned::SCOPE && process.key().face == FACE;
    let follow = Follow { process, after, pen: pen.and_then(Result::ok), owns };
    Ok(Answer { follow: Some(follow), ..answer(&attached)? })
}

/// The input of a process, or why it cannot be had.
async fn take_pen<P>(
    context: &Context<P>,
    connection: Connection,
    process: &Process,
    write: Write,
) -> Result<Held, String> {
    let face = &process.key().face;
    if face != FACE {
        // What others say to it is counted by them, and would be taken for something else.
        return Err(format!("its input belongs to a client of the {face} face"));
    }
    let taken = context.pens.take(process.slot(), connection, write == Write::Steal).await;
    taken.map_err(|Taken| "another terminal has its input; `--steal` takes it over".to_owned())
}

/// Waits for room while the client is there. A client that left got no answer, so its input may be dropped.
async fn stdin<P>(context: &Context<P>, peer: &Peer, params: Stdin) -> Outcome {
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
        let turn = context.pens.turn(process.slot(), peer.number).await.map_err(not_writer)?;
        let accepted = process.write_stdin(offset, bytes.clone()).await.map_err(failure)?;
        drop(turn);
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
        return answer(&StdinApplied { outcome, applied });
    }
}

/// For a connection whose peer does not read.
fn client_left() -> Failure {
    Failure { kind: "gone".into(), message: "the client left before there was room for its input".into() }
}

fn not_writer(Taken: Taken) -> Failure {
    Failure { kind: "notWriter".into(), message: "another terminal has the input of this process".into() }
}

async fn close_stdin<P>(context: &Context<P>, connection: Connection, params: Which) -> Outcome {
    let process = find(&context.engine, &params.process).await?;
    let _turn = context.pens.turn(process.slot(), connection).await.map_err(not_writer)?;
    process.close_stdin().await.map_err(failure)?;
    answer(&())
}

async fn resize<P>(context: &Context<P>, connection: Connection, params: Resize) -> Outcome {
    let size = Size { rows: params.size.rows, cols: params.size.cols };
    let process = find(&context.engine, &params.process).await?;
    let _turn = context.pens.turn(process.slot(), connection).await.map_err(not_writer)?;
    process.resize(size).map_err(failure)?;
    answer(&())
}

fn signal_number(name: &str) -> Result<Number, Failure> {
    let number = Number::from_name(name).or_else(|| Number::from_number(name.parse().ok()?));
    number.ok_or_else(|| Failure {
        kind: "params".into(),
        message: format!("there is no signal {name:?}; `kill -l` lists their names"),
    })
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
    let process = find(engine, &params.process).await?;
    let mut report = process.kill_and_wait(ladder).await.map_err(failure)?;
    if report.already_exited {
        // A worker that died while it killed a tree may have left a part of it.
        report.survivors = process.kill_tree().await.map_err(failure)?;
    }
    answer(&Killed {
        already_exited: report.already_exited,
        died: report.died,
        escalated: report.escalated,
        survivors: report.survivors,
    })
}

pub fn exit_status(exit: Exit) -> ExitStatus {
    let (code, signal) = match exit.how {
        How::Code(code) => (Some(code), None),
        How::Signal(signal) => (None, Some(signal)),
        How::Unknown => (None, None),
    };
    ExitStatus { code, signal, user_ms: exit.user_ms, system_ms: exit.system_ms, rss_max_kb: exit.rss_max_kb }
}

fn because(why: ExitUnknown) -> &'static str {
    match why {
        ExitUnknown::HostRestarted => "host restarted",
        ExitUnknown::RecordDamaged => "record damaged",
        ExitUnknown::KeeperDied => "keeper died",
    }
}

async fn list(engine: &Engine) -> Outcome {
    let processes: Vec<ProcessInfo> = engine.list_known().await.iter().map(describe).collect();
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
        exit_unknown_because: info.exit_unknown.map(|why| because(why).into()),
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

async fn status<P: Program>(engine: &Engine, program: &P) -> Outcome {
    let processes = engine.list_known().await;
    answer(&Status {
        version: env!("CARGO_PKG_VERSION").into(),
        worker_pid: std::process::id(),
        keeper_pid: engine.keeper_pid(),
        running: processes.iter().filter(|process| process.status().exit().is_none()).count(),
        processes: processes.len(),
        relay: program.relay(),
        keeping: program.keeps_children(),
        arguments: std::env::args_os().map(|word| word.to_string_lossy().into_owned()).collect(),
        worker: usage(std::process::id()),
        keeper: usage(engine.keeper_pid()),
        journal_bytes: engine.counts().journal_bytes,
        faces: program.faces(),
    })
}

fn usage(pid: u32) -> Option<Usage> {
    let stat = procfs::stat(pid.cast_signed())?;
    let age_ms = procfs::age(pid.cast_signed()).map_or(0, |age| age.as_millis() as u64);
    Some(Usage { rss_bytes: stat.rss_pages * procfs::page_size(), age_ms })
}

async fn upgrade<P: Program>(program: &P, params: UpgradeBinary) -> Outcome {
    let internal = |message: String| Failure { kind: "upgrade".into(), message };
    let binary = outpost_sys::file::open(&params.path, outpost_sys::file::Open::Program);
    let binary = binary.map_err(|errno| internal(format!("cannot open {}: {errno}", params.path)))?;
    program.upgrade(binary).await.map_err(|declined| declined.failure("upgrade"))?;
    answer(&())
}
