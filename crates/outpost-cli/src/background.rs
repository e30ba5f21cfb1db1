//! Background start: runs this program again in a new session, without a controlling terminal.

use outpost_sys::file::{self, Open};
use outpost_sys::spawn::{self, Child, Executable, Started};
use std::ffi::{CStr, CString};
use std::fs::File;
use std::os::fd::{AsFd, BorrowedFd};

/// Variables of the current ssh session. They are wrong for a process that outlives the session.
const SSH_VARIABLES: [&[u8]; 4] = [b"SSH_CLIENT=", b"SSH_CONNECTION=", b"SSH_ORIGINAL_COMMAND=", b"SSH_TTY="];

/// Starts this program with these arguments. Its standard error goes to `log`.
pub(super) fn start(arguments: &[CString], stdout: BorrowedFd<'_>, log: &File) -> Result<Started, String> {
    let prepared = || -> outpost_sys::Result<_> {
        Ok((file::open("/proc/self/exe", Open::Program)?, file::open("/dev/null", Open::ReadWrite)?))
    };
    let (binary, null) = prepared().map_err(|errno| format!("cannot start in the background: {errno}"))?;
    let mut environment = spawn::own_environment();
    environment.retain(|entry| !SSH_VARIABLES.iter().any(|name| entry.to_bytes().starts_with(name)));
    let environment: Vec<&CStr> = environment.iter().map(CString::as_c_str).collect();
    let arguments: Vec<&CStr> =
        [c"outpost"].into_iter().chain(arguments.iter().map(CString::as_c_str)).collect();
    let started = spawn::spawn(&Child::new(
        Executable::Open(binary.as_fd()),
        &arguments,
        &environment,
        spawn::SessionKind::Session,
        &[(null.as_fd(), 0), (stdout, 1), (log.as_fd(), 2)],
    ));
    started.map_err(|failure| format!("cannot start in the background: {}", failure.errno))
}

/// Converts one argument for [`start`].
pub(super) fn argument(text: impl Into<Vec<u8>>) -> Result<CString, String> {
    CString::new(text).map_err(|error| format!("an argument contains a zero byte: {error}"))
}
