//! `outpost connect`: this program and its daemon on another host, and the daemon's sockets here, for as long as it takes.

mod install;
mod ssh;

use super::arrive::{Arrived, MARK};
use super::{Outcome, background, block_on, print_table};
use crate::hosts::{About, Host, HostName};
use crate::paths::{Paths, make_private};
use clap::Args;
use install::{Replace, install};
use outpost_control::client::Link;
use outpost_sys::epoll::wait_readable;
use outpost_sys::file::{self, Open};
use outpost_sys::identity::Identity;
use outpost_sys::signal::Signal;
use outpost_sys::{limits, pidfd, procfs};
use ssh::{Asking, Ssh, is_plain};
use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::{Ipv4Addr, TcpListener};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::OpenOptionsExt;
use std::process::ExitCode;
use std::str::FromStr;
use std::time::Duration;
use tokio::process::Child;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::Instant;

/// How long the daemon may take to answer through ssh.
const ANSWER_PATIENCE: Duration = Duration::from_secs(20);

/// Before another attempt: doubled each time, up to the last.
const PAUSE_FIRST: Duration = Duration::from_millis(250);
const PAUSE_MAX: Duration = Duration::from_secs(20);

/// What the log of one in the background may have before it is begun anew.
const LOG_BYTES_MAX: u64 = 1024 * 1024;

/// A connection that lasted so long was a good one.
const LASTED: Duration = Duration::from_secs(30);

/// How often another local port is tried.
const PORTS_TRIED: usize = 5;

/// How long one that is told to end may take.
const END_PATIENCE: Duration = Duration::from_secs(10);

/// What is shown of an answer that makes no sense.
const SHOWN_CHARS: usize = 200;

/// As the daemon calls the file with its token.
const TOKEN: &str = "sessions.token";

/// The sockets of the faces, as they are called here and there.
const SOCKETS: [&str; 4] = ["control", "exec", "broker", "approvals"];

/// Use another host: over ssh, puts this program there if it is missing or older, starts its daemon, and forwards its sockets
///
/// While it runs, every command that takes `--host NAME` works on that host. It comes back by itself when ssh ends, and
/// what follows output goes on where it was. The daemon there and its processes stay when this ends.
#[derive(Args)]
pub(super) struct Connect {
    /// As ssh takes it: user@host, or a name of ~/.ssh/config
    destination: Destination,
    /// What --host is to call it [default: the destination]
    #[arg(long)]
    name: Option<HostName>,
    /// An option for ssh, as ssh takes it
    #[arg(short = 'o', long = "ssh-option", value_name = "NAME=VALUE")]
    ssh_options: Vec<String>,
    /// The port there
    #[arg(short, long)]
    port: Option<u16>,
    /// Stay in the background once everything is there; needs an ssh that does not have to ask
    #[arg(long)]
    detach: bool,
    /// Replace the binary there, and the daemon's, also if it is newer
    #[arg(long)]
    force: bool,
    /// Never ask anything
    #[arg(long, hide = true)]
    batch: bool,
}

/// Where to: nothing that ssh could take for an option.
#[derive(Clone, Debug)]
struct Destination(String);

impl FromStr for Destination {
    type Err = String;

    fn from_str(text: &str) -> Result<Destination, String> {
        match text.is_empty()
            || text.starts_with('-')
            || text.chars().any(|c| c.is_control() || c.is_whitespace())
        {
            true => Err("not a destination for ssh".into()),
            false => Ok(Destination(text.to_owned())),
        }
    }
}

impl Connect {
    fn host(&self, paths: &Paths) -> Result<Host, String> {
        let name = match &self.name {
            Some(name) => name.clone(),
            None => {
                self.destination.0.parse().map_err(|why| format!("say with --name what to call it: {why}"))?
            }
        };
        Ok(Host::at(&paths.runtime, name))
    }
}

pub(super) fn run(paths: &Paths, options: Connect) -> Outcome {
    let host = options.host(paths)?;
    let place = Place::take(paths, host)?;
    let goes_on = block_on(async {
        let stop = |kind| signal(kind).map_err(|error| format!("cannot wait for signals: {error}"));
        let mut signals =
            (stop(SignalKind::interrupt())?, stop(SignalKind::terminate())?, stop(SignalKind::hangup())?);
        let connection =
            Connection { ssh: Ssh::new(&options, &place.host)?, options: &options, place: &place };
        tokio::select! {
            ended = connection.work() => ended.map(|()| options.detach),
            _ = signals.0.recv() => Ok(false),
            _ = signals.1.recv() => Ok(false),
            _ = signals.2.recv() => Ok(false),
        }
    });
    let host = place.host.clone();
    drop(place);
    match goes_on? {
        true => detach(paths, &options, &host),
        false => Ok(ExitCode::SUCCESS),
    }
}

/// The directory of a host, ours as long as this lives.
struct Place {
    host: Host,
    /// It has a port here that stays the same.
    port_file: std::path::PathBuf,
    _lock: OwnedFd,
}

impl Place {
    fn take(paths: &Paths, host: Host) -> Result<Place, String> {
        for dir in [&paths.runtime, &paths.runtime.join("hosts"), &host.dir] {
            make_private(dir).map_err(|error| format!("{}: {error}", dir.display()))?;
        }
        paths.check_runtime()?;
        let lock = host.take_lock()?.ok_or_else(|| {
            let name = host.name.as_str();
            format!("`outpost connect` is up for {name} already; `outpost disconnect {name}` ends it")
        })?;
        let port_file = Paths { runtime: host.dir.clone(), ..paths.clone() }.sessions_port();
        let place = Place { host, port_file, _lock: lock };
        place.clear();
        Ok(place)
    }

    /// Nobody shall connect to what leads nowhere.
    fn clear(&self) {
        for name in SOCKETS {
            let _not_there = std::fs::remove_file(self.socket(name));
        }
    }

    /// What the daemon there accepts, for commands with `--host`.
    fn write_token(&self, token: Option<&str>) -> Result<(), String> {
        let Some(token) = token else { return Ok(()) };
        let path = self.host.dir.join(TOKEN);
        let written = file::open(&path, Open::Replace)
            .map_err(std::io::Error::from)
            .and_then(|file| File::from(file).write_all(token.as_bytes()));
        written.map_err(|error| format!("{}: {error}", path.display()))
    }

    fn socket(&self, name: &str) -> std::path::PathBuf {
        self.host.dir.join(format!("{name}.sock"))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.clear();
        for name in ["ssh.sock", "host.json", "sessions.port", TOKEN] {
            let _not_there = std::fs::remove_file(self.host.dir.join(name));
        }
    }
}

/// What is up, until ssh ends.
struct Up {
    ssh: Child,
    arrived: Arrived,
    /// Here, and there.
    port: Option<(u16, u16)>,
    since: Instant,
}

struct Connection<'a> {
    ssh: Ssh<'a>,
    options: &'a Connect,
    place: &'a Place,
}

impl Connection<'_> {
    /// Until somebody ends it; with --detach, until all that may have to be asked about is done.
    async fn work(&self) -> Result<(), String> {
        let name = self.place.host.name.as_str();
        errln!("outpost: connecting to {}", self.options.destination.0);
        let asking = if self.options.batch { Asking::Never } else { Asking::Allowed };
        let replace = if self.options.force { Replace::Any } else { Replace::Older };
        let mut up = self.establish(asking, replace).await?;
        if self.options.detach {
            return Ok(());
        }
        self.show(&up);
        let mut pause = PAUSE_FIRST;
        loop {
            let ended = up.ssh.wait().await;
            self.place.clear();
            let how = ended.map_or_else(|error| error.to_string(), |status| status.to_string());
            self.keep_log_small();
            errln!("outpost: the connection to {name} is lost (ssh: {how}); connecting again");
            if up.since.elapsed() > LASTED {
                pause = PAUSE_FIRST;
            }
            up = loop {
                tokio::time::sleep(jittered(pause)).await;
                pause = (pause * 2).min(PAUSE_MAX);
                self.keep_log_small();
                // Whoever else puts another build there meanwhile is not fought with.
                match self.establish(Asking::Never, Replace::Nothing).await {
                    Ok(up) => break up,
                    Err(why) => {
                        errln!("outpost: {name}: {why}; trying again in about {} s", pause.as_secs().max(1))
                    }
                }
            };
            errln!("outpost: connected to {name} again");
        }
    }

    /// In the background the log is ours alone. A host that is away for months must not fill anything.
    fn keep_log_small(&self) {
        let own = self.options.batch.then(|| std::io::stderr().as_fd().try_clone_to_owned().ok()).flatten();
        let is_large = |log: &File| log.metadata().is_ok_and(|of| of.is_file() && of.len() > LOG_BYTES_MAX);
        if let Some(log) = own.map(File::from).filter(is_large) {
            let _stays_large = log.set_len(0);
        }
    }

    /// From nothing to sockets that answer.
    async fn establish(&self, asking: Asking, replace: Replace) -> Result<Up, String> {
        let ssh = self.ssh.connect(asking).await?;
        let binary = install(&self.ssh, replace).await?;
        let arrived = self.arrive(&binary, replace).await?;
        if arrived.did != "found" {
            errln!("outpost: {} the daemon there", arrived.did.escape_debug());
        }
        let sockets = self.forwards(&arrived)?;
        self.ssh.forward(&sockets).await.map_err(|why| format!("cannot forward the sockets: {why}"))?;
        self.place.write_token(arrived.sessions_token.as_deref())?;
        let port = match arrived.sessions_port {
            Some(there) => Some((self.forward_port(there).await?, there)),
            None => None,
        };
        let about = About { home: arrived.home.clone(), program: arrived.program.clone() };
        self.place.host.write_about(&about)?;
        self.check().await?;
        Ok(Up { ssh, arrived, port, since: Instant::now() })
    }

    async fn arrive(&self, binary: &str, replace: Replace) -> Result<Arrived, String> {
        let flag = match replace {
            Replace::Older => "",
            Replace::Any => " --force",
            Replace::Nothing => " --keep",
        };
        let said = self.ssh.run(&format!("{binary} arrive{flag}"), None).await;
        let said = said.map_err(|why| format!("no daemon there: {why}"))?;
        let mark = format!("{MARK} arrived ");
        let line = said.lines().find_map(|line| line.strip_prefix(&mark));
        let line = line.ok_or_else(|| {
            let said: String = said.chars().take(SHOWN_CHARS).collect();
            format!("the outpost there says something else than where its daemon is: {said:?}")
        })?;
        // Without what it says: a token is in there.
        serde_json::from_str(line).map_err(|error| format!("unexpected reply of the outpost there: {error}"))
    }

    /// In the words of ssh's -L. Where the sockets are is the other host's word, and nothing but paths.
    fn forwards(&self, arrived: &Arrived) -> Result<Vec<String>, String> {
        let pairs = SOCKETS.iter().zip(sockets_there(arrived));
        let forward = |(name, there): (&&str, &std::path::Path)| match is_plain(there) {
            true => Ok(format!("{}:{}", self.place.socket(name).display(), there.display())),
            false => Err(format!(
                "the daemon there listens on {there:?}, which ssh cannot forward; give it a plainer runtime directory"
            )),
        };
        pairs.map(forward).collect()
    }

    /// The same port as before, if it is still free.
    async fn forward_port(&self, there: u16) -> Result<u16, String> {
        let before = std::fs::read_to_string(&self.place.port_file).ok().and_then(|text| text.parse().ok());
        let mut why = String::new();
        for attempt in 0..PORTS_TRIED {
            let free = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).and_then(|found| found.local_addr());
            let here = match before {
                Some(port) if attempt == 0 => port,
                _ => free().map_err(|error| format!("no port is free: {error}"))?.port(),
            };
            match self.ssh.forward(&[format!("127.0.0.1:{here}:127.0.0.1:{there}")]).await {
                Ok(()) => {
                    let path = &self.place.port_file;
                    let written = std::fs::write(path, here.to_string());
                    return written.map(|()| here).map_err(|error| format!("{}: {error}", path.display()));
                }
                Err(reason) => why = reason,
            }
        }
        Err(format!("cannot forward the sessions face's port: {why}"))
    }

    /// ssh forwards what the other side then refuses.
    async fn check(&self) -> Result<(), String> {
        let answered = tokio::time::timeout(ANSWER_PATIENCE, async {
            let mut link = Link::connect(&self.place.socket("control")).await?;
            link.send("status", &()).await?;
            link.receive().await
        });
        let why = match answered.await {
            Ok(Ok(_)) => return Ok(()),
            Ok(Err(error)) => error.to_string(),
            Err(_) => format!("nothing within {} s", ANSWER_PATIENCE.as_secs()),
        };
        Err(format!(
            "the daemon there does not answer through ssh ({why}); does its sshd allow AllowStreamLocalForwarding?"
        ))
    }

    fn show(&self, up: &Up) {
        let name = self.place.host.name.as_str();
        errln!("outpost: connected to {name}, where outpost {} runs", up.arrived.version.escape_debug());
        let mut table = vec![["FACE", "HERE", "THERE"].map(str::to_owned)];
        for (name, there) in SOCKETS.iter().zip(sockets_there(&up.arrived)) {
            table.push([
                (*name).to_owned(),
                self.place.socket(name).display().to_string(),
                there.display().to_string(),
            ]);
        }
        if let Some((here, there)) = up.port {
            let [here, there] = [here, there].map(|port| format!("http://127.0.0.1:{port}/rpc"));
            table.push(["sessions".into(), here, there]);
        }
        print_table(&table);
        let _nobody_reads = writeln!(std::io::stdout(), "try: outpost --host {name} ps");
    }
}

/// In the order of `SOCKETS`.
fn sockets_there(arrived: &Arrived) -> [&std::path::Path; 4] {
    [&arrived.control, &arrived.exec, &arrived.broker, &arrived.approvals]
}

/// Not all at once, when many come back after the same failure: between half of it and all.
fn jittered(pause: Duration) -> Duration {
    let share = limits::random::<2>().map_or(0.0, |bytes| f64::from(u16::from_ne_bytes(bytes)) / 65536.0);
    pause.mul_f64(0.5 + share / 2.0)
}

/// The same again without us, which asks nothing: what there was to ask has been.
fn detach(paths: &Paths, options: &Connect, host: &Host) -> Outcome {
    let log_path = host.dir.join("connect.log");
    let log = File::options().create(true).append(true).mode(0o600).open(&log_path);
    let log = log.and_then(|log| log.set_len(0).map(|()| log));
    let log = log.map_err(|error| format!("{}: {error}", log_path.display()))?;
    let mut words: Vec<Vec<u8>> = Vec::new();
    for (flag, dir) in [("--state-dir", &paths.state), ("--runtime-dir", &paths.runtime)] {
        words.extend([flag.into(), dir.as_os_str().as_bytes().to_vec()]);
    }
    words.extend(["connect", "--batch", "--name", host.name.as_str()].map(Into::into));
    if let Some(port) = options.port {
        words.extend(["--port".into(), port.to_string().into()]);
    }
    for option in &options.ssh_options {
        words.push(format!("--ssh-option={option}").into());
    }
    words.extend(["--".into(), options.destination.0.clone().into()]);
    let arguments = words.into_iter().map(background::argument).collect::<Result<Vec<_>, _>>()?;
    let (says, its) = std::io::pipe().map_err(|error| error.to_string())?;
    let started = background::start(&arguments, its.as_fd(), &log)?;
    drop(its);
    let mut is_up = false;
    for line in BufReader::new(says).lines().map_while(Result::ok) {
        outln!("{line}");
        is_up = line.starts_with("try: ");
        if is_up {
            break;
        }
    }
    match is_up {
        true => {
            errln!(
                "outpost: it stays in the background (process {}, log {}); `outpost disconnect {}` ends it",
                started.pid,
                log_path.display(),
                host.name.as_str()
            );
            Ok(ExitCode::SUCCESS)
        }
        false => Err(format!(
            "it does not connect without somebody to ask; {} says why (a key in an agent, or one without a passphrase, would do)",
            log_path.display()
        )),
    }
}

#[derive(Args)]
pub(super) struct Disconnect {
    /// What --host calls it
    name: HostName,
}

pub(super) fn disconnect(paths: &Paths, options: Disconnect) -> Outcome {
    paths.check_runtime()?;
    let host = Host::at(&paths.runtime, options.name);
    let none = || format!("no `outpost connect` is up for {}", host.name.as_str());
    let connected = || procfs::stat(host.connected_by()?).map(|stat| Identity::of(&stat));
    let identity = connected().ok_or_else(none)?;
    let process = identity.open().map_err(|_| none())?;
    // Again after the open: the pid in the lock file is of the process that holds the lock.
    if connected() != Some(identity) {
        return Err(none());
    }
    pidfd::signal(&process, Signal::TERM).map_err(|errno| format!("cannot end it: {errno}"))?;
    match wait_readable(&process, END_PATIENCE).map_err(|errno| errno.to_string())? {
        true => Ok(ExitCode::SUCCESS),
        false => Err(format!("it was told to end and has not after {} s", END_PATIENCE.as_secs())),
    }
}
