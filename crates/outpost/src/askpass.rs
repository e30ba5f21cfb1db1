//! What sudo runs to ask for a password: fetches it from the daemon that started that sudo, and writes it for it.

use outpost_broker::{ASKPASS_ANCHOR, ASKPASS_HIDDEN, ASKPASS_RECOGNISED, ASKPASS_VARIABLE};
use outpost_sys::connect::{self, Trust};
use outpost_sys::limits;
use std::ffi::OsStr;
use std::io::{self, Read, Write};
use std::path::Path;
use std::process::ExitCode;
use zeroize::Zeroizing;

/// The longest password.
const PASSWORD_BYTES_MAX: u64 = 1024;

/// Whether we are called for a password; then it has been dealt with when this returns.
pub(crate) fn run_if_called(called: &OsStr) -> Option<ExitCode> {
    if called == ASKPASS_ANCHOR {
        return Some(anchor());
    }
    let is_by_number = Path::new(called).starts_with("/proc") && Path::new(called).ends_with("exe");
    let socket = std::env::var_os(ASKPASS_VARIABLE).filter(|_| is_by_number)?;
    Some(ask(Path::new(&socket)))
}

/// Lives until the daemon closes our standard input or ends.
fn anchor() -> ExitCode {
    outpost_sys::memory::forget_program();
    let _ended = io::copy(&mut io::stdin(), &mut io::sink());
    ExitCode::SUCCESS
}

fn ask(socket: &Path) -> ExitCode {
    match fetch(socket) {
        Ok(Some(typed)) => match writeln!(io::stdout(), "{}", typed.as_str()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Ok(None) => ExitCode::FAILURE,
        Err(error) => {
            errln!("outpost: cannot get a password from the daemon on {}: {error}", socket.display());
            ExitCode::FAILURE
        }
    }
}

/// None when there is no password for us.
fn fetch(socket: &Path) -> io::Result<Option<Zeroizing<String>>> {
    let mut daemon = connect::connect(socket, Trust::Own)?;
    let mut recognised = [0];
    if daemon.read(&mut recognised)? != 1 || recognised != [ASKPASS_RECOGNISED] {
        return Ok(None);
    }
    // Only now: the daemon could not have looked at our executable any more.
    limits::hide_memory()?;
    daemon.write_all(&[ASKPASS_HIDDEN])?;
    let mut typed = Zeroizing::new(String::new());
    let read = daemon.take(PASSWORD_BYTES_MAX).read_to_string(&mut typed)?;
    Ok((read > 0).then_some(typed))
}
