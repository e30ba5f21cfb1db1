//! The two directions of a connection. Only reading is watched all the time: a socket that can be written, which is nearly
//! always so, shall wake nobody.

use outpost_sys::{Errno, file, message};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixStream as StdStream;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;
use tokio::net::unix::pipe::{Receiver, Sender};

/// What the peer says. The runtime's end of a pipe is what it has for descriptors that are only read.
pub struct ReadHalf {
    watched: Receiver,
}

/// What we say.
pub struct WriteHalf {
    to: OwnedFd,
    is_socket: bool,
}

/// Takes a connection apart.
pub fn split(stream: UnixStream) -> io::Result<(ReadHalf, WriteHalf)> {
    let to = OwnedFd::from(stream.into_std()?);
    // One descriptor can be watched once only, and this one is written.
    let watched = Receiver::from_owned_fd_unchecked(to.try_clone()?)?;
    Ok((ReadHalf { watched }, WriteHalf { to, is_socket: true }))
}

/// Our standard input and output as a connection, whatever they are. Others may have them too, a shell for example: what
/// they see of them does not change if that can be helped.
pub fn standard() -> io::Result<(ReadHalf, WriteHalf)> {
    let (stdin, stdout) = (io::stdin(), io::stdout());
    let watched = match unshared(stdin.as_fd()).and_then(Receiver::from_owned_fd_unchecked) {
        Ok(watched) => watched,
        // A file cannot be watched.
        Err(_) => Receiver::from_owned_fd_unchecked(read_by_thread(stdin.as_fd())?)?,
    };
    let to = unshared(stdout.as_fd())?;
    let is_socket = file::is_socket(&to)?;
    Ok((ReadHalf { watched }, WriteHalf { to, is_socket }))
}

/// A descriptor for the same that does not wait.
fn unshared(standard: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let own = match file::is_socket(standard)? {
        true => None,
        // Not of another user's pipe.
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

/// What a thread reads that may wait.
fn read_by_thread(from: BorrowedFd<'_>) -> io::Result<OwnedFd> {
    let (ours, mut its) = StdStream::pair()?;
    ours.set_nonblocking(true)?;
    let mut from = File::from(from.try_clone_to_owned()?);
    let copy = move || {
        let _either_is_gone = io::copy(&mut from, &mut its);
    };
    std::thread::Builder::new().name("outpost-stdin".into()).spawn(copy)?;
    Ok(ours.into())
}

impl ReadHalf {
    /// Appends what there is, as far as the buffer has room; 0 at the end. Safe to cancel.
    pub async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.watched.read_buf(buffer).await
    }
}

impl WriteHalf {
    /// Writes as much as the socket takes; none when it is full.
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

    /// Watches the socket for room, as long as what is returned lives.
    pub(crate) fn watch(&self) -> io::Result<Room> {
        Ok(Room { watched: Sender::from_owned_fd_unchecked(self.to.try_clone()?)? })
    }

    /// Whether the peer has closed both directions.
    pub(crate) fn peer_is_gone(&self) -> bool {
        message::peer_is_gone(&self.to)
    }

    pub(crate) fn close(&self) {
        message::shut_down(&self.to);
    }
}

pub(crate) struct Room {
    watched: Sender,
}

impl Room {
    /// Waits until the socket takes some of it, and says how much.
    pub(crate) async fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.watched.write(bytes).await
    }
}
