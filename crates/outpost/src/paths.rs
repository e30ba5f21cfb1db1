//! Where the daemon keeps things: state that survives a reboot, sockets that do not.

use crate::hosts::{Host, HostName};
use crate::{codecast, relay};
use clap::Args;
use outpost_approvals::guard::{self, Found};
use outpost_mcp::Broker;
use outpost_sandbox::Private;
use outpost_sys::connect::{self, Trust, Untrusted};
use outpost_sys::file::{self, Open};
use outpost_sys::{Errno, is_exhaustion, limits};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// What there must be room for at the least: a database and a first journal.
const ROOM_BYTES: usize = 64 * 1024;

/// Directories, each settable. In the help of every command they come behind its own flags.
#[derive(Args, Clone, Debug, Default)]
pub(crate) struct Dirs {
    /// Journals and everything else that survives a reboot [default: $XDG_STATE_HOME/outpost]
    #[arg(long, global = true, display_order = 900, value_name = "DIR", env = "OUTPOST_STATE_DIR")]
    pub(crate) state_dir: Option<PathBuf>,
    /// Sockets and the lock [default: $XDG_RUNTIME_DIR/outpost]
    #[arg(long, global = true, display_order = 901, value_name = "DIR", env = "OUTPOST_RUNTIME_DIR")]
    pub(crate) runtime_dir: Option<PathBuf>,
    /// Do it on another host, for which `outpost connect` is up
    #[arg(long, global = true, display_order = 902, value_name = "NAME")]
    pub(crate) host: Option<HostName>,
    /// The guard of this host, root's daemon for approvals, in place of this user's daemon
    #[arg(long, global = true, display_order = 903, conflicts_with = "host")]
    pub(crate) guard: bool,
    /// In place of `/` where the guard and root's configuration are looked for
    #[arg(long, global = true, hide = true, value_name = "DIR")]
    pub(crate) guard_root: Option<PathBuf>,
}

impl Dirs {
    /// As the environment has them, for commands whose flags are not ours to choose.
    pub(crate) fn from_environment() -> Dirs {
        let dir = |name| std::env::var_os(name).map(PathBuf::from);
        Dirs {
            state_dir: dir("OUTPOST_STATE_DIR"),
            runtime_dir: dir("OUTPOST_RUNTIME_DIR"),
            ..Dirs::default()
        }
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Paths {
    pub(crate) state: PathBuf,
    pub(crate) runtime: PathBuf,
    /// The daemon is on another host; `runtime` has what `outpost connect` forwards.
    pub(crate) host: Option<Host>,
    /// Where this host's guard is, if it has one.
    pub(crate) guard: guard::Places,
    /// These are the guard's own.
    pub(crate) is_guard: bool,
    /// Where this user's programs keep an approver's key and the keys of hosts: never root's directory of the guard.
    pub(crate) own: PathBuf,
}

impl Dirs {
    pub(crate) fn resolve(&self) -> Result<Paths, String> {
        let guard = guard::Places::new(self.guard_root.as_deref())?;
        if self.guard {
            let own = self.state_dir.clone().or_else(|| default_state().ok());
            return Ok(Paths {
                own: own.map_or_else(|| Ok(guard.state()), |own| absolute(&own))?,
                state: guard.state(),
                runtime: guard.runtime(),
                host: None,
                guard,
                is_guard: true,
            });
        }
        let uid = limits::effective_uid();
        let state = match &self.state_dir {
            Some(dir) => dir.clone(),
            None => default_state()?,
        };
        let runtime = match &self.runtime_dir {
            Some(dir) => dir.clone(),
            None => environment_dir("XDG_RUNTIME_DIR")
                .map_or_else(|| format!("/tmp/outpost-{uid}").into(), |dir| dir.join("outpost")),
        };
        let paths = Paths {
            own: absolute(&state)?,
            state: absolute(&state)?,
            runtime: absolute(&runtime)?,
            host: None,
            guard,
            is_guard: false,
        };
        let Some(name) = &self.host else { return Ok(paths) };
        paths.check_runtime()?;
        let host = Host::at(&paths.runtime, name.clone());
        match host.connected_by() {
            Some(_) => Ok(Paths { runtime: host.dir.clone(), host: Some(host), ..paths }),
            None => Err(format!(
                "no `outpost connect` is up for {0}; start one with `outpost connect {0}`",
                name.as_str()
            )),
        }
    }
}

fn default_state() -> Result<PathBuf, String> {
    if let Some(dir) = environment_dir("XDG_STATE_HOME") {
        return Ok(dir.join("outpost"));
    }
    match outpost_sys::user::home().filter(|home| home.is_absolute()) {
        Some(home) => Ok(home.join(".local/state/outpost")),
        None => {
            Err("neither XDG_STATE_HOME nor HOME is set; say where to keep state with --state-dir".into())
        }
    }
}

/// Only absolute ones count, as the XDG specification has it.
fn environment_dir(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

impl Paths {
    pub(crate) fn control_socket(&self) -> PathBuf {
        self.runtime.join("control.sock")
    }

    pub(crate) fn broker_socket(&self) -> PathBuf {
        self.runtime.join("broker.sock")
    }

    /// The broker to ask: the given one, or else this host's guard if it has one, or else this user's daemon. A guard that
    /// is away is not replaced by the user's daemon.
    pub(crate) fn broker(&self, given: Option<PathBuf>) -> Result<Broker, String> {
        if let Some(socket) = given {
            return Ok(Broker::new(absolute(&socket)?, Trust::Own));
        }
        if self.host.is_some() || self.is_guard {
            return Ok(Broker::new(self.broker_socket(), self.trust()));
        }
        match self.guard.find() {
            Found::Absent => Ok(Broker::new(self.broker_socket(), Trust::Own)),
            Found::Serving => Ok(Broker::new(self.guard.broker_socket(), Trust::Root)),
            Found::Away(reason) => Err(format!(
                "the guard of this host is away, so nothing can be approved: {reason}\n\
                 hint: `systemctl status outpost-guard` shows why"
            )),
        }
    }

    /// Which users may listen on the sockets of the runtime directory.
    pub(crate) fn trust(&self) -> Trust {
        if self.is_guard { Trust::Root } else { Trust::Own }
    }

    /// Refuses a runtime directory that another user made or can change: what its files contain would be that user's word.
    pub(crate) fn check_runtime(&self) -> Result<(), String> {
        match connect::check_directory(&self.runtime, self.trust()) {
            Err(error) => match connect::untrusted(&error) {
                Some(reason) => Err(distrust(reason)),
                // Without a directory there is nothing to be misled by.
                None => Ok(()),
            },
            Ok(()) => Ok(()),
        }
    }

    pub(crate) fn approvals_socket(&self) -> PathBuf {
        self.runtime.join("approvals.sock")
    }

    /// Which port the sessions face has.
    pub(crate) fn sessions_port(&self) -> PathBuf {
        self.runtime.join("sessions.port")
    }

    /// Where that is asked.
    pub(crate) fn sessions_url(&self) -> PathBuf {
        self.runtime.join("sessions.url")
    }

    /// Digests of the tokens that let somebody in from elsewhere.
    pub(crate) fn tokens(&self) -> PathBuf {
        self.state.join("tokens.json")
    }

    /// The books of what waits for a human, and of what came of it.
    pub(crate) fn approvals(&self) -> PathBuf {
        self.state.join("approvals")
    }

    /// The key that `outpost approvals enroll` makes.
    pub(crate) fn approver_key(&self) -> PathBuf {
        self.own.join("approver.key")
    }

    /// The keys of hosts that this user's programs have met.
    pub(crate) fn known_hosts(&self) -> PathBuf {
        self.own.join("known_hosts")
    }

    pub(crate) fn exec_socket(&self) -> PathBuf {
        self.runtime.join("exec.sock")
    }

    /// What clients of the sessions face send that are not admitted without a token.
    pub(crate) fn sessions_token(&self) -> PathBuf {
        self.runtime.join("sessions.token")
    }

    /// What scrapers of other users send. It survives a reboot, since it stands in their configuration.
    pub(crate) fn metrics_token(&self) -> PathBuf {
        self.state.join("metrics.token")
    }

    /// What no sandbox shows: directories, sockets and tokens of this daemon, of the guard, and of the user's relays. What is
    /// added to the daemon outside of these directories is to be added here, and nowhere else.
    pub(crate) fn private(&self) -> Private {
        let paths = self.clone();
        Private::new(move || {
            let own = [paths.state.clone(), paths.runtime.clone()];
            let others = [paths.guard.state(), paths.guard.runtime()];
            let others = others.into_iter().chain(codecast::private()).chain(relay::private(&paths.state));
            own.into_iter().chain(others.filter(|path| path.symlink_metadata().is_ok())).collect()
        })
    }

    pub(crate) fn exec_token(&self) -> PathBuf {
        self.runtime.join("exec.token")
    }

    /// Of a daemon in the background.
    pub(crate) fn log(&self) -> PathBuf {
        self.state.join("outpost.log")
    }

    pub(crate) fn lock(&self) -> PathBuf {
        self.runtime.join("outpost.lock")
    }

    /// What has a daemon answer here.
    pub(crate) fn remedy(&self) -> String {
        match &self.host {
            None if self.is_guard => "root starts it with `systemctl start outpost-guard`".into(),
            None => "start one with `outpost serve`".into(),
            Some(host) => {
                format!(
                    "`outpost disconnect {0}` and `outpost connect {0}` start one there",
                    host.name.as_str()
                )
            }
        }
    }

    /// The way to the daemon is being made again: its silence says nothing.
    pub(crate) fn is_away(&self) -> bool {
        self.host.as_ref().is_some_and(|host| host.is_away(&self.control_socket()))
    }

    /// Makes both directories for this user only. A directory of another user is refused, and so is a runtime directory
    /// that other users could replace.
    pub(crate) fn create(&self) -> Result<(), String> {
        if self.is_guard {
            return self.guard.create();
        }
        for dir in [&self.state, &self.runtime] {
            make_private(dir).map_err(|error| {
                format!(
                    "{}: {error}\nhint: choose another directory with --state-dir or --runtime-dir",
                    dir.display()
                )
            })?;
        }
        self.check_runtime()
    }

    /// Whether this user may write to both. Only for the holder of the lock. A full disk is no reason to refuse: what needs
    /// it is retried until there is room.
    pub(crate) fn check_room(&self) -> Result<(), String> {
        for dir in [&self.state, &self.runtime] {
            let probe = dir.join(".room");
            let written = fs::write(&probe, [0; ROOM_BYTES]);
            let _not_there = fs::remove_file(&probe);
            let exhausted = |error: &io::Error| Errno::from_io_error(error).is_some_and(is_exhaustion);
            match written {
                Err(error) if exhausted(&error) => {
                    tracing::warn!(dir = %dir.display(), %error, "nothing can be written here now");
                }
                Err(error) => {
                    return Err(format!(
                        "{} cannot be written: {error}; make rights there, or choose another with --state-dir or --runtime-dir",
                        dir.display()
                    ));
                }
                Ok(()) => {}
            }
        }
        Ok(())
    }
}

/// A refusal to use a socket, with the next step.
pub(crate) fn distrust(reason: &Untrusted) -> String {
    format!("{reason}\nhint: {}", reason.hint())
}

/// Makes a directory for this user only, or makes one of this user private. Never follows a link.
pub(crate) fn make_private(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let foreign = || io::Error::other("is not a directory of this user");
    let opened = match file::open(dir, Open::Directory) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(foreign()),
        opened => fs::File::from(opened?),
    };
    let found = opened.metadata()?;
    if found.uid() != limits::effective_uid() {
        return Err(foreign());
    }
    if found.mode() & 0o077 != 0 {
        opened.set_permissions(fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}
