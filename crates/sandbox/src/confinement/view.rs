//! What a command sees: the plan's mounts, its own `/dev` and `/proc`, as operations in their order.

use super::{devices, register, text};
use crate::host::Host;
use crate::plan::{Mount, Plan, Root, Shadow, Shown, What};
use crate::{Error, Result};
use outpost_sys::confine::{Builder, Register, attr};
use std::collections::{BTreeMap, BTreeSet};
use std::ffi::CStr;
use std::path::{Path, PathBuf};

/// Nothing in the host's files makes a command more than it is.
const PLAIN: u32 = attr::NO_SUID | attr::NO_DEVICES;

/// Masks are made in a file system that lies where `/proc` will be, and disappear under it.
const MASKS: &str = "/proc";
const MASK_FILE: &CStr = c"/proc/file";
const MASK_DIRECTORY: &CStr = c"/proc/directory";
const MASK_HELD: &CStr = c"/proc/held";

/// Figures of the whole host that only root can read, and needs no capability for: nothing of a command's own is in them.
const ROOTS_ALONE: &[&CStr] = &[
    c"/proc/timer_list",
    c"/proc/slabinfo",
    c"/proc/vmallocinfo",
    c"/proc/pagetypeinfo",
    c"/proc/kpagecount",
    c"/proc/kpageflags",
    c"/proc/kpagecgroup",
];

/// One inode for each place in a mask.
const MASK_INODES_MAX: usize = 4096;

pub(super) fn build(builder: &mut Builder, plan: &Plan, host: &Host) -> Result<()> {
    builder.private();
    // From the host's view, before anything of it is changed.
    let nodes = devices::take(builder)?;
    let mut taken = BTreeMap::new();
    for mount in plan.mounts.iter().filter(|mount| must_be_taken_first(mount)) {
        let tree = register(builder)?;
        builder.take(&text(&mount.path)?, tree);
        // What a policy names below /dev is meant to be used as a device.
        let devices = if mount.path.starts_with("/dev") { 0 } else { attr::NO_DEVICES };
        let read_only = if mount.what == What::Read { attr::READ_ONLY } else { 0 };
        builder.restrict(tree, attr::NO_SUID | devices | read_only);
        taken.insert(mount.path.as_path(), tree);
    }
    let scratch = register(builder)?;
    let mut shadows = Vec::new();
    for shadow in &plan.shadows {
        shadows.push((take_shadow(builder, shadow, scratch)?, text(&shadow.at)?));
    }
    // In a user namespace /proc can only be mounted while the host's is seen.
    let early = if plan.root == Root::Empty { Some(register(builder)?) } else { None };
    if let Some(tree) = early {
        processes(builder, plan, host);
        builder.take(c"/proc", tree);
    }
    match plan.root {
        Root::ReadOnly => builder.restrict_path(c"/", PLAIN | attr::READ_ONLY, true),
        Root::Writable => builder.restrict_path(c"/", PLAIN, true),
        Root::Empty => empty_root(builder, plan)?,
    }
    masks(builder, plan)?;
    devices::build(builder, &nodes, |builder| {
        let below = plan.mounts.iter().filter(|mount| mount.path.starts_with("/dev"));
        let new =
            below.filter(|mount| !devices::has(&mount.path) && taken.contains_key(mount.path.as_path()));
        places(builder, Path::new("/dev"), new.map(|mount| (mount.path.as_path(), mount.directory)), 0o755)
    })?;
    for (index, mount) in plan.mounts.iter().enumerate() {
        place(builder, mount, index, taken.get(mount.path.as_path()).copied(), scratch)?;
    }
    for (tree, at) in shadows {
        builder.place(tree, &at);
    }
    match early {
        None => processes(builder, plan, host),
        Some(tree) => {
            builder.place(tree, c"/proc");
            builder.restrict_path(c"/", PLAIN | attr::READ_ONLY, false);
        }
    }
    Ok(())
}

/// What is shown in a shadow is mounted where the shadow lies on the host, and taken together with it.
fn take_shadow(builder: &mut Builder, shadow: &Shadow, scratch: Register) -> Result<Register> {
    for Shown { name, source, writable } in &shadow.shown {
        builder.take(&text(source)?, scratch);
        builder.restrict(scratch, PLAIN | if *writable { 0 } else { attr::READ_ONLY });
        builder.place(scratch, &text(&shadow.from.join(name))?);
    }
    let tree = register(builder)?;
    builder.take(&text(&shadow.from)?, tree);
    builder.restrict(tree, PLAIN);
    Ok(tree)
}

/// A `/proc` of the command's own processes, all of it read-only: root could otherwise write to the kernel's settings.
fn processes(builder: &mut Builder, plan: &Plan, host: &Host) {
    let kernels = PLAIN | attr::NO_EXEC;
    builder.new_mount(c"proc", c"/proc", kernels, c"");
    if host.pid_limit {
        builder.write(c"/proc/sys/kernel/pid_max", plan.processes_max.to_string().as_bytes());
    }
    builder.restrict_path(c"/proc", kernels | attr::READ_ONLY, false);
    if outpost_sys::limits::effective_uid() == 0 {
        for file in ROOTS_ALONE.iter().filter(|file| file.to_str().is_ok_and(|file| Path::new(file).exists()))
        {
            builder.cover(c"/dev/null", file, kernels & !attr::NO_DEVICES | attr::READ_ONLY);
        }
    }
}

/// What is read-only or denied later on, or not seen then.
fn must_be_taken_first(mount: &Mount) -> bool {
    mount.what == What::Write || mount.what == What::Read && mount.in_the_void
}

/// A file system with nothing in it but places for the mounts and links.
fn empty_root(builder: &mut Builder, plan: &Plan) -> Result<()> {
    let root = register(builder)?;
    builder.new_mount(c"tmpfs", c"/proc", PLAIN, c"mode=755,size=1m,nr_inodes=4096");
    builder.open(c"/proc", root);
    builder.pivot(root);
    builder.close(root);
    let here = plan.mounts.iter().filter(|mount| mount.in_the_void && !lies_in_a_mask(plan, &mount.path));
    let here = here.map(|mount| (mount.path.as_path(), mount.directory));
    let parents = plan.links.iter().filter_map(|(at, _)| at.parent()).map(|parent| (parent, true));
    let own = [(Path::new("/dev"), true), (Path::new("/proc"), true)];
    let all = here.chain(parents).chain(own).filter(|(path, _)| !below_own(path));
    places(builder, Path::new("/"), all, 0o755)?;
    for (at, target) in &plan.links {
        builder.make_link(&text(at)?, &text(target)?);
    }
    Ok(())
}

fn below_own(path: &Path) -> bool {
    path.starts_with("/dev") && path != Path::new("/dev")
}

fn lies_in_a_mask(plan: &Plan, path: &Path) -> bool {
    let is_mask = |mount: &&Mount| matches!(mount.what, What::DeniedDirectory { .. });
    plan.mounts.iter().filter(is_mask).any(|mount| path != mount.path && path.starts_with(&mount.path))
}

/// Makes directories and files to mount upon, with those above them up to `root`, which is there.
fn places<'a>(
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
    // Parents come before what is in them.
    for directory in directories.iter().filter(|directory| *directory != root) {
        builder.make_directory(&text(directory)?, mode);
    }
    for file in files.difference(&directories) {
        builder.make_file(&text(file)?, 0o444);
    }
    Ok(())
}

/// The sources of masks.
fn masks(builder: &mut Builder, plan: &Plan) -> Result<()> {
    if plan.mounts.iter().all(|mount| matches!(mount.what, What::Write | What::Read | What::Pin)) {
        return Ok(());
    }
    let inside = |mount: &Mount| match &mount.what {
        What::DeniedDirectory { inside } => inside.iter().map(|(path, _)| path.components().count()).sum(),
        _ => 0,
    };
    if plan.mounts.iter().map(inside).sum::<usize>() > MASK_INODES_MAX {
        return Err(Error::TooMany { what: "directories inside denied ones", limit: MASK_INODES_MAX });
    }
    builder.new_mount(c"tmpfs", c"/proc", PLAIN | attr::NO_EXEC, c"mode=700,size=1m,nr_inodes=8192");
    builder.make_file(MASK_FILE, 0);
    builder.make_directory(MASK_DIRECTORY, 0);
    builder.make_directory(MASK_HELD, 0o555);
    for (index, mount) in plan.mounts.iter().enumerate() {
        let What::DeniedDirectory { inside } = &mount.what else { continue };
        if inside.is_empty() {
            continue;
        }
        let mask = opened_mask(index);
        builder.make_directory(&text(&mask)?, 0o111);
        let below = |path: &Path| path.strip_prefix(&mount.path).map(|rest| mask.join(rest)).ok();
        let wanted: Vec<_> =
            inside.iter().filter_map(|(path, directory)| Some((below(path)?, *directory))).collect();
        let wanted = wanted.iter().map(|(path, directory)| (path.as_path(), *directory));
        places(builder, &mask, wanted, 0o111)?;
    }
    builder.restrict_path(c"/proc", PLAIN | attr::NO_EXEC | attr::READ_ONLY, false);
    Ok(())
}

/// The mask of a denied directory in which something is opened again.
fn opened_mask(index: usize) -> PathBuf {
    Path::new(MASKS).join(format!("opened-{index}"))
}

fn place(
    builder: &mut Builder,
    mount: &Mount,
    index: usize,
    taken: Option<Register>,
    scratch: Register,
) -> Result<()> {
    let at = text(&mount.path)?;
    if let Some(tree) = taken {
        builder.place(tree, &at);
        return Ok(());
    }
    let denied = |builder: &mut Builder, mask: &CStr| {
        // What the command's own /dev does not have is denied already.
        if !mount.path.starts_with("/dev") || devices::has(&mount.path) {
            builder.take(mask, scratch);
            builder.place(scratch, &at);
        }
    };
    match &mount.what {
        What::DeniedDirectory { inside } if !inside.is_empty() => {
            denied(builder, &text(&opened_mask(index))?)
        }
        What::DeniedDirectory { .. } => denied(builder, MASK_DIRECTORY),
        What::DeniedFile => denied(builder, MASK_FILE),
        What::Held => denied(builder, MASK_HELD),
        What::Read | What::Write | What::Pin => {
            builder.take(&at, scratch);
            if mount.what == What::Read {
                builder.restrict(scratch, PLAIN | attr::READ_ONLY);
            }
            builder.place(scratch, &at);
        }
    }
    Ok(())
}
