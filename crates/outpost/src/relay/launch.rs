//! `-serve`: starts a server in the background, or wakes one that has kept its processes, and returns when it answers.

use super::flags::Flags;
use super::place::Place;
use super::settings::Settings;
use crate::paths::{Dirs, Paths};
use crate::serve_again::{is_other_binary, open_keeper};
use crate::{roles, serve};
use outpost_approvals::guard::Places;
use outpost_control::client::{CallError, Client};
use outpost_control::wire::{RelayState, Status, UpgradeBinary, WakeRelay};
use outpost_relay::words;
use outpost_sys::connect::{self, Trust};
use outpost_sys::file::{self, Open};
use outpost_sys::spawn::{self, Child, Program, Started};
use outpost_sys::{epoll::wait_readable, pidfd, signal::Signal};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::net::Shutdown;
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::path::Path;
use std::time::{Duration, Instant};

/// Longer than any token.
const TOKEN_BYTES_MAX: u64 = 64 * 1024;
/// How long a server may take to answer, and one that is ending to be gone.
const PATIENCE: Duration = Duration::from_secs(15);
/// How often we look whether it has.
const LOOK: Duration = Duration::from_millis(2);

/// The numbers under which the keeper finds what it is given.
mod given {
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
    let place = Place::new(socket)?;
    let places = state_places(&place)?;
    let deadline = Instant::now() + PATIENCE;
    let lock = loop {
        if let Some(lock) = place.try_lock()? {
            break lock;
        }
        for paths in &places {
            if wake(paths, flags, &token)? {
                return announce(socket);
            }
        }
        if place.is_live() || Instant::now() > deadline {
            return Err(format!(
                "listen unix: listen unix {}: bind: address already in use",
                socket.display()
            ));
        }
        // The one who has it is on its way out, or on its way in.
        std::thread::sleep(LOOK);
    };
    // Only now: whoever had the lock before us may have been clearing them away.
    let paths = make_state(&places)?;
    place.record(&paths.state).map_err(|error| format!("{}: {error}", paths.state.display()))?;
    start(flags, &place, &paths, lock, token)?;
    announce(socket)
}

/// Where the processes of this socket may be recorded, the first choice first. Where the user's state directory cannot be
/// had, that is beside the socket: a daemon that is told where its socket is must not depend on a home.
fn state_places(place: &Place) -> Result<Vec<Paths>, String> {
    let below = |root: &Path| {
        let state = place.state(root);
        Paths {
            runtime: state.clone(),
            own: state.clone(),
            state,
            host: None,
            guard: Places::default(),
            is_guard: false,
        }
    };
    let dirs = Dirs::from_environment();
    let beside = below(&place.directory().join(".outpost"));
    match dirs.resolve() {
        Ok(found) if dirs.state_dir.is_some() => Ok(vec![below(&found.state)]),
        Ok(found) => Ok(vec![below(&found.state), beside]),
        Err(reason) if dirs.state_dir.is_some() => Err(reason),
        Err(_no_home) => Ok(vec![beside]),
    }
}

/// Makes the first of them that can be made, and says so if it is not the first choice.
fn make_state(places: &[Paths]) -> Result<Paths, String> {
    let mut refused = None;
    for paths in places {
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
    let _nobody_reads = writeln!(io::stdout(), "Claustrum remote server listening on {}", socket.display());
    Ok(())
}

/// "The token is read as a line", and its file is gone afterwards.
fn read_token(flags: &Flags) -> Result<String, String> {
    let mut bytes = Vec::new();
    if flags.token_fd >= 0 {
        let number = i32::try_from(flags.token_fd).unwrap_or(-1);
        let read = file::inherited(number)
            .map_err(io::Error::from)
            .and_then(|fd| File::from(fd).take(TOKEN_BYTES_MAX).read_to_end(&mut bytes));
        read.map_err(|error| format!("read --token-fd: {}", words::path_error("read", "token-fd", &error)))?;
    } else {
        let path = Path::new(&flags.token_file);
        let name = path.to_string_lossy();
        let fail = |operation: &str, error: &io::Error| {
            format!("read --token-file: {}", words::path_error(operation, &name, error))
        };
        let file = File::open(path).map_err(|error| fail("open", &error))?;
        file.take(TOKEN_BYTES_MAX).read_to_end(&mut bytes).map_err(|error| fail("read", &error))?;
        let _gone = fs::remove_file(path);
    }
    while matches!(bytes.last(), Some(b'\n' | b'\r')) {
        bytes.pop();
    }
    if bytes.is_empty() {
        return Err("the token is empty: nobody could ever authenticate".into());
    }
    String::from_utf8(bytes).map_err(|_| "the token is not UTF-8: nobody could ever authenticate".into())
}

fn start(flags: &Flags, place: &Place, paths: &Paths, lock: OwnedFd, token: String) -> Result<(), String> {
    let (listener, bound) = place.bind()?;
    if let Err(error) = place.write_token(token.as_bytes()) {
        errln!("claustrum: [daemon] failed to persist token: {}", words::io(&error));
    }
    let settings = Settings {
        socket: place.real_socket(),
        token: token.clone().into_bytes(),
        metrics_addr: flags.metrics_addr.clone(),
        keep_children: flags.keep_children,
        journal_bytes: flags.journal_bytes,
        bound: Some(bound),
    };
    let keeper = start_keeper(place, paths, &lock, &listener.into(), &settings);
    let answered = keeper.and_then(|keeper| wait_for_notice(place, &keeper));
    if answered.is_err() {
        place.unbind(bound);
        place.remove_token(token.as_bytes());
    }
    answered
}

/// The keeper in a session of its own, with nothing of ours but what it is given.
fn start_keeper(
    place: &Place,
    paths: &Paths,
    lock: &OwnedFd,
    listener: &OwnedFd,
    settings: &Settings,
) -> Result<Started, String> {
    let io = |what: &str, error: io::Error| format!("{what}: {}", words::io(&error));
    let log = place.open_log().map_err(|error| io("open remote-server.log", error))?;
    let held = vec![
        (roles::LOCK, given::LOCK),
        (roles::RELAY_SOCKET, given::SOCKET),
        (roles::RELAY_SETTINGS, given::SETTINGS),
    ];
    let state = serve::keeper_state(given::BINARY, serve::worker_arguments(paths, c"outpost")?, held);
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
    let number = CString::new(given::STATE.to_string()).unwrap_or_default();
    let environment = environment();
    let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
    let descriptors: [(_, RawFd); 8] = [
        (null.as_fd(), 0),
        (log.as_fd(), 1),
        (log.as_fd(), 2),
        (state.as_fd(), given::STATE),
        (binary.as_fd(), given::BINARY),
        (lock.as_fd(), given::LOCK),
        (listener.as_fd(), given::SOCKET),
        (settings.as_fd(), given::SETTINGS),
    ];
    let started = spawn::spawn(&Child::new(
        Program::Open(binary.as_fd()),
        &[c"outpost", c"keeper", c"--state", &number],
        &environment,
        spawn::Standing::Session,
        &descriptors,
    ));
    started.map_err(|failure| format!("daemonize: {}", words::errno(failure.errno)))
}

/// "CLAUDE_SSH_DAEMON_CHILD=1 … propagates verbatim into process.spawn children"; tokens and markers of the original's
/// own do not.
fn environment() -> Vec<CString> {
    const WITHHELD: [&[u8]; 4] = [
        b"CLAUDE_RPC_TOKEN=",
        b"CLAUSTRUM_DAEMON_CHILD=",
        b"CLAUSTRUM_TOKEN_PIPE=",
        b"CLAUDE_SSH_DAEMON_CHILD=",
    ];
    let mut environment = spawn::own_environment();
    environment.retain(|entry| !WITHHELD.iter().any(|name| entry.to_bytes().starts_with(name)));
    environment.push(c"CLAUDE_SSH_DAEMON_CHILD=1".to_owned());
    environment
}

/// It serves when it takes notice: of a client that has nothing to ask, and so is not counted as one.
fn wait_for_notice(place: &Place, keeper: &Started) -> Result<(), String> {
    let timeout = || format!("timeout waiting for daemon to accept on {}", place.socket.display());
    let give_up = |reason: String| {
        let _gone = pidfd::signal(&keeper.pidfd, Signal::TERM);
        format!("{reason}; see {}", place.log().display())
    };
    let mut server = connect::connect(&place.socket, Trust::Own).map_err(|_| give_up(timeout()))?;
    server.shutdown(Shutdown::Write).map_err(|_| give_up(timeout()))?;
    let deadline = Instant::now() + PATIENCE;
    let mut noticed = false;
    while !noticed {
        noticed = wait_readable(&server, LOOK).unwrap_or(false);
        if wait_readable(&keeper.pidfd, Duration::ZERO).unwrap_or(true) {
            return Err(format!("the daemon ended before it served; see {}", place.log().display()));
        }
        if Instant::now() > deadline {
            return Err(give_up(timeout()));
        }
    }
    match server.read(&mut [0]) {
        Ok(0) => Ok(()),
        Ok(_) => Err(give_up("somebody else serves there".into())),
        Err(error) => Err(give_up(format!("the daemon does not serve: {}", words::io(&error)))),
    }
}

/// Has a server that keeps processes serve again; false when there is none to wake.
fn wake(paths: &Paths, flags: &Flags, token: &str) -> Result<bool, String> {
    let connect = || Client::connect(&paths.control_socket());
    let status = || connect().ok()?.call::<Status>("status", &()).ok();
    let Some(before) = status().filter(|status| status.relay == Some(RelayState::Keeping)) else {
        return Ok(false);
    };
    if is_other_binary(before.worker_pid) {
        let path = std::env::current_exe().map_err(|error| words::io(&error))?;
        let upgrade = UpgradeBinary { path: path.display().to_string() };
        // Here and below: a daemon whose last process ends is gone from one moment to the next.
        let Ok(keeper) = open_keeper(&before) else { return Ok(false) };
        let Ok(mut client) = connect() else { return Ok(false) };
        match client.call::<()>("upgrade", &upgrade) {
            // The one that was asked is gone by the time it could answer.
            Ok(()) | Err(CallError::Lost(_)) => {}
            Err(error) if error.is_gone() => return Ok(false),
            Err(error) => return Err(format!("wake the daemon: {error}")),
        }
        let deadline = Instant::now() + PATIENCE;
        while status().is_none_or(|now| now.worker_pid == before.worker_pid) && Instant::now() < deadline {
            if wait_readable(&keeper, LOOK).unwrap_or(true) {
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
        // It has the lock until it is gone.
        Err(error) if error.is_gone() => Ok(false),
        Err(CallError::Refused(failure)) => Err(failure.message),
    }
}
