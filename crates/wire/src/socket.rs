//! The two directions of a connection. Only reading is watched all the time: a socket that can be written, which is nearly
//! always so, shall wake nobody.

use outpost_sys::{Errno, message};
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
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
    stream: StdStream,
}

/// Takes a connection apart.
pub fn split(stream: UnixStream) -> io::Result<(ReadHalf, WriteHalf)> {
    let stream = stream.into_std()?;
    // One descriptor can be watched once only, and this one is written.
    let watched = Receiver::from_owned_fd_unchecked(stream.as_fd().try_clone_to_owned()?)?;
    Ok((ReadHalf { watched }, WriteHalf { stream }))
}

impl ReadHalf {
    /// Appends what there is, as far as the buffer has room; 0 at the end. Safe to cancel.
    pub async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        self.watched.read_buf(buffer).await
    }

    /// Whether nobody is at the other end any more, neither to write nor to read.
    pub fn peer_is_gone(&self) -> bool {
        message::peer_is_gone(&self.watched)
    }
}

impl WriteHalf {
    /// Writes as much as the socket takes; none when it is full.
    pub(crate) fn try_write(&self, bytes: &[u8]) -> io::Result<Option<usize>> {
        match message::write_some(&self.stream, bytes) {
            Ok(written) => Ok(Some(written)),
            Err(Errno::AGAIN) => Ok(None),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Watches the socket for room, as long as what is returned lives.
    pub(crate) fn watch(&self) -> io::Result<Room> {
        Ok(Room { watched: Sender::from_owned_fd_unchecked(self.stream.as_fd().try_clone_to_owned()?)? })
    }

    pub(crate) fn close(&self) {
        let _closed_already = self.stream.shutdown(Shutdown::Both);
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
