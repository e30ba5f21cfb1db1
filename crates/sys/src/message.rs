//! Message sockets: whole messages with descriptors, as keeper and worker exchange them.

use crate::{Errno, Result, fault, retry};
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType,
};
use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::path::{Path, PathBuf};

/// The most descriptors one message may carry.
pub const FDS_MAX: usize = 32;

/// A pair of connected sockets that keep message borders, non-blocking and close-on-exec.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    fault::gate()?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends one message with its descriptors, whole or not at all. `EAGAIN` when the peer's queue is full.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    // An empty message is what a closed peer looks like to who receives it.
    if fds.len() > FDS_MAX || bytes.is_empty() {
        return Err(Errno::INVAL);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    retry(|| {
        fault::gate()?;
        rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).map(|_| ())
    })
}

/// Receives one message into `buffer`; `None` when the peer has closed. Its descriptors, close-on-exec, are appended to
/// `fds`: fewer than were sent when our table of descriptors is full. `EMSGSIZE` when it was longer than the buffer.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<Option<usize>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut attempt = || {
        retry(|| {
            fault::gate()?;
            rustix::net::recvmsg(
                &socket,
                &mut [IoSliceMut::new(buffer)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
        })
    };
    let received = match attempt() {
        // Said once when a peer closes before it has read everything, ahead of what it sent: that is still to be had.
        Err(Errno::CONNRESET) => attempt()?,
        received => received?,
    };
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    if received.flags.contains(ReturnFlags::TRUNC) {
        return Err(Errno::MSGSIZE);
    }
    Ok((received.bytes > 0).then_some(received.bytes))
}

/// Closes the receiving direction of a socket for all its holders. Messages that are queued can still be received; the
/// peer's next send fails with `EPIPE`.
pub fn shut_receiving(socket: impl AsFd) -> Result<()> {
    fault::gate()?;
    rustix::net::shutdown(socket, rustix::net::Shutdown::Read)
}

/// The longest path that the address of a Unix socket has room for.
const ADDRESS_BYTES_MAX: usize = 107;

/// A path under which a socket can be bound and reached, however long its real one is. It is good as long as the
/// descriptor that comes with it is open.
pub fn address(path: &Path) -> Result<(PathBuf, Option<OwnedFd>)> {
    if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
        return Ok((path.to_owned(), None));
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let dir = crate::file::open(dir, crate::file::Open::Directory)?;
    Ok((Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name), Some(dir)))
}

/// The user who opened the other end of a Unix socket.
pub fn peer_uid(socket: impl AsFd) -> Result<u32> {
    peer(socket).map(|peer| peer.uid)
}

/// Who opened the other end of a Unix socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

/// Who opened the other end of a Unix socket. That process may be gone, and its number another's.
pub fn peer(socket: impl AsFd) -> Result<Peer> {
    let peer = rustix::net::sockopt::socket_peercred(socket)?;
    Ok(Peer { pid: peer.pid.as_raw_pid(), uid: peer.uid.as_raw(), gid: peer.gid.as_raw() })
}

/// Whether the other end of a stream socket is closed in both directions, so that nobody reads what we would write.
pub fn peer_is_gone(socket: impl AsFd) -> bool {
    let mut entries = [PollFd::new(&socket, PollFlags::empty())];
    let looked = retry(|| rustix::event::poll(&mut entries, Some(&Timespec::default())));
    looked.is_ok() && entries.iter().any(|entry| entry.revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

/// The first byte that waits on a stream socket, which stays there; none at the end. `EAGAIN` when nothing has come yet.
pub fn peek(socket: impl AsFd) -> Result<Option<u8>> {
    let mut byte = [0; 1];
    let (_, len) = retry(|| rustix::net::recv(&socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT))?;
    Ok((len > 0).then_some(byte[0]))
}

/// Ends both directions of a socket; what is none is left alone.
pub fn shut_down(socket: impl AsFd) {
    let _closed_already = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

/// Writes to a stream socket what it takes, without waiting. `EAGAIN` when that is nothing.
pub fn write_some(socket: impl AsFd, bytes: &[u8]) -> Result<usize> {
    retry(|| {
        fault::gate()?;
        rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    })
}
