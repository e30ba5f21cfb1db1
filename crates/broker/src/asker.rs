//! The user that a request is made for, and the rights that go with it.

use crate::peer::Peer;
use outpost_sys::credentials::{Credentials, with_file_rights};
use outpost_sys::limits;
use outpost_sys::user::{self, User};

/// The group of a process whose group is not known.
const NOGROUP: u32 = 65534;

/// The user at the other end of a connection.
#[derive(Clone, Debug)]
pub(crate) struct Asker {
    pub(crate) user: User,
    /// None for the daemon's own user: its rights are those that the daemon has.
    pub(crate) credentials: Option<Credentials>,
}

impl Asker {
    pub(crate) fn of(peer: &Peer) -> Result<Asker, String> {
        let uid = peer.uid;
        let found = user::by_uid(uid).map_err(|errno| format!("cannot look up user {uid}: {errno}"))?;
        if uid == limits::effective_uid() {
            let unnamed = || User { uid, gid: uid, name: uid.to_string().into(), home: "/".into() };
            return Ok(Asker { user: found.unwrap_or_else(unnamed), credentials: None });
        }
        if let Some(user) = found {
            let credentials = Credentials::of(&user);
            let credentials =
                credentials.map_err(|errno| format!("cannot look up the groups of user {uid}: {errno}"))?;
            return Ok(Asker { user, credentials: Some(credentials) });
        }
        // The kernel's word on its group: the number of a user is no number of a group.
        let gid = peer.gid.unwrap_or(NOGROUP);
        let user = User { uid, gid, name: uid.to_string().into(), home: "/".into() };
        Ok(Asker { user, credentials: Some(Credentials { uid, gid, groups: vec![gid] }) })
    }

    /// Runs `look`, which reaches files with the rights of this user. Waits for the disk.
    pub(crate) fn looking<T: Send>(&self, look: impl FnOnce() -> T + Send) -> Result<T, String> {
        match &self.credentials {
            None => Ok(look()),
            Some(credentials) => with_file_rights(credentials, look)
                .map_err(|errno| format!("cannot look for files as user {}: {errno}", credentials.uid)),
        }
    }
}
