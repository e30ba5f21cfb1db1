//! The two directions of a connection. Only reading is registered with the reactor all the time: a socket is
//! nearly always writable and would cause spurious wake-ups.

use outpost_sys::{Errno, file, message};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};

/// The receiving direction. A pipe `Receiver` is the runtime's type for a descriptor that is only read.
pub struct ReadHalf {
    registered: Receiver,
}

/// The sending direction.
pub struct WriteHalf {
    to: OwnedFd,
    is_socket: bool,
}

/// Splits a connection.
pub fn split(stream: UnixStream) -> io::Result<(ReadHalf, WriteHalf)> {
    let to = OwnedFd::from(stream.into_std()?);
    // A descriptor can be registered only once, and the original is used for writing.
    let registered = Receiver::from_owned_fd_unchecked(to.try_clone()?)?;
    Ok((ReadHalf { registered }, WriteHalf { to, is_socket: true }))
}

/// Standard input and output as a connection, of any file type. Other processes (a shell) may share them, so
/// O_NONBLOCK is not set on the shared description if it can be avoided.
pub fn stdio() -> io::Result<(ReadHalf, WriteHalf)> {
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let registered = match nonblocking(stdin.as_fd()).and_then(Receiver::from_owned_fd_unchecked) {
        Ok(registered) => registered,
        // A regular file cannot be registered.
        Err(_) => Receiver::from_owned_fd_unchecked(read_by_thread(stdin.as_fd())?)?,
    };
    let to = nonblocking(stdout.as_fd())?;
    let is_socket = file::is_socket(&to)?;
    Ok((ReadHalf { registered }, WriteHalf { to, is_socket }))
}

/// A non-blocking descriptor of the same file.
fn nonblocking(standard: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let own = match file::is_socket(standard)? {
        true => None,
        // Fails for the pipe of another user.
        false => file::reopen_nonblocking(standard).ok(),
    };
    match own {
        Some(own) => Ok(own),
        None => {
            let copy = standard.try_clone_to_owned()?;
            file::set_nonblocking(&copy)?;
            Ok(copy)
        }
    }
}

/// A socket to which a blocking thread copies the input.
fn read_by_thread(from: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (ours, mut theirs) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut from = File::from(from.try_clone_to_owned()?);
    let copy = move || {
        let _closed = io::copy(&mut from, &mut theirs);
    };
    std::thread::Builder::new().name("outpost-stdin".into()).spawn(copy)?;
    Ok(ours.into())
}

impl ReadHalf {
    /// Appends available bytes up to the buffer's capacity; 0 at EOF. Cancel-safe.
    pub async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.registered.read_buf(buffer).await
    }
}

impl WriteHalf {
    /// Writes as much as the socket accepts; `None` when it is full.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        let written = match self.is_socket {
            true => message::write_some(&self.to, bytes),
            false => file::write_some(&self.to, bytes),
        };
        match written {
            Ok(written) => Ok(Some(written)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Registers the socket for writability, until the returned value is dropped.
    pub(crate) fn watch(&self) -> io::Result<WriteReadiness> {
        Ok(WriteReadiness { registered: Sender::from_owned_fd_unchecked(self.to.try_clone()?)? })
    }

    /// Whether the peer has closed both directions.
    pub(crate) fn peer_is_gone(&self) -> bool {
        message::peer_is_gone(&self.to)
    }

    pub(crate) fn close(&self) {
        message::shut_down(&self.to);
    }
}

pub(crate) struct WriteReadiness {
    registered: Sender,
}

impl WriteReadiness {
    /// Waits until the socket accepts some bytes. Returns how many.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.registered.write(bytes).await
    }
}
