//! What this host can enforce, found out by doing it.

use crate::confinement::{Confinement, alone};
use crate::error::{Error, explain};
use crate::plan::{Mount, Plan, Root, What};
use crate::{Result, causes, filter, landlock};
use outpost_sys::kernel;
use outpost_sys::namespace::{self, Network};
use outpost_sys::spawn::{self, Child, Program, Standing, Step};
use outpost_sys::{Errno, is_exhaustion};
use std::fs::File;
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

/// How namespaces can be made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Namespaces {
    /// With the privilege that we have.
    Direct,
    /// With a user namespace for each command.
    User,
    None,
}

/// A host, with what all confined commands share.
#[derive(Debug)]
pub struct Host {
    pub namespaces: Namespaces,
    /// Why there are none.
    pub why_none: Option<String>,
    /// Without namespaces: why Landlock cannot enforce a read-only policy alone; none if it can.
    pub why_not_alone: Option<String>,
    /// The version of Landlock.
    pub landlock: Option<u32>,
    pub seccomp: bool,
    /// Whether mounts can be made read-only with all below them (Linux 5.12).
    pub mount_attributes: bool,
    /// Whether a pid namespace has a limit of its own (Linux 6.14).
    pub pid_limit: bool,
    /// An empty network that commands join. One for each made a median start last 3.5 ms instead of 2.3 (a rough loop on
    /// two loaded cores); since no command can make a socket in it that reaches another, it can be shared.
    pub(crate) network: Option<Arc<Network>>,
    pub(crate) state: PathBuf,
    /// A limit on namespaces was reached. It may be set to none at all, so this is an answer, but not one to keep.
    pub(crate) may_change: bool,
    filters: [Vec<u8>; 2],
}

/// Every view of a sandbox is made read-only by it, with all mounts below.
const NO_MOUNT_ATTRIBUTES: &str = "this kernel lacks mount_setattr (Linux 5.12)";

/// Never there: a confinement that gets as far as not finding it works.
const NOWHERE: &std::ffi::CStr = c"/proc/self/outpost-probe";

impl Host {
    /// Tries everything once. `state` is a directory of ours, in which names that are held on the host are written down.
    /// [`Error::Unknown`] when a try ran out of descriptors, memory or processes: another one may succeed.
    pub fn probe(state: &Path) -> Result<Host> {
        let mut host = Host::bare(state)?;
        if !host.mount_attributes {
            let why = Some(NO_MOUNT_ATTRIBUTES.to_owned());
            return Ok(Host { why_none: why.clone(), why_not_alone: why, ..host });
        }
        let mut reasons = Vec::new();
        for namespaces in [Namespaces::Direct, Namespaces::User] {
            host.namespaces = namespaces;
            if namespaces == Namespaces::Direct && outpost_sys::limits::effective_uid() != 0 {
                continue;
            }
            match host.attempt_namespaces() {
                Ok(()) => return Ok(host),
                Err(Obstacle { reason, errno })
                    if errno.is_some_and(|errno| errno != Errno::NOSPC && is_exhaustion(errno)) =>
                {
                    return Err(Error::Unknown { reason });
                }
                Err(Obstacle { reason, errno }) => {
                    host.may_change |= errno == Some(Errno::NOSPC);
                    reasons.push(reason);
                }
            }
        }
        Ok(host.without_namespaces(&reasons.join("; ")))
    }

    /// Why there are no namespaces, and what allows them here.
    pub(crate) fn lacks_namespaces(&self) -> String {
        match &self.why_none {
            Some(why) if self.mount_attributes => format!("{why}; {}", causes::advice()),
            Some(why) => why.clone(),
            None => "no namespaces".into(),
        }
    }

    /// The same host if it had no namespaces, with what Landlock can do there tried once.
    pub fn without_namespaces(self, reason: &str) -> Host {
        let why_none = Some(format!("namespaces cannot be used ({reason})"));
        let mut host = Host { namespaces: Namespaces::None, network: None, why_none, ..self };
        if let Err(why) = alone::version(&host) {
            host.why_not_alone = Some(why);
            return host;
        }
        // A directory like ours, kept from a command.
        let mounts = match std::fs::canonicalize(&host.state) {
            Ok(path) => {
                let what = What::DeniedDirectory { inside: Vec::new() };
                vec![Mount { path, directory: true, what, in_the_void: false }]
            }
            Err(_) => Vec::new(),
        };
        host.why_not_alone = host.attempt(mounts).err().map(|obstacle| obstacle.reason);
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
            landlock: namespace::landlock_version(),
            seccomp: namespace::has_filters(),
            mount_attributes: kernel::has_mount_attributes(),
            pid_limit: has_pid_limit(&release),
            network: None,
            state: state.into(),
            may_change: false,
            filters: [filter::build(false), filter::build(true)],
        })
    }

    /// Whether its Landlock is one that we use.
    pub fn landlock_is_used(&self) -> bool {
        self.landlock.is_some_and(|version| version >= landlock::VERSION_MIN)
    }

    /// Whether its Landlock is one that can enforce a policy without namespaces.
    pub fn landlock_stands_alone(&self) -> bool {
        alone::version(self).is_ok()
    }

    pub(crate) fn filter(&self, network: bool) -> &[u8] {
        let [without, with] = &self.filters;
        if network { with } else { without }
    }

    /// Makes an empty network, and tries a confinement in it.
    fn attempt_namespaces(&mut self) -> std::result::Result<(), Obstacle> {
        let (user, what) = match self.namespaces {
            Namespaces::User => (true, "as an ordinary user, clone(CLONE_NEWUSER | CLONE_NEWNET)"),
            _ => (false, "as root, clone(CLONE_NEWNET)"),
        };
        let network = namespace::empty_network(user).map_err(|error| Obstacle::io(what, &error))?;
        self.network = Some(Arc::new(network));
        self.attempt(Vec::new())
    }

    /// Confines a child that then finds nothing to execute.
    fn attempt(&self, mounts: Vec<Mount>) -> std::result::Result<(), Obstacle> {
        if !self.seccomp {
            return Err(Obstacle { reason: "the kernel has no seccomp filters".into(), errno: None });
        }
        let plan = Plan {
            root: Root::ReadOnly,
            mounts,
            shadows: Vec::new(),
            links: Vec::new(),
            network: false,
            late: Vec::new(),
            processes_max: 512,
        };
        let confinement = Confinement::build(&plan, self)
            .map_err(|error| Obstacle { reason: error.to_string(), errno: None })?;
        let null = File::options().read(true).write(true).open("/dev/null");
        let null = null.map_err(|error| Obstacle::io("/dev/null cannot be opened", &error))?;
        let mut descriptors = vec![(null.as_fd(), 0), (null.as_fd(), 1), (null.as_fd(), 2)];
        descriptors.extend(confinement.descriptors());
        let started = spawn::spawn(&Child {
            confinement: Some(&confinement.program),
            ..Child::new(Program::Path(NOWHERE), &[NOWHERE], &[], Standing::Session, &descriptors)
        });
        match started {
            Err(failure) if failure.step == Step::Exec => Ok(()),
            Err(failure) => {
                let operation = Some(failure.operation).filter(|_| failure.step == Step::Confine);
                let described = operation.and_then(|at| confinement.program.describe(at.into()));
                let reason = format!("a trial sandbox failed at {}", explain(failure, described));
                Err(Obstacle { reason, errno: Some(failure.errno) })
            }
            Ok(_) => Err(Obstacle { reason: "a file that is never there was executed".into(), errno: None }),
        }
    }
}

/// Why a try did not succeed.
struct Obstacle {
    reason: String,
    errno: Option<Errno>,
}

impl Obstacle {
    fn io(what: &str, error: &std::io::Error) -> Obstacle {
        Obstacle { reason: format!("{what}: {error}"), errno: Errno::from_io_error(error) }
    }
}

/// A host that is probed when it is first needed. Only what stays so is kept.
#[derive(Debug)]
pub struct Probed {
    state: PathBuf,
    host: Mutex<Option<Arc<Host>>>,
}

impl Probed {
    /// `state` is as for [`Host::probe`].
    pub fn new(state: PathBuf) -> Probed {
        Probed { state, host: Mutex::new(None) }
    }

    /// What the host can enforce. Blocking: takes a moment until it is known.
    pub fn get(&self) -> Result<Arc<Host>> {
        // Others wait for the same answer.
        let mut known = self.host.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(host) = &*known {
            return Ok(host.clone());
        }
        let host = Arc::new(Host::probe(&self.state)?);
        if !host.may_change {
            *known = Some(host.clone());
        }
        Ok(host)
    }
}

/// Per-namespace limits came with Linux 6.14. Before, the file is the whole host's, and must not be written.
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
