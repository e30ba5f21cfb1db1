//! Which kernel this is, and what it can do that cannot be learnt by trying later.

use crate::fault;

/// A version of Linux: 6.8 is `(6, 8)`.
pub type Version = (u32, u32);

/// The release as the kernel names it: `6.1.0-26-amd64`.
pub fn release() -> String {
    rustix::system::uname().release().to_string_lossy().into_owned()
}

/// The version in a release; `(0, 0)` where it has none.
pub fn version_in(release: &str) -> Version {
    let mut numbers = release.split(|letter: char| !letter.is_ascii_digit()).map(str::parse::<u32>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(major)), Some(Ok(minor))) => (major, minor),
        _ => (0, 0),
    }
}

/// Whether attributes of mounts can be set below a directory (`mount_setattr`, Linux 5.12).
pub fn has_mount_attributes() -> bool {
    if fault::gate().is_err() {
        return false;
    }
    let nowhere: *const libc::c_char = std::ptr::null();
    // SAFETY: with a size of 0 the kernel reads neither the path nor the attributes.
    let set = unsafe { libc::syscall(libc::SYS_mount_setattr, -1, nowhere, 0, nowhere, 0usize) };
    set == 0 || crate::signal::last_errno() != crate::Errno::NOSYS
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
