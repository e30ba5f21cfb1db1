//! The askpass program: this binary, under the path `/proc/PID/exe`, which no user can redirect.

use outpost_sys::procfs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// Argument 0 of the anchor process (`Anchor`).
pub const ASKPASS_ANCHOR: &str = "outpost-askpass-anchor";

/// An idle child process of this binary. sudo executes its `/proc/PID/exe`, since the user could replace a file at any
/// other path. The daemon's own `/proc/PID/exe` does not serve: it is unreadable while the daemon is undumpable.
///
/// The child is reaped only when this is dropped. Its pid is therefore not reused while a password can be sent.
pub(super) struct Anchor {
    process: Child,
}

impl Anchor {
    /// Starts the process. It exits at EOF of its standard input, and thus when the daemon exits.
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

    /// The path that sudo executes.
    pub(super) fn program(&self) -> PathBuf {
        format!("/proc/{}/exe", self.process.id()).into()
    }
}

impl Drop for Anchor {
    fn drop(&mut self) {
        let _exited = self.process.kill();
        let _reaped = self.process.wait();
    }
}

/// A process, identified by pid and start time. Unlike the pid alone, the pair is never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ProcessIdentity {
    pub(super) pid: i32,
    start_ticks: u64,
}

impl ProcessIdentity {
    pub(super) fn of(pid: i32) -> Option<ProcessIdentity> {
        procfs::stat(pid).map(|stat| ProcessIdentity { pid, start_ticks: stat.start_ticks })
    }

    pub(super) fn parent(self) -> Option<ProcessIdentity> {
        let stat = procfs::stat(self.pid).filter(|stat| stat.start_ticks == self.start_ticks)?;
        ProcessIdentity::of(stat.parent)
    }

    /// Whether it executes the same file as this process. False if its `/proc/PID/exe` is unreadable.
    pub(super) fn is_this_binary(self) -> bool {
        let file = |process: &str| std::fs::metadata(format!("/proc/{process}/exe")).ok();
        let (Some(own), Some(its)) = (file("self"), file(&self.pid.to_string())) else { return false };
        // The identity check comes last: it proves that the pid was not reused in between.
        (own.dev(), own.ino()) == (its.dev(), its.ino()) && ProcessIdentity::of(self.pid) == Some(self)
    }
}
