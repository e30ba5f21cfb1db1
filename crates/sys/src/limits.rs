//! What a process sets for itself: descriptor limit, subreaper, OOM score, mask, session, who may read its memory.

use crate::{Result, fault};
use rustix::process::{Resource, Rlimit};

/// A soft and a hard limit; `None` is without limit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    pub soft: Option<u64>,
    pub hard: Option<u64>,
}

/// The limit on open descriptors.
pub fn descriptors() -> Limit {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    Limit { soft: limit.current, hard: limit.maximum }
}

/// The limit on processes of this user.
pub fn processes() -> Limit {
    let limit = rustix::process::getrlimit(Resource::Nproc);
    Limit { soft: limit.current, hard: limit.maximum }
}

/// Raises the soft limit on descriptors to the hard one and returns what it was, which children are given back.
pub fn raise_descriptors() -> Result<Limit> {
    fault::gate()?;
    let before = descriptors();
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: before.hard, maximum: before.hard })?;
    Ok(before)
}

/// Makes orphaned descendants children of this process.
pub fn become_subreaper() -> Result<()> {
    fault::gate()?;
    rustix::process::set_child_subreaper(Some(rustix::process::getpid()))
}

/// Asks the kernel to kill this process later (or sooner) when memory runs out. Below the current value needs privilege.
pub fn set_oom_score(score: i32) -> std::io::Result<()> {
    std::fs::write("/proc/self/oom_score_adj", score.to_string())
}

/// The kernel's OOM adjustment of this process.
pub fn oom_score() -> i32 {
    std::fs::read_to_string("/proc/self/oom_score_adj")
        .ok()
        .and_then(|text| text.trim().parse().ok())
        .unwrap_or(0)
}

/// Sets the file creation mask and returns the one before.
pub fn set_umask(mask: u32) -> u32 {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(mask)).as_raw_mode()
}

/// The user this process acts as.
pub fn effective_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

/// Keeps other processes of this user from reading our memory, tracing us and taking our descriptors; no core is left.
/// Executing a program ends it. A child that is forked has it too, and without privilege can make no user namespace of use
/// then: nobody but root may write its maps.
pub fn hide_memory() -> Result<()> {
    fault::gate()?;
    rustix::process::set_dumpable_behavior(rustix::process::DumpableBehavior::NotDumpable)
}

/// Gives the calling thread nice value 19. It still makes progress on a busy host, unlike with SCHED_IDLE. Failure changes
/// nothing but speed.
pub fn lower_priority() {
    let _keeps_its_priority = rustix::process::nice(19);
}

/// Bytes that nobody can guess.
pub fn random<const N: usize>() -> Result<[u8; N]> {
    let mut bytes = [0; N];
    let mut filled = 0;
    while let Some(rest) = bytes.get_mut(filled..).filter(|rest| !rest.is_empty()) {
        filled +=
            crate::retry(|| rustix::rand::getrandom(&mut *rest, rustix::rand::GetRandomFlags::empty()))?;
    }
    Ok(bytes)
}
