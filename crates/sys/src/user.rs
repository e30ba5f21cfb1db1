//! Users of this machine, as its name service knows them.

use crate::{Errno, Result};
use std::ffi::{CStr, CString, OsString, c_char};
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;
use std::{mem, ptr};

/// One user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub name: OsString,
    pub home: PathBuf,
}

/// The most that the name service may have to say about a user.
const RECORD_BYTES_MAX: usize = 1024 * 1024;

/// The user with this number, if the machine knows one.
pub fn by_uid(uid: u32) -> Result<Option<User>> {
    look_up(|record, buffer, found| {
        // SAFETY: all three live across the call, and the buffer has the length that is given.
        unsafe { libc::getpwuid_r(uid, record, buffer.as_mut_ptr().cast(), buffer.len(), found) }
    })
}

/// The user with this name, if the machine knows one.
pub fn by_name(name: &str) -> Result<Option<User>> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    look_up(|record, buffer, found| {
        // SAFETY: as above; the name is a C string that lives as long.
        unsafe { libc::getpwnam_r(name.as_ptr(), record, buffer.as_mut_ptr().cast(), buffer.len(), found) }
    })
}

fn look_up(
    ask: impl Fn(*mut libc::passwd, &mut [u8], *mut *mut libc::passwd) -> libc::c_int,
) -> Result<Option<User>> {
    let mut buffer = vec![0; 4096];
    loop {
        // SAFETY: a struct of numbers and pointers, for which zero bytes are valid.
        let mut record: libc::passwd = unsafe { mem::zeroed() };
        let mut found = ptr::null_mut();
        match ask(&raw mut record, &mut buffer, &raw mut found) {
            0 if found.is_null() => return Ok(None),
            0 => {
                let text = |text: *const c_char| {
                    // SAFETY: the call succeeded, so the record's texts are C strings in the buffer.
                    OsString::from_vec(unsafe { CStr::from_ptr(text) }.to_bytes().to_vec())
                };
                let (name, home) = (text(record.pw_name), text(record.pw_dir).into());
                return Ok(Some(User { uid: record.pw_uid, gid: record.pw_gid, name, home }));
            }
            libc::ERANGE if buffer.len() < RECORD_BYTES_MAX => buffer.resize(buffer.len() * 4, 0),
            libc::EINTR => {}
            // What the name service says when it knows no such user differs.
            libc::ENOENT | libc::ESRCH => return Ok(None),
            errno => return Err(Errno::from_raw_os_error(errno)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn root_is_found_by_number_and_by_name() {
        let root = by_uid(0).unwrap().unwrap();
        assert_eq!((root.uid, root.name.to_str()), (0, Some("root")));
        assert_eq!(by_name("root").unwrap(), Some(root));
    }

    #[test]
    fn nobody_is_found_under_another_name_of_a_number() {
        for name in ["0", "#0", "-1", "4294967295", "no such user", ""] {
            assert_eq!(by_name(name).unwrap(), None, "{name:?}");
        }
        assert_eq!(by_uid(4_123_456_789).unwrap(), None);
        assert_eq!(by_name("ro\0ot"), Err(Errno::INVAL));
    }
}
