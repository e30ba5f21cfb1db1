//! Sandboxes without namespaces: Landlock and seccomp only, if they can express the whole plan.
//!
//! Landlock can only allow, for a path and everything below it. So a denied path in a readable root is
//! expressed by allowing all its siblings, and the siblings of each directory above it. Those directories
//! cannot be listed then, and a name that appears in them later cannot be read. A plan that cannot be
//! expressed is refused.

use super::{Layers, TOO_LONG, devices, register, text};
use crate::host::Host;
use crate::landlock::{Rights, VERSION_STANDALONE_MIN};
use crate::plan::{Mount, MountKind, Plan, Root};
use crate::{Error, Result};
use outpost_sys::confine::{Builder, Program, Register};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// The maximum number of siblings of denied paths and of the directories above them.
const NAMES_MAX: usize = 16 * 1024;

pub(super) fn build(plan: &Plan, host: &Host, layers: &mut Layers) -> Result<Program> {
    let version = version(host).map_err(|why| Error::Host {
        needs: "confine a command".into(),
        missing: format!("{}; and {why}", host.lacks_namespaces()),
    })?;
    if let Some(needs) = inexpressible(plan) {
        return Err(Error::Host { needs, missing: host.lacks_namespaces() });
    }
    let mut builder = Builder::default();
    builder.new_keyring();
    let ruleset = rules(&mut builder, plan, Rights::of(version, plan.network))?;
    layers.landlock = Some(version);
    builder.no_new_privileges();
    builder.enforce_ruleset(ruleset);
    builder.set_child_limits();
    builder.drop_capabilities();
    builder.install_filter(host.filter(plan.network));
    builder.finish().ok_or(TOO_LONG)
}

/// Why Landlock cannot enforce a policy alone.
#[derive(Debug, thiserror::Error)]
pub(crate) enum NotStandalone {
    #[error(
        "there is no Landlock, where version {VERSION_STANDALONE_MIN} (Linux 6.2) could enforce a read-only policy alone"
    )]
    Absent,
    #[error(
        "Landlock has version {0}, where version {VERSION_STANDALONE_MIN} (Linux 6.2) could enforce a read-only policy alone"
    )]
    Version(u32),
}

/// The Landlock version, if it can enforce a policy alone.
pub(crate) fn version(host: &Host) -> std::result::Result<u32, NotStandalone> {
    match host.landlock {
        Some(version @ VERSION_STANDALONE_MIN..) => Ok(version),
        Some(version) => Err(NotStandalone::Version(version)),
        None => Err(NotStandalone::Absent),
    }
}

/// The part of the plan that Landlock cannot express.
fn inexpressible(plan: &Plan) -> Option<String> {
    if let Some(shadow) = plan.shadows.first() {
        return Some(format!(
            "keep the settings in {} from an agent that writes beside them",
            shadow.at.display()
        ));
    }
    let is_written = |path: &Path| {
        plan.mounts.iter().any(|mount| mount.kind == MountKind::Write && path.starts_with(&mount.path))
    };
    let cannot = plan.mounts.iter().find(|mount| match &mount.kind {
        MountKind::Write => false,
        MountKind::Read => !mount.on_empty_root,
        MountKind::DeniedDirectory { inside } if !inside.is_empty() => true,
        MountKind::DeniedDirectory { .. } | MountKind::DeniedFile => {
            plan.root != Root::Empty && is_written(&mount.path)
        }
        MountKind::Pin | MountKind::Placeholder => true,
    });
    if let Some(mount) = cannot {
        return Some(format!("protect {} inside of what is open", mount.path.display()));
    }
    if let Some(mount) = denied(plan).next()
        && plan.network
    {
        // Connecting to a socket by its path is not a file access.
        return Some(format!("keep sockets in {} from a command with network access", mount.path.display()));
    }
    (plan.root == Root::Writable)
        .then(|| "keep /sys and /proc read-only where everything else can be written to".into())
}

fn denied(plan: &Plan) -> impl Iterator<Item = &Mount> {
    let is_denied =
        |mount: &&Mount| matches!(mount.kind, MountKind::DeniedDirectory { .. } | MountKind::DeniedFile);
    plan.mounts.iter().filter(is_denied)
}

/// The rules where the host's own /dev and /proc are visible.
fn rules(builder: &mut Builder, plan: &Plan, rights: Rights) -> Result<Register> {
    let ruleset = register(builder)?;
    builder.create_ruleset(rights.files, rights.network, rights.scopes, ruleset);
    if plan.root == Root::ReadOnly {
        let denied: Vec<&Path> = denied(plan).map(|mount| mount.path.as_path()).collect();
        match denied.is_empty() {
            true => builder.allow(ruleset, c"/", rights.read(true)),
            false => allow_siblings(builder, ruleset, Path::new("/"), &denied, rights, &mut 0)?,
        }
    }
    // In a container /dev/ptmx is a link to the second one.
    for device in devices::NODES.iter().chain(&[c"/dev/ptmx", c"/dev/pts/ptmx"]) {
        let found = Path::new(std::ffi::OsStr::from_bytes(device.to_bytes())).symlink_metadata();
        if found.is_ok_and(|found| !found.is_symlink()) {
            builder.allow(ruleset, device, rights.devices(false));
        }
    }
    for mount in &plan.mounts {
        let allowed = match mount.kind {
            MountKind::Write => rights.write(mount.directory),
            MountKind::Read => rights.read(mount.directory),
            _ => continue,
        };
        builder.allow(ruleset, &text(&mount.path)?, allowed);
    }
    builder.allow_terminal(ruleset, rights.devices(false));
    Ok(ruleset)
}

/// Allows reading everything in a directory except denied paths. Symbolic links are skipped: a link grants
/// nothing by itself and might lead to a denied path.
fn allow_siblings(
    builder: &mut Builder,
    ruleset: Register,
    directory: &Path,
    denied: &[&Path],
    rights: Rights,
    names: &mut usize,
) -> Result<()> {
    let failed = |error: std::io::Error| Error::Inspect { path: directory.into(), reason: error.to_string() };
    for entry in std::fs::read_dir(directory).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let (path, kind) = (entry.path(), entry.file_type().map_err(failed)?);
        *names += 1;
        if *names > NAMES_MAX {
            return Err(Error::TooMany { what: "names beside denied paths", limit: NAMES_MAX });
        }
        if denied.contains(&path.as_path()) || kind.is_symlink() {
            continue;
        }
        match denied.iter().any(|denied| denied.starts_with(&path)) {
            true => allow_siblings(builder, ruleset, &path, denied, rights, names)?,
            false => builder.allow_if_exists(ruleset, &text(&path)?, rights.read(kind.is_dir())),
        }
    }
    Ok(())
}
