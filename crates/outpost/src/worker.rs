//! The worker: the daemon proper. Started by the keeper only, as often as it takes.

use crate::announced::{self, Announced};
use crate::faces::{Board, Faces, Host};
use crate::flags::Flags;
use crate::orders::{Asked, Program, Shown};
use crate::paths::Paths;
use crate::relay::{Place, Settings};
use crate::relay_face::{self, RelayFace};
use crate::serve::{take_lock, taken};
use crate::settled::Settled;
use crate::{exec_face, log, problems, roles, socket, stopping};
use clap::Args;
use outpost_control::Declined;
use outpost_control::wire::{Listening, RelayState};
use outpost_engine::{Config, Engine, Lifecycle, Notice, Process, ResourceLimit, Said};
use outpost_sys::file::{self, Open};
use outpost_sys::spawn::DESCRIPTOR_LIMIT;
use std::collections::HashMap;
use std::ffi::CString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{mpsc, watch};

/// Whoever asked for the end of the last process, or follows it, is told before a daemon that only kept it ends.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// Threads that may wait: more than requests can tie up with a file system that does not answer.
const BLOCKING_THREADS_MAX: usize = 96;

/// Idle ones stay. The runtime panics when it has none and the host is at its process limit.
const BLOCKING_THREAD_IDLE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// By then whoever waited for us has been answered, and what only the start needed can go.
const STARTED_AFTER: Duration = Duration::from_millis(50);

/// A worker that has lived this long without failing counts as one that serves.
const PROVEN_AFTER: Duration = Duration::from_secs(1);

/// What the keeper was started with, for children to have it back.
#[derive(Args, Clone, Debug)]
pub(crate) struct Given {
    /// Soft and hard limit on descriptors, `unlimited` or a number
    #[arg(long, value_name = "SOFT:HARD")]
    descriptors: Option<String>,
    #[arg(long, allow_hyphen_values = true)]
    oom_score: Option<i32>,
    /// The file that standard error is
    #[arg(long)]
    log_file: Option<PathBuf>,
    /// How often whoever supervises the daemon wants to hear of it
    #[arg(long, value_name = "MS")]
    watchdog_ms: Option<u64>,
    #[command(flatten)]
    flags: Flags,
}

impl Given {
    fn limits(&self) -> Vec<ResourceLimit> {
        let number = |text: &str| if text == "unlimited" { Some(u64::MAX) } else { text.parse().ok() };
        let parsed = self.descriptors.as_deref().and_then(|text| text.split_once(':'));
        let limit = parsed.and_then(|(soft, hard)| {
            Some(ResourceLimit { resource: DESCRIPTOR_LIMIT, soft: number(soft)?, hard: number(hard)? })
        });
        limit.into_iter().collect()
    }
}

pub(crate) fn run(paths: &Paths, given: &Given) -> ExitCode {
    if let Some(file) = &given.log_file {
        log::is_file(file.clone());
    }
    match work(paths, given) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            tracing::error!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn work(paths: &Paths, given: &Given) -> Result<(), String> {
    let _as_it_is = outpost_sys::limits::raise_descriptors();
    let link = file::inherited(outpost_keeper::LINK_FD);
    let link =
        link.map_err(|_| "the worker is started by the keeper, not by hand; use `outpost serve`".to_owned())?;
    let binary = file::open("/proc/self/exe", Open::Program)
        .map_err(|errno| format!("cannot open this program: {errno}"))?;
    let arguments =
        std::env::args_os().filter_map(|argument| CString::new(argument.into_vec()).ok()).collect();
    let config = Config { limits: given.limits(), oom_score: given.oom_score, ..Config::new(&paths.state) };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_keep_alive(BLOCKING_THREAD_IDLE)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    // The one that is always there.
    runtime.spawn_blocking(|| ());
    let lifecycle = Lifecycle::Daemon { binary, arguments };
    let mut settled = None;
    let limit = |config: &mut Config, own: &HashMap<u8, OwnedFd>| match relay_settings(own) {
        Some(settings) => relay_face::limit_journals(config, &settings),
        None => {
            let begun = given.flags.clone().of(paths).and_then(|flags| Settled::begin(&flags, paths, own));
            if let Ok(settled) = &begun {
                settled.config().config.limit_engine(config);
            }
            settled = Some(begun);
        }
    };
    let (engine, own) = Engine::start(config, link, lifecycle, limit).map_err(|error| error.to_string())?;
    runtime.block_on(serve(paths, given, engine, own, settled.transpose()?))
}

fn relay_settings(own: &HashMap<u8, OwnedFd>) -> Option<Settings> {
    Settings::from_memory(own.get(&roles::RELAY_SETTINGS)?)
}

async fn serve(
    paths: &Paths,
    given: &Given,
    engine: Engine,
    mut own: HashMap<u8, OwnedFd>,
    settled: Option<Settled>,
) -> Result<(), String> {
    let mut notices = engine.notices();
    // A worker that is started to stop the daemon gets its notice with the table.
    if notices.borrow().is_some() {
        notices.mark_changed();
    }
    let settings = relay_settings(&own);
    if own.remove(&roles::LOCK).is_none() {
        // Keeper and worker before us died almost together, and the lock with them.
        let path = match &settings {
            Some(settings) => Place::new(&settings.socket)?.lock(),
            None => paths.lock(),
        };
        let lock = take_lock(&path)?.ok_or_else(|| taken(paths, &path))?;
        engine.hold(roles::LOCK, lock).await.map_err(|error| error.to_string())?;
    }
    let mut announced = Announced::default();
    let socket = paths.control_socket();
    let (listener, is_new) =
        socket::held(&engine, &mut own, roles::CONTROL, || socket::bind(&socket)).await?;
    own.remove(&roles::CONTROL);
    let keeping = own.contains_key(&roles::KEEPING);
    let hint = if keeping { "outpost ps" } else { "outpost run -- uname -a" };
    announced.add(is_new, "control", socket.display(), hint);
    let board = Arc::<Board>::default();
    board.announce(&announced);
    let mut daemon = None;
    if keeping {
        // Their connections ended with the face.
        tokio::spawn(exec_face::end_abandoned(engine.clone(), paths.state.clone()));
    } else if let Some(settled) = settled {
        let effective = settled.config();
        settled.hold(&engine).await?;
        let mut faces = Faces::new(board.clone());
        let host = Host { engine: &engine, paths, flags: &given.flags, config: &effective.config };
        announced.extend(faces.begin_missing(host, &mut own).await);
        begin_or_refuse(&engine, &faces, &mut own).await?;
        daemon = Some(Daemon { settled, faces });
    }
    if daemon.is_some() && announced.is_new() {
        announce(announced.rows());
    }
    let listener = socket::listening(listener)?;
    let mut relay = settings
        .map(|settings| RelayFace::resume(&engine, settings, own.remove(&roles::RELAY_SOCKET)))
        .transpose()?;
    let (orders, mut received) = mpsc::channel(1);
    let relay_state = watch::Sender::new(relay.as_ref().map(RelayFace::state));
    let program = Program {
        engine: engine.clone(),
        orders,
        relay_state: relay_state.subscribe(),
        board: board.clone(),
        paths: paths.clone(),
        keeping,
        daemon: daemon.as_ref().map(|daemon| Shown {
            file: daemon.settled.file().display().to_string(),
            effective: daemon.settled.watch(),
        }),
    };
    let sandboxing = outpost_control::Sandboxing::new(paths.state.clone(), paths.private());
    tokio::spawn(outpost_control::serve(listener, engine.clone(), program, sandboxing));
    if own.contains_key(&outpost_keeper::NOTIFY_ROLE) {
        tokio::spawn(tell_supervisor(engine.clone(), given.watchdog_ms));
    }
    tokio::spawn(problems::show_stalls(engine.clone(), board.clone()));
    tokio::spawn(problems::show_lacks(engine.clone(), board.clone()));
    prove(engine.clone());
    let (mut kept_for, mut replies, mut grace) = (Vec::new(), stopping::Replies::new(), None);
    let mut retry = daemon.as_mut().and_then(|daemon| daemon.faces.retry_after());
    if retry.is_some() {
        problems::tell_supervisor(&engine, &board).await;
    }
    loop {
        let asked = tokio::select! {
            asked = wait(&mut notices, &mut received, relay.as_mut()) => asked?,
            () = all_end(&engine), if keeping => Asked::End { grace: None, reply: None },
            () = tokio::time::sleep(retry.unwrap_or_default()), if retry.is_some() => {
                let Some(Daemon { settled, faces }) = &mut daemon else { continue };
                let effective = settled.config();
                let host = Host { engine: &engine, paths, flags: &given.flags, config: &effective.config };
                faces.begin_missing(host, &mut own).await;
                retry = faces.retry_after();
                problems::tell_supervisor(&engine, &board).await;
                continue;
            }
        };
        match (asked, &mut relay) {
            // Everything is in the kernel or on disk; the next worker has it.
            (Asked::Retire, _) => return Ok(()),
            (Asked::Stop, Some(relay)) if relay.state() == RelayState::Serving => {
                if !relay.keep_children().await {
                    break;
                }
            }
            (Asked::Stop, _) => break,
            (Asked::End { grace: asked, reply }, _) => {
                grace = asked.or(grace);
                replies.extend(reply);
                break;
            }
            (Asked::Wake(wake, reply), Some(relay)) => {
                let _gone = reply.send(relay.wake(wake).await);
            }
            (Asked::Wake(_, reply), None) => {
                let _gone = reply.send(Err("this daemon has no relay face".to_owned().into()));
            }
            (Asked::Keep(reply), _) => {
                let Some(Daemon { faces, .. }) = daemon.take() else {
                    let _gone = reply.send(Err("this daemon has no faces to end".to_owned().into()));
                    continue;
                };
                let running = running(&engine).await.len();
                let _gone = reply.send(Ok(running));
                if running == 0 {
                    kept_for = faces.end(paths);
                    break;
                }
                // The next worker has no faces: whatever they were doing ends here, as when we are killed. Only clients
                // of sessions get a terminal event, since their streams have no end otherwise.
                let (sessions, left) = (board.sessions(), faces.end(paths));
                if let Some(sessions) = sessions {
                    sessions.close().await;
                }
                return keep(&engine, left).await;
            }
            (Asked::ServeAgain(reply), _) => {
                let released = engine.release(roles::KEEPING).await;
                let _gone = reply.send(released.map_err(Declined::from));
                return Ok(());
            }
            (Asked::Reload(reply), _) => {
                let reloaded = match &mut daemon {
                    Some(Daemon { settled, faces }) => settled.reload(&engine, faces).await,
                    None => Err(
                        "it has no faces to configure: it is a relay, or was stopped and keeps its processes"
                            .into(),
                    ),
                };
                let _nobody_waits = reply.map(|reply| reply.send(reloaded.map_err(Declined::from)));
            }
        }
        relay_state.send_replace(relay.as_ref().map(RelayFace::state));
    }
    let _stopping = engine.notify(Said::Stopping).await;
    // Before processes are ended, which takes its time: no client shall wait for a daemon that does not answer.
    let _stopping = refuse_connections(&engine, roles::listening()).await;
    if let Some(relay) = &mut relay {
        relay.withdraw();
    }
    if let (None, Some(daemon)) = (grace, &daemon) {
        grace = daemon.settled.config().config.processes.stop_grace_s.map(Duration::from_secs);
    }
    let left = daemon.map(|daemon| daemon.faces.end(paths)).unwrap_or_default();
    for socket in left.into_iter().chain(kept_for).chain([paths.control_socket()]) {
        let _gone_already = std::fs::remove_file(socket);
    }
    // "Graceful shutdown kills the whole child-process tree": the relay's original sends SIGKILL at once.
    let grace = if relay.is_some() { Duration::ZERO } else { grace.unwrap_or(stopping::GRACE) };
    stopping::stop_processes(&engine, grace, &mut notices, &mut received, replies).await?;
    if let Some(sessions) = board.sessions() {
        sessions.end_turns().await;
        sessions.close().await;
    }
    if let Some(relay) = &relay {
        // While we have the lock: what is there later is another daemon's.
        relay.erase(&paths.state);
    }
    engine.end_keeper().await.map_err(|error| error.to_string())
}

/// Closes listening sockets here and in the keeper.
async fn refuse_connections(
    engine: &Engine,
    roles: impl IntoIterator<Item = u8>,
) -> outpost_engine::Result<()> {
    outpost_wire::stop_accepting();
    for role in roles {
        engine.release(role).await?;
    }
    Ok(())
}

/// Before all faces have begun once, a face that cannot begin is a mistake in the configuration or the command line, and
/// ends the start. A resource that has run out is not: such a face is retried.
async fn begin_or_refuse(
    engine: &Engine,
    faces: &Faces,
    own: &mut HashMap<u8, OwnedFd>,
) -> Result<(), String> {
    if own.remove(&roles::BEGUN).is_some() {
        return Ok(());
    }
    if let Some(reason) = faces.failure() {
        return Err(reason);
    }
    let mark = file::sealed_memory("outpost-begun", &[]).map_err(|errno| errno.to_string())?;
    engine.hold(roles::BEGUN, mark).await.map_err(|error| error.to_string())
}

/// Has the keeper start a worker without faces after this one.
async fn keep(engine: &Engine, files: Vec<PathBuf>) -> Result<(), String> {
    let text = |error: outpost_engine::Error| error.to_string();
    let mark = file::sealed_memory("outpost-keeping", &[]).map_err(|errno| errno.to_string())?;
    engine.hold(roles::KEEPING, mark).await.map_err(text)?;
    refuse_connections(engine, roles::FACES).await.map_err(text)?;
    for file in files {
        let _gone_already = std::fs::remove_file(file);
    }
    Ok(())
}

async fn running(engine: &Engine) -> Vec<Process> {
    let mut processes = engine.list().await;
    processes.retain(|process| process.status().exit().is_none());
    processes
}

async fn all_end(engine: &Engine) {
    for process in running(engine).await {
        let _gone = process.finished().await;
    }
    tokio::time::sleep(LAST_WORDS).await;
}

/// All that is not a relay.
struct Daemon {
    settled: Settled,
    faces: Faces,
}

/// Gives back what only the start needed, and says that we serve when we have lived for a while. On a thread of its own: while
/// the runtime has a timer, it sets the clock anew for every request.
fn prove(engine: Engine) {
    let (runtime, its_engine) = (tokio::runtime::Handle::current(), engine.clone());
    let started = std::thread::Builder::new().spawn(move || {
        std::thread::sleep(STARTED_AFTER);
        outpost_sys::memory::forget_program();
        std::thread::sleep(PROVEN_AFTER);
        let _stopping = runtime.block_on(its_engine.serving());
    });
    // At the limit of processes there is no thread to be had.
    if started.is_err() {
        tokio::spawn(async move {
            tokio::time::sleep(STARTED_AFTER + PROVEN_AFTER).await;
            let _stopping = engine.serving().await;
        });
    }
}

/// Says that we serve, and that we live as often as somebody wants to hear it: on the way that all work takes.
async fn tell_supervisor(engine: Engine, watchdog_ms: Option<u64>) {
    let _stopping = engine.notify(Said::Ready).await;
    let Some(ms) = watchdog_ms.filter(|ms| *ms > 0) else { return };
    let every = Duration::from_millis(ms.div_ceil(2));
    let mut beats = tokio::time::interval(every);
    while engine.alive(every).await.is_ok() {
        beats.tick().await;
    }
}

async fn wait(
    notices: &mut watch::Receiver<Option<Notice>>,
    orders: &mut mpsc::Receiver<Asked>,
    mut relay: Option<&mut RelayFace>,
) -> Result<Asked, String> {
    let asked_by_relay = async {
        match relay.as_deref_mut() {
            Some(relay) => relay.asked().await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        changed = notices.changed() => match changed.ok().and_then(|()| *notices.borrow_and_update()) {
            Some(Notice::Retire) => Ok(Asked::Retire),
            Some(Notice::Shutdown) => Ok(Asked::Stop),
            Some(Notice::Reload) => Ok(Asked::Reload(None)),
            None => Err("the engine has stopped".into()),
        },
        order = orders.recv() => order.ok_or_else(|| "the control socket has stopped".into()),
        () = asked_by_relay => Ok(Asked::Stop),
    }
}

/// Where each face listens, on standard output, when it begins to.
fn announce(rows: &[Listening]) {
    let version = env!("CARGO_PKG_VERSION");
    let table = announced::table(rows);
    let _nobody_reads = write!(std::io::stdout(), "outpost {version} is running\n{table}");
}
