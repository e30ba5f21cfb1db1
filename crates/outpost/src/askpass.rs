//! What sudo runs to ask for a password: fetches it from the daemon that started that sudo, and writes it for it.

use outpost_broker::ASKPASS_SOCKET;
use outpost_sys::limits;
use std::ffi::OsStr;
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::ExitCode;
use zeroize::Zeroizing;

/// The longest password.
const PASSWORD_BYTES_MAX: u64 = 1024;

/// The daemon's socket is beside the name we were called by.
pub(crate) fn run(called: &OsStr) -> ExitCode {
    if let Err(errno) = limits::hide_memory() {
        errln!("outpost: cannot hide the memory of what is to have a password: {errno}");
        return ExitCode::FAILURE;
    }
    let socket = Path::new(called).with_file_name(ASKPASS_SOCKET);
    let mut typed = Zeroizing::new(String::new());
    let fetched = UnixStream::connect(&socket)
        .and_then(|daemon| daemon.take(PASSWORD_BYTES_MAX).read_to_string(&mut typed));
    match fetched {
        Ok(1..) => match writeln!(std::io::stdout(), "{}", typed.as_str()) {
            Ok(()) => ExitCode::SUCCESS,
            Err(_) => ExitCode::FAILURE,
        },
        Ok(0) => ExitCode::FAILURE,
        Err(error) => {
            errln!("outpost: cannot ask the daemon for a password on {}: {error}", socket.display());
            ExitCode::FAILURE
        }
    }
}
