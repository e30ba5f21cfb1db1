//! Settings of a relay, which the keeper holds in a memfd for the next worker. Besides the memfd, only the contract's token
//! file beside the socket contains the token.

use super::socket_paths::SocketId;
use outpost_sys::{Result, file};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

const BYTES_MAX: u64 = 1024 * 1024;

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) socket: PathBuf,
    pub(crate) token: Vec<u8>,
    pub(crate) metrics_addr: String,
    pub(crate) keep_children: bool,
    /// 0: limited by the free disk space.
    pub(crate) journal_bytes: u64,
    /// Identity of the bound socket; none while the relay does not serve.
    pub(crate) bound: Option<SocketId>,
}

/// Omits the token.
impl fmt::Debug for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Settings({})", self.socket.display())
    }
}

impl Settings {
    pub(crate) fn to_memory(&self) -> Result<OwnedFd> {
        let text = serde_json::to_vec(self).map_err(|_| outpost_sys::Errno::INVAL)?;
        file::sealed_memory("outpost-relay", &text)
    }

    pub(crate) fn from_memory(memory: &OwnedFd) -> Option<Settings> {
        serde_json::from_slice(&file::read_whole(memory, BYTES_MAX).ok()?).ok()
    }
}
