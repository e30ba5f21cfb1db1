//! `outpost serve --detach`: starts the keeper in its own session and waits until the daemon serves.

use super::fd_roles;
use super::serve::{self, PreparedKeeper};
use outpost_cli::paths::Paths;
use outpost_cli::{ServeOptions, listen, out, outln};
use outpost_control::client::Client;
use outpost_control::wire::Status;
use outpost_sys::epoll::wait_readable;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Executable, Started};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the daemon may take to start.
const TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(5);
/// Bytes of the log that the error shows if the daemon does not start.
const LOG_TAIL_BYTES: u64 = 2048;

/// Descriptor numbers in the new keeper.
const STATE: RawFd = 3;
const BINARY: RawFd = 4;
const LOCK: RawFd = 5;
const CONFIG: RawFd = 6;

pub(crate) fn start(paths: &Paths, options: &ServeOptions, prepared: PreparedKeeper) -> Result<(), String> {
    let log = paths.log();
    let fail = |error: std::io::Error| format!("{}: {error}", log.display());
    let opened = File::options().create(true).append(true).mode(0o600).open(&log).map_err(fail)?;
    let log_start = opened.metadata().map_err(fail)?.len();
    let PreparedKeeper { lock, config, binary, mut arguments } = prepared;
    arguments.extend(CString::new(format!("--log-file={}", log.display())));
    let held = vec![(fd_roles::LOCK, LOCK), (fd_roles::CONFIG, CONFIG)];
    let state = serve::initial_keeper_state(BINARY, arguments, held);
    let state = file::sealed_memory("outpost-keeper", &state.encode());
    let text = |errno: outpost_sys::Errno| format!("cannot prepare the keeper: {errno}");
    let fds = [state.map_err(text)?, binary, lock, config];
    let keeper = start_keeper(options, &fds, &opened)?;
    let [_, _, lock, _] = &fds;
    serve::write_lock_pid(lock, keeper.pid.cast_unsigned()).map_err(text)?;
    drop(fds);
    let status = wait_until_serving(paths, &keeper)
        .map_err(|reason| format!("{reason}; log {}:\n{}", log.display(), log_tail(&log, log_start)))?;
    outln!(
        "outpost {} is running in the background (keeper {}); its log is {}",
        status.version,
        status.keeper_pid,
        log.display()
    );
    out!("{}", listen::table(&status.faces.listening));
    Ok(())
}

/// Starts the keeper in its own session, so that it does not end with this terminal.
fn start_keeper(options: &ServeOptions, fds: &[OwnedFd; 4], log: &File) -> Result<Started, String> {
    let null = file::open("/dev/null", Open::ReadWrite).map_err(|errno| format!("/dev/null: {errno}"))?;
    let [state, binary, lock, config] = fds;
    let descriptors: [(_, RawFd); 7] = [
        (null.as_fd(), 0),
        (log.as_fd(), 1),
        (log.as_fd(), 2),
        (state.as_fd(), STATE),
        (binary.as_fd(), BINARY),
        (lock.as_fd(), LOCK),
        (config.as_fd(), CONFIG),
    ];
    let number = CString::new(STATE.to_string()).unwrap_or_default();
    let environment = serve::environment();
    let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
    let started = spawn::spawn(&Child::new(
        Executable::Open(binary.as_fd()),
        &[serve::process_name(options), c"keeper", c"--state", &number],
        &environment,
        spawn::SessionKind::Session,
        &descriptors,
    ));
    started.map_err(|failure| format!("cannot start the keeper: {}", failure.errno))
}

/// Polls the control socket, which the worker serves last.
fn wait_until_serving(paths: &Paths, keeper: &Started) -> Result<Status, String> {
    let deadline = Instant::now() + TIMEOUT;
    let ask = || {
        let mut client = Client::connect(&paths.control_socket()).ok()?;
        client.set_timeout(Some(TIMEOUT)).ok()?;
        client.call::<Status>("status", &()).ok()
    };
    loop {
        if let Some(status) = ask() {
            return Ok(status);
        }
        if wait_readable(&keeper.pidfd, POLL_INTERVAL).unwrap_or(true) {
            return Err("the daemon ended before it served".into());
        }
        if Instant::now() > deadline {
            let _gone = pidfd::signal(&keeper.pidfd, Signal::TERM);
            return Err(format!("the daemon did not serve within {} s and got SIGTERM", TIMEOUT.as_secs()));
        }
    }
}

/// The last bytes of the log that this daemon wrote.
fn log_tail(log: &Path, log_start: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let end = fs::metadata(log)?.len();
        file.seek(SeekFrom::Start(log_start.max(end.saturating_sub(LOG_TAIL_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(LOG_TAIL_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).trim_end().to_owned()
}
