//! The daemon's own descriptors that the keeper holds, by number.

/// The lock that says that a daemon runs here.
pub(crate) const LOCK: u8 = 0;
/// The control socket.
pub(crate) const CONTROL: u8 = 1;
