//! Roles of the daemon's descriptors that the keeper holds. The numbers never change: an upgraded binary takes over
//! descriptors by role.

/// The lock file of the runtime directory or of the relay's socket.
pub(crate) const LOCK: u8 = 0;
pub(crate) const CONTROL_SOCKET: u8 = 1;
/// The memfd with the relay's settings.
pub(crate) const RELAY_SETTINGS: u8 = 2;
pub(crate) const RELAY_SOCKET: u8 = 3;
pub(crate) const EXEC_SOCKET: u8 = 4;
pub(crate) const EXEC_WEBSOCKET: u8 = 5;
pub(crate) const BROKER_SOCKET: u8 = 6;
pub(crate) const APPROVALS_SOCKET: u8 = 7;
/// `[approvals] socket`, for approvers that are other users.
pub(crate) const SHARED_APPROVALS_SOCKET: u8 = 8;
pub(crate) const SESSIONS_PORT: u8 = 9;
/// The memfd with the text of the accepted configuration.
pub(crate) const CONFIG: u8 = 10;
pub(crate) const METRICS_PORT: u8 = 11;
/// Marker: all faces have started once. From then on a face that cannot start is retried instead of ending the daemon.
pub(crate) const STARTED_ONCE: u8 = 12;
/// Marker: the daemon was stopped and only keeps its processes.
pub(crate) const KEEPING_CHILDREN: u8 = 14;
pub(crate) const SESSIONS_SOCKET: u8 = 15;

/// Listeners of the faces.
pub(crate) const FACE_LISTENERS: [u8; 8] = [
    EXEC_SOCKET,
    EXEC_WEBSOCKET,
    BROKER_SOCKET,
    APPROVALS_SOCKET,
    SHARED_APPROVALS_SOCKET,
    SESSIONS_PORT,
    SESSIONS_SOCKET,
    METRICS_PORT,
];

/// Listeners of the faces, the control socket and the relay.
pub(crate) fn all_listeners() -> impl Iterator<Item = u8> {
    FACE_LISTENERS.into_iter().chain([CONTROL_SOCKET, RELAY_SOCKET])
}
