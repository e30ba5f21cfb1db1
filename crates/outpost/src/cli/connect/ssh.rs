//! How the system's ssh is called: one connection, and everything else over it.

use super::Connect;
use crate::hosts::Host;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// The longest path of a socket, and what ssh adds to that of its own while it makes it.
const SOCKET_BYTES_MAX: usize = 107;
const SSH_ADDS_BYTES: usize = 17;

/// The most that is read of what a command over there says.
const SAID_BYTES_MAX: u64 = 64 * 1024;

/// How long a connection that nobody is asked about may take.
const BATCH_PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

/// Whether ssh may ask for what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asking {
    Allowed,
    Never,
}

/// Which host, and how ssh reaches it.
pub(super) struct Ssh<'a> {
    options: &'a Connect,
    /// Over which commands reach the connection.
    control: PathBuf,
}

impl<'a> Ssh<'a> {
    pub(super) fn new(options: &'a Connect, host: &Host) -> Result<Ssh<'a>, String> {
        let control = host.dir.join("ssh.sock");
        let path = control.as_os_str().as_encoded_bytes();
        if !is_plain(&control) || path.len() + SSH_ADDS_BYTES > SOCKET_BYTES_MAX {
            return Err(format!(
                "{}: ssh cannot have a socket there (at most {} bytes, of letters, digits and `/._@+-`); choose a shorter --name or another --runtime-dir",
                control.display(),
                SOCKET_BYTES_MAX - SSH_ADDS_BYTES
            ));
        }
        Ok(Ssh { options, control })
    }

    /// Makes the connection; returns when it can be used.
    pub(super) async fn connect(&self, asking: Asking) -> Result<Child, String> {
        self.end_old().await;
        let mut ssh = Command::new("ssh");
        ssh.args(["-N", "-T", "-a", "-x", "-M", "-S"]).arg(&self.control);
        let own = [
            "ControlPersist=no",
            // Those of the user's configuration: they may be taken by another ssh.
            "ClearAllForwardings=yes",
            "RemoteCommand=none",
            "StreamLocalBindUnlink=yes",
            "StreamLocalBindMask=0177",
        ];
        let batch = (asking == Asking::Never).then_some("BatchMode=yes");
        for option in own.into_iter().chain(batch) {
            ssh.args(["-o", option]);
        }
        for option in &self.options.ssh_options {
            ssh.arg("-o").arg(option);
        }
        if let Some(port) = self.options.port {
            ssh.args(["-p", &port.to_string()]);
        }
        // The first that ssh hears of an option counts.
        for option in ["ServerAliveInterval=5", "ServerAliveCountMax=3", "ConnectTimeout=20"] {
            ssh.args(["-o", option]);
        }
        ssh.arg("--").arg(&self.options.destination.0);
        ssh.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let mut master = ssh.spawn().map_err(|error| format!("cannot run ssh: {error}"))?;
        let made = async {
            // It is there once ssh has been let in.
            while !self.control.exists() {
                tokio::select! {
                    ended = master.wait() => return Err(self.not_connected(ended)),
                    () = tokio::time::sleep(LOOK) => {}
                }
            }
            Ok(())
        };
        match asking {
            Asking::Allowed => made.await?,
            Asking::Never => tokio::time::timeout(BATCH_PATIENCE, made)
                .await
                .map_err(|_| format!("ssh did not connect within {} s", BATCH_PATIENCE.as_secs()))??,
        }
        Ok(master)
    }

    fn not_connected(&self, ended: std::io::Result<std::process::ExitStatus>) -> String {
        let (how, destination) = (ended_how(ended), &self.options.destination.0);
        format!("ssh did not connect ({how}); once `ssh {destination}` gets there, this does too")
    }

    /// What a killed `outpost connect` may have left.
    async fn end_old(&self) {
        if self.control.exists() {
            let _nobody =
                self.over().args(["-O", "exit", "--"]).arg(&self.options.destination.0).output().await;
            let _gone = std::fs::remove_file(&self.control);
        }
    }

    /// Over the connection that there is, never over a new one.
    fn over(&self) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-T", "-S"]).arg(&self.control);
        for option in ["BatchMode=yes", "ProxyCommand=false", "LogLevel=ERROR"] {
            ssh.args(["-o", option]);
        }
        ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        ssh
    }

    /// Runs a script of the POSIX shell there, and returns what it says on standard output.
    pub(super) async fn run(&self, script: &str, input: Option<File>) -> Result<String, String> {
        let mut ssh = self.over();
        ssh.arg("--").arg(&self.options.destination.0).arg(format!("exec sh -c {}", quoted(script)));
        if let Some(input) = input {
            ssh.stdin(input);
        }
        said(ssh).await
    }

    /// Has what is connected to here go there: each a place here and one there, as ssh's -L takes them.
    pub(super) async fn forward(&self, forwards: &[String]) -> Result<(), String> {
        let mut ssh = self.over();
        ssh.args(["-O", "forward"]);
        for forward in forwards {
            ssh.args(["-L", forward]);
        }
        ssh.arg("--").arg(&self.options.destination.0);
        said(ssh).await.map(drop)
    }
}

async fn said(mut ssh: Command) -> Result<String, String> {
    let mut ssh = ssh.spawn().map_err(|error| format!("cannot run ssh: {error}"))?;
    let (out, err) = (ssh.stdout.take(), ssh.stderr.take());
    let (out, err, ended) = tokio::join!(read(out), read(err), ssh.wait());
    match ended {
        Ok(status) if status.success() => Ok(out),
        ended => {
            let why = err.lines().map(|line| line.escape_debug().to_string()).collect::<Vec<_>>().join("; ");
            Err(if why.is_empty() { ended_how(ended) } else { why })
        }
    }
}

/// All is read, so that nobody waits for us; what is too much is forgotten.
async fn read(from: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let _cut_off = (&mut from).take(SAID_BYTES_MAX).read_to_end(&mut bytes).await;
        let _cut_off = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn ended_how(ended: std::io::Result<ExitStatus>) -> String {
    ended.map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// One word for any shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// A path that means itself wherever ssh and shells read it, and that a socket can have.
pub(super) fn is_plain(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._@+-".contains(byte);
    path.is_absolute() && bytes.len() <= SOCKET_BYTES_MAX && bytes.iter().all(plain)
}
