//! Users and groups of this host, from `/etc/passwd` and `/etc/group`.
//!
//! The C library's lookups load NSS modules of the host into the process. Outpost is linked statically, and a
//! module built for another C library crashes it. So this file reads the tables itself. Users that only a
//! directory service knows have no name here.

use crate::{Errno, Result, fault};
use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;

/// One user.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub uid: u32,
    pub gid: u32,
    pub name: OsString,
    pub home: PathBuf,
}

const PASSWD: &str = "/etc/passwd";
const GROUP: &str = "/etc/group";
/// Longer lines are skipped. Bytes beyond the file limit are ignored.
const LINE_BYTES_MAX: u64 = 64 * 1024;
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// The user with this uid, if `/etc/passwd` has one.
pub fn by_uid(uid: u32) -> Result<Option<User>> {
    look_up(|user| user.uid == uid)
}

/// The user with this name, if `/etc/passwd` has one.
pub fn by_name(name: &str) -> Result<Option<User>> {
    if name.contains('\0') {
        return Err(Errno::INVAL);
    }
    look_up(|user| user.name == *name)
}

/// The gids of a user: its primary group first, then the groups that list its name.
pub fn groups(user: &User) -> Result<Vec<u32>> {
    let mut groups = vec![user.gid];
    read(GROUP, |lines| {
        each_line(lines, |line| {
            if let Some(gid) = member(line, user.name.as_bytes()).filter(|gid| !groups.contains(gid)) {
                groups.push(gid);
            }
            None::<()>
        })
    })?;
    Ok(groups)
}

/// Whether the group is the user's primary group and has no other member, by both tables. False for unknown
/// users and groups.
pub fn is_private_group(gid: u32, uid: u32) -> bool {
    let Ok(Some(user)) = by_uid(uid) else { return false };
    let others = look_up(|other| other.gid == gid && other.uid != uid);
    let members =
        read(GROUP, |lines| each_line(lines, |line| has_other_members(line, gid, user.name.as_bytes())));
    user.gid == gid && others == Ok(None) && members == Ok(Some(false))
}

/// The name of a user, or its uid if it has no name.
pub fn name_or_number(uid: u32) -> String {
    match by_uid(uid) {
        Ok(Some(user)) => user.name.display().to_string(),
        Ok(None) | Err(_) => uid.to_string(),
    }
}

/// The home directory of the user of this process: `HOME`, otherwise from `/etc/passwd`.
pub fn home() -> Option<PathBuf> {
    let own = || by_uid(rustix::process::getuid().as_raw()).ok().flatten().map(|user| user.home);
    std::env::var_os("HOME").filter(|home| !home.is_empty()).map(PathBuf::from).or_else(own)
}

fn look_up(matches: impl Fn(&User) -> bool) -> Result<Option<User>> {
    read(PASSWD, |file| find(file, matches))
}

/// Reads one of the tables. `None` where the file does not exist, as in a root directory with nothing but a
/// program.
fn read<T>(path: &str, look: impl FnOnce(File) -> std::io::Result<Option<T>>) -> Result<Option<T>> {
    fault::failpoint()?;
    match File::open(path).and_then(look) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        found => found.map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

/// The first user that matches. Malformed lines are skipped.
fn find(file: impl Read, matches: impl Fn(&User) -> bool) -> std::io::Result<Option<User>> {
    each_line(file, |line| parse(line).filter(|user| matches(user)))
}

/// The result of the first line for which `look` returns one.
fn each_line<T>(file: impl Read, mut look: impl FnMut(&[u8]) -> Option<T>) -> std::io::Result<Option<T>> {
    let mut lines = BufReader::new(file.take(FILE_BYTES_MAX));
    let mut line = Vec::new();
    loop {
        line.clear();
        if lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Ok(None);
        }
        match line.strip_suffix(b"\n") {
            Some(whole) => {
                if let Some(found) = look(whole) {
                    return Ok(Some(found));
                }
            }
            None if line.len() as u64 == LINE_BYTES_MAX => {
                lines.skip_until(b'\n')?;
            }
            // The last line without its newline.
            None => return Ok(look(&line)),
        }
    }
}

/// The gid of a group that lists this user: `name:password:gid:user,user`.
fn member(line: &[u8], user: &[u8]) -> Option<u32> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
    let [name, _, gid, members] = fields.as_slice() else { return None };
    if name.is_empty() || matches!(name.first(), Some(b'+' | b'-' | b'#')) {
        return None;
    }
    members.split(|byte| *byte == b',').any(|member| member == user).then(|| number(gid)).flatten()
}

/// Whether a group lists members other than this user; `None` for the line of another group.
fn has_other_members(line: &[u8], gid: u32, user: &[u8]) -> Option<bool> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
    let [_, _, found, members] = fields.as_slice() else { return None };
    let is_other = |member: &[u8]| !member.is_empty() && member != user;
    (number(found) == Some(gid)).then(|| members.split(|byte| *byte == b',').any(is_other))
}

/// `name:password:uid:gid:comment:home:shell`.
fn parse(line: &[u8]) -> Option<User> {
    let fields: Vec<&[u8]> = line.split(|byte| *byte == b':').collect();
    let [name, _, uid, gid, _, home, _] = fields.as_slice() else { return None };
    // `+` and `-` refer to a directory service.
    if name.is_empty() || matches!(name.first(), Some(b'+' | b'-' | b'#')) {
        return None;
    }
    let (uid, gid) = (number(uid)?, number(gid)?);
    let name = OsString::from_vec(name.to_vec());
    Some(User { uid, gid, name, home: OsStr::from_bytes(home).into() })
}

/// Digits only: the standard library also accepts a sign. The largest number means "unchanged" to the kernel.
fn number(text: &[u8]) -> Option<u32> {
    let digits = Some(text).filter(|text| text.iter().all(u8::is_ascii_digit))?;
    std::str::from_utf8(digits).ok()?.parse().ok().filter(|number| *number != u32::MAX)
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
    fn another_spelling_of_a_uid_finds_no_user() {
        for name in ["0", "#0", "-1", "4294967295", "no such user", ""] {
            assert_eq!(by_name(name).unwrap(), None, "{name:?}");
        }
        assert_eq!(by_uid(4_123_456_789).unwrap(), None);
        assert_eq!(by_uid(u32::MAX).unwrap(), None);
        assert_eq!(by_name("ro\0ot"), Err(Errno::INVAL));
        assert_eq!(name_or_number(4_123_456_789), "4123456789");
    }

    #[test]
    fn malformed_lines_hide_no_user_and_make_none() {
        let long = "x".repeat(3 * LINE_BYTES_MAX as usize);
        let text = format!(
            "\n:x:7:7::/:\n+nis:x:7:7::/:\n-nis:x:7:7::/:\n#c:x:7:7::/:\nshort:x:7\nsigned:x:+7:7::/:\n\
             many:x:7:7::/:sh:more\nlarge:x:4294967303:7::/:\n{long}:x:7:7::/:sh\n\
             seven:x:7:8:Comment, äöü:/home/seven:/bin/sh\nother:x:7:9::/:sh\nlast:x:9:9::/last:"
        );
        let found = find(text.as_bytes(), |user| user.uid == 7).unwrap().unwrap();
        assert_eq!((found.name.to_str(), found.gid), (Some("seven"), 8));
        assert_eq!(found.home, PathBuf::from("/home/seven"));
        let last = find(text.as_bytes(), |user| user.name == *"last").unwrap().unwrap();
        assert_eq!(last.home, PathBuf::from("/last"));
        assert_eq!(find(text.as_bytes(), |user| user.uid == 8).unwrap(), None);
        assert_eq!(find(&b""[..], |_| true).unwrap(), None);
    }

    #[test]
    fn a_group_counts_for_the_members_that_its_line_lists_and_for_no_others() {
        let of = |line: &str| member(line.as_bytes(), b"ann");
        assert_eq!(of("docker:x:99:bob,ann"), Some(99));
        assert_eq!(of("docker:x:99:ann"), Some(99));
        for line in [
            "docker:x:99:anna,joann",
            "docker:x:99:",
            "ann:x:99:bob",
            "short:x:99",
            "many:x:99:ann:more",
            "signed:x:+9:ann",
            "none:x:4294967295:ann",
            "+nis:x:99:ann",
            ":x:99:ann",
        ] {
            assert_eq!(of(line), None, "{line}");
        }
        let others = |line: &str| has_other_members(line.as_bytes(), 99, b"ann");
        for (line, expected) in [
            ("ann:x:99:", Some(false)),
            ("ann:x:99:ann", Some(false)),
            ("ann:x:99:ann,bob", Some(true)),
            ("ann:x:99:bob", Some(true)),
            ("bob:x:98:bob", None),
            ("short:x:99", None),
        ] {
            assert_eq!(others(line), expected, "{line}");
        }
        let root = by_uid(0).unwrap().unwrap();
        assert_eq!(groups(&root).unwrap().first(), Some(&root.gid));
    }
}
