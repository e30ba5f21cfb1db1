//! `-serve`: starts a server in the background, or resumes one that keeps its processes, and returns when it serves.

use super::flags::Flags;
use super::settings::Settings;
use super::socket_paths::SocketPaths;
use crate::daemon::resume_kept::open_keeper;
use crate::daemon::{fd_roles, serve};
use outpost_approvals::guard::GuardPaths;
use outpost_cli::errln;
use outpost_cli::paths::{Dirs, Paths};
use outpost_cli::remote_bootstrap::is_other_binary;
use outpost_control::client::{CallError, Client};
use outpost_control::wire::{RelayState, Status, UpgradeBinary, WakeRelay};
use outpost_relay::go_compat;
use outpost_sys::connect::{self, Trust};
use outpost_sys::file::{self, Open};
use outpost_sys::spawn::{self, Child, Executable, Started};
use outpost_sys::{epoll::wait_readable, pidfd, signal::Signal};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

const TOKEN_BYTES_MAX: u64 = 64 * 1024;
/// How long a server may take to serve, and an ending one to release its lock.
const TIMEOUT: Duration = Duration::from_secs(15);
const POLL_INTERVAL: Duration = Duration::from_millis(2);

/// Descriptor numbers in the new keeper.
mod keeper_fd {
    use std::os::fd::RawFd;
    pub(super) const STATE: RawFd = 3;
    pub(super) const BINARY: RawFd = 4;
    pub(super) const LOCK: RawFd = 5;
    pub(super) const SOCKET: RawFd = 6;
    pub(super) const SETTINGS: RawFd = 7;
}

pub(super) fn serve(flags: &Flags, socket: &Path) -> Result<(), String> {
    if flags.token_file.is_empty() && flags.token_fd < 0 {
        return Err("daemonized child requires --token-file or --token-fd".into());
    }
    let token = read_token(flags)?;
    let socket_paths = SocketPaths::new(socket)?;
    let candidates = state_dir_candidates(&socket_paths)?;
    let deadline = Instant::now() + TIMEOUT;
    let lock = loop {
        if let Some(lock) = socket_paths.try_lock()? {
            break lock;
        }
        for paths in &candidates {
            if wake_keeping(paths, flags, &token)? {
                return announce(socket);
            }
        }
        if socket_paths.is_live() || Instant::now() > deadline {
            return Err(format!(
                "listen unix: listen unix {}: bind: address already in use",
                socket.display()
            ));
        }
        // The daemon that holds the lock is starting or ending.
        std::thread::sleep(POLL_INTERVAL);
    };
    // Create the directory only under the lock: its previous holder may still have been removing it.
    let paths = create_state_dir(&candidates)?;
    socket_paths.record(&paths.state).map_err(|error| format!("{}: {error}", paths.state.display()))?;
    start(flags, &socket_paths, &paths, lock, token)?;
    announce(socket)
}

/// Candidates for the state directory of this socket, in order of preference. The last is beside the socket: a daemon with
/// an explicit socket must not depend on a home directory.
fn state_dir_candidates(socket_paths: &SocketPaths) -> Result<Vec<Paths>, String> {
    let below = |root: &Path| {
        let state = socket_paths.state(root);
        Paths {
            runtime: state.clone(),
            user_state: state.clone(),
            state,
            host: None,
            guard: GuardPaths::default(),
            is_guard: false,
        }
    };
    let dirs = Dirs::from_environment();
    let beside = below(&socket_paths.directory().join(".outpost"));
    match dirs.resolve() {
        Ok(found) if dirs.state_dir.is_some() => Ok(vec![below(&found.state)]),
        Ok(found) => Ok(vec![below(&found.state), beside]),
        Err(reason) if dirs.state_dir.is_some() => Err(reason),
        Err(_no_home) => Ok(vec![beside]),
    }
}

/// Creates the first candidate that can be created. Prints a warning if it is not the preferred one.
fn create_state_dir(candidates: &[Paths]) -> Result<Paths, String> {
    let mut refused = None;
    for paths in candidates {
        match paths.create() {
            Ok(()) => {
                if let Some(reason) = refused {
                    errln!("claustrum: journals are kept beside the socket: {reason}");
                }
                return Ok(paths.clone());
            }
            Err(reason) => refused = Some(reason),
        }
    }
    Err(refused.unwrap_or_default())
}

fn announce(socket: &Path) -> Result<(), String> {
    let _stdout_closed = writeln!(io::stdout(), "Claustrum remote server listening on {}", socket.display());
    Ok(())
}

/// "The token is read as a line". Removes the token file afterwards.
fn read_token(flags: &Flags) -> Result<String, String> {
    let mut bytes = Vec::new();
    if flags.token_fd >= 0 {
        let number = i32::try_from(flags.token_fd).unwrap_or(-1);
        let read = file::inherited(number)
            .map_err(io::Error::from)
            .and_then(|fd| File::from(fd).take(TOKEN_BYTES_MAX).read_to_end(&mut bytes));
        read.map_err(|error| {
            format!("read --token-fd: {}", go_compat::path_error("read", "token-fd", &error))
        })?;
    } else {
        let path = Path::new(&flags.token_file);
        let name = path.to_string_lossy();
        let fail = |operation: &str, error: &io::Error| {
            format!("read --token-file: {}", go_compat::path_error(operation, &name, error))
        };
        let file = File::open(path).map_err(|error| fail("open", &error))?;
        file.take(TOKEN_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| fail("read", &error))?;
        let _gone = fs::remove_file(path);
    }
    while matches!(bytes.last(), Some(b'\n' | b'\r')) {
        bytes.pop();
    }
    if bytes.is_empty() {
        return Err("the token is empty: no client could authenticate".into());
    }
    String::from_utf8(bytes).map_err(|_| "the token is not UTF-8: no client could authenticate".into())
}

fn start(
    flags: &Flags,
    socket_paths: &SocketPaths,
    paths: &Paths,
    lock: OwnedFd,
    token: String,
) -> Result<(), String> {
    let (listener, bound) = socket_paths.bind()?;
    if let Err(error) = socket_paths.write_token(token.as_bytes()) {
        errln!("claustrum: [daemon] failed to persist token: {}", go_compat::io_text(&error));
    }
    let settings = Settings {
        socket: socket_paths.real_socket(),
        token: token.clone().into_bytes(),
        metrics_addr: flags.metrics_addr.clone(),
        keep_children: flags.keep_children,
        journal_bytes: flags.journal_bytes,
        bound: Some(bound),
    };
    let keeper = start_keeper(socket_paths, paths, &lock, &listener.into(), &settings);
    let answered = keeper.and_then(|keeper| wait_until_serving(socket_paths, &keeper));
    if answered.is_err() {
        socket_paths.unbind(bound);
        socket_paths.remove_token(token.as_bytes());
    }
    answered
}

/// Starts the keeper in its own session, with only the listed descriptors.
fn start_keeper(
    socket_paths: &SocketPaths,
    paths: &Paths,
    lock: &OwnedFd,
    listener: &OwnedFd,
    settings: &Settings,
) -> Result<Started, String> {
    let io = |what: &str, error: io::Error| format!("{what}: {}", go_compat::io_text(&error));
    let log = socket_paths.open_log().map_err(|error| io("open remote-server.log", error))?;
    let held = vec![
        (fd_roles::LOCK, keeper_fd::LOCK),
        (fd_roles::RELAY_SOCKET, keeper_fd::SOCKET),
        (fd_roles::RELAY_SETTINGS, keeper_fd::SETTINGS),
    ];
    let state =
        serve::initial_keeper_state(keeper_fd::BINARY, serve::worker_arguments(paths, c"outpost")?, held);
    let prepared = || -> outpost_sys::Result<[OwnedFd; 4]> {
        Ok([
            file::sealed_memory("outpost-keeper", &state.encode())?,
            file::open("/proc/self/exe", Open::Program)?,
            settings.to_memory()?,
            file::open("/dev/null", Open::ReadWrite)?,
        ])
    };
    let [state, binary, settings, null] =
        prepared().map_err(|errno| io("prepare the daemon", errno.into()))?;
    let number = CString::new(keeper_fd::STATE.to_string()).unwrap_or_default();
    let environment = environment();
    let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
    let descriptors: [(_, RawFd); 8] = [
        (null.as_fd(), 0),
        (log.as_fd(), 1),
        (log.as_fd(), 2),
        (state.as_fd(), keeper_fd::STATE),
        (binary.as_fd(), keeper_fd::BINARY),
        (lock.as_fd(), keeper_fd::LOCK),
        (listener.as_fd(), keeper_fd::SOCKET),
        (settings.as_fd(), keeper_fd::SETTINGS),
    ];
    let started = spawn::spawn(&Child::new(
        Executable::Open(binary.as_fd()),
        &[c"outpost", c"keeper", c"--state", &number],
        &environment,
        spawn::SessionKind::Session,
        &descriptors,
    ));
    started.map_err(|failure| format!("daemonize: {}", go_compat::errno_text(failure.errno)))
}

/// "CLAUDE_SSH_DAEMON_CHILD=1 … propagates verbatim into process.spawn children". The original's tokens and internal markers
/// are removed.
fn environment() -> Vec<CString> {
    const PRIVATE_VARIABLES: [&[u8]; 4] = [
        b"CLAUDE_RPC_TOKEN=",
        b"CLAUSTRUM_DAEMON_CHILD=",
        b"CLAUSTRUM_TOKEN_PIPE=",
        b"CLAUDE_SSH_DAEMON_CHILD=",
    ];
    let mut environment = spawn::own_environment();
    environment.retain(|entry| !PRIVATE_VARIABLES.iter().any(|name| entry.to_bytes().starts_with(name)));
    environment.push(c"CLAUDE_SSH_DAEMON_CHILD=1".to_owned());
    environment
}

/// Connects and sends EOF at once. The server serves when it closes that connection; it does not count it as a client.
fn wait_until_serving(socket_paths: &SocketPaths, keeper: &Started) -> Result<(), String> {
    let timeout = || format!("timeout waiting for daemon to accept on {}", socket_paths.socket.display());
    let give_up = |reason: String| {
        let _gone = pidfd::signal(&keeper.pidfd, Signal::TERM);
        format!("{reason}; see {}", socket_paths.log().display())
    };
    let mut server = connect::connect(&socket_paths.socket, Trust::Own).map_err(|_| give_up(timeout()))?;
    server.shutdown(Shutdown::Write).map_err(|_| give_up(timeout()))?;
    let deadline = Instant::now() + TIMEOUT;
    let mut answered = false;
    while !answered {
        answered = wait_readable(&server, POLL_INTERVAL).unwrap_or(false);
        if wait_readable(&keeper.pidfd, Duration::ZERO).unwrap_or(true) {
            return Err(format!("the daemon ended before it served; see {}", socket_paths.log().display()));
        }
        if Instant::now() > deadline {
            return Err(give_up(timeout()));
        }
    }
    match server.read(&mut [0]) {
        Ok(0) => Ok(()),
        Ok(_) => Err(give_up("another server answers on this socket".into())),
        Err(error) => Err(give_up(format!("the daemon does not serve: {}", go_compat::io_text(&error)))),
    }
}

/// Resumes a server that keeps processes. Returns false if there is none.
fn wake_keeping(paths: &Paths, flags: &Flags, token: &str) -> Result<bool, String> {
    let connect = || Client::connect(&paths.control_socket());
    let status = || connect().ok()?.call::<Status>("status", &()).ok();
    let Some(before) = status().filter(|status| status.relay == Some(RelayState::Keeping)) else {
        return Ok(false);
    };
    if is_other_binary(before.worker_pid) {
        let path = std::env::current_exe().map_err(|error| go_compat::io_text(&error))?;
        let upgrade = UpgradeBinary { path: path.display().to_string() };
        // Here and below: the daemon may end at any time, together with its last process.
        let Ok(keeper) = open_keeper(&before) else { return Ok(false) };
        let Ok(mut client) = connect() else { return Ok(false) };
        match client.call::<()>("upgrade", &upgrade) {
            // The old worker may exit before its reply arrives.
            Ok(()) | Err(CallError::Lost(_)) => {}
            Err(error) if error.is_gone() => return Ok(false),
            Err(error) => return Err(format!("wake the daemon: {error}")),
        }
        let deadline = Instant::now() + TIMEOUT;
        while status().is_none_or(|now| now.worker_pid == before.worker_pid) && Instant::now() < deadline {
            if wait_readable(&keeper, POLL_INTERVAL).unwrap_or(true) {
                return Ok(false);
            }
        }
    }
    let wake = WakeRelay {
        token: token.to_owned(),
        metrics_addr: flags.metrics_addr.clone(),
        keep_children: flags.keep_children,
    };
    let Ok(mut client) = connect() else { return Ok(false) };
    match client.call::<()>("wakeRelay", &wake) {
        Ok(()) => Ok(true),
        Err(CallError::Lost(_)) => Ok(false),
        // The ending daemon holds the lock until it exits; the caller retries.
        Err(error) if error.is_gone() => Ok(false),
        Err(CallError::Refused(failure)) => Err(failure.message),
    }
}
