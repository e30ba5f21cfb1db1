//! `outpost connect`: installs and starts Outpost on a remote host over ssh and forwards its sockets to this host.

mod install;
mod ssh;

use super::remote_bootstrap::{LINE_MARK, RemoteDaemon};
use super::{Outcome, background, block_on, print_table};
use crate::hosts::{Host, HostInfo, HostName};
use crate::paths::{Paths, make_private};
use clap::Args;
use install::{Replace, install};
use outpost_control::client::AsyncClient;
use outpost_sys::epoll::wait_readable;
use outpost_sys::identity::Identity;
use outpost_sys::signal::Signal;
use outpost_sys::{pidfd, procfs};
use ssh::{AuthPrompts, Ssh, is_plain};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// How long the remote daemon may take to reply through ssh.
const REPLY_TIMEOUT: Duration = Duration::from_secs(20);

/// Back-off between connection attempts: doubles up to the maximum.
const RETRY_PAUSE_MIN: Duration = Duration::from_millis(250);
const RETRY_PAUSE_MAX: Duration = Duration::from_secs(20);

/// Size at which a background client truncates its log.
const LOG_BYTES_MAX: u64 = 1024 * 1024;

/// A connection that lasted this long resets the back-off.
const STABLE_AFTER: Duration = Duration::from_secs(30);

/// How long `outpost connect` may take to exit on SIGTERM.
const EXIT_TIMEOUT: Duration = Duration::from_secs(10);

/// Excerpt of unexpected output in an error message.
const EXCERPT_CHARS: usize = 200;

/// The forwarded sockets; their names are the same on both hosts.
const SOCKETS: [&str; 5] = ["control", "exec", "broker", "approvals", "sessions"];

/// Connect to a remote host over ssh: installs or upgrades outpost there, starts its daemon and forwards its sockets
///
/// While this command runs, other commands work on the remote host with `--host NAME`. It reconnects after a lost ssh
/// connection, and attached clients continue where they were. The remote daemon and its processes keep running when this
/// command ends.
#[derive(Args)]
pub(super) struct Connect {
    /// ssh destination: user@host, or a name from ~/.ssh/config
    destination: Destination,
    /// Name for --host [default: the destination]
    #[arg(long)]
    name: Option<HostName>,
    /// Option for ssh; repeatable
    #[arg(short = 'o', long = "ssh-option", value_name = "NAME=VALUE")]
    ssh_options: Vec<String>,
    /// ssh port of the remote host
    #[arg(short, long)]
    port: Option<u16>,
    /// Also forward the HTTP port of the sessions face to this local port, for other clients; every user of this host can
    /// connect to it
    #[arg(long, value_name = "PORT")]
    sessions_port: Option<u16>,
    /// Continue in the background once connected; needs ssh authentication without a prompt
    #[arg(long)]
    detach: bool,
    /// Replace the remote binary and that of the remote daemon even if they are newer
    #[arg(long)]
    force: bool,
    /// No prompts
    #[arg(long, hide = true)]
    batch: bool,
}

/// The ssh destination; never parsed as an option of ssh.
#[derive(Clone, Debug)]
struct Destination(String);

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Destination, String> {
        match text.is_empty()
            || text.starts_with('-')
            || text.chars().any(|c| c.is_control() || c.is_whitespace())
        {
            true => Err("not an ssh destination".into()),
            false => Ok(Destination(text.to_owned())),
        }
    }
}

impl Connect {
    fn host(&self, paths: &Paths) -> Result<Host, String> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => {
                self.destination.0.parse().map_err(|why| format!("{why}\nhint: choose a name with --name"))?
            }
        };
        Ok(Host::at(&paths.runtime, name))
    }
}

pub(super) fn run(paths: &Paths, options: Connect) -> Outcome {
    let host = options.host(paths)?;
    let host_dir = HostDir::take(paths, host)?;
    let detaches = block_on(async {
        let stop = |kind| signal(kind).map_err(|error| format!("cannot install signal handlers: {error}"));
        let mut signals =
            (stop(SignalKind::interrupt())?, stop(SignalKind::terminate())?, stop(SignalKind::hangup())?);
        let connection =
            Connection { ssh: Ssh::new(&options, &host_dir.host)?, options: &options, host_dir: &host_dir };
        tokio::select! {
            ended = connection.run() => ended.map(|()| options.detach),
            _ = signals.0.recv() => Ok(false),
            _ = signals.1.recv() => Ok(false),
            _ = signals.2.recv() => Ok(false),
        }
    });
    let host = host_dir.host.clone();
    drop(host_dir);
    match detaches? {
        true => detach(paths, &options, &host),
        false => Ok(ExitCode::SUCCESS),
    }
}

/// The local directory of a host, locked by this process.
struct HostDir {
    host: Host,
    _lock: OwnedFd,
}

impl HostDir {
    fn take(paths: &Paths, host: Host) -> Result<HostDir, String> {
        for dir in [&paths.runtime, &paths.runtime.join("hosts"), &host.dir] {
            make_private(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        paths.check_runtime()?;
        let lock = host.try_lock()?.ok_or_else(|| {
            let name = host.name.as_str();
            format!(
                "`outpost connect` already runs for {name}\nhint: stop it with `outpost disconnect {name}`"
            )
        })?;
        let host_dir = HostDir { host, _lock: lock };
        host_dir.clear();
        Ok(host_dir)
    }

    /// Removes the forwarded sockets, so that no client connects to a dead forward.
    fn clear(&self) {
        for name in SOCKETS {
            let _not_there = std::fs::remove_file(self.socket(name));
        }
    }

    fn socket(&self, name: &str) -> std::path::PathBuf {
        self.host.dir.join(format!("{name}.sock"))
    }
}

impl Drop for HostDir {
    fn drop(&mut self) {
        self.clear();
        for name in ["ssh.sock", "host.json", "sessions.port", "sessions.token"] {
            let _not_there = std::fs::remove_file(self.host.dir.join(name));
        }
    }
}

/// An established connection.
struct Established {
    ssh: Child,
    remote: RemoteDaemon,
    /// Local and remote port of the sessions face.
    port: Option<(u16, u16)>,
    since: Instant,
}

struct Connection<'a> {
    ssh: Ssh<'a>,
    options: &'a Connect,
    host_dir: &'a HostDir,
}

impl Connection<'_> {
    /// Connects and reconnects until the process is stopped. With `--detach`, returns once connected, when no prompt is
    /// needed any more.
    async fn run(&self) -> Result<(), String> {
        let name = self.host_dir.host.name.as_str();
        errln!("outpost: connecting to {}", self.options.destination.0);
        let prompts = if self.options.batch { AuthPrompts::Never } else { AuthPrompts::Allowed };
        let replace = if self.options.force { Replace::Any } else { Replace::Older };
        let mut up = self.establish(prompts, replace).await?;
        if self.options.detach {
            return Ok(());
        }
        self.show(&up);
        let mut pause = RETRY_PAUSE_MIN;
        loop {
            let ended = up.ssh.wait().await;
            self.host_dir.clear();
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            self.truncate_log();
            errln!("outpost: the connection to {name} is lost (ssh: {how}); reconnecting");
            if up.since.elapsed() > STABLE_AFTER {
                pause = RETRY_PAUSE_MIN;
            }
            up = loop {
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(RETRY_PAUSE_MAX);
                self.truncate_log();
                // Keep a binary that another client installed meanwhile, or the two would replace each other.
                match self.establish(AuthPrompts::Never, Replace::Nothing).await {
                    Ok(up) => break up,
                    Err(why) => {
                        let why = crate::console::line(&why);
                        errln!("outpost: {name}: {why}; retry in about {} s", pause.as_secs().max(1))
                    }
                }
            };
            errln!("outpost: reconnected to {name}");
        }
    }

    /// Bounds the log of a background client, because a host may be unreachable for months.
    fn truncate_log(&self) {
        let own = self.options.batch.then(|| std::io::stderr().as_fd().try_clone_to_owned().ok()).flatten();
        let is_large = |log: &File| log.metadata().is_ok_and(|of| of.is_file() && of.len() > LOG_BYTES_MAX);
        if let Some(log) = own.map(File::from).filter(is_large) {
            let _stays_large = log.set_len(0);
        }
    }

    /// Connects, installs, starts the daemon, forwards its sockets and checks that it replies.
    async fn establish(&self, prompts: AuthPrompts, replace: Replace) -> Result<Established, String> {
        let ssh = self.ssh.connect(prompts).await?;
        let binary = install(&self.ssh, replace).await?;
        let remote = self.bootstrap(&binary, replace).await?;
        if remote.action != "found" {
            errln!("outpost: {} the remote daemon", remote.action.escape_debug());
        }
        let sockets = self.forwards(&remote)?;
        self.ssh.forward(&sockets).await.map_err(|why| format!("cannot forward the sockets: {why}"))?;
        let port = match (self.options.sessions_port, remote.sessions_port) {
            (Some(here), Some(there)) => Some((self.forward_port(here, there).await?, there)),
            (Some(_), None) => {
                return Err("the remote sessions face has no port\nhint: omit --sessions-port, or set [sessions] listen on \
                            the remote host"
                    .into());
            }
            (None, _) => None,
        };
        let about = HostInfo { home: remote.home.clone(), program: remote.program.clone() };
        self.host_dir.host.write_info(&about)?;
        self.check().await?;
        Ok(Established { ssh, remote, port, since: Instant::now() })
    }

    async fn bootstrap(&self, binary: &str, replace: Replace) -> Result<RemoteDaemon, String> {
        let flag = match replace {
            Replace::Older => "",
            Replace::Any => " --force",
            Replace::Nothing => " --keep",
        };
        let output = self.ssh.run(&format!("{binary} arrive{flag}"), None).await;
        let output = output.map_err(|why| format!("cannot start the remote daemon: {why}"))?;
        let prefix = format!("{LINE_MARK} arrived ");
        let line = output.lines().find_map(|line| line.strip_prefix(&prefix));
        let line = line.ok_or_else(|| {
            let output: String = output.chars().take(EXCERPT_CHARS).collect();
            format!("unexpected output of the remote outpost: {output:?}")
        })?;
        serde_json::from_str(line).map_err(|error| format!("unexpected reply of the remote outpost: {error}"))
    }

    /// The arguments of ssh's -L. The remote host is not trusted, so its paths are checked.
    fn forwards(&self, remote: &RemoteDaemon) -> Result<Vec<String>, String> {
        let pairs = SOCKETS.iter().zip(remote_sockets(remote));
        let forward = |(name, there): (&&str, &std::path::Path)| match is_plain(there) {
            true => Ok(format!("{}:{}", self.host_dir.socket(name).display(), there.display())),
            false => Err(format!(
                "ssh cannot forward the remote socket {there:?}\nhint: use a runtime directory of letters, digits and `/._@+-`"
            )),
        };
        pairs.map(forward).collect()
    }

    /// Forwards the HTTP port of the sessions face to a local port.
    async fn forward_port(&self, here: u16, there: u16) -> Result<u16, String> {
        let forwarded = self.ssh.forward(&[format!("127.0.0.1:{here}:127.0.0.1:{there}")]).await;
        forwarded
            .map(|()| here)
            .map_err(|why| format!("cannot forward the port of the sessions face to 127.0.0.1:{here}: {why}"))
    }

    /// Checks that the daemon replies, because ssh accepts a forward that sshd later refuses.
    async fn check(&self) -> Result<(), String> {
        let answered = tokio::time::timeout(REPLY_TIMEOUT, async {
            let mut client = AsyncClient::connect(&self.host_dir.socket("control")).await?;
            client.send("status", &()).await?;
            client.receive().await
        });
        let why = match answered.await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("no reply within {} s", REPLY_TIMEOUT.as_secs()),
        };
        Err(format!(
            "the remote daemon does not reply through ssh: {why}\nhint: check AllowStreamLocalForwarding of its sshd"
        ))
    }

    fn show(&self, up: &Established) {
        let name = self.host_dir.host.name.as_str();
        errln!("outpost: connected to {name}, which runs outpost {}", up.remote.version.escape_debug());
        let mut table = vec![["FACE", "LOCAL", "REMOTE"].map(str::to_owned)];
        for (name, there) in SOCKETS.iter().zip(remote_sockets(&up.remote)) {
            table.push([
                (*name).to_owned(),
                self.host_dir.socket(name).display().to_string(),
                there.display().to_string(),
            ]);
        }
        if let Some((here, there)) = up.port {
            let [here, there] = [here, there].map(|port| format!("http://127.0.0.1:{port}/rpc"));
            table.push(["sessions (HTTP)".into(), here, there]);
        }
        print_table(&table);
        let _closed = writeln!(std::io::stdout(), "try: outpost --host {name} ps");
    }
}

/// The remote sockets in the order of `SOCKETS`.
fn remote_sockets(remote: &RemoteDaemon) -> [&std::path::Path; 5] {
    [&remote.control, &remote.exec, &remote.broker, &remote.approvals, &remote.sessions]
}

/// A random pause between half of `pause` and all of it, so that many clients do not retry at the same time.
fn jittered(pause: Duration) -> Duration {
    let share =
        outpost_sys::random::bytes::<2>().map_or(0.0, |bytes| f64::from(u16::from_ne_bytes(bytes)) / 65536.0);
    pause.mul_f64(0.5 + share / 2.0)
}

/// Starts the connection again in a background process without prompts.
fn detach(paths: &Paths, options: &Connect, host: &Host) -> Outcome {
    let log_path = host.dir.join("connect.log");
    let log = File::options().create(true).append(true).mode(0o600).open(&log_path);
    let log = log.and_then(|log| log.set_len(0).map(|()| log));
    let log = log.map_err(|error| format!("{}: {error}", log_path.display()))?;
    let mut arguments: Vec<Vec<u8>> = Vec::new();
    for (flag, dir) in [("--state-dir", &paths.state), ("--runtime-dir", &paths.runtime)] {
        arguments.extend([flag.into(), dir.as_os_str().as_bytes().to_vec()]);
    }
    arguments.extend(["connect", "--batch", "--name", host.name.as_str()].map(Into::into));
    for (flag, port) in [("--port", options.port), ("--sessions-port", options.sessions_port)] {
        if let Some(port) = port {
            arguments.extend([flag.into(), port.to_string().into()]);
        }
    }
    for option in &options.ssh_options {
        arguments.push(format!("--ssh-option={option}").into());
    }
    arguments.extend(["--".into(), options.destination.0.clone().into()]);
    let arguments = arguments.into_iter().map(background::argument).collect::<Result<Vec<_>, _>>()?;
    let (reader, writer) = std::io::pipe().map_err(|error| error.to_string())?;
    let started = background::start(&arguments, writer.as_fd(), &log)?;
    drop(writer);
    let mut is_up = false;
    for line in BufReader::new(reader).lines().map_while(Result::ok) {
        outln!("{line}");
        is_up = line.starts_with("try: ");
        if is_up {
            break;
        }
    }
    match is_up {
        true => {
            errln!(
                "outpost: connected in the background (pid {}, log {}); stop it with `outpost disconnect {}`",
                started.pid,
                log_path.display(),
                host.name.as_str()
            );
            Ok(ExitCode::SUCCESS)
        }
        false => Err(format!(
            "the background connection failed; see {}\nhint: --detach needs a key in ssh-agent or one without a passphrase",
            log_path.display()
        )),
    }
}

#[derive(Args)]
pub(super) struct Disconnect {
    /// Name of the host, as in --host
    name: HostName,
}

pub(super) fn disconnect(paths: &Paths, options: Disconnect) -> Outcome {
    paths.check_runtime()?;
    let host = Host::at(&paths.runtime, options.name);
    let not_connected = || format!("no `outpost connect` runs for {}", host.name.as_str());
    let connected = || procfs::stat(host.connector_pid()?).map(|stat| Identity::of(&stat));
    let identity = connected().ok_or_else(not_connected)?;
    let process = identity.open().map_err(|_| not_connected())?;
    // Check again after the open: the pidfd must refer to the process that holds the lock.
    if connected() != Some(identity) {
        return Err(not_connected());
    }
    pidfd::signal(&process, Signal::TERM)
        .map_err(|errno| format!("cannot stop `outpost connect`: {errno}"))?;
    match wait_readable(&process, EXIT_TIMEOUT).map_err(|errno| errno.to_string())? {
        true => Ok(ExitCode::SUCCESS),
        false => Err(format!("`outpost connect` has not exited {} s after SIGTERM", EXIT_TIMEOUT.as_secs())),
    }
}
