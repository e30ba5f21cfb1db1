//! Clients of loopback ports: which of them need no token, by what the kernel reports about their sockets.
//!
//! A connection is admitted when a process of this user, or of root, has it open, and that process is not sandboxed. Whatever
//! cannot be found out is a reason to demand a token. As root a token is always demanded, except by a drop-in whose contract has
//! no token on loopback: it admits root's own processes.
//!
//! A socket keeps the cgroup of the process that made it. The cgroup of a confined process of this daemon settles the matter,
//! also when the process has passed its socket on and ended, and so does a cgroup that may be such a one. Other sockets are compared with the sandboxed processes that
//! there are: if one of those is in the same cgroup, the process that has the socket open must be found, and not be sandboxed.

use outpost_sys::confined::{self, Confined, GroupStanding};
use outpost_sys::limits::effective_uid;
use outpost_sys::tcp_peer;
use std::fmt;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use tokio::net::TcpStream;

/// Why a connection needs a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TokenNeeded {
    /// This daemon is root's.
    Root,
    /// The client is of another user.
    User(u32),
    /// The client is sandboxed, or may be.
    Sandboxed,
    /// It comes from another host.
    OtherHost,
    /// Which process it is cannot be found out, for this reason.
    Unknown(String),
}

impl fmt::Display for TokenNeeded {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            TokenNeeded::Root => f.write_str("this daemon runs as root"),
            TokenNeeded::User(uid) => write!(f, "the client runs as another user, uid {uid}"),
            TokenNeeded::Sandboxed => {
                f.write_str("the client is sandboxed, or cannot be told from a sandboxed process")
            }
            TokenNeeded::OtherHost => f.write_str("the client is on another host"),
            TokenNeeded::Unknown(why) => write!(f, "the client cannot be identified: {why}"),
        }
    }
}

/// Looks clients of loopback ports up.
#[derive(Clone)]
pub struct Peers {
    standing_of: Arc<dyn Fn(u64) -> GroupStanding + Send + Sync>,
    demands_token_as_root: bool,
}

impl Peers {
    /// `standing_of` has what this daemon knows about a cgroup. It may block.
    pub fn new(standing_of: impl Fn(u64) -> GroupStanding + Send + Sync + 'static) -> Peers {
        Peers { standing_of: Arc::new(standing_of), demands_token_as_root: true }
    }

    /// The same for a drop-in: clients of its original have no token to send, also to a daemon of root.
    pub fn of_drop_in(self) -> Peers {
        Peers { demands_token_as_root: false, ..self }
    }

    /// Whether the client of a connection needs no token. Once per connection: its client cannot change.
    pub async fn admit(&self, stream: &TcpStream) -> Result<(), TokenNeeded> {
        if self.demands_token_as_root && effective_uid() == 0 {
            return Err(TokenNeeded::Root);
        }
        let unknown = |error: io::Error| TokenNeeded::Unknown(error.to_string());
        let own = stream.local_addr().map_err(unknown)?;
        let peer = stream.peer_addr().map_err(unknown)?;
        let peers = self.clone();
        let judged = tokio::task::spawn_blocking(move || peers.judge(own, peer));
        judged.await.unwrap_or_else(|error| Err(TokenNeeded::Unknown(error.to_string())))
    }

    /// Blocking: reads /proc.
    fn judge(&self, own: SocketAddr, peer: SocketAddr) -> Result<(), TokenNeeded> {
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
        match socket.cgroup.map(|group| (self.standing_of)(group)) {
            Some(GroupStanding::Confined) => return Err(TokenNeeded::Sandboxed),
            Some(GroupStanding::Unknown(why)) => return Err(unknown(&why)),
            Some(GroupStanding::Free) | None => {}
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
        // A sandboxed process that had the socket open and ended before the processes were looked at has closed it.
        match find()? == socket {
            true => Ok(()),
            false => Err(closed()),
        }
    }
}
