//! Paths of the daemon: the state directory, which survives a reboot, and the runtime directory, which does not.

use crate::hosts::{Host, HostName};
use clap::Args;
use outpost_approvals::guard::{self, GuardStatus};
use outpost_broker_client::BrokerClient;
use outpost_sys::Errno;
use outpost_sys::connect::{self, Trust, Untrusted};
use outpost_sys::file::{self, Open};
use std::fs;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};

/// Global flags that select the daemon. `display_order` lists them after the flags of the command.
#[derive(Args, Clone, Debug, Default)]
pub struct Dirs {
    /// Journals and everything else that survives a reboot [default: $XDG_STATE_HOME/outpost]
    #[arg(long, global = true, display_order = 900, value_name = "DIR", env = "OUTPOST_STATE_DIR")]
    pub state_dir: Option<PathBuf>,
    /// Sockets and the lock [default: $XDG_RUNTIME_DIR/outpost]
    #[arg(long, global = true, display_order = 901, value_name = "DIR", env = "OUTPOST_RUNTIME_DIR")]
    pub runtime_dir: Option<PathBuf>,
    /// Use a host that `outpost connect` has connected
    #[arg(long, global = true, display_order = 902, value_name = "NAME")]
    pub host: Option<HostName>,
    /// Use this host's guard, root's daemon for approvals
    #[arg(long, global = true, display_order = 903, conflicts_with = "host")]
    pub guard: bool,
    /// The directory that replaces `/` in the paths of the guard and of root's configuration
    #[arg(long, global = true, hide = true, value_name = "DIR")]
    pub guard_root: Option<PathBuf>,
}

impl Dirs {
    /// For drop-ins, whose command line has no such flags.
    pub fn from_environment() -> Dirs {
        let dir = |name| std::env::var_os(name).map(PathBuf::from);
        Dirs {
            state_dir: dir("OUTPOST_STATE_DIR"),
            runtime_dir: dir("OUTPOST_RUNTIME_DIR"),
            ..Dirs::default()
        }
    }
}

#[derive(Clone, Debug)]
pub struct Paths {
    pub state: PathBuf,
    pub runtime: PathBuf,
    /// Set if the daemon runs on another host. `runtime` then has the sockets that `outpost connect` forwards.
    pub host: Option<Host>,
    /// Paths of this host's guard, whether it has one or not.
    pub guard: guard::GuardPaths,
    /// `state` and `runtime` are those of the guard.
    pub is_guard: bool,
    /// Directory of the user's approver key and known hosts: never the guard's directory, which belongs to root.
    pub user_state: PathBuf,
}

impl Dirs {
    pub fn resolve(&self) -> Result<Paths, String> {
        let guard = guard::GuardPaths::new(self.guard_root.as_deref()).map_err(|error| error.to_string())?;
        if self.guard {
            let user_state = self.state_dir.clone().or_else(|| default_state().ok());
            return Ok(Paths {
                user_state: user_state.map_or_else(|| Ok(guard.state()), |dir| absolute(&dir))?,
                state: guard.state(),
                runtime: guard.runtime(),
                host: None,
                guard,
                is_guard: true,
            });
        }
        let uid = outpost_sys::process::effective_uid();
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
            user_state: absolute(&state)?,
            state: absolute(&state)?,
            runtime: absolute(&runtime)?,
            host: None,
            guard,
            is_guard: false,
        };
        let Some(name) = &self.host else { return Ok(paths) };
        paths.check_runtime()?;
        let host = Host::at(&paths.runtime, name.clone());
        match host.connector_pid() {
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
            Err("neither XDG_STATE_HOME nor HOME is set\nhint: choose the state directory with --state-dir"
                .into())
        }
    }
}

/// The XDG specification requires programs to ignore relative paths.
fn environment_dir(name: &str) -> Option<PathBuf> {
    std::env::var_os(name).map(PathBuf::from).filter(|path| path.is_absolute())
}

fn absolute(path: &Path) -> Result<PathBuf, String> {
    std::path::absolute(path).map_err(|error| format!("{}: {error}", path.display()))
}

impl Paths {
    pub fn control_socket(&self) -> PathBuf {
        self.runtime.join("control.sock")
    }

    pub fn broker_socket(&self) -> PathBuf {
        self.runtime.join("broker.sock")
    }

    /// Selects the broker: the given socket, else this host's guard, else this user's daemon. The user's daemon never
    /// replaces a guard that is installed but not running.
    pub(crate) fn broker(&self, given: Option<PathBuf>) -> Result<BrokerClient, String> {
        if let Some(socket) = given {
            return Ok(BrokerClient::new(absolute(&socket)?, Trust::Own));
        }
        if self.host.is_some() || self.is_guard {
            return Ok(BrokerClient::new(self.broker_socket(), self.trust()));
        }
        match self.guard.status() {
            GuardStatus::Absent => Ok(BrokerClient::new(self.broker_socket(), Trust::Own)),
            GuardStatus::Running => Ok(BrokerClient::new(self.guard.broker_socket(), Trust::Root)),
            GuardStatus::Unavailable(reason) => Err(format!(
                "the guard of this host is away, so nothing can be approved: {reason}\n\
                 hint: `systemctl status outpost-guard` shows why"
            )),
        }
    }

    /// The users that clients accept as owners of the sockets in the runtime directory.
    pub(crate) fn trust(&self) -> Trust {
        if self.is_guard { Trust::Root } else { Trust::Own }
    }

    /// Refuses a runtime directory that another user owns or can write: that user would control the contents of its files.
    pub(crate) fn check_runtime(&self) -> Result<(), String> {
        match connect::check_directory(&self.runtime, self.trust()) {
            Err(error) => match connect::untrusted(&error) {
                Some(reason) => Err(untrusted_message(reason)),
                // A missing directory has no files to trust.
                None => Ok(()),
            },
            Ok(()) => Ok(()),
        }
    }

    pub fn approvals_socket(&self) -> PathBuf {
        self.runtime.join("approvals.sock")
    }

    pub fn sessions_socket(&self) -> PathBuf {
        self.runtime.join("sessions.sock")
    }

    /// Contains the port of the sessions face.
    pub fn sessions_port(&self) -> PathBuf {
        self.runtime.join("sessions.port")
    }

    /// Contains the URL of the sessions face.
    pub fn sessions_url(&self) -> PathBuf {
        self.runtime.join("sessions.url")
    }

    /// Digests of the tokens that admit remote clients to the sessions face.
    pub fn tokens(&self) -> PathBuf {
        self.state.join("tokens.json")
    }

    /// The approvals database and the audit log.
    pub(crate) fn approvals(&self) -> PathBuf {
        self.state.join("approvals")
    }

    /// The key that `outpost approvals enroll` generates.
    pub(crate) fn approver_key(&self) -> PathBuf {
        self.user_state.join("approver.key")
    }

    /// Host keys that this user's clients have accepted.
    pub(crate) fn known_hosts(&self) -> PathBuf {
        self.user_state.join("known_hosts")
    }

    pub fn exec_socket(&self) -> PathBuf {
        self.runtime.join("exec.sock")
    }

    /// The token for local clients of the sessions face that are not admitted by their uid.
    pub fn sessions_token(&self) -> PathBuf {
        self.runtime.join("sessions.token")
    }

    /// The token for scrapers of other users. It survives a reboot because their configuration contains it.
    pub fn metrics_token(&self) -> PathBuf {
        self.state.join("metrics.token")
    }

    pub fn exec_token(&self) -> PathBuf {
        self.runtime.join("exec.token")
    }

    /// The log of `serve --detach`.
    pub fn log(&self) -> PathBuf {
        self.state.join("outpost.log")
    }

    pub fn lock(&self) -> PathBuf {
        self.runtime.join("outpost.lock")
    }

    /// The hint on how to start the daemon that these paths select.
    pub(crate) fn start_hint(&self) -> String {
        match &self.host {
            None if self.is_guard => "root starts it with `systemctl start outpost-guard`".into(),
            None => "start it with `outpost serve --detach`".into(),
            Some(host) => {
                format!(
                    "`outpost disconnect {0}` and `outpost connect {0}` start one there",
                    host.name.as_str()
                )
            }
        }
    }

    /// Whether `outpost connect` is reconnecting. A daemon that does not answer may then still be running.
    pub(crate) fn is_reconnecting(&self) -> bool {
        self.host.as_ref().is_some_and(|host| host.is_reconnecting(&self.control_socket()))
    }

    /// Creates both directories with mode 0700. Refuses a directory of another user, and a runtime directory that other
    /// users could replace.
    pub fn create(&self) -> Result<(), String> {
        if self.is_guard {
            return self.guard.create().map_err(|error| error.to_string());
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
}

/// The error for a socket that is not trusted, with a hint.
pub(crate) fn untrusted_message(reason: &Untrusted) -> String {
    format!("{reason}\nhint: {}", reason.hint())
}

/// Creates a directory with mode 0700, or sets that mode on a directory of this user. Never follows a symbolic link.
pub(crate) fn make_private(dir: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let foreign = || io::Error::other("is not a directory of this user");
    let opened = match file::open(dir, Open::Directory) {
        Err(Errno::NOTDIR | Errno::LOOP) => return Err(foreign()),
        opened => fs::File::from(opened?),
    };
    let found = opened.metadata()?;
    if found.uid() != outpost_sys::process::effective_uid() {
        return Err(foreign());
    }
    if found.mode() & 0o077 != 0 {
        opened.set_permissions(fs::Permissions::from_mode(0o700))?;
    }
    Ok(())
}
