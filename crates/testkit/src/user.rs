//! Other users than the one that runs the tests.

use rustix::process::Uid;
use std::io;
use std::os::unix::net::UnixStream;
use std::path::Path;

/// Neither root nor the owner of anything.
const NOBODY: u32 = 65534;

/// Runs `body` on a thread that is another user; only root can. The rest of the process keeps its user.
pub fn as_user<T: Send>(uid: u32, body: impl FnOnce() -> T + Send) -> T {
    let switched = || {
        let user = Uid::from_raw(uid);
        rustix::thread::set_thread_res_uid(user, user, user).unwrap();
        body()
    };
    std::thread::scope(|scope| {
        scope.spawn(switched).join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Runs `body` without root's rights: on a thread of another user, if this process is root's.
pub fn without_root<T: Send>(body: impl FnOnce() -> T + Send) -> T {
    match outpost_sys::process::effective_uid() {
        0 => as_user(NOBODY, body),
        _ => body(),
    }
}

/// A connection without the checks of our clients: a test may reach the daemon of any user.
#[expect(clippy::disallowed_methods, reason = "tests are clients of other users' daemons too")]
pub fn connect(socket: impl AsRef<Path>) -> io::Result<UnixStream> {
    let (address, _open) = outpost_sys::message::address(socket.as_ref())?;
    UnixStream::connect(address)
}
