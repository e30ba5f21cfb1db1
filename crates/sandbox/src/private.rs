//! Paths that no sandbox shows: the daemon's own directories, sockets and tokens.

use crate::policy::{Access, Files, Policy, PolicyEntry};
use std::path::PathBuf;
use std::sync::Arc;

/// Looked up for each command, because other daemons of the user come and go.
#[derive(Clone)]
pub struct PrivatePaths(Arc<dyn Fn() -> Vec<PathBuf> + Send + Sync>);

impl PrivatePaths {
    pub fn new(paths: impl Fn() -> Vec<PathBuf> + Send + Sync + 'static) -> PrivatePaths {
        PrivatePaths(Arc::new(paths))
    }

    /// Those that exist now.
    pub fn existing(&self) -> Vec<PathBuf> {
        self.0().into_iter().filter(|path| path.symlink_metadata().is_ok()).collect()
    }

    /// Denies these paths, whatever else the policy allows. The daemon trusts what it stores there, so no
    /// command may write it or read it.
    pub fn hide(&self, policy: &mut Policy) {
        if let Files::Restricted { entries, .. } = &mut policy.files {
            entries.extend(self.0().into_iter().map(|path| PolicyEntry::path(path, Access::None)));
        }
    }
}

impl std::fmt::Debug for PrivatePaths {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0()).finish()
    }
}
