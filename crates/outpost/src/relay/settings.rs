//! What a relay was started with, kept by the keeper in a memory file for workers to come. The token is nowhere else,
//! but for the file beside the socket that the contract wants.

use crate::relay::place::SocketId;
use outpost_sys::{Result, file};
use serde::{Deserialize, Serialize};
use std::fmt;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// More than any settings are.
const BYTES_MAX: u64 = 1024 * 1024;

#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Settings {
    pub(crate) socket: PathBuf,
    pub(crate) token: Vec<u8>,
    pub(crate) metrics_addr: String,
    pub(crate) keep_children: bool,
    /// 0: what the free space allows.
    pub(crate) journal_bytes: u64,
    /// The socket as we bound it; none while nobody is served.
    pub(crate) bound: Option<SocketId>,
}

/// Without the token.
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
