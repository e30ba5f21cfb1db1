//! A plan compiled for the child: the program of its confinement, and what has to be kept while it runs.

pub(crate) mod alone;
mod devices;
mod view;

use crate::host::{Host, Namespaces};
use crate::landlock::{Rights, VERSION_MIN};
use crate::lease::Leases;
use crate::plan::{Plan, Root, What};
use crate::{Error, Result};
use outpost_sys::confine::{Builder, LEASES_MAX, Program, Register};
use outpost_sys::namespace::Network;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The first number that a confinement's own descriptors have in the child. The command does not get them.
pub const DESCRIPTOR_FIRST: RawFd = 3;

/// What holds the command, for people and for answers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Layers {
    pub namespaces: Vec<&'static str>,
    /// The version of Landlock.
    pub landlock: Option<u32>,
    pub seccomp: bool,
    /// How many processes it can have, where that can be enforced.
    pub processes_max: Option<u32>,
}

/// A confinement that is ready. To be kept until the command has ended: names that it holds on the host are let go with
/// it.
#[derive(Debug)]
pub struct Confinement {
    pub program: Program,
    pub layers: Layers,
    network: Option<Arc<Network>>,
    leases: Leases,
}

/// What a process to be is given for its confinement.
#[derive(Debug)]
pub struct HandedOver {
    pub program: Arc<Program>,
    pub descriptors: Vec<(Arc<OwnedFd>, u8)>,
}

impl Confinement {
    pub fn build(plan: &Plan, host: &Host) -> Result<Confinement> {
        let held = plan.held().count();
        if held > LEASES_MAX {
            return Err(Error::TooMany { what: "missing names to hold", limit: LEASES_MAX });
        }
        let mut layers = Layers { seccomp: true, ..Layers::default() };
        if host.namespaces == Namespaces::None {
            let program = alone::build(plan, host, &mut layers)?;
            return Ok(Confinement { program, layers, network: None, leases: Leases::default() });
        }
        let leases = Leases::acquire(&host.state, plan.held().map(|mount| mount.path.as_path()))?;
        let network = host.network.clone().filter(|_| !plan.network);
        let program = with_namespaces(plan, host, network.as_deref(), &mut layers)?;
        Ok(Confinement { program, layers, network, leases })
    }

    /// To be handed over with the spawn, each under its number.
    pub fn descriptors(&self) -> Vec<(BorrowedFd<'_>, RawFd)> {
        let Some(network) = &self.network else { return Vec::new() };
        let user = network.user.as_ref().map(|user| (user.as_fd(), DESCRIPTOR_FIRST));
        user.into_iter().chain([(network.network.as_fd(), DESCRIPTOR_FIRST + 1)]).collect()
    }

    /// The same with the paths to execute, in order, as execvp(3) tries them: looked up inside.
    pub fn executing(mut self, candidates: &[&CStr]) -> Result<Confinement> {
        self.program = self.program.with_candidates(candidates).ok_or(TOO_LONG)?;
        Ok(self)
    }

    /// What the one who spawns has to hand over: the program with the paths to execute, looked up inside, and descriptors,
    /// each under its number.
    pub fn for_spawn(&self, candidates: &[PathBuf]) -> Result<HandedOver> {
        let names: Result<Vec<CString>> = candidates.iter().map(|path| text(path)).collect();
        let names = names?;
        let names: Vec<&CStr> = names.iter().map(CString::as_c_str).collect();
        let program = self.program.clone().with_candidates(&names).ok_or(TOO_LONG)?;
        let mut descriptors = Vec::new();
        for (fd, number) in self.descriptors() {
            let copy = outpost_sys::file::duplicate(fd)
                .map_err(|errno| Error::Look { path: "a namespace".into(), reason: errno.to_string() })?;
            descriptors.push((Arc::new(copy), u8::try_from(number).unwrap_or(u8::MAX)));
        }
        Ok(HandedOver { program: Arc::new(program), descriptors })
    }

    /// How many names are held on the host.
    pub fn held(&self) -> usize {
        self.leases.len()
    }
}

const TOO_LONG: Error =
    Error::TooMany { what: "bytes of paths", limit: outpost_sys::confine::PROGRAM_BYTES_MAX };

/// Everything: what is seen is built anew, and then rights are given up.
fn with_namespaces(
    plan: &Plan,
    host: &Host,
    network: Option<&Network>,
    layers: &mut Layers,
) -> Result<Program> {
    let mut builder = Builder::default();
    for mount in plan.held() {
        if let (Some(parent), Some(name)) = (mount.path.parent(), mount.path.file_name()) {
            builder.lease(&text(parent)?, &text(Path::new(name))?);
        }
    }
    let user = host.namespaces == Namespaces::User;
    if let Some(network) = network {
        if network.user.is_some() {
            builder.join_user(DESCRIPTOR_FIRST);
        }
        builder.join_network(DESCRIPTOR_FIRST + 1);
    }
    builder.enter(user, !plan.network && network.is_none());
    layers.namespaces = ["user", "mount", "pid", "ipc", "net"].into();
    layers.namespaces.retain(|kind| (user || *kind != "user") && (!plan.network || *kind != "net"));
    if user {
        let ids = outpost_sys::namespace::id_maps();
        builder.write(c"/proc/self/setgroups", b"deny");
        builder.write(c"/proc/self/uid_map", ids.user.as_bytes());
        builder.write(c"/proc/self/gid_map", ids.group.as_bytes());
    }
    view::build(&mut builder, plan, host)?;
    layers.landlock = host.landlock.filter(|version| *version >= VERSION_MIN);
    let ruleset = match layers.landlock {
        Some(version) => Some(rules(&mut builder, plan, Rights::of(version, plan.network))?),
        None => None,
    };
    builder.command();
    // What needs no view, while that is built.
    builder.keyring();
    layers.processes_max = limit_processes(&mut builder, plan, host);
    builder.no_new_privileges();
    builder.bound_capabilities();
    builder.filter(host.filter(plan.network));
    builder.view();
    if let Some(ruleset) = ruleset {
        builder.enforce(ruleset);
    }
    builder.child_limits();
    builder.drop_capabilities();
    builder.finish().ok_or(TOO_LONG)
}

/// The namespace's own limit binds everybody; the user's binds those that are not root, in a user namespace of their own.
fn limit_processes(builder: &mut Builder, plan: &Plan, host: &Host) -> Option<u32> {
    let by_user = host.namespaces == Namespaces::User && outpost_sys::limits::effective_uid() != 0;
    if by_user {
        builder.limit_processes(plan.processes_max.into());
    }
    (by_user || host.pid_limit).then_some(plan.processes_max)
}

/// Landlock says once more, by itself, what may be read and written. It cannot deny below what it allows: masks are the
/// mounts' business alone.
fn rules(builder: &mut Builder, plan: &Plan, rights: Rights) -> Result<Register> {
    let ruleset = register(builder)?;
    builder.ruleset(rights.files, rights.network, rights.scopes, ruleset);
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
        match mount.what {
            What::Write => builder.allow(ruleset, &text(&mount.path)?, rights.write(mount.directory)),
            What::Read if mount.in_the_void => {
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

/// A path as the kernel takes it.
fn text(path: &Path) -> Result<CString> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| Error::Relative { path: path.into() })
}
