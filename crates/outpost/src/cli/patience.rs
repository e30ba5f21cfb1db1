//! How long commands that go on wait for a daemon that is away, and what they say meanwhile.

use crate::paths::Paths;
use std::time::Duration;

/// How long a daemon may be away before we give up on it.
pub(super) const RECONNECT_PATIENCE: Duration = Duration::from_secs(30);

const RECONNECT_PAUSE: Duration = Duration::from_millis(20);
/// Each attempt goes through ssh, which says so when it fails.
const RECONNECT_PAUSE_ELSEWHERE: Duration = Duration::from_millis(200);

pub(super) const ELSEWHERE_LOST: &str =
    "the connection to that host is lost; `outpost connect` goes on trying, and so do we";

/// How long to wait before a daemon is tried again.
pub(super) fn reconnect_pause(paths: &Paths) -> Duration {
    if paths.host.is_some() { RECONNECT_PAUSE_ELSEWHERE } else { RECONNECT_PAUSE }
}
