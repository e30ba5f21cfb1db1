//! Retry policy of commands that outlive a lost connection to the daemon.

use crate::paths::Paths;
use std::time::Duration;

/// How long the daemon may be unreachable before a command gives up.
pub(super) const RECONNECT_TIMEOUT: Duration = Duration::from_secs(30);

const RETRY_INTERVAL: Duration = Duration::from_millis(20);
/// Longer: each attempt goes through ssh, which logs a failed one.
const REMOTE_RETRY_INTERVAL: Duration = Duration::from_millis(200);

pub(super) const HOST_CONNECTION_LOST: &str =
    "the connection to the remote host is lost; waiting for `outpost connect` to restore it";

/// The pause before the next connection attempt.
pub(super) fn retry_interval(paths: &Paths) -> Duration {
    if paths.host.is_some() { REMOTE_RETRY_INTERVAL } else { RETRY_INTERVAL }
}
