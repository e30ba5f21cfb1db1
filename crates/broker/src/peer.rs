//! Who is at the other end of a connection, as far as the kernel knows.

use outpost_sys::{Result, message, procfs};
use std::os::fd::AsFd;

/// A client's process.
#[derive(Clone, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct Peer {
    pub(crate) pid: i32,
    pub(crate) uid: u32,
    /// The group of its process; none in books from before it was recorded.
    #[serde(default)]
    pub(crate) gid: Option<u32>,
    /// When it began, so that another process of the same number is another client. 0 if it is gone already.
    pub(crate) start_ticks: u64,
    /// Its executable, if it can be seen.
    pub(crate) program: String,
}

impl Peer {
    /// Not knowing who asks is a reason to refuse.
    pub(crate) fn of(socket: impl AsFd) -> Result<Peer> {
        let message::Peer { pid, uid, gid } = message::peer(socket)?;
        let start_ticks = procfs::stat(pid).map_or(0, |stat| stat.start_ticks);
        let program = std::fs::read_link(format!("/proc/{pid}/exe"));
        let program = program.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(Peer { pid, uid, gid: Some(gid), start_ticks, program })
    }

    /// For people: the process and its parents, nearest first.
    pub(crate) fn lineage(&self) -> String {
        const GENERATIONS: usize = 4;
        let mut line =
            vec![format!("pid {} ({})", self.pid, outpost_approvals::display::claim(&self.program, 200))];
        let mut at = self.pid;
        for _ in 0..GENERATIONS {
            let Some(stat) = procfs::stat(at).filter(|stat| stat.parent > 1) else { break };
            let program = std::fs::read_link(format!("/proc/{}/exe", stat.parent));
            let program = program.map(|path| path.to_string_lossy().into_owned()).unwrap_or_default();
            line.push(format!("pid {} ({})", stat.parent, outpost_approvals::display::claim(&program, 200)));
            at = stat.parent;
        }
        line.join(" of ")
    }
}
