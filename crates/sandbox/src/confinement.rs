//! Compiles a plan into a sandbox program for the child, and holds what must outlive the command.

mod devices;
pub(crate) mod landlock_only;
mod view;

use crate::host::{Host, Namespaces};
use crate::landlock::{Rights, VERSION_MIN};
use crate::placeholder::Placeholders;
use crate::plan::{MountKind, Plan, Root};
use crate::{Error, Result};
use outpost_sys::confine::{Builder, PLACEHOLDERS_MAX, Prepared, Program, Register};
use outpost_sys::namespace::Network;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first descriptor number of a sandbox's own descriptors in the child. The command does not inherit
/// them.
pub const DESCRIPTOR_FIRST: RawFd = 3;

/// The enforcement layers of a sandbox, for people and for replies.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    pub namespaces: Vec<&'static str>,
    /// The Landlock ABI version.
    pub landlock: Option<u32>,
    pub seccomp: bool,
    /// The maximum number of processes, where it can be enforced.
    pub processes_max: Option<u32>,
}

/// A compiled sandbox. Keep it until the command has exited: dropping it removes its placeholders on the
/// host.
#[derive(Debug)]
pub struct Confinement {
    pub program: Program,
    pub layers: Layers,
    network: Option<Arc<Network>>,
    placeholders: Placeholders,
}

impl Confinement {
    pub fn build(plan: &Plan, host: &Host) -> Result<Confinement> {
        let count = plan.placeholders().count();
        if count > PLACEHOLDERS_MAX {
            return Err(Error::TooMany { what: "missing names to hold", limit: PLACEHOLDERS_MAX });
        }
        let mut layers = Layers { seccomp: true, ..Layers::default() };
        if host.namespaces == Namespaces::None {
            let program = landlock_only::build(plan, host, &mut layers)?;
            return Ok(Confinement { program, layers, network: None, placeholders: Placeholders::default() });
        }
        let placeholders =
            Placeholders::acquire(&host.state, plan.placeholders().map(|mount| mount.path.as_path()))?;
        let network = host.network.clone().filter(|_| !plan.network);
        let program = with_namespaces(plan, host, network.as_deref(), &mut layers)?;
        Ok(Confinement { program, layers, network, placeholders })
    }

    /// Descriptors for the spawn, each with its number in the child.
    pub fn descriptors(&self) -> Vec<(BorrowedFd<'_>, RawFd)> {
        let Some(network) = &self.network else { return Vec::new() };
        let user = network.user.as_ref().map(|user| (user.as_fd(), DESCRIPTOR_FIRST));
        user.into_iter().chain([(network.network.as_fd(), DESCRIPTOR_FIRST + 1)]).collect()
    }

    /// The same with the paths to execute, in the order of execvp(3). They are looked up inside the sandbox.
    pub fn executing(mut self, candidates: &[&CStr]) -> Result<Confinement> {
        self.program = self.program.with_candidates(candidates).ok_or(TOO_LONG)?;
        Ok(self)
    }

    /// What the spawn needs: the program with the paths to execute inside the sandbox, and descriptors with
    /// their numbers.
    pub fn for_spawn(&self, candidates: &[PathBuf]) -> Result<Prepared> {
        let names: Result<Vec<CString>> = candidates.iter().map(|path| text(path)).collect();
        let names = names?;
        let names: Vec<&CStr> = names.iter().map(CString::as_c_str).collect();
        let program = self.program.clone().with_candidates(&names).ok_or(TOO_LONG)?;
        let mut descriptors = Vec::new();
        for (fd, number) in self.descriptors() {
            let copy = outpost_sys::file::duplicate(fd)
                .map_err(|errno| Error::Inspect { path: "a namespace".into(), reason: errno.to_string() })?;
            descriptors.push((Arc::new(copy), u8::try_from(number).unwrap_or(u8::MAX)));
        }
        Ok(Prepared { program, descriptors })
    }

    /// Describes an operation that failed, for an error message.
    pub fn describe(&self, operation: u16) -> Option<String> {
        self.program.describe(usize::from(operation))
    }

    /// The number of placeholders on the host.
    pub fn placeholder_count(&self) -> usize {
        self.placeholders.len()
    }
}

const TOO_LONG: Error =
    Error::TooMany { what: "bytes of paths", limit: outpost_sys::confine::PROGRAM_BYTES_MAX };

/// With all layers: init builds a new view, then the command drops its rights.
fn with_namespaces(
    plan: &Plan,
    host: &Host,
    network: Option<&Network>,
    layers: &mut Layers,
) -> Result<Program> {
    let mut builder = Builder::default();
    for mount in plan.placeholders() {
        if let (Some(parent), Some(name)) = (mount.path.parent(), mount.path.file_name()) {
            builder.hold_placeholder(&text(parent)?, &text(Path::new(name))?);
        }
    }
    let user = host.namespaces == Namespaces::User;
    if let Some(network) = network {
        if network.user.is_some() {
            builder.set_user_ns(DESCRIPTOR_FIRST);
        }
        builder.set_network_ns(DESCRIPTOR_FIRST + 1);
    }
    builder.fork_init(user, !plan.network && network.is_none());
    layers.namespaces = ["user", "mount", "pid", "ipc", "net"].into();
    layers.namespaces.retain(|kind| (user || *kind != "user") && (!plan.network || *kind != "net"));
    if user {
        let ids = outpost_sys::namespace::id_maps();
        builder.write_file(c"/proc/self/setgroups", b"deny");
        builder.write_file(c"/proc/self/uid_map", ids.user.as_bytes());
        builder.write_file(c"/proc/self/gid_map", ids.group.as_bytes());
    }
    view::build(&mut builder, plan, host)?;
    layers.landlock = host.landlock.filter(|version| *version >= VERSION_MIN);
    let ruleset = match layers.landlock {
        Some(version) => Some(rules(&mut builder, plan, Rights::of(version, plan.network))?),
        None => None,
    };
    builder.begin_command();
    // Needs no view, so it runs concurrently with init.
    builder.new_keyring();
    layers.processes_max = limit_processes(&mut builder, plan, host);
    builder.no_new_privileges();
    builder.bound_capabilities();
    builder.install_filter(host.filter(plan.network));
    builder.await_view();
    if let Some(ruleset) = ruleset {
        builder.enforce_ruleset(ruleset);
    }
    builder.set_child_limits();
    builder.drop_capabilities();
    builder.finish().ok_or(TOO_LONG)
}

/// The limit of the pid namespace binds all users. RLIMIT_NPROC binds a user other than root in its own user
/// namespace.
fn limit_processes(builder: &mut Builder, plan: &Plan, host: &Host) -> Option<u32> {
    let by_user = host.namespaces == Namespaces::User && outpost_sys::process::effective_uid() != 0;
    if by_user {
        builder.limit_processes(plan.processes_max.into());
    }
    (by_user || host.pid_limit).then_some(plan.processes_max)
}

/// Landlock repeats which paths can be read and written. It cannot deny below an allowed path, so masks are
/// enforced by mounts only.
fn rules(builder: &mut Builder, plan: &Plan, rights: Rights) -> Result<Register> {
    let ruleset = register(builder)?;
    builder.create_ruleset(rights.files, rights.network, rights.scopes, ruleset);
    match plan.root {
        Root::ReadOnly => builder.allow(ruleset, c"/", rights.read(true)),
        Root::Writable => builder.allow(ruleset, c"/", rights.write(true)),
        Root::Empty => builder.allow(ruleset, c"/proc", rights.read(true)),
    }
    if plan.root != Root::Writable {
        builder.allow(ruleset, c"/dev", rights.devices(true));
        builder.allow(ruleset, c"/dev/shm", rights.write(true));
    }
    for mount in &plan.mounts {
        match mount.kind {
            MountKind::Write => builder.allow(ruleset, &text(&mount.path)?, rights.write(mount.directory)),
            MountKind::Read if mount.on_empty_root => {
                builder.allow(ruleset, &text(&mount.path)?, rights.read(mount.directory));
            }
            _ => {}
        }
    }
    for shadow in &plan.shadows {
        builder.allow(ruleset, &text(&shadow.at)?, rights.write(shadow.directory));
    }
    builder.allow_terminal(ruleset, rights.devices(false));
    Ok(ruleset)
}

fn register(builder: &mut Builder) -> Result<Register> {
    let limit = outpost_sys::confine::REGISTERS;
    builder.register().ok_or(Error::TooMany { what: "paths that are opened", limit })
}

/// A path as a C string.
fn text(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Relative { path: path.into() })
}
