//! The sandbox builder of a face: what the policies have in common, and the host that enforces them.

use crate::{Confinement, Context, Host, Plan, Policy, PrivatePaths, Result, plan, sweep};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, Once, PoisonError};

/// Plans and builds the sandboxes of one face. They hide the daemon's private paths.
#[derive(Debug)]
pub struct SandboxBuilder {
    /// The directory in which placeholders are recorded, so that those of earlier processes can be removed.
    state: PathBuf,
    private: PrivatePaths,
    /// Set when placeholders of earlier processes have been removed.
    swept: Once,
    host: Mutex<Option<Arc<Host>>>,
}

impl SandboxBuilder {
    /// `state` is the state directory of the daemon. Placeholders are recorded in it.
    pub fn new(state: PathBuf, private: PrivatePaths) -> SandboxBuilder {
        SandboxBuilder { state, private, swept: Once::new(), host: Mutex::new(None) }
    }

    /// The hidden paths that exist now.
    pub fn hidden(&self) -> Vec<PathBuf> {
        self.private.existing()
    }

    /// Blocking: reads the file system.
    pub fn plan(&self, mut policy: Policy, context: &Context) -> Result<Plan> {
        self.private.hide(&mut policy);
        plan(&policy, context)
    }

    /// Blocking: the first call probes the host.
    pub fn build(&self, plan: &Plan) -> Result<Confinement> {
        self.swept.call_once(|| sweep(&self.state));
        Confinement::build(plan, &*self.host()?)
    }

    /// The host's features. Only permanent results are cached.
    fn host(&self) -> Result<Arc<Host>> {
        // Concurrent callers wait for the same result.
        let mut known = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = &*known {
            return Ok(host.clone());
        }
        let host = Arc::new(Host::probe(&self.state)?);
        if !host.may_change {
            *known = Some(host.clone());
        }
        Ok(host)
    }
}
