//! `outpost serve --detach`: the daemon in a session of its own, without a service manager.

use crate::announced;
use crate::paths::Paths;
use crate::roles;
use crate::serve::{self, Options, Prepared};
use outpost_control::client::Client;
use outpost_control::wire::Status;
use outpost_sys::epoll::wait_readable;
use outpost_sys::file::{self, Open};
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use outpost_sys::spawn::{self, Child, Program, Started};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom};
use std::os::fd::{AsFd, OwnedFd, RawFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long the daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);
/// How often we look whether it does.
const LOOK: Duration = Duration::from_millis(5);
/// What is shown of the log of a daemon that did not begin.
const SHOWN_BYTES: u64 = 2048;

/// The numbers under which the keeper finds what it is given.
const STATE: RawFd = 3;
const BINARY: RawFd = 4;
const LOCK: RawFd = 5;
const CONFIG: RawFd = 6;

pub(crate) fn start(paths: &Paths, options: &Options, prepared: Prepared) -> Result<(), String> {
    let log = paths.log();
    let fail = |error: std::io::Error| format!("{}: {error}", log.display());
    let opened = File::options().create(true).append(true).mode(0o600).open(&log).map_err(fail)?;
    let begins_at = opened.metadata().map_err(fail)?.len();
    let Prepared { lock, config, binary, mut arguments } = prepared;
    arguments.extend(CString::new(format!("--log-file={}", log.display())));
    let held = vec![(roles::LOCK, LOCK), (roles::CONFIG, CONFIG)];
    let state = serve::keeper_state(BINARY, arguments, held);
    let state = file::sealed_memory("outpost-keeper", &state.encode());
    let text = |errno: outpost_sys::Errno| format!("cannot prepare the keeper: {errno}");
    let given = [state.map_err(text)?, binary, lock, config];
    let keeper = start_keeper(options, &given, &opened)?;
    let [_, _, lock, _] = &given;
    serve::sign_lock(lock, keeper.pid.cast_unsigned()).map_err(text)?;
    drop(given);
    let status = wait(paths, &keeper)
        .map_err(|reason| format!("{reason}; {} says:\n{}", log.display(), since(&log, begins_at)))?;
    outln!(
        "outpost {} is running in the background (keeper {}); its log is {}",
        status.version,
        status.keeper_pid,
        log.display()
    );
    out!("{}", announced::table(&status.faces.listening));
    Ok(())
}

/// In a session of its own: it is not this terminal's, and does not end with it.
fn start_keeper(options: &Options, given: &[OwnedFd; 4], log: &File) -> Result<Started, String> {
    let null = file::open("/dev/null", Open::ReadWrite).map_err(|errno| format!("/dev/null: {errno}"))?;
    let [state, binary, lock, config] = given;
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
        Program::Open(binary.as_fd()),
        &[options.name(), c"keeper", c"--state", &number],
        &environment,
        spawn::Standing::Session,
        &descriptors,
    ));
    started.map_err(|failure| format!("cannot start the keeper: {}", failure.errno))
}

/// Control is the last to answer: when it does, all do.
fn wait(paths: &Paths, keeper: &Started) -> Result<Status, String> {
    let deadline = Instant::now() + PATIENCE;
    let ask = || {
        let mut client = Client::connect(&paths.control_socket()).ok()?;
        client.set_patience(Some(PATIENCE)).ok()?;
        client.call::<Status>("status", &()).ok()
    };
    loop {
        if let Some(status) = ask() {
            return Ok(status);
        }
        if wait_readable(&keeper.pidfd, LOOK).unwrap_or(true) {
            return Err("the daemon ended before it answered".into());
        }
        if Instant::now() > deadline {
            let _gone = pidfd::signal(&keeper.pidfd, Signal::TERM);
            return Err(format!(
                "the daemon did not answer within {} s and was told to end",
                PATIENCE.as_secs()
            ));
        }
    }
}

/// The end of what the log has got since.
fn since(log: &Path, begins_at: u64) -> String {
    let read = || -> std::io::Result<Vec<u8>> {
        let mut file = File::open(log)?;
        let end = fs::metadata(log)?.len();
        file.seek(SeekFrom::Start(begins_at.max(end.saturating_sub(SHOWN_BYTES))))?;
        let mut bytes = Vec::new();
        file.take(SHOWN_BYTES).read_to_end(&mut bytes)?;
        Ok(bytes)
    };
    String::from_utf8_lossy(&read().unwrap_or_default()).trim_end().to_owned()
}
