//! Turns a request's `sandboxPolicy` or `permissionProfile` into a sandbox, and reports its layers in the reply.

use crate::server::{SandboxCacheSlot, Server};
use crate::wire::{
    AbsolutePath, CommandExecParams, Failure, FileSystemAccessMode, FileSystemPath, FileSystemSpecialPath,
    NetworkAccess, PermissionProfile, PermissionProfileFileSystemPermissions, ReadOnlyAccess, SandboxPolicy,
};
use outpost_engine::Spawn;
use outpost_sandbox::{Access, Confinement, Context, EntryPath, Files, Policy, PolicyEntry, Reads, Special};
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const WRITES_OUTSIDE: &str = "invalid permission profile: permissions profile requests filesystem writes outside the workspace root, which is not supported until the runtime enforces FileSystemSandboxPolicy directly";

/// The sandbox that a request demands.
pub(crate) struct SandboxRequest {
    policy: Policy,
    context: Context,
    /// Entries without effect: "read/write globs are silently ignored". The reply lists them.
    ignored: Vec<String>,
    /// Commands get [`NETWORK_DISABLED`](crate::server::NETWORK_DISABLED).
    pub(crate) network_is_restricted: bool,
}

/// Active sandbox layers, for the reply. Empty for an unconfined command.
#[derive(Clone, Default, Serialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct Layers {
    namespaces: Vec<&'static str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    landlock_abi: Option<u32>,
    seccomp: bool,
    #[serde(skip_serializing_if = "Option::is_none")]
    processes_max: Option<u32>,
    /// Deny patterns that cover files present at the start, not files created later in a writable directory.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    late_matches_not_denied: Vec<String>,
    /// Ignored patterns that would grant access.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ignored_patterns: Vec<String>,
}

/// A built sandbox. It must outlive the command.
#[derive(Clone, Default)]
pub(crate) struct PreparedSandbox {
    pub(crate) layers: Layers,
    pub(crate) confinement: Option<Arc<Confinement>>,
}

impl PreparedSandbox {
    /// Adds the sandbox to a spawn request. The program is then looked up inside, among `candidates`.
    pub(crate) fn confine(&self, spawn: &mut Spawn, candidates: &[PathBuf]) -> Result<(), Failure> {
        let Some(confinement) = &self.confinement else { return Ok(()) };
        spawn.confinement = Some(confinement.for_spawn(candidates).map_err(exec_failed)?);
        Ok(())
    }

    pub(crate) fn is_confined(&self) -> bool {
        self.confinement.is_some()
    }

    /// Describes one operation for an error message.
    pub(crate) fn describe(&self, operation: u16) -> Option<String> {
        self.confinement.as_ref()?.describe(operation)
    }
}

/// Policy of a request; the default is read-only.
pub(crate) fn asked(
    server: &Server,
    params: &CommandExecParams,
    directory: &Path,
) -> Result<SandboxRequest, Failure> {
    let default = SandboxPolicy::ReadOnly { access: ReadOnlyAccess::FullAccess, network_access: false };
    let mut ignored = Vec::new();
    let (policy, network_is_restricted, policy_directory) = match &params.permission_profile {
        // "policy cwd = the command's cwd"
        Some(profile) => {
            let policy = from_profile(profile, directory, &mut ignored)?;
            let restricted = !policy.network;
            (policy, restricted, directory)
        }
        // "policy cwd = the server's cwd, not the request's"
        None => {
            let named = params.sandbox_policy.as_ref().unwrap_or(&default);
            let (policy, restricted) = from_named(named);
            (policy, restricted, server.directory.as_path())
        }
    };
    let context = Context::new(policy_directory, server.variable("TMPDIR"));
    Ok(SandboxRequest { policy, context, ignored, network_is_restricted })
}

/// A named policy, and whether the command is informed that the network is off.
fn from_named(named: &SandboxPolicy) -> (Policy, bool) {
    let policy = match named {
        SandboxPolicy::DangerFullAccess => Policy::full_access(),
        SandboxPolicy::ReadOnly { access, network_access } => {
            Policy::read_only(&reads(access), *network_access)
        }
        SandboxPolicy::ExternalSandbox { network_access } => {
            return (Policy::external(), *network_access == NetworkAccess::Restricted);
        }
        SandboxPolicy::WorkspaceWrite {
            writable_roots,
            read_only_access,
            network_access,
            exclude_tmpdir_env_var,
            exclude_slash_tmp,
        } => Policy::workspace_write(
            &paths(writable_roots),
            &reads(read_only_access),
            *network_access,
            *exclude_slash_tmp,
            *exclude_tmpdir_env_var,
        ),
    };
    let restricted = !policy.network;
    (policy, restricted)
}

fn reads(access: &ReadOnlyAccess) -> Reads {
    match access {
        ReadOnlyAccess::FullAccess => Reads::Everything,
        ReadOnlyAccess::Restricted { include_platform_defaults, readable_roots } => Reads::Restricted {
            include_platform_defaults: *include_platform_defaults,
            roots: paths(readable_roots),
        },
    }
}

fn paths(paths: &[AbsolutePath]) -> Vec<PathBuf> {
    paths.iter().map(|AbsolutePath(path)| path.clone()).collect()
}

fn from_profile(
    profile: &PermissionProfile,
    directory: &Path,
    ignored: &mut Vec<String>,
) -> Result<Policy, Failure> {
    let network = profile.network.as_ref().and_then(|network| network.enabled).unwrap_or(false);
    let file_system = profile.file_system.as_ref();
    let mut entries: Vec<PolicyEntry> = file_system.into_iter().flat_map(entries).collect();
    entries.retain(|entry| match (&entry.path, entry.access) {
        (EntryPath::Glob(pattern), Access::Read | Access::Write) => {
            ignored.push(pattern.clone());
            false
        }
        _ => true,
    });
    refuse_writes_outside(&entries, directory)?;
    let depth = file_system.and_then(|file_system| file_system.glob_scan_max_depth);
    let opens_everything = |entry: &PolicyEntry| {
        let is_root = match &entry.path {
            EntryPath::Path(path) => path == Path::new("/"),
            path => *path == EntryPath::Special(Special::Root),
        };
        is_root && entry.access == Access::Write
    };
    let narrowed = entries.iter().any(|entry| entry.access != Access::Write);
    let files = match entries.iter().any(opens_everything) && !narrowed {
        true => Files::Unrestricted,
        false => Files::Restricted {
            entries,
            glob_scan_max_depth: depth.map(usize::from),
            refuse_unenforceable: false,
        },
    };
    Ok(Policy { files, network })
}

fn entries(file_system: &PermissionProfileFileSystemPermissions) -> impl Iterator<Item = PolicyEntry> {
    file_system.entries.iter().map(|entry| {
        let path = match &entry.path {
            FileSystemPath::Path { path: AbsolutePath(path) } => EntryPath::Path(path.clone()),
            FileSystemPath::GlobPattern { pattern } => EntryPath::Glob(pattern.clone()),
            FileSystemPath::Special { value } => EntryPath::Special(match value {
                FileSystemSpecialPath::Root => Special::Root,
                FileSystemSpecialPath::Minimal => Special::Minimal,
                FileSystemSpecialPath::CurrentWorkingDirectory => Special::CurrentWorkingDirectory,
                FileSystemSpecialPath::ProjectRoots { subpath } => {
                    Special::ProjectRoots { subpath: subpath.as_ref().map(|path| path.display().to_string()) }
                }
                FileSystemSpecialPath::Tmpdir => Special::Tmpdir,
                FileSystemSpecialPath::SlashTmp => Special::SlashTmp,
                FileSystemSpecialPath::Unknown { .. } => Special::Unknown,
            }),
        };
        let access = match entry.access {
            FileSystemAccessMode::Read => Access::Read,
            FileSystemAccessMode::Write => Access::Write,
            FileSystemAccessMode::None => Access::None,
        };
        PolicyEntry { path, access }
    })
}

/// "writable paths without a writable cwd (or `/`-write narrowed by anything)": the original refuses it, and
/// clients rely on that error to request another profile.
fn refuse_writes_outside(entries: &[PolicyEntry], directory: &Path) -> Result<(), Failure> {
    let names = |entry: &PolicyEntry, path: &Path| match &entry.path {
        EntryPath::Path(named) => named == path,
        EntryPath::Special(Special::Root) => path == Path::new("/"),
        EntryPath::Special(Special::CurrentWorkingDirectory | Special::ProjectRoots { subpath: None }) => {
            path == directory
        }
        EntryPath::Special(_) | EntryPath::Glob(_) => false,
    };
    // "unknown: ignored", "minimal: read only".
    let grants = |path: &EntryPath| {
        !matches!(path, EntryPath::Glob(_) | EntryPath::Special(Special::Unknown | Special::Minimal))
    };
    let writes = |entry: &&PolicyEntry| entry.access == Access::Write && grants(&entry.path);
    let root_is_writable = entries.iter().filter(writes).any(|entry| names(entry, Path::new("/")));
    let narrowed = entries.iter().any(|entry| entry.access != Access::Write);
    let directory_is_writable = entries.iter().filter(writes).any(|entry| names(entry, directory));
    let refused = entries.iter().any(|entry| writes(&entry))
        && !directory_is_writable
        && (!root_is_writable || narrowed);
    match refused {
        true => Err(Failure::invalid_request(WRITES_OUTSIDE)),
        false => Ok(()),
    }
}

/// Full access as a list of entries, so that restrictions can be added. Names that are protected by default are opened.
fn everything() -> Files {
    let open = ["/.git", "/.codex", "/.agents"].map(|path| PolicyEntry::path(path, Access::Write));
    let root = PolicyEntry::special(Special::Root, Access::Write);
    let entries = std::iter::once(root).chain(open).collect();
    Files::Restricted { entries, glob_scan_max_depth: None, refuse_unenforceable: false }
}

fn exec_failed(error: outpost_sandbox::Error) -> Failure {
    Failure::internal(format!("exec failed: {error}"))
}

impl SandboxRequest {
    /// Whether the policy restricts anything.
    pub(crate) fn is_confined(&self) -> bool {
        !self.policy.is_unconfined()
    }

    /// Builds the sandbox for this host. Blocking: reads the file system.
    pub(crate) fn build(mut self, server: &Server) -> Result<PreparedSandbox, Failure> {
        if !self.is_confined() {
            return Ok(PreparedSandbox::default());
        }
        let plain = self.is_plain().then(|| server.plain(self.policy.network));
        if let Some(known) = plain.as_ref().and_then(SandboxCacheSlot::get) {
            return Ok(known);
        }
        if self.policy.files == Files::Unrestricted {
            self.policy.files = everything();
        }
        let plan = server.sandboxes.plan(self.policy, &self.context).map_err(exec_failed)?;
        let confinement = server.sandboxes.build(&plan).map_err(exec_failed)?;
        let layers = Layers {
            namespaces: confinement.layers.namespaces.clone(),
            landlock_abi: confinement.layers.landlock,
            seccomp: confinement.layers.seccomp,
            processes_max: confinement.layers.processes_max,
            late_matches_not_denied: plan.unenforceable.into_iter().map(|(pattern, _)| pattern).collect(),
            ignored_patterns: self.ignored,
        };
        let ready = PreparedSandbox { layers, confinement: Some(Arc::new(confinement)) };
        if let Some(plain) = plain {
            plain.keep(&ready);
        }
        Ok(ready)
    }

    /// Whether this is the read-only sandbox that all commands can share.
    fn is_plain(&self) -> bool {
        let Files::Restricted { entries, .. } = &self.policy.files else { return false };
        *entries == [PolicyEntry::special(Special::Root, Access::Read)] && self.ignored.is_empty()
    }

    /// Whether `build` makes no blocking call.
    pub(crate) fn needs_no_blocking(&self, server: &Server) -> bool {
        !self.is_confined() || (self.is_plain() && server.plain(self.policy.network).get().is_some())
    }
}
