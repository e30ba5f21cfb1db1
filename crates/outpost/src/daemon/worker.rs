//! The start of the worker process: the engine, the control socket, the faces, and the tasks beside them.

use super::command_loop::{ConfiguredFaces, Outcome, Worker};
use super::control_handler::{ConfigView, ControlHandler};
use super::faces::{ComponentRegistry, FaceContext, Faces};
use super::listeners::Listeners;
use super::live_config::{LiveConfig, limit_engine};
use super::relay_face::{self, RelayFace};
use super::serve::{already_running, take_lock};
use super::{exec_face, fd_roles, private_paths, problems, socket};
use crate::dropin::relay::{Settings, SocketPaths};
use outpost_cli::paths::Paths;
use outpost_cli::{WorkerArgs, listen, log};
use outpost_control::wire::Listening;
use outpost_engine::{Config, Engine, Lifecycle, Readiness, ResourceLimit};
use outpost_sys::file::{self, Open};
use outpost_sys::spawn::DESCRIPTOR_LIMIT;
use std::collections::HashMap;
use std::ffi::CString;
use std::io::Write;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::sync::{mpsc, watch};

/// More blocking threads than requests can occupy with a file system that hangs.
const BLOCKING_THREADS_MAX: usize = 96;

/// Idle blocking threads never exit: tokio panics if it has none and cannot start one at the process limit.
const BLOCKING_THREAD_IDLE: Duration = Duration::from_secs(100 * 365 * 24 * 3600);

/// A worker that ran this long counts as serving: the keeper resets its restart counter.
const SERVING_AFTER: Duration = Duration::from_secs(1);

pub(crate) fn run(paths: &Paths, args: &WorkerArgs) -> ExitCode {
    if let Some(file) = &args.log_file {
        log::set_log_file(file.clone());
    }
    match start(paths, args) {
        Ok(()) => ExitCode::SUCCESS,
        Err(reason) => {
            tracing::error!("{reason}");
            ExitCode::FAILURE
        }
    }
}

fn start(paths: &Paths, args: &WorkerArgs) -> Result<(), String> {
    let _unchanged = outpost_sys::limits::raise_descriptors();
    let link = file::inherited(outpost_keeper::LINK_FD);
    let link =
        link.map_err(|_| "the worker is started by the keeper, not by hand; use `outpost serve`".to_owned())?;
    let binary = file::open("/proc/self/exe", Open::Program)
        .map_err(|errno| format!("cannot open this program: {errno}"))?;
    let arguments =
        std::env::args_os().filter_map(|argument| CString::new(argument.into_vec()).ok()).collect();
    let config = Config { limits: limits(args), oom_score: args.oom_score, ..Config::new(&paths.state) };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .max_blocking_threads(BLOCKING_THREADS_MAX)
        .thread_keep_alive(BLOCKING_THREAD_IDLE)
        .enable_all()
        .build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    // Start the one blocking thread that must always exist.
    runtime.spawn_blocking(|| ());
    let lifecycle = Lifecycle::Daemon { binary, arguments };
    let mut live_config = None;
    let limit = |config: &mut Config, inherited: &HashMap<u8, OwnedFd>| match relay_settings(inherited) {
        Some(settings) => relay_face::limit_journals(config, &settings),
        None => {
            let flags = args.flags.clone().for_daemon(paths);
            let loaded = flags.and_then(|flags| LiveConfig::load(&flags, paths, inherited));
            if let Ok(live_config) = &loaded {
                limit_engine(&live_config.current().config.processes, config);
            }
            live_config = Some(loaded);
        }
    };
    let (engine, inherited) =
        Engine::start(config, link, lifecycle, limit).map_err(|error| error.to_string())?;
    runtime.block_on(serve(paths, args, engine, inherited, live_config.transpose()?))
}

/// The default limits of children.
fn limits(args: &WorkerArgs) -> Vec<ResourceLimit> {
    let number = |text: &str| if text == "unlimited" { Some(u64::MAX) } else { text.parse().ok() };
    let parsed = args.descriptors.as_deref().and_then(|text| text.split_once(':'));
    let limit = parsed.and_then(|(soft, hard)| {
        Some(ResourceLimit { resource: DESCRIPTOR_LIMIT, soft: number(soft)?, hard: number(hard)? })
    });
    limit.into_iter().collect()
}

fn relay_settings(inherited: &HashMap<u8, OwnedFd>) -> Option<Settings> {
    Settings::from_memory(inherited.get(&fd_roles::RELAY_SETTINGS)?)
}

async fn serve(
    paths: &Paths,
    args: &WorkerArgs,
    engine: Engine,
    mut inherited: HashMap<u8, OwnedFd>,
    live_config: Option<LiveConfig>,
) -> Result<(), String> {
    let mut notices = engine.notices();
    // A worker that starts during a shutdown receives the notice together with the process table.
    if notices.borrow().is_some() {
        notices.mark_changed();
    }
    let settings = relay_settings(&inherited);
    retake_lost_lock(paths, &engine, settings.as_ref(), &mut inherited).await?;
    let keeping = inherited.contains_key(&fd_roles::KEEPING_CHILDREN);
    let mut listeners = Listeners::default();
    let control = bind_control(paths, &engine, keeping, &mut inherited, &mut listeners).await?;
    let registry = Arc::<ComponentRegistry>::default();
    registry.add_listeners(&listeners);
    let relay = settings
        .map(|settings| RelayFace::resume(&engine, settings, inherited.remove(&fd_roles::RELAY_SOCKET)))
        .transpose()?;
    let (sender, commands) = mpsc::channel(1);
    let relay_state = watch::Sender::new(relay.as_ref().map(RelayFace::state));
    let live_config = live_config.filter(|_| !keeping);
    let handler = ControlHandler {
        engine: engine.clone(),
        commands: sender,
        relay_state: relay_state.subscribe(),
        registry: registry.clone(),
        paths: paths.clone(),
        keeping,
        config: live_config.as_ref().map(|live_config| ConfigView {
            file: live_config.file().display().to_string(),
            effective: live_config.watch(),
        }),
    };
    let sandboxes = outpost_sandbox::SandboxBuilder::new(paths.state.clone(), private_paths::private(paths));
    let control = outpost_control::serve(control, engine.clone(), handler, sandboxes);
    // A restarted worker serves its processes before the faces begin. At the first start a reply on the control socket
    // means that each face listens, so it comes last.
    let is_restart = inherited.contains_key(&fd_roles::STARTED_ONCE);
    let mut control_after_faces = Some(control);
    if is_restart {
        control_after_faces.take().map(tokio::spawn);
    }
    let mut startup = FaceStartup { paths, args, engine: &engine, inherited: &mut inherited };
    let faces = match live_config {
        Some(live_config) => Some(startup.start_faces(live_config, &registry, &mut listeners).await?),
        None => None,
    };
    if keeping {
        // The connections of these commands ended with the exec face.
        tokio::spawn(exec_face::end_abandoned(engine.clone(), paths.state.clone()));
    }
    registry.set_started();
    if faces.is_some() && listeners.is_new() {
        print_listeners(listeners.rows());
    }
    control_after_faces.map(tokio::spawn);
    if inherited.contains_key(&outpost_keeper::NOTIFY_ROLE) {
        tokio::spawn(notify_supervisor(engine.clone(), args.watchdog_ms));
    }
    tokio::spawn(problems::watch_stalls(engine.clone(), registry.clone()));
    tokio::spawn(problems::watch_degradation(engine.clone(), registry.clone()));
    report_serving(engine.clone());
    let mut worker = Worker {
        paths,
        args,
        engine,
        inherited,
        registry,
        faces,
        relay,
        relay_state,
        notices,
        commands,
        keeping,
    };
    match worker.run().await? {
        Outcome::Replaced => Ok(()),
        Outcome::Shutdown(request) => worker.shut_down(request).await,
    }
}

/// Takes the lock if the keeper does not hold it: keeper and previous worker died at almost the same time.
async fn retake_lost_lock(
    paths: &Paths,
    engine: &Engine,
    relay: Option<&Settings>,
    inherited: &mut HashMap<u8, OwnedFd>,
) -> Result<(), String> {
    if inherited.remove(&fd_roles::LOCK).is_some() {
        return Ok(());
    }
    let path = match relay {
        Some(settings) => SocketPaths::new(&settings.socket)?.lock(),
        None => paths.lock(),
    };
    let lock = take_lock(&path)?.ok_or_else(|| already_running(paths, &path))?;
    engine.hold(fd_roles::LOCK, lock).await.map_err(|error| error.to_string())
}

async fn bind_control(
    paths: &Paths,
    engine: &Engine,
    keeping: bool,
    inherited: &mut HashMap<u8, OwnedFd>,
    listeners: &mut Listeners,
) -> Result<UnixListener, String> {
    let path = paths.control_socket();
    let (listener, is_new) =
        socket::acquire(engine, inherited, fd_roles::CONTROL_SOCKET, || socket::bind(&path)).await?;
    inherited.remove(&fd_roles::CONTROL_SOCKET);
    let hint = if keeping { "outpost ps" } else { "outpost run -- uname -a" };
    listeners.add(is_new, "control", path.display(), hint);
    Ok(listener)
}

/// What the start of the faces needs.
struct FaceStartup<'a> {
    paths: &'a Paths,
    args: &'a WorkerArgs,
    engine: &'a Engine,
    inherited: &'a mut HashMap<u8, OwnedFd>,
}

impl FaceStartup<'_> {
    async fn start_faces(
        &mut self,
        live_config: LiveConfig,
        registry: &Arc<ComponentRegistry>,
        listeners: &mut Listeners,
    ) -> Result<ConfiguredFaces, String> {
        let effective = live_config.current();
        live_config.hold(self.engine).await?;
        let mut faces = Faces::new(registry.clone());
        let context = FaceContext {
            engine: self.engine,
            paths: self.paths,
            flags: &self.args.flags,
            config: &effective.config,
        };
        listeners.extend(faces.start_missing(context, self.inherited).await);
        require_first_start(self.engine, &faces, self.inherited).await?;
        Ok(ConfiguredFaces { live_config, faces })
    }
}

/// Until all faces have started once, a failed face is a mistake in the configuration or the command line and ends the
/// daemon. Resource exhaustion is the exception: such a face is retried.
async fn require_first_start(
    engine: &Engine,
    faces: &Faces,
    inherited: &mut HashMap<u8, OwnedFd>,
) -> Result<(), String> {
    if inherited.remove(&fd_roles::STARTED_ONCE).is_some() {
        return Ok(());
    }
    if let Some(reason) = faces.permanent_failure() {
        return Err(reason);
    }
    let marker = file::sealed_memory("outpost-started-once", &[]).map_err(|errno| errno.to_string())?;
    engine.hold(fd_roles::STARTED_ONCE, marker).await.map_err(|error| error.to_string())
}

/// Reports to the keeper that this worker serves.
fn report_serving(engine: Engine) {
    tokio::spawn(async move {
        tokio::time::sleep(SERVING_AFTER).await;
        let _stopping = engine.serving().await;
    });
}

/// Sends READY=1 to the supervisor, then a heartbeat to the keeper at half the watchdog interval. The heartbeat passes
/// through the engine thread, so it stops if that thread hangs, and the keeper kills the worker.
async fn notify_supervisor(engine: Engine, watchdog_ms: Option<u64>) {
    let _stopping = engine.notify(Readiness::Ready).await;
    let Some(ms) = watchdog_ms.filter(|ms| *ms > 0) else { return };
    let every = Duration::from_millis(ms.div_ceil(2));
    let mut heartbeat = tokio::time::interval(every);
    while engine.heartbeat(every).await.is_ok() {
        heartbeat.tick().await;
    }
}

/// Prints where each face listens when it starts to.
fn print_listeners(rows: &[Listening]) {
    let version = env!("CARGO_PKG_VERSION");
    let table = listen::table(rows);
    let _stdout_closed = write!(std::io::stdout(), "outpost {version} is running\n{table}");
}
