//! Recognises sandboxed processes, by restrictions that /proc shows and that no process can remove.
//!
//! The sandbox of a command with network access always sets no_new_privs and empties the capability bounding
//! set.

use crate::{Errno, Result, cgroup};
use std::fs;
use std::path::Path;

/// A sandboxed process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confined {
    pub pid: i32,
    /// Its cgroup (version 2); `None` where version 2 is not mounted.
    pub cgroup: Option<u64>,
}

/// What a daemon knows about the processes of a cgroup.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GroupConfinement {
    /// Not sandboxed: the daemon created the cgroup for an unsandboxed process, or did not create it.
    Unconfined,
    /// The daemon created the cgroup for a sandboxed process.
    Confined,
    /// Either may be true, for this reason.
    Unknown(&'static str),
}

/// Whether a process is sandboxed; `None` when there is no such process.
pub fn is_confined(pid: i32) -> Option<bool> {
    parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?).map(|status| status.is_confined)
}

/// The sandboxed processes of a user.
pub fn of_user(uid: u32) -> Result<Vec<Confined>> {
    Ok(of_user_all(uid)?
        .into_iter()
        .filter(|(_, is_confined)| *is_confined)
        .map(|(pid, _)| Confined { pid, cgroup: cgroup::id_of(pid) })
        .collect())
}

/// Whether processes of this user have the socket open and none of them is sandboxed. A process whose
/// descriptors cannot be read does not count.
pub fn is_open_outside(uid: u32, inode: u64) -> Result<bool> {
    let all = of_user_all(uid)?;
    let mut open = all.into_iter().filter(|(pid, _)| has_open(*pid, inode)).peekable();
    Ok(open.peek().is_some() && open.all(|(_, is_confined)| !is_confined))
}

/// Every process of the user, and whether it is sandboxed.
fn of_user_all(uid: u32) -> Result<Vec<(i32, bool)>> {
    let entries = fs::read_dir("/proc").map_err(|error| Errno::from_io_error(&error).unwrap_or(Errno::IO))?;
    let pids = entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let of_user = pids.filter_map(|pid| {
        let status = parse(&fs::read_to_string(format!("/proc/{pid}/status")).ok()?)?;
        (status.uid == uid).then_some((pid, status.is_confined))
    });
    Ok(of_user.collect())
}

fn has_open(pid: i32, inode: u64) -> bool {
    let link = format!("socket:[{inode}]");
    let Ok(entries) = fs::read_dir(format!("/proc/{pid}/fd")) else { return false };
    entries.flatten().any(|entry| fs::read_link(entry.path()).is_ok_and(|to| to == Path::new(&link)))
}

#[derive(Debug, PartialEq, Eq)]
struct Status {
    /// The effective uid.
    uid: u32,
    is_confined: bool,
}

fn parse(status: &str) -> Option<Status> {
    let field = |name: &str| status.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    let uid = field("Uid")?.split_ascii_whitespace().nth(1)?.parse().ok()?;
    let no_new_privs = field("NoNewPrivs")?.trim() == "1";
    let bounded = u64::from_str_radix(field("CapBnd")?.trim(), 16).ok()? == 0;
    Some(Status { uid, is_confined: no_new_privs && bounded })
}

/// Whether the process that called connect(2) on a Unix socket is sandboxed or may be. A process that has
/// exited may have been. Pid 0 is a process outside of this pid namespace, which no sandboxed process is.
pub fn may_be_confined(pid: i32) -> bool {
    pid != 0 && is_confined(pid).unwrap_or(true)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn both_restrictions_together_make_a_sandbox() {
        let text = |nnp: u8, bound: &str| {
            format!("Name:\tx\nUid:\t1\t7\t1\t1\nCapBnd:\t{bound}\nNoNewPrivs:\t{nnp}\n")
        };
        for (nnp, bound, is_confined) in [
            (1, "0000000000000000", true),
            (1, "000001ffffffffff", false),
            (0, "0000000000000000", false),
            (0, "000001ffffffffff", false),
        ] {
            assert_eq!(parse(&text(nnp, bound)), Some(Status { uid: 7, is_confined }));
        }
        assert_eq!(parse("Name:\tx\n"), None);
        assert_eq!(parse(&text(1, "x")), None);
    }

    #[test]
    fn an_open_socket_of_this_process_is_found() {
        let socket = std::net::UdpSocket::bind("127.0.0.1:0").unwrap();
        let file = fs::File::from(std::os::fd::OwnedFd::from(socket.try_clone().unwrap()));
        let inode = std::os::unix::fs::MetadataExt::ino(&file.metadata().unwrap());
        let uid = rustix::process::geteuid().as_raw();
        assert_eq!(is_open_outside(uid, inode), Ok(true));
        assert_eq!(is_open_outside(uid, u64::MAX), Ok(false));
        assert_eq!(is_confined(std::process::id().cast_signed()), Some(false));
    }
}
