//! What this host can enforce, determined by trial.

use crate::confinement::{Confinement, landlock_only};
use crate::error::{Error, explain};
use crate::plan::{Mount, MountKind, Plan, Root};
use crate::{Result, causes, filter, landlock};
use outpost_sys::kernel;
use outpost_sys::namespace::{self, Network};
use outpost_sys::spawn::{self, Child, Executable, SessionKind, Step};
use outpost_sys::{Errno, is_exhaustion};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// How namespaces can be created.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// With the privilege of this process.
    Direct,
    /// With a user namespace for each command.
    User,
    None,
}

/// The host's features, and what all sandboxes share.
#[derive(Debug)]
pub struct Host {
    pub namespaces: Namespaces,
    /// Why there are none.
    pub why_none: Option<String>,
    /// Without namespaces: why Landlock alone cannot enforce a read-only policy; `None` if it can.
    pub why_not_alone: Option<String>,
    /// The Landlock ABI version.
    pub landlock: Option<u32>,
    pub seccomp: bool,
    /// Whether mounts can be made read-only recursively (Linux 5.12).
    pub mount_attributes: bool,
    /// Whether a pid namespace has a pid limit of its own (Linux 6.14).
    pub pid_limit: bool,
    /// An empty network namespace that commands join. A namespace per command raised the median start time
    /// from 2.3 to 3.5 ms (a rough loop on two loaded cores). Sharing is safe, because no command can create
    /// a socket in it that reaches another.
    pub(crate) network: Option<Arc<Network>>,
    pub(crate) state: PathBuf,
    /// A limit on namespaces was reached. The limit may be 0, so this is a result, but it is not cached.
    pub(crate) may_change: bool,
    filters: [Vec<u8>; 2],
}

/// Every view is made read-only with it, recursively.
const NO_MOUNT_ATTRIBUTES: &str = "this kernel lacks mount_setattr (Linux 5.12)";

/// A program that never exists: a sandbox that fails to find it works.
const MISSING_PROGRAM: &std::ffi::CStr = c"/proc/self/outpost-probe";

impl Host {
    /// Tries each feature once. `state` is a directory of the daemon in which placeholders are recorded.
    /// [`Error::Unknown`] when a trial ran out of descriptors, memory or processes; a retry may succeed.
    pub fn probe(state: &Path) -> Result<Host> {
        let mut host = Host::bare(state)?;
        if !host.mount_attributes {
            let why = Some(NO_MOUNT_ATTRIBUTES.to_owned());
            return Ok(Host { why_none: why.clone(), why_not_alone: why, ..host });
        }
        let mut reasons = Vec::new();
        for namespaces in [Namespaces::Direct, Namespaces::User] {
            host.namespaces = namespaces;
            if namespaces == Namespaces::Direct && outpost_sys::process::effective_uid() != 0 {
                continue;
            }
            match host.attempt_namespaces() {
                Ok(()) => return Ok(host),
                Err(ProbeFailure { reason, errno })
                    if errno.is_some_and(|errno| errno != Errno::NOSPC && is_exhaustion(errno)) =>
                {
                    return Err(Error::Unknown { reason });
                }
                Err(ProbeFailure { reason, errno }) => {
                    host.may_change |= errno == Some(Errno::NOSPC);
                    reasons.push(reason);
                }
            }
        }
        Ok(host.without_namespaces(&reasons.join("; ")))
    }

    /// Why there are no namespaces, and how to enable them.
    pub(crate) fn lacks_namespaces(&self) -> String {
        match &self.why_none {
            Some(why) if self.mount_attributes => format!("{why}; {}", causes::advice()),
            Some(why) => why.clone(),
            None => "no namespaces".into(),
        }
    }

    /// The same host without namespaces. Tries what Landlock alone can enforce.
    pub fn without_namespaces(self, reason: &str) -> Host {
        let why_none = Some(format!("namespaces cannot be used ({reason})"));
        let mut host = Host { namespaces: Namespaces::None, network: None, why_none, ..self };
        if let Err(why) = landlock_only::version(&host) {
            host.why_not_alone = Some(why.to_string());
            return host;
        }
        // A directory like the daemon's, denied to a command.
        let mounts = match std::fs::canonicalize(&host.state) {
            Ok(path) => {
                let kind = MountKind::DeniedDirectory { inside: Vec::new() };
                vec![Mount { path, directory: true, kind, on_empty_root: false }]
            }
            Err(_) => Vec::new(),
        };
        host.why_not_alone = host.attempt(mounts).err().map(|failure| failure.reason);
        host
    }

    fn bare(state: &Path) -> Result<Host> {
        let release =
            std::fs::read_to_string("/proc/sys/kernel/osrelease").or_else(
                |error| match Errno::from_io_error(&error).is_some_and(is_exhaustion) {
                    true => Err(Error::Unknown {
                        reason: format!("the kernel's release cannot be read: {error}"),
                    }),
                    false => Ok(String::new()),
                },
            )?;
        Ok(Host {
            namespaces: Namespaces::None,
            why_none: None,
            why_not_alone: None,
            landlock: kernel::landlock_version(),
            seccomp: kernel::has_seccomp_filters(),
            mount_attributes: kernel::has_mount_attributes(),
            pid_limit: has_pid_limit(&release),
            network: None,
            state: state.into(),
            may_change: false,
            filters: [filter::build(false), filter::build(true)],
        })
    }

    /// Whether its Landlock version is used.
    pub fn landlock_is_used(&self) -> bool {
        self.landlock.is_some_and(|version| version >= landlock::VERSION_MIN)
    }

    /// Whether its Landlock version can enforce a policy without namespaces.
    pub fn landlock_stands_alone(&self) -> bool {
        landlock_only::version(self).is_ok()
    }

    pub(crate) fn filter(&self, network: bool) -> &[u8] {
        let [without, with] = &self.filters;
        if network { with } else { without }
    }

    /// Creates an empty network namespace and tries a sandbox in it.
    fn attempt_namespaces(&mut self) -> std::result::Result<(), ProbeFailure> {
        let (user, what) = match self.namespaces {
            Namespaces::User => (true, "as an ordinary user, clone(CLONE_NEWUSER | CLONE_NEWNET)"),
            _ => (false, "as root, clone(CLONE_NEWNET)"),
        };
        let network = namespace::empty_network(user).map_err(|error| ProbeFailure::io(what, &error))?;
        self.network = Some(Arc::new(network));
        self.attempt(Vec::new())
    }

    /// Spawns a sandboxed child whose program does not exist.
    fn attempt(&self, mounts: Vec<Mount>) -> std::result::Result<(), ProbeFailure> {
        if !self.seccomp {
            return Err(ProbeFailure { reason: "the kernel has no seccomp filters".into(), errno: None });
        }
        let plan = Plan {
            root: Root::ReadOnly,
            mounts,
            shadows: Vec::new(),
            links: Vec::new(),
            network: false,
            unenforceable: Vec::new(),
            processes_max: 512,
        };
        let confinement = Confinement::build(&plan, self)
            .map_err(|error| ProbeFailure { reason: error.to_string(), errno: None })?;
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.map_err(|error| ProbeFailure::io("/dev/null cannot be opened", &error))?;
        let mut descriptors = vec![(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2)];
        descriptors.extend(confinement.descriptors());
        let started = spawn::spawn(&Child {
            confinement: Some(&confinement.program),
            ..Child::new(
                Executable::Path(MISSING_PROGRAM),
                &[MISSING_PROGRAM],
                &[],
                SessionKind::Session,
                &descriptors,
            )
        });
        match started {
            Err(failure) if failure.step == Step::Exec => Ok(()),
            Err(failure) => {
                let operation = Some(failure.operation).filter(|_| failure.step == Step::Confine);
                let described = operation.and_then(|at| confinement.program.describe(at.into()));
                let reason = format!("a trial sandbox failed at {}", explain(failure, described));
                Err(ProbeFailure { reason, errno: Some(failure.errno) })
            }
            Ok(_) => Err(ProbeFailure {
                reason: "the probe executed a program that does not exist".into(),
                errno: None,
            }),
        }
    }
}

/// Why a trial failed.
struct ProbeFailure {
    reason: String,
    errno: Option<Errno>,
}

impl ProbeFailure {
    fn io(what: &str, error: &std::io::Error) -> ProbeFailure {
        ProbeFailure { reason: format!("{what}: {error}"), errno: Errno::from_io_error(error) }
    }
}

/// Before Linux 6.14, the file is the limit of the whole host and must not be written.
fn has_pid_limit(release: &str) -> bool {
    kernel::version_in(release) >= (6, 14)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_whose_pid_limit_is_the_hosts_is_left_alone() {
        for (release, has) in [
            ("6.18.44-fc", true),
            ("6.14.0", true),
            ("6.13.9", false),
            ("5.15.0-100-generic", false),
            ("", false),
        ] {
            assert_eq!(has_pid_limit(release), has, "{release}");
        }
    }
}
