//! Attributes of this process: subreaper, OOM score, umask, effective uid, dumpability, priority.

use crate::{Result, fault};

/// Makes this process the subreaper: orphaned descendants become its children.
pub fn become_subreaper() -> Result<()> {
    fault::failpoint()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

/// Sets the OOM score adjustment. A value below the current one needs privilege.
pub fn set_oom_score(score: i32) -> std::io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", score.to_string())
}

/// The OOM score adjustment.
pub fn oom_score() -> i32 {
    std::fs::read_to_string("/proc/self/oom_score_adj")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Sets the umask. Returns the old one.
pub fn set_umask(mask: u32) -> u32 {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask)).as_raw_mode()
}

pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Makes this process undumpable: other processes of this user can neither read its memory, trace it nor take its
/// descriptors, and it leaves no core. Exec resets this. A forked child inherits it. An unprivileged undumpable process
/// cannot set up a user namespace, because only root may write its id maps.
pub fn set_undumpable() -> Result<()> {
    fault::failpoint()?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
}

/// Gives the calling thread nice value 19. Unlike with SCHED_IDLE, it still makes progress on a busy host. A failure
/// affects speed only.
pub fn lower_priority() {
    let _unchanged = rustix::process::nice(19);
}
