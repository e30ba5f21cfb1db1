//! What no sandbox shows: the daemon's own directories, sockets and tokens.

use crate::policy::{Access, Entry, Files, Policy};
use std::path::PathBuf;
use std::sync::Arc;

/// Looked up anew for each command: other daemons of the user come and go.
#[derive(Clone)]
pub struct Private(Arc<dyn Fn() -> Vec<PathBuf> + Send + Sync>);

impl Private {
    pub fn new(paths: impl Fn() -> Vec<PathBuf> + Send + Sync + 'static) -> Private {
        Private(Arc::new(paths))
    }

    /// All of it that exists now.
    pub fn existing(&self) -> Vec<PathBuf> {
        self.0().into_iter().filter(|path| path.symlink_metadata().is_ok()).collect()
    }

    /// Denies all of it, whatever else the policy allows. The daemon reads again what it keeps there: no command shall write
    /// it, nor see what others wrote.
    pub fn hide(&self, policy: &mut Policy) {
        if let Files::Restricted { entries, .. } = &mut policy.files {
            entries.extend(self.0().into_iter().map(|path| Entry::path(path, Access::None)));
        }
    }
}

impl std::fmt::Debug for Private {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_list().entries(self.0()).finish()
    }
}
