//! The client process of a connection, as reported by the kernel.

use outpost_sys::{Result, message, procfs};
use std::os::fd::AsFd;

/// A client process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct Peer {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// None in records that were written before this field existed.
    #[serde(default)]
    pub(crate) gid: Option<u32>,
    /// Start time, which distinguishes processes that reuse a pid. 0 if the process has already exited.
    pub(crate) start_ticks: u64,
    /// Path of its executable. Empty if it cannot be read.
    pub(crate) program: String,
}

impl Peer {
    /// A failure must refuse the connection: requests from unknown users are never served.
    pub(crate) fn of(socket: impl AsFd) -> Result<Peer> {
        let message::Peer { pid, uid, gid } = message::peer(socket)?;
        let start_ticks = procfs::stat(pid).map_or(0, |stat| stat.start_ticks);
        Ok(Peer { pid, uid, gid: Some(gid), start_ticks, program: executable(pid) })
    }

    /// The process and its ancestors, nearest first, as shown in a question.
    pub(crate) fn lineage(&self) -> String {
        const ANCESTORS_MAX: usize = 4;
        let describe = |pid: i32, program: &str| {
            format!("pid {pid} ({})", outpost_approvals::display::escape_untrusted(program, 200))
        };
        let mut line = vec![describe(self.pid, &self.program)];
        let mut pid = self.pid;
        for _ in 0..ANCESTORS_MAX {
            let Some(stat) = procfs::stat(pid).filter(|stat| stat.parent > 1) else { break };
            pid = stat.parent;
            line.push(describe(pid, &executable(pid)));
        }
        line.join(" of ")
    }
}

fn executable(pid: i32) -> String {
    let path = std::fs::read_link(format!("/proc/{pid}/exe"));
    path.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default()
}
