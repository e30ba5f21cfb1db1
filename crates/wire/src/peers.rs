//! Clients of loopback ports: which of them need no token, by what the kernel reports about their sockets.
//!
//! A connection is admitted when a process of this user or of root has it open and that process is not
//! sandboxed. If this cannot be determined, a token is required. A daemon of root always requires a token,
//! unless it is a drop-in whose contract has no token on loopback: that one admits root's own processes.
//!
//! A socket keeps the cgroup of its creator. If that cgroup belongs to a sandboxed process of this daemon, or
//! may belong to one, the client is refused. This holds even if the creator has passed the socket on and
//! exited. Other sockets are compared with the running sandboxed processes. If one of them is in the same
//! cgroup, the process that has the socket open must be found and must not be sandboxed.

use outpost_sys::confined::{self, Confined, GroupConfinement};
use outpost_sys::process::effective_uid;
use outpost_sys::tcp_peer;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;

/// Why a connection needs a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenNeeded {
    /// This daemon runs as root.
    Root,
    /// The client belongs to another user.
    User(u32),
    /// The client is sandboxed, or may be.
    Sandboxed,
    /// The client is on another host.
    OtherHost,
    /// The client process cannot be identified, for this reason.
    Unknown(String),
}

impl fmt::Display for TokenNeeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenNeeded::Root => f.write_str("this daemon runs as root"),
            TokenNeeded::User(uid) => write!(f, "the client runs as another user, uid {uid}"),
            TokenNeeded::Sandboxed => {
                f.write_str("the client is sandboxed, or cannot be distinguished from a sandboxed process")
            }
            TokenNeeded::OtherHost => f.write_str("the client is on another host"),
            TokenNeeded::Unknown(why) => write!(f, "the client cannot be identified: {why}"),
        }
    }
}

/// Identifies clients of loopback ports.
#[derive(Clone)]
pub struct Peers {
    confinement_of: Arc<dyn Fn(u64) -> GroupConfinement + Send + Sync>,
    demands_token_as_root: bool,
    admits_hosts: bool,
}

impl Peers {
    /// `confinement_of` returns what this daemon knows about a cgroup. It may block.
    pub fn new(confinement_of: impl Fn(u64) -> GroupConfinement + Send + Sync + 'static) -> Peers {
        Peers { confinement_of: Arc::new(confinement_of), demands_token_as_root: true, admits_hosts: false }
    }

    /// The same for a drop-in: clients of the original have no token to send, also not to a daemon of root.
    pub fn of_drop_in(self) -> Peers {
        Peers { demands_token_as_root: false, ..self }
    }

    /// Also admits other hosts: the operator has chosen a non-loopback address.
    pub fn admitting_hosts(self) -> Peers {
        Peers { admits_hosts: true, ..self }
    }

    /// Whether the client of a connection needs no token. Call it once per connection: its client cannot
    /// change.
    pub async fn admit(&self, stream: &TcpStream) -> Result<(), TokenNeeded> {
        if self.demands_token_as_root && effective_uid() == 0 {
            return Err(TokenNeeded::Root);
        }
        let unknown = |error: io::Error| TokenNeeded::Unknown(error.to_string());
        let own = stream.local_addr().map_err(unknown)?;
        let peer = stream.peer_addr().map_err(unknown)?;
        let peers = self.clone();
        let checked = tokio::task::spawn_blocking(move || peers.check(own, peer));
        match checked.await.unwrap_or_else(|error| Err(TokenNeeded::Unknown(error.to_string()))) {
            Err(TokenNeeded::OtherHost) if self.admits_hosts => Ok(()),
            admitted => admitted,
        }
    }

    /// Blocking: reads /proc.
    fn check(&self, own: SocketAddr, peer: SocketAddr) -> Result<(), TokenNeeded> {
        let unknown = |why: &dyn fmt::Display| TokenNeeded::Unknown(why.to_string());
        let closed = || match peer.ip().to_canonical().is_loopback() {
            true => TokenNeeded::Unknown("it has closed the connection".into()),
            false => TokenNeeded::OtherHost,
        };
        let find = || tcp_peer::find(own, peer).map_err(|errno| unknown(&errno))?.ok_or_else(closed);
        let socket = find()?;
        if socket.uid != effective_uid() && socket.uid != 0 {
            return Err(TokenNeeded::User(socket.uid));
        }
        match socket.cgroup.map(|group| (self.confinement_of)(group)) {
            Some(GroupConfinement::Confined) => return Err(TokenNeeded::Sandboxed),
            Some(GroupConfinement::Unknown(why)) => return Err(unknown(&why)),
            Some(GroupConfinement::Unconfined) | None => {}
        }
        let sandboxed = confined::of_user(socket.uid).map_err(|errno| unknown(&errno))?;
        let may_be = |other: &Confined| match (socket.cgroup, other.cgroup) {
            (Some(own), Some(other)) => own == other,
            _ => true,
        };
        if sandboxed.iter().any(may_be) {
            let is_outside = confined::is_open_outside(socket.uid, socket.inode);
            if !is_outside.map_err(|errno| unknown(&errno))? {
                return Err(TokenNeeded::Sandboxed);
            }
        }
        // If a sandboxed process had the socket open and exited before the scan, it has closed the socket.
        match find()? == socket {
            true => Ok(()),
            false => Err(closed()),
        }
    }
}
