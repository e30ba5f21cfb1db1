//! The command's own `/dev`: a few devices that are harmless to share, terminals and shared memory of its own.

use super::register;
use crate::Result;
use outpost_sys::confine::{Builder, Register, attr};
use std::ffi::{CStr, CString};
use std::path::Path;

/// The host's devices that a command has too.
pub(super) const NODES: &[&CStr] =
    &[c"/dev/null", c"/dev/zero", c"/dev/full", c"/dev/random", c"/dev/urandom", c"/dev/tty"];

const LINKS: &[(&CStr, &CStr)] = &[
    (c"/dev/fd", c"/proc/self/fd"),
    (c"/dev/stdin", c"/proc/self/fd/0"),
    (c"/dev/stdout", c"/proc/self/fd/1"),
    (c"/dev/stderr", c"/proc/self/fd/2"),
    (c"/dev/ptmx", c"pts/ptmx"),
];

/// Takes them from the host while that is still seen.
pub(super) fn take(builder: &mut Builder) -> Result<Vec<(Register, &'static CStr)>> {
    let mut taken = Vec::new();
    for node in NODES {
        let tree = register(builder)?;
        builder.take(node, tree);
        taken.push((tree, *node));
    }
    Ok(taken)
}

/// Everything that stands in it, but the places for what the policy names below `/dev`, which `places` makes.
pub(super) fn build(
    builder: &mut Builder,
    taken: &[(Register, &'static CStr)],
    places: impl FnOnce(&mut Builder) -> Result<()>,
) -> Result<()> {
    let plain = attr::NO_SUID | attr::NO_EXEC;
    builder.new_mount(c"tmpfs", c"/dev", plain | attr::NO_DEVICES, c"mode=755,size=64k,nr_inodes=256");
    for (tree, node) in taken {
        builder.make_file(node, 0o666);
        builder.place(*tree, node);
    }
    for (at, target) in LINKS {
        builder.make_link(at, target);
    }
    builder.make_directory(c"/dev/pts", 0o755);
    builder.make_directory(c"/dev/shm", 0o1777);
    places(builder)?;
    // Devices can be written to all the same, but root, who owns them, does not get to change their modes for everyone.
    builder.restrict_path(c"/dev", plain | attr::READ_ONLY, true);
    builder.new_mount(c"devpts", c"/dev/pts", plain, c"newinstance,ptmxmode=0666,mode=620,max=256");
    let shared = attr::NO_SUID | attr::NO_DEVICES;
    builder.new_mount(c"tmpfs", c"/dev/shm", shared, c"mode=1777,size=256m,nr_inodes=16384");
    Ok(())
}

/// Whether there is something at the path in every command's `/dev`.
pub(super) fn has(path: &Path) -> bool {
    let names = NODES.iter().copied().chain([c"/dev/pts", c"/dev/shm"]);
    names.filter_map(|name| name.to_str().ok()).any(|name| Path::new(name) == path)
        || LINKS.iter().any(|(at, _)| CString::from(*at).to_str().is_ok_and(|at| Path::new(at) == path))
}
