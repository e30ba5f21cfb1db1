//! The command's view of the file system: the plan's mounts and its own `/dev` and `/proc`, as ordered
//! operations.

use super::{devices, register, text};
use crate::host::Host;
use crate::plan::{Mount, MountKind, Plan, Root, Shadow, Shown};
use crate::{Error, Result};
use outpost_sys::confine::{Builder, Register, attr};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::path::{Path, PathBuf};

/// Attributes of all mounts of the host's files: they grant no privilege.
const BASE_ATTRIBUTES: u32 = attr::NO_SUID | attr::NO_DEVICES;

/// Masks are created in a tmpfs at `/proc`, which the command's `/proc` covers later.
const MASKS: &str = "/proc";
const MASK_FILE: &CStr = c"/proc/file";
const MASK_DIRECTORY: &CStr = c"/proc/directory";
const MASK_PLACEHOLDER: &CStr = c"/proc/placeholder";

/// Host-wide statistics that root can read without a capability. A command does not need them.
const ROOT_ONLY_FILES: &[&CStr] = &[
    c"/proc/timer_list",
    c"/proc/slabinfo",
    c"/proc/vmallocinfo",
    c"/proc/pagetypeinfo",
    c"/proc/kpagecount",
    c"/proc/kpageflags",
    c"/proc/kpagecgroup",
];

/// The maximum number of inodes in masks.
const MASK_INODES_MAX: usize = 4096;

pub(super) fn build(builder: &mut Builder, plan: &Plan, host: &Host) -> Result<()> {
    builder.make_private();
    // From the host's view, before it changes.
    let nodes = devices::clone_nodes(builder)?;
    let mut cloned = BTreeMap::new();
    for mount in plan.mounts.iter().filter(|mount| needs_early_clone(mount)) {
        let tree = register(builder)?;
        builder.open_tree(&text(&mount.path)?, tree);
        // A path of the policy below /dev is meant to be used as a device.
        let devices = if mount.path.starts_with("/dev") { 0 } else { attr::NO_DEVICES };
        let read_only = if mount.kind == MountKind::Read { attr::READ_ONLY } else { 0 };
        builder.set_tree_attributes(tree, attr::NO_SUID | devices | read_only);
        cloned.insert(mount.path.as_path(), tree);
    }
    let scratch = register(builder)?;
    let mut shadows = Vec::new();
    for shadow in &plan.shadows {
        shadows.push((clone_shadow(builder, shadow, scratch)?, text(&shadow.at)?));
    }
    // In a user namespace, /proc can only be mounted while the host's is visible.
    let early = if plan.root == Root::Empty { Some(register(builder)?) } else { None };
    if let Some(tree) = early {
        mount_proc(builder, plan, host);
        builder.open_tree(c"/proc", tree);
    }
    match plan.root {
        Root::ReadOnly => builder.set_path_attributes(c"/", BASE_ATTRIBUTES | attr::READ_ONLY, true),
        Root::Writable => builder.set_path_attributes(c"/", BASE_ATTRIBUTES, true),
        Root::Empty => empty_root(builder, plan)?,
    }
    masks(builder, plan)?;
    devices::build(builder, &nodes, |builder| {
        let below = plan.mounts.iter().filter(|mount| mount.path.starts_with("/dev"));
        let new =
            below.filter(|mount| !devices::has(&mount.path) && cloned.contains_key(mount.path.as_path()));
        create_mount_points(
            builder,
            Path::new("/dev"),
            new.map(|mount| (mount.path.as_path(), mount.directory)),
            0o755,
        )
    })?;
    for (index, mount) in plan.mounts.iter().enumerate() {
        mount_at(builder, mount, index, cloned.get(mount.path.as_path()).copied(), scratch)?;
    }
    for (tree, at) in shadows {
        builder.move_mount(tree, &at);
    }
    match early {
        None => mount_proc(builder, plan, host),
        Some(tree) => {
            builder.move_mount(tree, c"/proc");
            builder.set_path_attributes(c"/", BASE_ATTRIBUTES | attr::READ_ONLY, false);
        }
    }
    Ok(())
}

/// Files shown in a shadow are mounted in its directory on the host, and cloned together with it.
fn clone_shadow(builder: &mut Builder, shadow: &Shadow, scratch: Register) -> Result<Register> {
    for Shown { name, source, writable } in &shadow.shown {
        builder.open_tree(&text(source)?, scratch);
        builder.set_tree_attributes(scratch, BASE_ATTRIBUTES | if *writable { 0 } else { attr::READ_ONLY });
        builder.move_mount(scratch, &text(&shadow.from.join(name))?);
    }
    let tree = register(builder)?;
    builder.open_tree(&text(&shadow.from)?, tree);
    builder.set_tree_attributes(tree, BASE_ATTRIBUTES);
    Ok(tree)
}

/// The command's own `/proc`, read-only: root could write kernel settings otherwise.
fn mount_proc(builder: &mut Builder, plan: &Plan, host: &Host) {
    let kernels = BASE_ATTRIBUTES | attr::NO_EXEC;
    builder.mount(c"proc", c"/proc", kernels, c"");
    if host.pid_limit {
        builder.write_file(c"/proc/sys/kernel/pid_max", plan.processes_max.to_string().as_bytes());
    }
    builder.set_path_attributes(c"/proc", kernels | attr::READ_ONLY, false);
    if outpost_sys::process::effective_uid() == 0 {
        for file in
            ROOT_ONLY_FILES.iter().filter(|file| file.to_str().is_ok_and(|file| Path::new(file).exists()))
        {
            builder.bind_over(c"/dev/null", file, kernels & !attr::NO_DEVICES | attr::READ_ONLY);
        }
    }
}

/// Whether the mount's source becomes read-only, denied or invisible later.
fn needs_early_clone(mount: &Mount) -> bool {
    mount.kind == MountKind::Write || mount.kind == MountKind::Read && mount.on_empty_root
}

/// A tmpfs with nothing but mount points and links.
fn empty_root(builder: &mut Builder, plan: &Plan) -> Result<()> {
    let root = register(builder)?;
    builder.mount(c"tmpfs", c"/proc", BASE_ATTRIBUTES, c"mode=755,size=1m,nr_inodes=4096");
    builder.open_directory(c"/proc", root);
    builder.pivot_root(root);
    builder.close(root);
    let here = plan.mounts.iter().filter(|mount| mount.on_empty_root && !is_in_mask(plan, &mount.path));
    let here = here.map(|mount| (mount.path.as_path(), mount.directory));
    let parents = plan.links.iter().filter_map(|(at, _)| at.parent()).map(|parent| (parent, true));
    let own = [(Path::new("/dev"), true), (Path::new("/proc"), true)];
    let all = here.chain(parents).chain(own).filter(|(path, _)| !below_own(path));
    create_mount_points(builder, Path::new("/"), all, 0o755)?;
    for (at, target) in &plan.links {
        builder.make_link(&text(at)?, &text(target)?);
    }
    Ok(())
}

fn below_own(path: &Path) -> bool {
    path.starts_with("/dev") && path != Path::new("/dev")
}

fn is_in_mask(plan: &Plan, path: &Path) -> bool {
    let is_mask = |mount: &&Mount| matches!(mount.kind, MountKind::DeniedDirectory { .. });
    plan.mounts.iter().filter(is_mask).any(|mount| path != mount.path && path.starts_with(&mount.path))
}

/// Creates directories and files as mount points, with their parents up to `root`, which exists.
fn create_mount_points<'a>(
    builder: &mut Builder,
    root: &Path,
    wanted: impl Iterator<Item = (&'a Path, bool)>,
    mode: u32,
) -> Result<()> {
    let (mut directories, mut files) = (BTreeSet::new(), BTreeSet::new());
    for (path, directory) in wanted {
        let above = path.ancestors().skip(1).take_while(|above| *above != root && above.starts_with(root));
        directories.extend(above.map(Path::to_path_buf));
        if directory { &mut directories } else { &mut files }.insert(path.to_path_buf());
    }
    // Parents come before their entries.
    for directory in directories.iter().filter(|directory| *directory != root) {
        builder.make_directory(&text(directory)?, mode);
    }
    for file in files.difference(&directories) {
        builder.make_file(&text(file)?, 0o444);
    }
    Ok(())
}

/// Creates the sources of masks.
fn masks(builder: &mut Builder, plan: &Plan) -> Result<()> {
    if plan
        .mounts
        .iter()
        .all(|mount| matches!(mount.kind, MountKind::Write | MountKind::Read | MountKind::Pin))
    {
        return Ok(());
    }
    let inside = |mount: &Mount| match &mount.kind {
        MountKind::DeniedDirectory { inside } => {
            inside.iter().map(|(path, _)| path.components().count()).sum()
        }
        _ => 0,
    };
    if plan.mounts.iter().map(inside).sum::<usize>() > MASK_INODES_MAX {
        return Err(Error::TooMany { what: "directories inside denied ones", limit: MASK_INODES_MAX });
    }
    builder.mount(c"tmpfs", c"/proc", BASE_ATTRIBUTES | attr::NO_EXEC, c"mode=700,size=1m,nr_inodes=8192");
    builder.make_file(MASK_FILE, 0);
    builder.make_directory(MASK_DIRECTORY, 0);
    builder.make_directory(MASK_PLACEHOLDER, 0o555);
    for (index, mount) in plan.mounts.iter().enumerate() {
        let MountKind::DeniedDirectory { inside } = &mount.kind else { continue };
        if inside.is_empty() {
            continue;
        }
        let mask = opened_mask(index);
        builder.make_directory(&text(&mask)?, 0o111);
        let below = |path: &Path| path.strip_prefix(&mount.path).map(|rest| mask.join(rest)).ok();
        let wanted: Vec<_> =
            inside.iter().filter_map(|(path, directory)| Some((below(path)?, *directory))).collect();
        let wanted = wanted.iter().map(|(path, directory)| (path.as_path(), *directory));
        create_mount_points(builder, &mask, wanted, 0o111)?;
    }
    builder.set_path_attributes(c"/proc", BASE_ATTRIBUTES | attr::NO_EXEC | attr::READ_ONLY, false);
    Ok(())
}

/// The mask of a denied directory in which something is granted again.
fn opened_mask(index: usize) -> PathBuf {
    Path::new(MASKS).join(format!("opened-{index}"))
}

fn mount_at(
    builder: &mut Builder,
    mount: &Mount,
    index: usize,
    cloned: Option<Register>,
    scratch: Register,
) -> Result<()> {
    let at = text(&mount.path)?;
    if let Some(tree) = cloned {
        builder.move_mount(tree, &at);
        return Ok(());
    }
    let denied = |builder: &mut Builder, mask: &CStr| {
        // A path that the command's own /dev lacks is denied already.
        if !mount.path.starts_with("/dev") || devices::has(&mount.path) {
            builder.open_tree(mask, scratch);
            builder.move_mount(scratch, &at);
        }
    };
    match &mount.kind {
        MountKind::DeniedDirectory { inside } if !inside.is_empty() => {
            denied(builder, &text(&opened_mask(index))?)
        }
        MountKind::DeniedDirectory { .. } => denied(builder, MASK_DIRECTORY),
        MountKind::DeniedFile => denied(builder, MASK_FILE),
        MountKind::Placeholder => denied(builder, MASK_PLACEHOLDER),
        MountKind::Read | MountKind::Write | MountKind::Pin => {
            builder.open_tree(&at, scratch);
            if mount.kind == MountKind::Read {
                builder.set_tree_attributes(scratch, BASE_ATTRIBUTES | attr::READ_ONLY);
            }
            builder.move_mount(scratch, &at);
        }
    }
    Ok(())
}
