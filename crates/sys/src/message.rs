//! Unix sockets: whole messages with descriptors between keeper and worker, peer credentials, and
//! non-blocking sends.

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

/// The maximum number of descriptors in one message.
pub const FDS_MAX: usize = 32;

/// A pair of connected SOCK_SEQPACKET sockets, non-blocking and close-on-exec.
pub fn pair() -> Result<(OwnedFd, OwnedFd)> {
    fault::failpoint()?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    rustix::net::socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None)
}

/// Sends one message with its descriptors, whole or not at all. `EAGAIN` when the peer's queue is full.
pub fn send(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    // The receiver cannot distinguish an empty message from EOF.
    if fds.len() > FDS_MAX || bytes.is_empty() {
        return Err(Errno::INVAL);
    }
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    retry(|| {
        fault::failpoint()?;
        rustix::net::sendmsg(&socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL).map(|_| ())
    })
}

/// Receives one message into `buffer`; `None` at EOF. Appends its descriptors, close-on-exec, to `fds`: fewer
/// than were sent when the descriptor table of this process is full. `EMSGSIZE` when the message does not fit
/// into the buffer.
pub fn receive(socket: impl AsFd, buffer: &mut [u8], fds: &mut Vec<OwnedFd>) -> Result<Option<usize>> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FDS_MAX))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let mut attempt = || {
        retry(|| {
            fault::failpoint()?;
            rustix::net::recvmsg(
                &socket,
                &mut [IoSliceMut::new(buffer)],
                &mut ancillary,
                RecvFlags::CMSG_CLOEXEC,
            )
        })
    };
    let received = match attempt() {
        // The kernel reports this once when a peer closes with unread data. Messages that the peer sent
        // before are still queued.
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

/// The longest path that fits into `sockaddr_un`.
const ADDRESS_BYTES_MAX: usize = 107;

/// An address to bind or connect a socket whose path may be longer than `sockaddr_un` allows. It is valid
/// while the returned directory descriptor is open.
pub fn address(path: &Path) -> Result<(PathBuf, Option<OwnedFd>)> {
    if path.as_os_str().len() <= ADDRESS_BYTES_MAX {
        return Ok((path.to_owned(), None));
    }
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else { return Err(Errno::INVAL) };
    let dir = crate::file::open(dir, crate::file::Open::Directory)?;
    Ok((Path::new("/proc/self/fd").join(dir.as_raw_fd().to_string()).join(name), Some(dir)))
}

/// The effective uid of the process that created the peer socket.
pub fn peer_uid(socket: impl AsFd) -> Result<u32> {
    peer(socket).map(|peer| peer.uid)
}

/// The credentials of the process that created the peer socket, at that time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Peer {
    pub pid: i32,
    pub uid: u32,
    pub gid: u32,
}

/// The credentials of the peer. That process may have exited and its pid may be recycled.
pub fn peer(socket: impl AsFd) -> Result<Peer> {
    let peer = rustix::net::sockopt::socket_peercred(socket)?;
    Ok(Peer { pid: peer.pid.as_raw_pid(), uid: peer.uid.as_raw(), gid: peer.gid.as_raw() })
}

/// Whether the peer has closed both directions of a stream socket, so that nothing reads what we would write.
pub fn peer_is_gone(socket: impl AsFd) -> bool {
    let mut entries = [PollFd::new(&socket, PollFlags::empty())];
    let looked = retry(|| rustix::event::poll(&mut entries, Some(&Timespec::default())));
    looked.is_ok() && entries.iter().any(|entry| entry.revents().intersects(PollFlags::HUP | PollFlags::ERR))
}

/// The first queued byte of a stream socket, which stays queued; `None` at EOF. `EAGAIN` when nothing is
/// queued.
pub fn peek(socket: impl AsFd) -> Result<Option<u8>> {
    let mut byte = [0; 1];
    let (_, len) = retry(|| rustix::net::recv(&socket, &mut byte, RecvFlags::PEEK | RecvFlags::DONTWAIT))?;
    Ok((len > 0).then_some(byte[0]))
}

/// Accepts a connection without blocking. It does not block either.
pub fn accept(listener: impl AsFd) -> Result<OwnedFd> {
    retry(|| {
        fault::failpoint()?;
        rustix::net::accept_with(&listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK)
    })
}

/// Shuts both directions of a socket down. Does nothing to other descriptors.
pub fn shut_down(socket: impl AsFd) {
    let _closed_already = rustix::net::shutdown(socket, rustix::net::Shutdown::Both);
}

/// Writes as much as a stream socket accepts without blocking. `EAGAIN` when it accepts nothing.
pub fn write_some(socket: impl AsFd, bytes: &[u8]) -> Result<usize> {
    retry(|| {
        fault::failpoint()?;
        rustix::net::send(&socket, bytes, SendFlags::NOSIGNAL | SendFlags::DONTWAIT)
    })
}
