//! Which owners of files on a path are trusted.

use crate::user;

/// Root, and these users with their private groups.
pub(super) struct Trusted<'a> {
    uids: &'a [u32],
}

impl Trusted<'_> {
    pub(super) fn new(uids: &[u32]) -> Trusted<'_> {
        Trusted { uids }
    }

    /// A user namespace that does not map root shows root's directories with the overflow uid. With trusted
    /// users, that uid is accepted, because no path could pass otherwise.
    pub(super) fn has_user(&self, uid: u32) -> bool {
        uid == 0 || self.uids.contains(&uid) || (!self.uids.is_empty() && is_unmapped(uid))
    }

    /// Many distributions give each user a private group and make files group-writable.
    pub(super) fn has_group(&self, gid: u32) -> bool {
        gid == 0 || self.uids.iter().any(|uid| user::is_private_group(gid, *uid))
    }
}

/// Whether this is the overflow uid and the user namespace of this process does not map it.
fn is_unmapped(uid: u32) -> bool {
    let read = |path| std::fs::read_to_string(path).unwrap_or_default();
    read("/proc/sys/kernel/overflowuid").trim().parse() == Ok(uid) && !maps(&read("/proc/self/uid_map"), uid)
}

/// Whether a uid is in one of the ranges, each `first outside count`. A map that cannot be read maps
/// everything.
fn maps(ranges: &str, uid: u32) -> bool {
    let range = |line: &str| {
        let mut numbers = line.split_whitespace().map(str::parse::<u64>);
        let (first, _, count) = (numbers.next()?.ok()?, numbers.next()?.ok()?, numbers.next()?.ok()?);
        Some((first..first.saturating_add(count)).contains(&u64::from(uid)))
    };
    ranges.trim().is_empty() || ranges.lines().any(|line| range(line).unwrap_or(true))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_namespace_without_that_user_has_unmapped_owners() {
        for (ranges, expected) in [
            ("         0          0 4294967295\n", true),
            ("      1000       1000          1\n", false),
            ("0 1000 1\n1 100000 65536\n", true),
            ("0 1000 1\n", false),
            ("", true),
            ("what\n", true),
        ] {
            assert_eq!(maps(ranges, 65534), expected, "{ranges}");
        }
        assert!(Trusted::new(&[7]).has_user(7) && Trusted::new(&[7]).has_user(0));
        assert!(!Trusted::new(&[7]).has_user(8) && !Trusted::new(&[]).has_user(7));
    }
}
