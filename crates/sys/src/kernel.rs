//! The kernel's version and features.

use crate::fault;

/// Major and minor version: Linux 6.8 is `(6, 8)`.
pub type Version = (u32, u32);

/// The release string: `6.1.0-26-amd64`.
pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The version in a release string; `(0, 0)` if there is none.
pub fn version_in(release: &str) -> Version {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    }
}

/// Whether the kernel has `mount_setattr` (Linux 5.12).
pub fn has_mount_attributes() -> bool {
    if fault::failpoint().is_err() {
        return false;
    }
    let none: *const libc::c_char = std::ptr::null();
    // SAFETY: with a size of 0 the kernel reads neither the path nor the attributes.
    let set = unsafe { libc::syscall(libc::SYS_mount_setattr, -1, none, 0, none, 0usize) };
    set == 0 || crate::signal::last_errno() != crate::Errno::NOSYS
}

/// The Landlock ABI version; `None` without Landlock.
pub fn landlock_version() -> Option<u32> {
    const CREATE_RULESET_VERSION: u32 = 1;
    let none: *const u8 = std::ptr::null();
    // SAFETY: with this flag the kernel requires a null pointer and a size of 0.
    let version =
        unsafe { libc::syscall(libc::SYS_landlock_create_ruleset, none, 0usize, CREATE_RULESET_VERSION) };
    u32::try_from(version).ok().filter(|version| *version > 0)
}

/// Whether the kernel has seccomp filters.
pub fn has_seccomp_filters() -> bool {
    const GET_ACTION_AVAIL: u32 = 2;
    let action: u32 = libc::SECCOMP_RET_ERRNO;
    // SAFETY: the pointer is to a number that is live during the call.
    unsafe { libc::syscall(libc::SYS_seccomp, GET_ACTION_AVAIL, 0, &raw const action) == 0 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_release_is_read_up_to_its_second_number() {
        for (release, version) in [
            ("6.18.44-fc", (6, 18)),
            ("5.10.0-32-amd64", (5, 10)),
            ("6.1", (6, 1)),
            ("6", (0, 0)),
            ("", (0, 0)),
        ] {
            assert_eq!(version_in(release), version, "{release}");
        }
    }
}
