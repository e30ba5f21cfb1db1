//! Exit events of all processes of the host, from the kernel's process connector (netlink).
//!
//! The connector exists in the initial user, pid and network namespaces, on kernels built with
//! CONFIG_PROC_EVENTS. It needs CAP_NET_ADMIN before Linux 6.6 and no privilege since.
//!
//! The kernel sends the event of a process's last thread after it has made the pidfd readable. So an event
//! received while the pidfd is not readable belongs to another thread. The right event may arrive shortly
//! after the pidfd becomes readable.

use crate::pidfd::Exit;
use crate::{Errno, Result, fault, retry};
use rustix::fd::{AsFd, OwnedFd};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, sockopt};

/// The connector's index and value for process events, and its multicast group.
const PROCESSES: u32 = 1;

const NLMSG_DONE: u16 = 3;
const LISTEN: u32 = 1;
const EVENT_NONE: u32 = 0;
const EVENT_EXIT: u32 = 1 << 31;

/// Offsets of the connector header, the event header and the event's data, after the netlink header.
const CONNECTOR_AT: usize = 16;
const EVENT_AT: usize = CONNECTOR_AT + 20;
const DATA_AT: usize = EVENT_AT + 16;

/// The kernel doubles this value. A queued event takes less than 1 KiB.
const QUEUE_BYTES: usize = 2 * 1024 * 1024;

/// More than any process event.
const MESSAGE_BYTES_MAX: usize = 256;

/// How many events of other processes may be queued before the acknowledgement.
const BEFORE_ACKNOWLEDGED_MAX: usize = 4096;

/// The exit of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ended {
    /// The pid of its process.
    pub pid: i32,
    pub exit: Exit,
}

/// The result of one read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Received {
    Nothing,
    /// A message that is not an exit.
    Other,
    Exit(Ended),
}

/// A parsed message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Message {
    /// The reply to the request of this number, with an errno.
    Acknowledged(u32, u32),
    Exit(Ended),
}

/// Opens a socket that receives exits from now on. Its queue is bounded.
pub fn subscribe() -> Result<OwnedFd> {
    fault::failpoint()?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, protocol) = (AddressFamily::NETLINK, Some(netlink::CONNECTOR));
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, protocol)?;
    // A size above the host's maximum needs CAP_NET_ADMIN.
    if sockopt::set_socket_recv_buffer_size_force(&socket, QUEUE_BYTES).is_err() {
        sockopt::set_socket_recv_buffer_size(&socket, QUEUE_BYTES)?;
    }
    rustix::net::bind(&socket, &SocketAddrNetlink::new(0, PROCESSES))?;
    let number = std::process::id();
    request(&socket, number, &LISTEN.to_ne_bytes())?;
    // The kernel handles a request within send(2). It replies only if it accepts the request.
    await_acknowledged(&socket, number)?;
    // Since Linux 6.6 this filters for exits. An older kernel ignores a request of this length and sends
    // every event.
    let filter: Vec<u8> = [LISTEN.to_ne_bytes(), EVENT_EXIT.to_ne_bytes()].concat();
    request(&socket, number, &filter)?;
    Ok(socket)
}

/// Receives one message. `ENOBUFS` when the queue overflowed and events are lost.
pub fn receive(socket: impl AsFd) -> Result<Received> {
    Ok(match receive_message(socket)? {
        None => Received::Nothing,
        Some(Some(Message::Exit(ended))) => Received::Exit(ended),
        Some(_) => Received::Other,
    })
}

fn await_acknowledged(socket: &OwnedFd, number: u32) -> Result<()> {
    for _ in 0..BEFORE_ACKNOWLEDGED_MAX {
        match receive_message(socket)? {
            None => break,
            Some(Some(Message::Acknowledged(reply, errno))) if reply == number => {
                return match i32::try_from(errno) {
                    Ok(0) => Ok(()),
                    Ok(errno) => Err(Errno::from_raw_os_error(errno)),
                    Err(_) => Err(Errno::PROTO),
                };
            }
            Some(_) => {}
        }
    }
    Err(Errno::OPNOTSUPP)
}

fn request(socket: &OwnedFd, number: u32, payload: &[u8]) -> Result<()> {
    let (Ok(bytes), Ok(len)) = (u32::try_from(EVENT_AT + payload.len()), u16::try_from(payload.len())) else {
        return Err(Errno::MSGSIZE);
    };
    let mut message = Vec::with_capacity(EVENT_AT + payload.len());
    message.extend(bytes.to_ne_bytes());
    message.extend([NLMSG_DONE, 0].map(u16::to_ne_bytes).concat());
    // Sequence and port of the netlink header, then index, value, sequence and ack of the connector header.
    message.extend([0, 0, PROCESSES, PROCESSES, 0, number].map(u32::to_ne_bytes).concat());
    message.extend([len, 0].map(u16::to_ne_bytes).concat());
    message.extend(payload);
    retry(|| {
        fault::failpoint()?;
        rustix::net::send(socket, &message, SendFlags::empty()).map(|_| ())
    })
}

/// `None` when nothing is queued, `Some(None)` for a message of another kind.
fn receive_message(socket: impl AsFd) -> Result<Option<Option<Message>>> {
    let mut buffer = [0; MESSAGE_BYTES_MAX];
    let received = retry(|| {
        fault::failpoint()?;
        rustix::net::recvfrom(&socket, &mut buffer, RecvFlags::DONTWAIT)
    });
    let (len, sender) = match received {
        Ok((_, len, sender)) => (len, sender),
        Err(Errno::AGAIN) => return Ok(None),
        Err(errno) => return Err(errno),
    };
    // Any process may send to the socket. Only the kernel has port 0.
    let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
    let from_kernel = sender.is_some_and(|sender| sender.pid() == 0);
    Ok(Some(buffer.get(..len).filter(|_| from_kernel).and_then(parse)))
}

/// `None` for bytes that are neither an exit nor an acknowledgement.
fn parse(bytes: &[u8]) -> Option<Message> {
    let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let [index, value, _sequence, reply] = [0, 4, 8, 12].map(|at| word(CONNECTOR_AT + at));
    if (index?, value?) != (PROCESSES, PROCESSES) {
        return None;
    }
    match word(EVENT_AT)? {
        EVENT_NONE => Some(Message::Acknowledged(reply?.wrapping_sub(1), word(DATA_AT)?)),
        EVENT_EXIT => {
            // Thread, process, status.
            let (pid, status) = (word(DATA_AT + 4)?, word(DATA_AT + 8)?);
            let exit = Exit::from_status(status.cast_signed());
            Some(Message::Exit(Ended { pid: i32::try_from(pid).ok()?, exit }))
        }
        _ => None,
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use crate::pidfd::ExitCause;

    fn message(index: u32, what: u32, data: [u32; 4]) -> Vec<u8> {
        let words = [76, 3, 0, 0, index, PROCESSES, 9, 8, 40, what, 0, 0, 0];
        words.into_iter().chain(data).chain([0, 0]).flat_map(u32::to_ne_bytes).collect()
    }

    #[test]
    fn an_exit_has_the_pid_and_the_cause() {
        for (status, cause) in
            [(7 << 8, ExitCause::Code(7)), (9, ExitCause::Signal(9)), (0x80 | 6, ExitCause::Signal(6))]
        {
            let ended = match parse(&message(1, EVENT_EXIT, [12, 11, status, 17])) {
                Some(Message::Exit(ended)) => ended,
                other => panic!("{other:?}"),
            };
            assert_eq!((ended.pid, ended.exit.cause), (11, cause));
        }
    }

    #[test]
    fn a_truncated_or_other_message_is_refused() {
        let whole = message(1, EVENT_EXIT, [12, 11, 256, 17]);
        for len in 0..DATA_AT + 12 {
            assert_eq!(parse(&whole[..len]), None, "{len} bytes");
        }
        assert_eq!(parse(&message(2, EVENT_EXIT, [12, 11, 256, 17])), None);
        assert_eq!(parse(&message(1, 1, [12, 11, 256, 17])), None);
        assert_eq!(parse(&message(1, EVENT_EXIT, [12, u32::MAX, 256, 17])), None);
        assert_eq!(parse(&message(1, EVENT_NONE, [1, 0, 0, 0])), Some(Message::Acknowledged(7, 1)));
    }
}
