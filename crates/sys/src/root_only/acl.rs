//! POSIX ACLs: whether a file's ACL lets an untrusted user or group write.

use super::trusted::Trusted;
use std::path::Path;

const NAME: &str = "system.posix_acl_access";
/// The only version of the xattr format.
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 4;
const ENTRY_BYTES: usize = 8;
/// More than any file system stores.
const BYTES_MAX: usize = 64 * 1024;

const OWNER: u16 = 0x01;
const USER: u16 = 0x02;
const OWNING_GROUP: u16 = 0x04;
const GROUP: u16 = 0x08;
const MASK: u16 = 0x10;
const OTHERS: u16 = 0x20;
const WRITE: u16 = 0x2;

/// The access ACL of a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Acl {
    /// No ACL: the mode is complete.
    None,
    /// The xattr's value.
    Some(Vec<u8>),
    /// The ACL cannot be read.
    Unknown,
}

impl Acl {
    /// The ACL of the file itself, also if it is a link.
    pub(super) fn of(path: &Path) -> Acl {
        let mut list = vec![0; BYTES_MAX];
        match crate::retry(|| rustix::fs::lgetxattr(path, NAME, &mut list[..])) {
            Ok(bytes) => {
                list.truncate(bytes);
                Acl::Some(list)
            }
            Err(crate::Errno::NODATA | crate::Errno::OPNOTSUPP) => Acl::None,
            Err(_) => Acl::Unknown,
        }
    }
}

/// Whether an ACL lets only trusted users and groups write. `gid` is the file's group. False for a malformed
/// ACL.
pub(super) fn only_trusted_write(list: &[u8], gid: u32, trusted: &Trusted<'_>) -> bool {
    let Some((header, entries)) = list.split_first_chunk::<HEADER_BYTES>() else { return false };
    let (entries, rest) = entries.as_chunks::<ENTRY_BYTES>();
    if u32::from_le_bytes(*header) != VERSION || !rest.is_empty() {
        return false;
    }
    let parsed = entries.iter().map(|[tag0, tag1, perm0, perm1, id @ ..]| {
        let (tag, perm) = (u16::from_le_bytes([*tag0, *tag1]), u16::from_le_bytes([*perm0, *perm1]));
        (tag, perm & WRITE != 0, u32::from_le_bytes(*id))
    });
    let entries: Vec<(u16, bool, u32)> = parsed.collect();
    // An ACL without a mask entry masks nothing.
    let masked = entries.iter().any(|(tag, writes, _)| *tag == MASK && !writes);
    entries.iter().all(|(tag, writes, id)| match *tag {
        // `check_writers` checks the owner.
        OWNER | MASK => true,
        USER => !writes || masked || trusted.has_user(*id),
        GROUP => !writes || masked || trusted.has_group(*id),
        OWNING_GROUP => !writes || masked || trusted.has_group(gid),
        OTHERS => !writes,
        _ => false,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const READ_WRITE: u16 = 6;
    const READ: u16 = 4;

    fn list(entries: &[(u16, u16, u32)]) -> Vec<u8> {
        let mut list = VERSION.to_le_bytes().to_vec();
        for (tag, perm, id) in entries {
            list.extend([tag.to_le_bytes(), perm.to_le_bytes()].concat());
            list.extend(id.to_le_bytes());
        }
        list
    }

    #[test]
    fn the_writers_of_an_acl_decide() {
        let base = |more: &[(u16, u16, u32)]| {
            let plain =
                [(OWNER, READ_WRITE, u32::MAX), (OWNING_GROUP, READ, u32::MAX), (OTHERS, READ, u32::MAX)];
            list(&[&plain[..], more].concat())
        };
        let mask = |perm| (MASK, perm, u32::MAX);
        let cases = [
            (base(&[]), true),
            (base(&[(USER, READ_WRITE, 1000), mask(READ_WRITE)]), false),
            (base(&[(GROUP, READ_WRITE, 100), mask(READ_WRITE)]), false),
            // Invalid without a mask entry; evaluated without a mask.
            (base(&[(USER, READ_WRITE, 1000)]), false),
            (base(&[(USER, READ_WRITE, 1000), mask(READ)]), true),
            (base(&[(USER, READ, 1000), mask(READ_WRITE)]), true),
            (base(&[(USER, READ_WRITE, 0), (GROUP, READ_WRITE, 0), mask(READ_WRITE)]), true),
            (list(&[(OTHERS, READ_WRITE, u32::MAX)]), false),
            (list(&[(0x40, READ, 0)]), false),
            (base(&[])[..7].to_vec(), false),
            (vec![3, 0, 0, 0], false),
            (Vec::new(), false),
        ];
        for (list, expected) in cases {
            assert_eq!(only_trusted_write(&list, 0, &Trusted::new(&[])), expected, "{list:?}");
        }
        let group = list(&[(OWNING_GROUP, READ_WRITE, u32::MAX)]);
        let by_group = |gid| only_trusted_write(&group, gid, &Trusted::new(&[]));
        assert!(by_group(0) && !by_group(100));
        let user = base(&[(USER, READ_WRITE, 1000), mask(READ_WRITE)]);
        assert!(only_trusted_write(&user, 0, &Trusted::new(&[1000])));
        assert!(!only_trusted_write(&user, 0, &Trusted::new(&[1001])));
    }
}
