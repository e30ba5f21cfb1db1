//! The program that sudo runs to ask for a password: this very binary, by a name that only the kernel can change.

use outpost_sys::procfs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// The name under which this binary runs as an anchor (`Anchor`).
pub const ASKPASS_ANCHOR: &str = "outpost-askpass-anchor";

/// A process of this binary that does nothing. Sudo executes the binary as `/proc/PID/exe`: a file at any path could be
/// replaced by the user, and `/proc` shows other processes of a user only while their memory is not hidden, as ours may be.
///
/// The child is reaped when this is dropped and not before. So its number stays its own as long as a password can be sent.
pub(super) struct Anchor {
    process: Child,
}

impl Anchor {
    /// Starts the process. It ends at the end of its standard input, and so with us.
    pub(super) fn start() -> io::Result<Anchor> {
        let process = Command::new("/proc/self/exe")
            .arg0(ASKPASS_ANCHOR)
            .env_clear()
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        Ok(Anchor { process })
    }

    /// What sudo executes.
    pub(super) fn program(&self) -> PathBuf {
        format!("/proc/{}/exe", self.process.id()).into()
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        let _ended_already = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// A process by its number and start time, which name it for good.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct Identity {
    pub(super) pid: i32,
    start_ticks: u64,
}

impl Identity {
    pub(super) fn of(pid: i32) -> Option<Identity> {
        procfs::stat(pid).map(|stat| Identity { pid, start_ticks: stat.start_ticks })
    }

    pub(super) fn of_parent(self) -> Option<Identity> {
        let stat = procfs::stat(self.pid).filter(|stat| stat.start_ticks == self.start_ticks)?;
        Identity::of(stat.parent)
    }

    /// Whether it executes the very file that we execute. False when the kernel does not let us look.
    pub(super) fn is_this_binary(self) -> bool {
        let file = |process: &str| std::fs::metadata(format!("/proc/{process}/exe")).ok();
        let (Some(own), Some(its)) = (file("self"), file(&self.pid.to_string())) else { return false };
        // Looked at last: the number was this process's all the time.
        (own.dev(), own.ino()) == (its.dev(), its.ino()) && Identity::of(self.pid) == Some(self)
    }
}
