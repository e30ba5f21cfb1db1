//! User credentials: assumed by a child before exec, or by a thread for file access.

use crate::user::{self, User};
use crate::{Errno, Result, confine, fault};
use rustix::process::{Gid, Uid};
use rustix::thread::CapabilitySet;
use std::ffi::c_int;

/// A uid, its primary gid, and its supplementary gids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// The kernel's own limit on supplementary groups (NGROUPS_MAX).
pub const GROUPS_MAX: usize = 65536;

/// Means "unchanged" to the system calls that set a uid or gid.
const UNCHANGED: u32 = u32::MAX;

impl Credentials {
    /// The credentials of a user, with the groups that `/etc/group` lists it in.
    pub fn of(user: &User) -> Result<Credentials> {
        let mut groups = user::groups(user)?;
        groups.truncate(GROUPS_MAX);
        Ok(Credentials { uid: user.uid, gid: user.gid, groups })
    }

    fn check(&self) -> Result<()> {
        let mut all = [self.uid, self.gid].into_iter().chain(self.groups.iter().copied());
        match self.groups.len() <= GROUPS_MAX && !all.any(|number| number == UNCHANGED) {
            true => Ok(()),
            false => Err(Errno::INVAL),
        }
    }
}

/// A result whose error is an errno.
type Outcome = std::result::Result<(), c_int>;

/// Switches to the user permanently, with a new keyring and without capabilities. For a child between clone
/// and exec, so these are raw system calls: the C library's would signal threads that exist in the parent
/// only.
pub(crate) fn assume(credentials: &Credentials) -> Outcome {
    credentials.check().map_err(Errno::raw_os_error)?;
    let Credentials { uid, gid, groups } = credentials;
    match confine::join_new_keyring() {
        // A seccomp filter that refuses keyctl refuses it to the program as well.
        Ok(()) | Err(libc::EPERM) => {}
        failed => return failed,
    }
    set_groups(groups)?;
    let (group, user) = (Gid::from_raw(*gid), Uid::from_raw(*uid));
    rustix::thread::set_thread_res_gid(group, group, group).map_err(Errno::raw_os_error)?;
    rustix::thread::set_thread_res_uid(user, user, user).map_err(Errno::raw_os_error)?;
    // The uid change clears the effective and permitted sets, unless the caller's securebits forbid it.
    if *uid == 0 { Ok(()) } else { confine::set_capabilities(CapabilitySet::empty()) }
}

/// Runs `body` on a new thread that accesses files with the rights of this user only. Needs root. The other
/// threads keep their rights.
pub fn with_file_rights<T: Send>(credentials: &Credentials, body: impl FnOnce() -> T + Send) -> Result<T> {
    fault::failpoint()?;
    credentials.check()?;
    let switched = || {
        set_file_rights(credentials).map_err(Errno::from_raw_os_error)?;
        Ok(body())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, switched);
        let thread = thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// Switches this thread. The kernel drops the file capabilities together with `fsuid`.
fn set_file_rights(Credentials { uid, gid, groups }: &Credentials) -> Outcome {
    set_groups(groups)?;
    // SAFETY: setfsgid takes a number only.
    unsafe { libc::syscall(libc::SYS_setfsgid, *gid) };
    // SAFETY: setfsuid takes a number only.
    unsafe { libc::syscall(libc::SYS_setfsuid, *uid) };
    // SAFETY: setfsgid takes a number only. An invalid one changes nothing, and the call returns the current
    // gid.
    let group = unsafe { libc::syscall(libc::SYS_setfsgid, UNCHANGED) };
    // SAFETY: setfsuid takes a number only. An invalid one changes nothing, and the call returns the current
    // uid.
    let user = unsafe { libc::syscall(libc::SYS_setfsuid, UNCHANGED) };
    let current = (user as u32, group as u32);
    if current == (*uid, *gid) { Ok(()) } else { Err(libc::EPERM) }
}

/// Sets the supplementary groups of this thread only.
fn set_groups(groups: &[u32]) -> Outcome {
    // SAFETY: the kernel reads `groups.len()` numbers from the slice.
    done(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })
}

fn done(result: libc::c_long) -> Outcome {
    if result < 0 { Err(crate::signal::last_errno().raw_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const OTHER: u32 = 54_321;

    fn other_user() -> Credentials {
        Credentials { uid: OTHER, gid: OTHER, groups: vec![54_322] }
    }

    #[test]
    fn a_number_that_means_unchanged_is_refused() {
        let credentials = Credentials { uid: UNCHANGED, ..other_user() };
        assert_eq!(with_file_rights(&credentials, || ()), Err(Errno::INVAL));
        assert_eq!(assume(&credentials), Err(libc::EINVAL));
    }

    #[test]
    fn files_are_reached_with_the_rights_of_that_user_only() {
        if crate::process::effective_uid() != 0 {
            assert_eq!(with_file_rights(&other_user(), || ()), Err(Errno::PERM));
            return;
        }
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let file = |name: &str, mode, gid| {
            let path = dir.path().join(name);
            std::fs::write(&path, "x").unwrap();
            std::os::unix::fs::chown(&path, Some(0), Some(gid)).unwrap();
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            path
        };
        let [all, group, other, root] = [
            file("all", 0o644, 0),
            file("group", 0o640, 54_322),
            file("other", 0o640, 54_323),
            file("root", 0o600, 0),
        ];
        let reads = |path: &std::path::Path| std::fs::read(path).is_ok();
        let found = with_file_rights(&other_user(), || [&all, &group, &other, &root].map(|path| reads(path)));
        assert_eq!(found, Ok([true, true, false, false]));
        assert!(reads(&root), "the other threads keep their rights");
    }
}
