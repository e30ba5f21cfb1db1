//! Files that belong to a relay's socket: the lock, token and log beside it, and its state directory.

use outpost_relay::go_compat;
use outpost_sys::Errno;
use outpost_sys::connect::{self, Trust};
use outpost_sys::file::{self, Open};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::ffi::OsStr;
use std::fs::{self, Metadata};
use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

/// The file in the state directory that contains the path of the socket.
const RECORD: &str = "socket";
const PATH_BYTES_MAX: u64 = 4096;

/// A log larger than this is rotated at the next start.
const LOG_BYTES_MAX: u64 = 4 * 1024 * 1024;

#[derive(Clone, Debug)]
pub(crate) struct SocketPaths {
    /// The path as the user gave it.
    pub(crate) socket: PathBuf,
    /// Its canonical directory.
    directory: PathBuf,
}

/// Identity of a bound socket, to detect its replacement.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SocketId {
    device: u64,
    inode: u64,
}

impl SocketId {
    fn of(found: &Metadata) -> SocketId {
        SocketId { device: found.dev(), inode: found.ino() }
    }
}

impl SocketPaths {
    pub(crate) fn new(socket: &Path) -> Result<SocketPaths, String> {
        let parent =
            socket.parent().filter(|parent| !parent.as_os_str().is_empty()).unwrap_or(Path::new("."));
        let directory = parent.canonicalize().map_err(|error| bind_error(socket, &error))?;
        if socket.file_name().is_none() {
            return Err(bind_error(socket, &Errno::INVAL.into()));
        }
        Ok(SocketPaths { socket: socket.to_owned(), directory })
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    fn name(&self) -> &std::ffi::OsStr {
        self.socket.file_name().unwrap_or_default()
    }

    /// The socket in its canonical directory: one path for all spellings of the same socket.
    pub(crate) fn real_socket(&self) -> PathBuf {
        self.directory.join(self.name())
    }

    fn beside(&self, suffix: &str) -> PathBuf {
        let mut name = self.name().to_owned();
        name.push(suffix);
        self.directory.join(name)
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.beside(".lock")
    }

    pub(crate) fn token(&self) -> PathBuf {
        self.directory.join("daemon.token")
    }

    pub(crate) fn log(&self) -> PathBuf {
        self.directory.join("remote-server.log")
    }

    /// The state directory of this socket. The name is a short hash, so that the path of the control socket fits into
    /// `sockaddr_un`.
    pub(crate) fn state(&self, root: &Path) -> PathBuf {
        let digest = Sha256::digest(self.real_socket().as_os_str().as_bytes());
        let name: String = digest.iter().take(8).map(|byte| format!("{byte:02x}")).collect();
        root.join("relay").join(name)
    }

    /// Writes the socket's path into the state directory, for [`SocketPaths::recorded`].
    pub(crate) fn record(&self, state: &Path) -> io::Result<()> {
        fs::write(state.join(RECORD), self.real_socket().as_os_str().as_bytes())
    }

    /// The sockets of all relays with a directory below this state directory.
    pub(crate) fn recorded(root: &Path) -> Vec<SocketPaths> {
        let Ok(entries) = fs::read_dir(root.join("relay")) else { return Vec::new() };
        let read = |entry: fs::DirEntry| {
            let file = file::open(entry.path().join(RECORD), Open::Read).ok()?;
            let socket = file::read_whole(&file, PATH_BYTES_MAX).ok()?;
            SocketPaths::new(Path::new(OsStr::from_bytes(&socket))).ok()
        };
        entries.flatten().filter_map(read).collect()
    }

    /// Files that every sandbox hides.
    pub(crate) fn private(&self) -> [PathBuf; 4] {
        [self.real_socket(), self.lock(), self.token(), self.directory.join(".outpost")]
    }

    /// Takes the lock; none while another daemon holds it.
    pub(crate) fn try_lock(&self) -> Result<Option<OwnedFd>, String> {
        let path = self.lock();
        let fail = |errno: Errno| format!("{}: {}", path.display(), go_compat::errno_text(errno));
        let lock = file::open(&path, Open::Create).map_err(fail)?;
        Ok(file::try_lock(&lock).map_err(fail)?.then_some(lock))
    }

    /// Whether a process of this user or of root listens on the socket.
    pub(crate) fn is_live(&self) -> bool {
        connect::connect(&self.socket, Trust::Own).is_ok()
    }

    /// Binds the socket. The caller holds the lock. Replaces a socket without a listener; any other file in its place is an
    /// error.
    pub(crate) fn bind(&self) -> Result<(UnixListener, SocketId), String> {
        let fail = |error: &io::Error| bind_error(&self.socket, error);
        let real = self.real_socket();
        if let Ok(found) = fs::symlink_metadata(&real) {
            if !(found.file_type().is_socket() && connect::is_abandoned(&real)) {
                return Err(fail(&Errno::ADDRINUSE.into()));
            }
            fs::remove_file(&real).map_err(|error| fail(&error))?;
        }
        // "created mode 0600 (owner only)": the umask avoids a window with another mode.
        let before = outpost_sys::process::set_umask(0o177);
        let bound = UnixListener::bind(&self.socket);
        outpost_sys::process::set_umask(before);
        let listener = bound.map_err(|error| fail(&error))?;
        let found = fs::symlink_metadata(&real).map_err(|error| fail(&error))?;
        Ok((listener, SocketId::of(&found)))
    }

    /// Removes the socket if it is still the one that was bound.
    pub(crate) fn unbind(&self, bound: SocketId) {
        let real = self.real_socket();
        if fs::symlink_metadata(&real).is_ok_and(|found| SocketId::of(&found) == bound) {
            let _gone = fs::remove_file(&real);
        }
    }

    /// Writes the token beside the socket, for clients that reconnect.
    pub(crate) fn write_token(&self, token: &[u8]) -> io::Result<()> {
        let temporary = self.directory.join(format!("daemon.token-{}", std::process::id()));
        let written = fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&temporary)
            .and_then(|mut file| file.write_all(token))
            .and_then(|()| fs::rename(&temporary, self.token()));
        if written.is_err() {
            let _not_there = fs::remove_file(&temporary);
        }
        written
    }

    /// Removes the token file if it still contains this token.
    pub(crate) fn remove_token(&self, token: &[u8]) {
        let same = file::open(self.token(), Open::Read)
            .and_then(|file| file::read_whole(&file, 1024 * 1024))
            .is_ok_and(|found| found == token);
        if same {
            let _gone = fs::remove_file(self.token());
        }
    }

    /// Opens the log for appending, without following a symbolic link. Rotates a large log first.
    pub(crate) fn open_log(&self) -> io::Result<OwnedFd> {
        let path = self.log();
        if fs::symlink_metadata(&path).is_ok_and(|found| found.is_file() && found.len() > LOG_BYTES_MAX) {
            fs::rename(&path, self.directory.join("remote-server.log.old"))?;
        }
        Ok(file::open(&path, Open::Append)?)
    }
}

fn bind_error(socket: &Path, error: &io::Error) -> String {
    format!("listen unix: listen unix {}: bind: {}", socket.display(), go_compat::io_text(error))
}
