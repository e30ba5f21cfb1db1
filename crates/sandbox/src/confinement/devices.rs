//! The command's own `/dev`: harmless devices of the host, and its own terminals and shared memory.

use super::register;
use crate::Result;
use outpost_sys::confine::{Builder, Register, attr};
use std::ffi::{CStr, CString};
use std::path::Path;

/// The host's devices that a command gets.
pub(super) const NODES: &[&CStr] =
    &[c"/dev/null", c"/dev/zero", c"/dev/full", c"/dev/random", c"/dev/urandom", c"/dev/tty"];

const LINKS: &[(&CStr, &CStr)] = &[
    (c"/dev/fd", c"/proc/self/fd"),
    (c"/dev/stdin", c"/proc/self/fd/0"),
    (c"/dev/stdout", c"/proc/self/fd/1"),
    (c"/dev/stderr", c"/proc/self/fd/2"),
    (c"/dev/ptmx", c"pts/ptmx"),
];

/// Clones the nodes while the host's `/dev` is visible.
pub(super) fn clone_nodes(builder: &mut Builder) -> Result<Vec<(Register, &'static CStr)>> {
    let mut cloned = Vec::new();
    for node in NODES {
        let tree = register(builder)?;
        builder.open_tree(node, tree);
        cloned.push((tree, *node));
    }
    Ok(cloned)
}

/// Builds `/dev`. `create_mount_points` creates the mount points for paths of the policy below `/dev`.
pub(super) fn build(
    builder: &mut Builder,
    cloned: &[(Register, &'static CStr)],
    create_mount_points: impl FnOnce(&mut Builder) -> Result<()>,
) -> Result<()> {
    let plain = attr::NO_SUID | attr::NO_EXEC;
    builder.mount(c"tmpfs", c"/dev", plain | attr::NO_DEVICES, c"mode=755,size=64k,nr_inodes=256");
    for (tree, node) in cloned {
        builder.make_file(node, 0o666);
        builder.move_mount(*tree, node);
    }
    for (at, target) in LINKS {
        builder.make_link(at, target);
    }
    builder.make_directory(c"/dev/pts", 0o755);
    builder.make_directory(c"/dev/shm", 0o1777);
    create_mount_points(builder)?;
    // Devices stay writable, but root, which owns them, cannot change their modes.
    builder.set_path_attributes(c"/dev", plain | attr::READ_ONLY, true);
    builder.mount(c"devpts", c"/dev/pts", plain, c"newinstance,ptmxmode=0666,mode=620,max=256");
    let shared = attr::NO_SUID | attr::NO_DEVICES;
    builder.mount(c"tmpfs", c"/dev/shm", shared, c"mode=1777,size=256m,nr_inodes=16384");
    Ok(())
}

/// Whether the path exists in every command's `/dev`.
pub(super) fn has(path: &Path) -> bool {
    let names = NODES.iter().copied().chain([c"/dev/pts", c"/dev/shm"]);
    names.filter_map(|name| name.to_str().ok()).any(|name| Path::new(name) == path)
        || LINKS.iter().any(|(at, _)| CString::from(*at).to_str().is_ok_and(|at| Path::new(at) == path))
}
