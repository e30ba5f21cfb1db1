//! The two directions of a connection. Only reading is watched all the time: a socket that can be written, which is nearly
//! always so, shall wake nobody.

use outpost_sys::{Errno, message};
use std::io;
use std::net::Shutdown;
use std::os::fd::AsFd;
use std::os::unix::net::UnixStream as StdStream;
use std::sync::Arc;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;
use tokio::net::UnixStream;

/// What the peer says.
pub struct ReadHalf {
    watched: AsyncFd<Arc<StdStream>>,
}

/// What we say.
pub struct WriteHalf {
    stream: Arc<StdStream>,
}

/// Takes a connection apart.
pub fn split(stream: UnixStream) -> io::Result<(ReadHalf, WriteHalf)> {
    let stream = Arc::new(stream.into_std()?);
    let watched = AsyncFd::register_with_interest(stream.clone(), Interest::READABLE)?;
    Ok((ReadHalf { watched }, WriteHalf { stream }))
}

impl ReadHalf {
    /// Appends what there is, as far as the buffer has room; 0 at the end. Safe to cancel.
    pub async fn read(&mut self, buffer: &mut Vec<u8>) -> io::Result<usize> {
        loop {
            let mut ready = self.watched.readable().await?;
            let room = buffer.capacity() - buffer.len();
            match ready.try_io(|stream| Ok(message::read_into(stream.get_ref(), buffer)?)) {
                Ok(Ok(read)) => {
                    if read < room {
                        // All there was; asking again would only tell us so.
                        ready.clear_ready();
                    }
                    return Ok(read);
                }
                Ok(Err(error)) => return Err(error),
                Err(_would_block) => {}
            }
        }
    }

    /// Whether nobody is at the other end any more, neither to write nor to read.
    pub fn peer_is_gone(&self) -> bool {
        message::peer_is_gone(self.watched.get_ref())
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
        // One descriptor can be watched once only.
        let copy = self.stream.as_fd().try_clone_to_owned()?;
        Ok(Room { watched: AsyncFd::register_with_interest(copy, Interest::WRITABLE)? })
    }

    pub(crate) fn close(&self) {
        let _closed_already = self.stream.shutdown(Shutdown::Both);
    }
}

pub(crate) struct Room {
    watched: AsyncFd<std::os::fd::OwnedFd>,
}

impl Room {
    /// Waits until the socket may take more than it did.
    pub(crate) async fn wait(&self) -> io::Result<()> {
        self.watched.writable().await.map(|_| ())
    }

    /// The socket was full.
    pub(crate) async fn used_up(&self) -> io::Result<()> {
        self.watched.writable().await?.clear_ready();
        Ok(())
    }
}
