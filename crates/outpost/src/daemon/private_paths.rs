//! The paths that every sandbox hides.

use crate::dropin::{codecast, relay};
use outpost_cli::paths::Paths;
use outpost_sandbox::PrivatePaths;

/// Directories, sockets and tokens of this daemon, of the guard, and of the user's relays. This is the only such list. A new
/// file outside of these directories must be added here.
pub(crate) fn private(paths: &Paths) -> PrivatePaths {
    let paths = paths.clone();
    PrivatePaths::new(move || {
        let own = [paths.state.clone(), paths.runtime.clone()];
        let others = [paths.guard.state(), paths.guard.runtime()];
        let others = others.into_iter().chain(codecast::private()).chain(relay::private(&paths.state));
        own.into_iter().chain(others.filter(|path| path.symlink_metadata().is_ok())).collect()
    })
}
