//! The rights of a user: the numbers that the kernel checks, taken on by a child before exec or by a thread for looking
//! up files.

use crate::user::{self, User};
use crate::{Errno, Result, confine, fault};
use std::ffi::c_int;

/// A user, its group, and its supplementary groups.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Credentials {
    pub uid: u32,
    pub gid: u32,
    pub groups: Vec<u32>,
}

/// The kernel's own limit on supplementary groups (NGROUPS_MAX).
pub const GROUPS_MAX: usize = 65536;

/// Means "leave it as it is" to the system calls that set a number.
const UNCHANGED: u32 = u32::MAX;

impl Credentials {
    /// Those of a user of this machine, with the groups that `/etc/group` lists it in.
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

/// What the kernel has for a failed call.
type Outcome = std::result::Result<(), c_int>;

/// Becomes that user for good: no capability and no key of the caller is left. For a child between clone and exec, so
/// these are bare system calls: the C library's would signal threads that a copy of one thread does not have.
pub(crate) fn assume(credentials: &Credentials) -> Outcome {
    credentials.check().map_err(Errno::raw_os_error)?;
    let Credentials { uid, gid, groups } = credentials;
    match confine::join_new_keyring() {
        // A filter that refuses keys refuses them to the program as well.
        Ok(()) | Err(libc::EPERM) => {}
        failed => return failed,
    }
    set_groups(groups)?;
    // SAFETY: plain numbers.
    done(unsafe { libc::syscall(libc::SYS_setresgid, *gid, *gid, *gid) })?;
    // SAFETY: plain numbers.
    done(unsafe { libc::syscall(libc::SYS_setresuid, *uid, *uid, *uid) })?;
    // The change of user clears the effective and permitted sets, unless the caller's securebits forbid it.
    if *uid == 0 { Ok(()) } else { confine::set_capabilities(0) }
}

/// Runs `body` on a thread of its own that reaches files with the rights of this user and no others. Only root can. The
/// rest of the process is not affected, and the thread ends with `body`.
pub fn with_file_rights<T: Send>(credentials: &Credentials, body: impl FnOnce() -> T + Send) -> Result<T> {
    fault::gate()?;
    credentials.check()?;
    let switched = || {
        look_as(credentials).map_err(Errno::from_raw_os_error)?;
        Ok(body())
    };
    std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().spawn_scoped(scope, switched);
        let thread = thread.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::AGAIN))?;
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    })
}

/// For this thread. The kernel takes the capabilities about files away with the change of `fsuid`.
fn look_as(Credentials { uid, gid, groups }: &Credentials) -> Outcome {
    set_groups(groups)?;
    // SAFETY: a plain number; the call answers with the number of before.
    unsafe { libc::syscall(libc::SYS_setfsgid, *gid) };
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_setfsuid, *uid) };
    // SAFETY: as above. A number that cannot be set changes nothing, so the answer is the one in force.
    let group = unsafe { libc::syscall(libc::SYS_setfsgid, UNCHANGED) };
    // SAFETY: as above.
    let user = unsafe { libc::syscall(libc::SYS_setfsuid, UNCHANGED) };
    let holds = (user as u32, group as u32);
    if holds == (*uid, *gid) { Ok(()) } else { Err(libc::EPERM) }
}

/// Of this thread alone.
fn set_groups(groups: &[u32]) -> Outcome {
    // SAFETY: the kernel reads as many numbers as the slice has.
    done(unsafe { libc::syscall(libc::SYS_setgroups, groups.len(), groups.as_ptr()) })
}

fn done(result: libc::c_long) -> Outcome {
    if result < 0 { Err(crate::signal::last_errno().raw_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    const SOMEBODY: u32 = 54_321;

    fn somebody() -> Credentials {
        Credentials { uid: SOMEBODY, gid: SOMEBODY, groups: vec![54_322] }
    }

    #[test]
    fn a_number_that_means_unchanged_is_refused() {
        let credentials = Credentials { uid: UNCHANGED, ..somebody() };
        assert_eq!(with_file_rights(&credentials, || ()), Err(Errno::INVAL));
        assert_eq!(assume(&credentials), Err(libc::EINVAL));
    }

    #[test]
    fn files_are_reached_with_the_rights_of_that_user_only() {
        if crate::limits::effective_uid() != 0 {
            assert_eq!(with_file_rights(&somebody(), || ()), Err(Errno::PERM));
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
        let found = with_file_rights(&somebody(), || [&all, &group, &other, &root].map(|path| reads(path)));
        assert_eq!(found, Ok([true, true, false, false]));
        assert!(reads(&root), "the other threads keep their rights");
    }
}
