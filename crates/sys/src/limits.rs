//! Resource limits of this process.

use crate::{Result, fault};
use rustix::process::{Resource, Rlimit};

/// A soft and a hard limit; `None` is unlimited.
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

/// Raises the soft limit on descriptors to the hard one. Returns the old limit, which children get back.
pub fn raise_descriptors() -> Result<Limit> {
    fault::failpoint()?;
    let before = descriptors();
    rustix::process::setrlimit(Resource::Nofile, Rlimit { current: before.hard, maximum: before.hard })?;
    Ok(before)
}
