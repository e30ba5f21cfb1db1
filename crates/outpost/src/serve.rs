//! `outpost serve`: takes the lock, writes the keeper's first state, and becomes the keeper.

use crate::flags::Flags;
use crate::paths::Paths;
use crate::{approvals_desk, detach, roles, sessions_face, settled, stored};
use clap::Args;
use outpost_control::client::Client;
use outpost_control::wire::Status;
use outpost_keeper::state::{State, StoredEntry};
use outpost_keeper::{OWN_SLOT, Standing};
use outpost_sys::file::{self, Open};
use outpost_sys::limits::effective_uid;
use outpost_sys::{is_exhaustion, kernel, limits, spawn};
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, AsRawFd, OwnedFd, RawFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::net::{SocketAddr, UnixDatagram};
use std::path::Path;
use std::time::Duration;

/// The daemon is the last to go when memory runs out: everything else can be started again by it.
const OOM_SCORE: i32 = -900;

/// How long a daemon that runs already may take to say so.
const STATUS_PATIENCE: Duration = Duration::from_secs(5);

/// Files that may have to be open at once with nobody to serve.
const DESCRIPTORS_MIN: u64 = 128;

#[derive(Args, Clone, Debug)]
pub(crate) struct Options {
    /// Run in the background: returns when every face answers; the log is outpost.log in the state directory
    #[arg(long)]
    pub(crate) detach: bool,
    #[command(flatten)]
    pub(crate) flags: Flags,
}

impl Options {
    /// Of a daemon that has the sessions face alone.
    pub(crate) fn codecast(sessions: sessions_face::Flags) -> Options {
        Options { detach: false, flags: Flags { sessions, ..Flags::default() } }
    }

    /// Of one that nobody has said anything about.
    pub(crate) fn in_background() -> Options {
        Options { detach: true, flags: Flags::default() }
    }

    /// What the worker is told of them, last of all.
    pub(crate) fn arguments(&self) -> Vec<CString> {
        self.flags.clone().absolute().arguments()
    }

    /// What the daemon's processes are called, for those who look for them.
    pub(crate) fn name(&self) -> &'static CStr {
        if self.flags.sessions.codecast { c"codecast-daemon" } else { c"outpost" }
    }
}

/// Why there is no daemon.
pub(crate) enum NotServing {
    /// There is one already; says which.
    Taken(String),
    Failed(String),
}

impl NotServing {
    pub(crate) fn reason(self) -> String {
        match self {
            NotServing::Taken(reason) | NotServing::Failed(reason) => reason,
        }
    }
}

impl From<String> for NotServing {
    fn from(reason: String) -> NotServing {
        NotServing::Failed(reason)
    }
}

/// Only returns when the daemon could not be started, or runs in the background.
pub(crate) fn serve(paths: &Paths, options: &Options) -> Result<(), NotServing> {
    let prepared = match Prepared::new(paths, options) {
        // Whoever supervises us lost sight of the daemon when its keeper was killed.
        Err(NotServing::Taken(reason)) if point_out(paths).is_some() => {
            tracing::info!("{reason}; whoever supervises it has been told so");
            return Ok(());
        }
        prepared => prepared?,
    };
    match options.detach {
        true => Ok(detach::start(paths, options, prepared)?),
        false => Err(prepared.become_keeper(options.name())?.into()),
    }
}

/// Everything that a keeper begins with.
pub(crate) struct Prepared {
    pub(crate) lock: OwnedFd,
    pub(crate) config: OwnedFd,
    pub(crate) binary: OwnedFd,
    /// The worker's.
    pub(crate) arguments: Vec<CString>,
}

impl Prepared {
    /// Here, where somebody reads what is wrong.
    fn new(paths: &Paths, options: &Options) -> Result<Prepared, NotServing> {
        if paths.is_guard && effective_uid() != 0 {
            return Err("the guard runs as root: `sudo outpost install-service --guard` sets it up"
                .to_owned()
                .into());
        }
        paths.create()?;
        check_kernel(&kernel::release())?;
        check_limits()?;
        let flags = options.flags.clone().absolute().of(paths)?;
        let text = flags.text()?;
        let effective = flags.effective(&text, &paths.state)?;
        approvals_desk::settings(paths, &effective.config)?;
        let lock = take_lock(&paths.lock())?.ok_or_else(|| NotServing::Taken(taken(paths, &paths.lock())))?;
        paths.check_room()?;
        let binary = file::open("/proc/self/exe", Open::Program)
            .map_err(|errno| format!("cannot open this program: {errno}"))?;
        let mut arguments = worker_arguments(paths, options.name())?;
        arguments.extend(options.arguments());
        Ok(Prepared { lock, config: settled::to_memory(&text)?, binary, arguments })
    }

    /// In this process, which whoever supervises us takes for the daemon. Only returns when that failed.
    fn become_keeper(mut self, name: &CStr) -> Result<String, String> {
        let notify = notify_socket();
        if notify.is_some()
            && let Some(ms) = watchdog_ms()
        {
            self.arguments.extend(CString::new(format!("--watchdog-ms={ms}")));
        }
        let store = notify.as_ref().filter(|_| stored::is_offered()).map(file::duplicate);
        let store = store.transpose().map_err(|errno| format!("cannot prepare the keeper: {errno}"))?;
        let stored = stored::take();
        let mut held = vec![(roles::LOCK, self.lock.as_raw_fd()), (roles::CONFIG, self.config.as_raw_fd())];
        held.extend(notify.iter().map(|socket| (outpost_keeper::NOTIFY_ROLE, socket.as_raw_fd())));
        held.extend(store.iter().map(|socket| (outpost_keeper::STORE_ROLE, socket.as_raw_fd())));
        let mut state = keeper_state(self.binary.as_raw_fd(), self.arguments, held);
        state.entries.extend(stored::entries(&stored));
        let hand_over = || -> outpost_sys::Result<OwnedFd> {
            file::empty_stdin()?;
            file::close_on_exec_from(3)?;
            let own = [&self.lock, &self.config, &self.binary].into_iter().chain(&notify).chain(&store);
            for fd in own.chain(stored.iter().map(|stored| &stored.fd)) {
                file::set_inherited(fd, true)?;
            }
            let state = file::sealed_memory("outpost-keeper", &state.encode())?;
            file::set_inherited(&state, true)?;
            Ok(state)
        };
        let state = hand_over().map_err(|errno| format!("cannot prepare the keeper: {errno}"))?;
        let number = CString::new(state.as_raw_fd().to_string()).unwrap_or_default();
        let environment = environment();
        let environment: Vec<_> = environment.iter().map(CString::as_c_str).collect();
        let arguments = [name, c"keeper", c"--state", &number];
        let errno = spawn::replace_self(self.binary.as_fd(), &arguments, &environment);
        Ok(format!("cannot become the keeper: {errno}"))
    }
}

/// A keeper's first state, with what it holds by role and number.
pub(crate) fn keeper_state(binary: RawFd, arguments: Vec<CString>, held: Vec<(u8, RawFd)>) -> State {
    let (slot, pid, standing) = (OWN_SLOT, 0, Standing::Running);
    let own = StoredEntry { slot, pid, standing, pidfd: -1, held, report: -1 };
    State { binary, arguments, worker: None, replaced: false, entries: vec![own] }
}

/// Without what is meant for this very process: a child that had it could speak in our name.
pub(crate) fn environment() -> Vec<CString> {
    const WITHHELD: [&[u8]; 7] = [
        b"NOTIFY_SOCKET=",
        b"WATCHDOG_USEC=",
        b"WATCHDOG_PID=",
        b"LISTEN_FDS=",
        b"LISTEN_FDNAMES=",
        b"LISTEN_PID=",
        b"FDSTORE=",
    ];
    let mut environment = spawn::own_environment();
    environment.retain(|entry| !WITHHELD.iter().any(|name| entry.to_bytes().starts_with(name)));
    environment
}

/// Where whoever supervises us wants to hear of us. One that is gone left its name to us by mistake.
fn notify_socket() -> Option<OwnedFd> {
    let name = std::env::var_os("NOTIFY_SOCKET").filter(|name| !name.is_empty())?;
    let connect = || -> std::io::Result<OwnedFd> {
        let address = match name.as_bytes().strip_prefix(b"@") {
            Some(name) => SocketAddr::from_abstract_name(name)?,
            None => SocketAddr::from_pathname(&name)?,
        };
        let socket = UnixDatagram::unbound()?;
        socket.connect_addr(&address)?;
        socket.set_nonblocking(true)?;
        Ok(socket.into())
    };
    let socket = connect();
    if let Err(error) = &socket {
        tracing::warn!(%error, "nobody listens on NOTIFY_SOCKET: no supervisor will hear of this daemon");
    }
    socket.ok()
}

/// Tells whoever supervises us, if somebody does, which process the daemon is that runs here.
fn point_out(paths: &Paths) -> Option<()> {
    let socket = notify_socket()?;
    // One that was stopped and keeps its processes is to be begun again, not to be pointed at.
    let status = status(paths).filter(|status| !status.keeping)?;
    let words = format!("MAINPID={}\nREADY=1", status.keeper_pid);
    outpost_sys::message::send(&socket, words.as_bytes(), &[]).ok()
}

/// Of the daemon that runs here.
fn status(paths: &Paths) -> Option<Status> {
    let mut client = Client::connect(&paths.control_socket()).ok()?;
    client.set_patience(Some(STATUS_PATIENCE)).ok()?;
    client.call("status", &()).ok()
}

/// How often, if this process is the one that is meant.
fn watchdog_ms() -> Option<u64> {
    let number = |name| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
    let is_meant = number("WATCHDOG_PID").is_none_or(|pid| pid == u64::from(std::process::id()));
    number("WATCHDOG_USEC").filter(|_| is_meant).map(|us| us / 1000)
}

/// The oldest kernel that the daemon is tested as on. Before it, calls are missing that nothing stands in for.
pub(crate) const KERNEL_MIN: kernel::Version = (5, 10);

fn check_kernel(release: &str) -> Result<(), String> {
    match kernel::version_in(release) {
        version if version < KERNEL_MIN => {
            let (major, minor) = KERNEL_MIN;
            Err(format!("Linux {release} is too old; the daemon needs Linux {major}.{minor} or later"))
        }
        _ => Ok(()),
    }
}

/// With fewer files the daemon would fail somewhere, and at the worst moment.
fn check_limits() -> Result<(), String> {
    match limits::descriptors().hard {
        Some(most) if most < DESCRIPTORS_MIN => Err(format!(
            "only {most} files may be open at once here, and at least {DESCRIPTORS_MIN} are needed; raise the limit \
             (`ulimit -Hn`, or LimitNOFILE= of the service)"
        )),
        _ => Ok(()),
    }
}

/// The worker's command line. Raises our own limits, which the keeper and the worker inherit, and says what they were.
pub(crate) fn worker_arguments(paths: &Paths, name: &CStr) -> Result<Vec<CString>, String> {
    let descriptors = limits::raise_descriptors().unwrap_or_else(|_| limits::descriptors());
    let oom_score = limits::oom_score();
    let shielded = limits::set_oom_score(OOM_SCORE).is_ok();
    let mut arguments = vec![
        name.to_owned(),
        c"worker".to_owned(),
        c"--state-dir".to_owned(),
        c_string(&paths.state)?,
        c"--runtime-dir".to_owned(),
        c_string(&paths.runtime)?,
    ];
    if paths.is_guard {
        arguments.push(c"--guard".to_owned());
    }
    if let Some(root) = paths.guard.root() {
        arguments.extend([c"--guard-root".to_owned(), c_string(root)?]);
    }
    let number = |limit: Option<u64>| limit.map_or("unlimited".to_owned(), |limit| limit.to_string());
    let given = [("--descriptors", format!("{}:{}", number(descriptors.soft), number(descriptors.hard)))];
    let score = shielded.then(|| ("--oom-score", oom_score.to_string()));
    for (flag, value) in given.into_iter().chain(score) {
        arguments.extend(CString::new(format!("{flag}={value}")));
    }
    Ok(arguments)
}

fn c_string(path: &Path) -> Result<CString, String> {
    CString::new(path.as_os_str().as_bytes()).map_err(|_| format!("{} contains a zero byte", path.display()))
}

/// Two daemons must not share sockets and journals. None where there is one.
pub(crate) fn take_lock(path: &Path) -> Result<Option<OwnedFd>, String> {
    let fail = |errno| format!("{}: {errno}", path.display());
    let lock = file::open(path, Open::Create).map_err(fail)?;
    if !file::try_lock(&lock).map_err(fail)? {
        return Ok(None);
    }
    match sign_lock(&lock, std::process::id()) {
        // The number is for people; the lock holds without it.
        Err(errno) if !is_exhaustion(errno) => Err(fail(errno)),
        _ => Ok(Some(lock)),
    }
}

/// Who has it. The keeper that signed it may have died and been replaced since, which only the daemon itself knows.
pub(crate) fn taken(paths: &Paths, lock: &Path) -> String {
    let living = status(paths).map(|status| status.keeper_pid.to_string());
    let keeper = living.unwrap_or_else(|| std::fs::read_to_string(lock).unwrap_or_default());
    format!("outpost is already running here (keeper {}); `outpost status` shows it", keeper.trim())
}

/// Says whose it is.
pub(crate) fn sign_lock(lock: &OwnedFd, keeper: u32) -> outpost_sys::Result<()> {
    file::set_size(lock, 0)?;
    file::write_all_at(lock, format!("{keeper}\n").as_bytes(), 0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_that_lacks_what_we_need_is_refused_by_name() {
        for release in ["5.9.16-generic", "4.19.0-27-amd64"] {
            let refused = check_kernel(release).unwrap_err();
            assert!(refused.contains(release) && refused.contains("Linux 5.10"), "{refused}");
        }
        for release in ["5.10.0-32-amd64", "6.1.0", "7.0.1"] {
            assert_eq!(check_kernel(release), Ok(()));
        }
    }
}
