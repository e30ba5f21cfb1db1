//! Mount trust: whether a trusted user mounted the file system, so that the owners it reports can be
//! believed.

use super::trusted::Trusted;
use std::path::Path;

/// `FUSE_SUPER_MAGIC`.
const FUSE: i64 = 0x6573_5546;

/// Whether a trusted user mounted the file system of a path. Only FUSE lets a user mount a file system that
/// reports arbitrary owners, so others always pass. `device` is `st_dev` of the path.
pub(super) fn is_trusted(path: &Path, device: u64, trusted: &Trusted<'_>) -> bool {
    let Ok(of) = crate::retry(|| rustix::fs::statfs(path)) else { return false };
    // The type differs by architecture.
    #[allow(clippy::unnecessary_cast)]
    let kind = of.f_type as i64;
    if kind != FUSE {
        return true;
    }
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    is_mounted_by(&mounts, (rustix::fs::major(device), rustix::fs::minor(device)), trusted)
}

/// Whether a trusted user made every mount of a FUSE device, by the text of `/proc/self/mountinfo`.
fn is_mounted_by(mounts: &str, (major, minor): (u32, u32), trusted: &Trusted<'_>) -> bool {
    let device = format!("{major}:{minor}");
    let mut of_device = mounts
        .lines()
        .filter_map(|line| line.split_once(" - "))
        .filter(|(mount, _)| mount.split(' ').nth(2) == Some(device.as_str()))
        .map(|(_, system)| {
            let mut fields = system.split(' ');
            let (kind, options) = (fields.next().unwrap_or_default(), fields.nth(1).unwrap_or_default());
            // The VM's host serves virtiofs, and only root can mount it.
            kind == "virtiofs" || options.split(',').any(|option| is_mounter(option, trusted))
        })
        .peekable();
    of_device.peek().is_some() && of_device.all(|by_trusted| by_trusted)
}

fn is_mounter(option: &str, trusted: &Trusted<'_>) -> bool {
    let uid = option.strip_prefix("user_id=").and_then(|text| text.parse::<u32>().ok());
    // The kernel writes plain digits; other spellings are part of a name.
    uid.is_some_and(|uid| trusted.has_user(uid) && option.len() == format!("user_id={uid}").len())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fuse_mount_counts_as_its_users() {
        let mounts = "\
22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw
90 22 0:50 / /home/u/remote rw,nosuid,nodev - fuse.sshfs h:/ rw,user_id=1000,group_id=1000
91 22 0:51 / /data rw,relatime - fuse.glusterfs h:/v rw,user_id=0,group_id=0,allow_other
92 22 0:52 / /shared rw,relatime - virtiofs tag rw
93 22 0:53 / /a rw - fuse.x x rw,user_id=0,group_id=0
94 22 0:53 / /b rw - fuse.x x rw,user_id=1000,group_id=0
95 22 0:54 / /c rw - fuse.x x rw,user_id=00,group_id=0,xuser_id=0
";
        for (minor, expected) in [(50, false), (51, true), (52, true), (53, false), (54, false), (99, false)]
        {
            assert_eq!(is_mounted_by(mounts, (0, minor), &Trusted::new(&[])), expected, "0:{minor}");
        }
        assert!(is_mounted_by(mounts, (0, 50), &Trusted::new(&[1000])));
        assert!(!is_mounted_by(mounts, (0, 50), &Trusted::new(&[1001])));
    }
}
