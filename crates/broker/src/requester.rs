//! The user that sent a request, and that user's credentials.

use crate::peer::Peer;
use outpost_sys::credentials::{Credentials, with_file_rights};
use outpost_sys::user::{self, User};

/// The gid of a process whose gid was not recorded.
const NOGROUP: u32 = 65534;

/// The user at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Requester {
    pub(crate) user: User,
    /// None for the daemon's own user: its commands run with the daemon's credentials.
    pub(crate) credentials: Option<Credentials>,
}

impl Requester {
    pub(crate) fn of(peer: &Peer) -> Result<Requester, String> {
        let uid = peer.uid;
        let found = user::by_uid(uid).map_err(|errno| format!("cannot look up user {uid}: {errno}"))?;
        if uid == outpost_sys::process::effective_uid() {
            let unnamed = || User { uid, gid: uid, name: uid.to_string().into(), home: "/".into() };
            return Ok(Requester { user: found.unwrap_or_else(unnamed), credentials: None });
        }
        if let Some(user) = found {
            let credentials = Credentials::of(&user);
            let credentials =
                credentials.map_err(|errno| format!("cannot look up the groups of user {uid}: {errno}"))?;
            return Ok(Requester { user, credentials: Some(credentials) });
        }
        // Without a passwd entry the gid comes from the socket's peer credentials. A uid is not a valid gid.
        let gid = peer.gid.unwrap_or(NOGROUP);
        let user = User { uid, gid, name: uid.to_string().into(), home: "/".into() };
        Ok(Requester { user, credentials: Some(Credentials { uid, gid, groups: vec![gid] }) })
    }

    /// Runs `lookup` with this user's file permissions. Blocking; never call on the async runtime.
    pub(crate) fn with_file_access<T: Send>(&self, lookup: impl FnOnce() -> T + Send) -> Result<T, String> {
        match &self.credentials {
            None => Ok(lookup()),
            Some(credentials) => with_file_rights(credentials, lookup)
                .map_err(|errno| format!("cannot look for files as user {}: {errno}", credentials.uid)),
        }
    }
}
