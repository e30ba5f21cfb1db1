//! The daemon's own descriptors that the keeper holds, by number.

/// The lock that says that a daemon runs here.
pub(crate) const LOCK: u8 = 0;
/// The control socket.
pub(crate) const CONTROL: u8 = 1;
/// What the relay was started with.
pub(crate) const RELAY_SETTINGS: u8 = 2;
/// The relay's socket.
pub(crate) const RELAY_SOCKET: u8 = 3;
/// The exec face's socket, and its port.
pub(crate) const EXEC_SOCKET: u8 = 4;
pub(crate) const EXEC_WEBSOCKET: u8 = 5;
/// The broker's socket, the one for who decides, and the one for who decides and is another user.
pub(crate) const BROKER_SOCKET: u8 = 6;
pub(crate) const APPROVALS_SOCKET: u8 = 7;
pub(crate) const SHARED_APPROVALS_SOCKET: u8 = 8;
/// The port of the sessions face.
pub(crate) const SESSIONS_PORT: u8 = 9;
/// Says that the daemon was stopped and only keeps its processes.
pub(crate) const KEEPING: u8 = 14;

/// What clients of the faces reach them by.
pub(crate) const FACES: [u8; 7] = [
    EXEC_SOCKET,
    EXEC_WEBSOCKET,
    BROKER_SOCKET,
    APPROVALS_SOCKET,
    SHARED_APPROVALS_SOCKET,
    SESSIONS_PORT,
    METRICS_PORT,
];
/// All that clients connect to.
pub(crate) fn listening() -> impl Iterator<Item = u8> {
    FACES.into_iter().chain([CONTROL, RELAY_SOCKET])
}

/// The text of the configuration that is in force.
pub(crate) const CONFIG: u8 = 10;
/// Says that all faces have begun once: from then on one that cannot begin is retried instead of ending the daemon.
pub(crate) const BEGUN: u8 = 12;
/// The port for metrics.
pub(crate) const METRICS_PORT: u8 = 11;
