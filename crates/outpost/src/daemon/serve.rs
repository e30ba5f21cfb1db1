//! `outpost serve`: takes the lock, writes the keeper's initial state, and executes the keeper in place.

use super::{detach, fd_roles, fd_store, live_config};
use outpost_cli::paths::Paths;
use outpost_cli::{KERNEL_MIN, ServeOptions};
use outpost_control::client::Client;
use outpost_control::wire::Status;
use outpost_keeper::state::{SerializedEntry, State};
use outpost_keeper::{OWN_SLOT, ProcessState};
use outpost_sys::file::{self, Open};
use outpost_sys::process::effective_uid;
use outpost_sys::{Errno, is_exhaustion, kernel, limits, spawn};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// The OOM killer should take the daemon last: the daemon can restart everything else.
const OOM_SCORE: i32 = -900;

/// How long a running daemon may take to reply to `status`.
const STATUS_TIMEOUT: Duration = Duration::from_secs(5);

/// Size of the probe file of [`check_writable`]: room for a database and a first journal.
const PROBE_BYTES: usize = 64 * 1024;

/// Descriptors that an idle daemon needs.
const DESCRIPTORS_MIN: u64 = 128;

/// The flags for the end of the worker's command line.
pub(crate) fn flag_arguments(options: &ServeOptions) -> Vec<CString> {
    options.flags.clone().absolute().arguments()
}

/// The process name of keeper and worker, as `ps` shows it.
pub(crate) fn process_name(options: &ServeOptions) -> &'static CStr {
    if options.flags.sessions.codecast { c"codecast-daemon" } else { c"outpost" }
}

pub(crate) enum ServeError {
    /// Another daemon holds the lock; the message names its keeper.
    AlreadyRunning(String),
    Failed(String),
}

impl ServeError {
    pub(crate) fn reason(self) -> String {
        match self {
            ServeError::AlreadyRunning(reason) | ServeError::Failed(reason) => reason,
        }
    }
}

impl From<String> for ServeError {
    fn from(reason: String) -> ServeError {
        ServeError::Failed(reason)
    }
}

/// Returns only on failure, with `--detach`, or if the daemon of this supervisor runs already.
pub(crate) fn serve(paths: &Paths, options: &ServeOptions) -> Result<(), ServeError> {
    let prepared = match PreparedKeeper::new(paths, options) {
        // A killed keeper was the supervisor's main process. Its worker has started another keeper.
        Err(ServeError::AlreadyRunning(reason)) if notify_main_pid(paths).is_some() => {
            tracing::info!("{reason}; sent its MAINPID to the supervisor");
            return Ok(());
        }
        prepared => prepared?,
    };
    match options.detach {
        true => Ok(detach::start(paths, options, prepared)?),
        false => Err(prepared.become_keeper(process_name(options))?.into()),
    }
}

/// Everything that a new keeper needs.
pub(crate) struct PreparedKeeper {
    pub(crate) lock: OwnedFd,
    pub(crate) config: OwnedFd,
    pub(crate) binary: OwnedFd,
    /// The worker's command line.
    pub(crate) arguments: Vec<CString>,
}

impl PreparedKeeper {
    /// Checks everything that can fail while standard error is still the user's terminal.
    fn new(paths: &Paths, options: &ServeOptions) -> Result<PreparedKeeper, ServeError> {
        if paths.is_guard && effective_uid() != 0 {
            return Err("the guard runs as root: `sudo outpost install-service --guard` sets it up"
                .to_owned()
                .into());
        }
        paths.create()?;
        check_kernel(&kernel::release())?;
        check_limits()?;
        let flags = options.flags.clone().absolute().for_daemon(paths)?;
        let text = flags.config_text()?;
        let effective = flags.effective(&text, &paths.state)?;
        effective.config.approvals.settings(paths)?;
        let lock = take_lock(&paths.lock())?
            .ok_or_else(|| ServeError::AlreadyRunning(already_running(paths, &paths.lock())))?;
        check_writable(paths)?;
        let binary = file::open("/proc/self/exe", Open::Program)
            .map_err(|errno| format!("cannot open this program: {errno}"))?;
        let mut arguments = worker_arguments(paths, process_name(options))?;
        arguments.extend(flag_arguments(options));
        Ok(PreparedKeeper { lock, config: live_config::to_memory(&text)?, binary, arguments })
    }

    /// Executes the keeper in this process, whose pid the supervisor knows. Returns only on failure.
    fn become_keeper(mut self, name: &CStr) -> Result<String, String> {
        let notify = notify_socket();
        if notify.is_some()
            && let Some(ms) = watchdog_ms()
        {
            self.arguments.extend(CString::new(format!("--watchdog-ms={ms}")));
        }
        let store = notify.as_ref().filter(|_| fd_store::is_offered()).map(file::duplicate);
        let store = store.transpose().map_err(|errno| format!("cannot prepare the keeper: {errno}"))?;
        let restored = fd_store::take_inherited();
        let mut held =
            vec![(fd_roles::LOCK, self.lock.as_raw_fd()), (fd_roles::CONFIG, self.config.as_raw_fd())];
        held.extend(notify.iter().map(|socket| (outpost_keeper::NOTIFY_ROLE, socket.as_raw_fd())));
        held.extend(store.iter().map(|socket| (outpost_keeper::STORE_ROLE, socket.as_raw_fd())));
        let mut state = initial_keeper_state(self.binary.as_raw_fd(), self.arguments, held);
        state.entries.extend(fd_store::entries(&restored));
        let prepare_exec = || -> outpost_sys::Result<OwnedFd> {
            file::redirect_stdin_to_null()?;
            file::close_on_exec_from(3)?;
            let own = [&self.lock, &self.config, &self.binary].into_iter().chain(&notify).chain(&store);
            for fd in own.chain(restored.iter().map(|restored| &restored.fd)) {
                file::set_inherited(fd, true)?;
            }
            let state = file::sealed_memory("outpost-keeper", &state.encode())?;
            file::set_inherited(&state, true)?;
            Ok(state)
        };
        let state = prepare_exec().map_err(|errno| format!("cannot prepare the keeper: {errno}"))?;
        let number = CString::new(state.as_raw_fd().to_string()).unwrap_or_default();
        let environment = environment();
        let environment: Vec<_> = environment.iter().map(CString::as_c_str).collect();
        let arguments = [name, c"keeper", c"--state", &number];
        let errno = spawn::replace_self(self.binary.as_fd(), &arguments, &environment);
        Ok(format!("cannot execute the keeper: {errno}"))
    }
}

/// A keeper's initial state. `held` lists the daemon's descriptors by role.
pub(crate) fn initial_keeper_state(binary: RawFd, arguments: Vec<CString>, held: Vec<(u8, RawFd)>) -> State {
    let (slot, pid, state) = (OWN_SLOT, 0, ProcessState::Running);
    let daemon = SerializedEntry { slot, pid, state, pidfd: -1, held, exec_status: -1 };
    State { binary, arguments, worker: None, replaced: false, entries: vec![daemon] }
}

/// The environment without the supervisor's variables: a child that had them could send notifications as the daemon.
pub(crate) fn environment() -> Vec<CString> {
    const SUPERVISOR_VARIABLES: [&[u8]; 7] = [
        b"NOTIFY_SOCKET=",
        b"WATCHDOG_USEC=",
        b"WATCHDOG_PID=",
        b"LISTEN_FDS=",
        b"LISTEN_FDNAMES=",
        b"LISTEN_PID=",
        b"FDSTORE=",
    ];
    let mut environment = spawn::own_environment();
    environment.retain(|entry| !SUPERVISOR_VARIABLES.iter().any(|name| entry.to_bytes().starts_with(name)));
    environment
}

/// Connects to `NOTIFY_SOCKET`. None if it is not set, or was inherited from a supervisor that no longer exists.
fn notify_socket() -> Option<OwnedFd> {
    let name = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty())?;
    let connect = || -> std::io::Result<OwnedFd> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    let socket = connect();
    if let Err(error) = &socket {
        tracing::warn!(%error, "cannot connect to NOTIFY_SOCKET; the daemon runs without a supervisor");
    }
    socket.ok()
}

/// Sends the pid of the running keeper to the supervisor, if there is one.
fn notify_main_pid(paths: &Paths) -> Option<()> {
    let socket = notify_socket()?;
    // A stopped daemon that keeps its processes must be resumed instead.
    let status = status(paths).filter(|status| !status.keeping)?;
    let message = format!("MAINPID={}\nREADY=1", status.keeper_pid);
    outpost_sys::message::send(&socket, message.as_bytes(), &[]).ok()
}

/// The status of the running daemon.
fn status(paths: &Paths) -> Option<Status> {
    let mut client = Client::connect(&paths.control_socket()).ok()?;
    client.set_timeout(Some(STATUS_TIMEOUT)).ok()?;
    client.call("status", &()).ok()
}

/// The supervisor's watchdog interval, if `WATCHDOG_PID` names this process.
fn watchdog_ms() -> Option<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let is_for_us = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|_| is_for_us).map(|us| us / 1000)
}

fn check_kernel(release: &str) -> Result<(), String> {
    match kernel::version_in(release) {
        version if version < KERNEL_MIN => {
            let (major, minor) = KERNEL_MIN;
            Err(format!("Linux {release} is too old; the daemon needs Linux {major}.{minor} or later"))
        }
        _ => Ok(()),
    }
}

/// Refuses a descriptor limit with which the daemon would fail later, in the middle of a request.
fn check_limits() -> Result<(), String> {
    match limits::descriptors().hard {
        Some(most) if most < DESCRIPTORS_MIN => Err(format!(
            "the limit of {most} open files is too low: the daemon needs at least {DESCRIPTORS_MIN}\n\
             hint: raise it with `ulimit -Hn`, or LimitNOFILE= of the service"
        )),
        _ => Ok(()),
    }
}

/// Checks that this user can write to both directories. The caller holds the lock. A full disk is only a warning: the
/// daemon retries until there is space.
fn check_writable(paths: &Paths) -> Result<(), String> {
    for dir in [&paths.state, &paths.runtime] {
        let probe = dir.join(".room");
        let written = std::fs::write(&probe, [0; PROBE_BYTES]);
        let _not_there = std::fs::remove_file(&probe);
        let exhausted = |error: &std::io::Error| Errno::from_io_error(error).is_some_and(is_exhaustion);
        match written {
            Err(error) if exhausted(&error) => {
                tracing::warn!(dir = %dir.display(), %error, "cannot write to this directory now");
            }
            Err(error) => {
                return Err(format!(
                    "cannot write to {}: {error}\n\
                     hint: grant this user write permission, or choose another directory with --state-dir or --runtime-dir",
                    dir.display()
                ));
            }
            Ok(()) => {}
        }
    }
    Ok(())
}

/// Raises this process's limits, which keeper and worker inherit, and returns the worker's command line. It contains the
/// previous limits, which children get back.
pub(crate) fn worker_arguments(paths: &Paths, name: &CStr) -> Result<Vec<CString>, String> {
    let descriptors = limits::raise_descriptors().unwrap_or_else(|_| limits::descriptors());
    let oom_score = outpost_sys::process::oom_score();
    let shielded = outpost_sys::process::set_oom_score(OOM_SCORE).is_ok();
    let mut arguments = vec![
        name.to_owned(),
        c"worker".to_owned(),
        c"--state-dir".to_owned(),
        c_string(&paths.state)?,
        c"--runtime-dir".to_owned(),
        c_string(&paths.runtime)?,
    ];
    if paths.is_guard {
        arguments.push(c"--guard".to_owned());
    }
    if let Some(root) = paths.guard.root() {
        arguments.extend([c"--guard-root".to_owned(), c_string(root)?]);
    }
    let number = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let limits = [("--descriptors", format!("{}:{}", number(descriptors.soft), number(descriptors.hard)))];
    let score = shielded.then(|| ("--oom-score", oom_score.to_string()));
    for (flag, value) in limits.into_iter().chain(score) {
        arguments.extend(CString::new(format!("{flag}={value}")));
    }
    Ok(arguments)
}

fn c_string(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{} contains a zero byte", path.display()))
}

/// Takes the lock that keeps two daemons from sharing sockets and journals. None if another daemon holds it.
pub(crate) fn take_lock(path: &Path) -> Result<Option<OwnedFd>, String> {
    let fail = |errno| format!("{}: {errno}", path.display());
    let lock = file::open(path, Open::Create).map_err(fail)?;
    if !file::try_lock(&lock).map_err(fail)? {
        return Ok(None);
    }
    match write_lock_pid(&lock, std::process::id()) {
        // The pid is informative only, so a full disk does not matter.
        Err(errno) if !is_exhaustion(errno) => Err(fail(errno)),
        _ => Ok(Some(lock)),
    }
}

/// The error for a held lock. The lock file may name a keeper that was replaced since, so the daemon is asked first.
pub(crate) fn already_running(paths: &Paths, lock: &Path) -> String {
    let living = status(paths).map(|status| status.keeper_pid.to_string());
    let keeper = living.unwrap_or_else(|| std::fs::read_to_string(lock).unwrap_or_default());
    format!("outpost is already running here (keeper {}); `outpost status` shows it", keeper.trim())
}

/// Writes the keeper's pid into the lock file.
pub(crate) fn write_lock_pid(lock: &OwnedFd, keeper: u32) -> outpost_sys::Result<()> {
    file::set_size(lock, 0)?;
    file::write_all_at(lock, format!("{keeper}\n").as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_unsupported_kernel_is_refused_by_name() {
        for release in ["5.9.16-generic", "4.19.0-27-amd64"] {
            let refused = check_kernel(release).unwrap_err();
            assert!(refused.contains(release) && refused.contains("Linux 5.10"), "{refused}");
        }
        for release in ["5.10.0-32-amd64", "6.1.0", "7.0.1"] {
            assert_eq!(check_kernel(release), Ok(()));
        }
    }
}
