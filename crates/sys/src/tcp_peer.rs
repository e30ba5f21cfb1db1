//! The client's socket of a local TCP connection: its uid and cgroup.
//!
//! The kernel is queried for exactly one socket by sock_diag(7). Where that is missing (no `tcp_diag` module,
//! a container's seccomp filter), the tables in /proc/net are read. They have no cgroup.

use crate::{Errno, Result, cgroup, fault, retry};
use rustix::net::netlink::{self, SocketAddrNetlink};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

const NLMSG_ERROR: u16 = 2;
const SOCK_DIAG_BY_FAMILY: u16 = 20;
const NLM_F_REQUEST: u16 = 1;
const IPPROTO_TCP: u8 = 6;
const INET_DIAG_CGROUP_ID: u16 = 21;
const SEQUENCE: u32 = 1;

/// Offsets in a reply: the netlink header, `struct inet_diag_msg`, its attributes.
const MESSAGE_AT: usize = 16;
const ID_AT: usize = MESSAGE_AT + 4;
const UID_AT: usize = ID_AT + 48 + 12;
const INODE_AT: usize = UID_AT + 4;
const ATTRIBUTES_AT: usize = INODE_AT + 4;

/// More than the kernel sends for one socket.
const REPLY_BYTES_MAX: usize = 4096;

/// The maximum number of bytes read of a table in /proc/net.
const TABLE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// A socket that a process has open.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Socket {
    /// The uid of its creator.
    pub uid: u32,
    /// The inode that `/proc/PID/fd` shows.
    pub inode: u64,
    /// The cgroup (version 2) of its creator at creation time; `None` where the kernel does not report it.
    pub cgroup: Option<u64>,
}

/// The client's socket of a connection accepted at `own` from `peer`. `None` when no process has it open: the
/// kernel reports closed sockets as those of uid 0. An error when the kernel offers no way to look it up.
pub fn find(own: SocketAddr, peer: SocketAddr) -> Result<Option<Socket>> {
    let (own, peer) = (canonical(own), canonical(peer));
    // ENOENT can also mean a missing module.
    by_diag(own, peer).or_else(|_| by_tables(own, peer)).map(|found| found.filter(|socket| socket.inode != 0))
}

/// Converts IPv4-mapped IPv6 addresses to IPv4.
fn canonical(address: SocketAddr) -> SocketAddr {
    SocketAddr::new(address.ip().to_canonical(), address.port())
}

fn by_diag(own: SocketAddr, peer: SocketAddr) -> Result<Option<Socket>> {
    fault::failpoint()?;
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let (family, protocol) = (AddressFamily::NETLINK, Some(netlink::SOCK_DIAG));
    let socket = rustix::net::socket_with(family, SocketType::DGRAM, flags, protocol)?;
    let request = request(own, peer);
    let kernel = SocketAddrNetlink::new(0, 0);
    retry(|| rustix::net::sendto(&socket, &request, SendFlags::empty(), &kernel).map(|_| ()))?;
    // The kernel handles the request within send(2), so the reply is already queued.
    let mut reply = [0; REPLY_BYTES_MAX];
    let (len, sender) = retry(|| {
        fault::failpoint()?;
        let (_, len, sender) = rustix::net::recvfrom(&socket, &mut reply, RecvFlags::DONTWAIT)?;
        Ok((len, sender))
    })?;
    // Any process may send to the socket. Only the kernel has port 0.
    let sender = sender.and_then(|sender| SocketAddrNetlink::try_from(sender).ok());
    match reply.get(..len).filter(|_| sender.is_some_and(|sender| sender.pid() == 0)) {
        Some(reply) => parse_reply(reply, own, peer),
        None => Err(Errno::PROTO),
    }
}

/// `struct inet_diag_req_v2`, from the point of view of the client's socket: its own address comes first.
fn request(own: SocketAddr, peer: SocketAddr) -> Vec<u8> {
    let family = if peer.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let mut message = Vec::with_capacity(72);
    message.extend(72u32.to_ne_bytes());
    message.extend([SOCK_DIAG_BY_FAMILY, NLM_F_REQUEST].map(u16::to_ne_bytes).concat());
    message.extend([SEQUENCE, 0].map(u32::to_ne_bytes).concat());
    message.extend([u8::try_from(family.as_raw()).unwrap_or(0), IPPROTO_TCP, 0, 0]);
    message.extend(u32::MAX.to_ne_bytes());
    message.extend([peer.port(), own.port()].map(u16::to_be_bytes).concat());
    message.extend([address_bytes(peer.ip()), address_bytes(own.ip())].concat());
    // Any interface, no cookie.
    message.extend([0, u32::MAX, u32::MAX].map(u32::to_ne_bytes).concat());
    message
}

fn address_bytes(address: IpAddr) -> [u8; 16] {
    let mut bytes = [0; 16];
    match address {
        IpAddr::V4(address) => bytes[..4].copy_from_slice(&address.octets()),
        IpAddr::V6(address) => bytes = address.octets(),
    }
    bytes
}

fn parse_reply(bytes: &[u8], own: SocketAddr, peer: SocketAddr) -> Result<Option<Socket>> {
    let short = |at: usize| Some(u16::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let word = |at: usize| Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?));
    let port = |at: usize| short(at).map(u16::from_be);
    let malformed = Errno::PROTO;
    match short(4) {
        Some(SOCK_DIAG_BY_FAMILY) => {}
        Some(NLMSG_ERROR) => {
            let errno = word(MESSAGE_AT).ok_or(malformed)?.cast_signed().wrapping_neg();
            return Err(if errno > 0 { Errno::from_raw_os_error(errno) } else { malformed });
        }
        _ => return Err(malformed),
    }
    let is_v4 = bytes.get(MESSAGE_AT).copied().map(u16::from) == Some(AddressFamily::INET.as_raw());
    let address = |at: usize| {
        let bytes = *bytes.get(at..)?.first_chunk::<16>()?;
        let [a, b, c, d, ..] = bytes;
        let v6 = || IpAddr::from(Ipv6Addr::from(bytes)).to_canonical();
        Some(if is_v4 { Ipv4Addr::new(a, b, c, d).into() } else { v6() })
    };
    let end = |port_at, address_at| Some(SocketAddr::new(address(address_at)?, port(port_at)?));
    let (found_own, found_peer) = (end(ID_AT, ID_AT + 4), end(ID_AT + 2, ID_AT + 20));
    let (uid, inode) = (word(UID_AT).ok_or(malformed)?, word(INODE_AT).ok_or(malformed)?);
    // Without such a connection, the kernel reports a listener on the client's port.
    if (found_own, found_peer) != (Some(peer), Some(own)) {
        return Ok(None);
    }
    let attributes = bytes.get(ATTRIBUTES_AT..).unwrap_or_default();
    Ok(Some(Socket {
        uid,
        inode: inode.into(),
        cgroup: cgroup_of(attributes).filter(|id| !cgroup::is_ambiguous_id(*id)),
    }))
}

/// The cgroup id among netlink attributes. Each has a length that includes its header, a type, and padding to
/// 4 bytes.
fn cgroup_of(mut attributes: &[u8]) -> Option<u64> {
    loop {
        let short = |at: usize| Some(u16::from_ne_bytes(*attributes.get(at..)?.first_chunk()?));
        let (len, kind) = (usize::from(short(0)?), short(2)?);
        let value = attributes.get(4..len)?;
        if kind == INET_DIAG_CGROUP_ID {
            return Some(u64::from_ne_bytes(*value.first_chunk()?));
        }
        attributes = attributes.get(len.next_multiple_of(4)..)?;
    }
}

fn by_tables(own: SocketAddr, peer: SocketAddr) -> Result<Option<Socket>> {
    let tables: &[&str] = if peer.is_ipv4() { &["tcp", "tcp6"] } else { &["tcp6"] };
    let mut read = Err(Errno::NOENT);
    for table in tables {
        fault::failpoint()?;
        // The table of this thread's network namespace.
        let Ok(file) = File::open(format!("/proc/thread-self/net/{table}")) else { continue };
        let lines = BufReader::new(file.take(TABLE_BYTES_MAX)).lines().map_while(std::result::Result::ok);
        if let Some(found) = search(lines, own, peer) {
            return Ok(Some(found));
        }
        read = Ok(None);
    }
    read
}

fn search(lines: impl Iterator<Item = String>, own: SocketAddr, peer: SocketAddr) -> Option<Socket> {
    lines.skip(1).find_map(|line| {
        let mut fields = line.split_ascii_whitespace().skip(1);
        let ends = (parse_end(fields.next()?)?, parse_end(fields.next()?)?);
        if ends != (peer, own) {
            return None;
        }
        let mut fields = fields.skip(4);
        let uid = fields.next()?.parse().ok()?;
        let inode = fields.nth(1)?.parse().ok()?;
        Some(Socket { uid, inode, cgroup: None })
    })
}

/// Parses `0100007F:1F90`: the address as words in native byte order, and the port.
fn parse_end(text: &str) -> Option<SocketAddr> {
    let (address, port) = text.split_once(':')?;
    let word = |at: usize| {
        let word = u32::from_str_radix(address.get(at * 8..at * 8 + 8)?, 16).ok()?;
        Some(word.to_ne_bytes())
    };
    let address = match address.len() {
        8 => IpAddr::from(word(0)?),
        32 => {
            let words = [word(0)?, word(1)?, word(2)?, word(3)?];
            IpAddr::from(*words.as_flattened().first_chunk::<16>()?).to_canonical()
        }
        _ => return None,
    };
    Some(SocketAddr::new(address, u16::from_str_radix(port, 16).ok()?))
}

#[cfg(test)]
#[allow(clippy::unwrap_used, clippy::indexing_slicing)]
mod tests {
    use super::*;
    use std::net::{TcpListener, TcpStream};
    use std::os::unix::fs::MetadataExt;

    fn connected(listen: &str, connect: &str) -> (TcpStream, TcpStream) {
        let listener = TcpListener::bind(listen).unwrap();
        let port = listener.local_addr().unwrap().port();
        let client = TcpStream::connect((connect.parse::<IpAddr>().unwrap(), port)).unwrap();
        (client, listener.accept().unwrap().0)
    }

    fn inode(stream: &TcpStream) -> u64 {
        let file = File::from(std::os::fd::OwnedFd::from(stream.try_clone().unwrap()));
        file.metadata().unwrap().ino()
    }

    type Lookup = fn(SocketAddr, SocketAddr) -> Result<Option<Socket>>;

    fn look_up(lookup: Lookup, accepted: &TcpStream) -> Result<Option<Socket>> {
        lookup(canonical(accepted.local_addr().unwrap()), canonical(accepted.peer_addr().unwrap()))
    }

    #[test]
    fn the_clients_socket_is_found_by_both_lookups_over_every_kind_of_loopback() {
        let uid = rustix::process::geteuid().as_raw();
        let pairs = [
            ("127.0.0.1:0", "127.0.0.1"),
            ("127.0.0.2:0", "127.0.0.2"),
            ("[::1]:0", "::1"),
            ("[::]:0", "127.0.0.1"),
            ("127.0.0.1:0", "::ffff:127.0.0.1"),
        ];
        for (listen, connect) in pairs {
            let (client, accepted) = connected(listen, connect);
            let expected = Socket { uid, inode: inode(&client), cgroup: None };
            let by_diag = look_up(by_diag, &accepted).unwrap().unwrap();
            assert_eq!(Socket { cgroup: None, ..by_diag }, expected, "{listen} {connect}");
            assert_eq!(look_up(by_tables, &accepted), Ok(Some(expected)), "{listen} {connect}");
            assert_eq!(look_up(find, &accepted).unwrap(), Some(by_diag));
        }
    }

    #[test]
    fn a_connection_that_its_client_has_closed_belongs_to_no_user() {
        let (client, accepted) = connected("127.0.0.1:0", "127.0.0.1");
        drop(client);
        // The kernel reports a closed socket as root's.
        assert!(look_up(by_diag, &accepted).unwrap().is_none_or(|found| (found.uid, found.inode) == (0, 0)));
        assert_eq!(look_up(find, &accepted), Ok(None));
    }

    #[test]
    fn a_listener_at_the_clients_port_is_not_the_client() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let own = "127.0.0.1:9".parse().unwrap();
        for lookup in [by_diag, by_tables, find] {
            let found = lookup(own, listener.local_addr().unwrap());
            assert!(matches!(found, Ok(None) | Err(Errno::NOENT)), "{found:?}");
        }
    }

    #[test]
    fn a_truncated_reply_is_refused_and_another_connection_does_not_match() {
        let (_client, accepted) = connected("127.0.0.1:0", "127.0.0.1");
        let (own, peer) = (accepted.local_addr().unwrap(), accepted.peer_addr().unwrap());
        let mut reply = vec![0; ATTRIBUTES_AT];
        reply[4..6].copy_from_slice(&SOCK_DIAG_BY_FAMILY.to_ne_bytes());
        reply[MESSAGE_AT] = 2;
        let request = request(own, peer);
        reply[ID_AT..ID_AT + 48].copy_from_slice(&request[24..72]);
        reply[UID_AT..INODE_AT].copy_from_slice(&7u32.to_ne_bytes());
        for len in 0..ATTRIBUTES_AT {
            assert!(parse_reply(&reply[..len], own, peer).is_err(), "{len} bytes");
        }
        let expected = Socket { uid: 7, inode: 0, cgroup: None };
        assert_eq!(parse_reply(&reply, own, peer), Ok(Some(expected)));
        assert_eq!(parse_reply(&reply, peer, own), Ok(None));
        let attribute = [12u16, INET_DIAG_CGROUP_ID].map(u16::to_ne_bytes).concat();
        let with_cgroup = [reply, attribute, 99u64.to_ne_bytes().to_vec()].concat();
        assert_eq!(parse_reply(&with_cgroup, own, peer).unwrap().unwrap().cgroup, Some(99));
        for cut in ATTRIBUTES_AT..with_cgroup.len() {
            assert_eq!(parse_reply(&with_cgroup[..cut], own, peer), Ok(Some(expected)), "{cut} bytes");
        }
        // An attribute of length 0 must not loop forever.
        assert_eq!(cgroup_of(&[0; 64]), None);
    }
}
