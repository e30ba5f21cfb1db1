//! Calls of the system's ssh: one master connection, over which commands and forwards are multiplexed.

use super::Connect;
use crate::hosts::Host;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::{Child, Command};

/// Longest path of a socket, and the length of the temporary suffix that ssh appends to its control path.
const SOCKET_BYTES_MAX: usize = 107;
const SSH_SUFFIX_BYTES: usize = 17;

/// Output of a remote command that is kept.
const OUTPUT_BYTES_MAX: u64 = 64 * 1024;

/// How long a connection without prompts may take.
const BATCH_TIMEOUT: Duration = Duration::from_secs(60);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Whether ssh may prompt for a password or a host key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum AuthPrompts {
    Allowed,
    Never,
}

/// The ssh connection to one host.
pub(super) struct Ssh<'a> {
    options: &'a Connect,
    /// Socket of the master connection.
    control_path: PathBuf,
}

impl<'a> Ssh<'a> {
    pub(super) fn new(options: &'a Connect, host: &Host) -> Result<Ssh<'a>, String> {
        let control_path = host.dir.join("ssh.sock");
        let path = control_path.as_os_str().as_encoded_bytes();
        if !is_plain(&control_path) || path.len() + SSH_SUFFIX_BYTES > SOCKET_BYTES_MAX {
            return Err(format!(
                "ssh cannot use {} as its control path (at most {} bytes of letters, digits and `/._@+-`)\nhint: choose a shorter --name or another --runtime-dir",
                control_path.display(),
                SOCKET_BYTES_MAX - SSH_SUFFIX_BYTES
            ));
        }
        Ok(Ssh { options, control_path })
    }

    /// Starts the master connection and waits until it is usable.
    pub(super) async fn connect(&self, prompts: AuthPrompts) -> Result<Child, String> {
        self.close_stale_master().await;
        let mut ssh = Command::new("ssh");
        ssh.args(["-N", "-T", "-a", "-x", "-M", "-S"]).arg(&self.control_path);
        let options = [
            "ControlPersist=no",
            // Forwards of the user's configuration would fail if another ssh has them.
            "ClearAllForwardings=yes",
            "RemoteCommand=none",
            "StreamLocalBindUnlink=yes",
            "StreamLocalBindMask=0177",
        ];
        let batch = (prompts == AuthPrompts::Never).then_some("BatchMode=yes");
        for option in options.into_iter().chain(batch) {
            ssh.args(["-o", option]);
        }
        for option in &self.options.ssh_options {
            ssh.arg("-o").arg(option);
        }
        if let Some(port) = self.options.port {
            ssh.args(["-p", &port.to_string()]);
        }
        // After the user's options, because ssh uses the first value of an option.
        for option in ["ServerAliveInterval=5", "ServerAliveCountMax=3", "ConnectTimeout=20"] {
            ssh.args(["-o", option]);
        }
        ssh.arg("--").arg(&self.options.destination.0);
        ssh.stdin(Stdio::null()).stdout(Stdio::null()).kill_on_drop(true);
        let mut master = ssh.spawn().map_err(|error| format!("cannot run ssh: {error}"))?;
        let connected = async {
            // ssh creates the control socket after authentication.
            while !self.control_path.exists() {
                tokio::select! {
                    ended = master.wait() => return Err(self.not_connected(ended)),
                    () = tokio::time::sleep(POLL_INTERVAL) => {}
                }
            }
            Ok(())
        };
        match prompts {
            AuthPrompts::Allowed => connected.await?,
            AuthPrompts::Never => tokio::time::timeout(BATCH_TIMEOUT, connected)
                .await
                .map_err(|_| format!("ssh did not connect within {} s", BATCH_TIMEOUT.as_secs()))??,
        }
        Ok(master)
    }

    fn not_connected(&self, ended: std::io::Result<std::process::ExitStatus>) -> String {
        let (how, destination) = (exit_text(ended), &self.options.destination.0);
        format!("ssh did not connect ({how})\nhint: make `ssh {destination}` work first")
    }

    /// Closes a master connection that a killed `outpost connect` left behind.
    async fn close_stale_master(&self) {
        if self.control_path.exists() {
            let _no_master =
                self.multiplexed().args(["-O", "exit", "--"]).arg(&self.options.destination.0).output().await;
            let _gone = std::fs::remove_file(&self.control_path);
        }
    }

    /// An ssh command over the master connection. It never opens a connection of its own.
    fn multiplexed(&self) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-T", "-S"]).arg(&self.control_path);
        for option in ["BatchMode=yes", "ProxyCommand=false", "LogLevel=ERROR"] {
            ssh.args(["-o", option]);
        }
        ssh.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        ssh
    }

    /// Runs a POSIX shell script on the remote host and returns its standard output.
    pub(super) async fn run(&self, script: &str, input: Option<File>) -> Result<String, String> {
        let mut ssh = self.multiplexed();
        ssh.arg("--").arg(&self.options.destination.0).arg(format!("exec sh -c {}", quoted(script)));
        if let Some(input) = input {
            ssh.stdin(input);
        }
        output_of(ssh).await
    }

    /// Adds forwards, each in the syntax of ssh's -L.
    pub(super) async fn forward(&self, forwards: &[String]) -> Result<(), String> {
        let mut ssh = self.multiplexed();
        ssh.args(["-O", "forward"]);
        for forward in forwards {
            ssh.args(["-L", forward]);
        }
        ssh.arg("--").arg(&self.options.destination.0);
        output_of(ssh).await.map(drop)
    }
}

async fn output_of(mut ssh: Command) -> Result<String, String> {
    let mut ssh = ssh.spawn().map_err(|error| format!("cannot run ssh: {error}"))?;
    let (out, err) = (ssh.stdout.take(), ssh.stderr.take());
    let (out, err, ended) = tokio::join!(read(out), read(err), ssh.wait());
    match ended {
        Ok(status) if status.success() => Ok(out),
        ended => {
            let why = err.lines().map(|line| line.escape_debug().to_string()).collect::<Vec<_>>().join("; ");
            Err(if why.is_empty() { exit_text(ended) } else { why })
        }
    }
}

/// Reads to EOF, so that the writer does not block, and keeps the first `OUTPUT_BYTES_MAX`.
async fn read(from: Option<impl AsyncRead + Unpin>) -> String {
    let mut bytes = Vec::new();
    if let Some(mut from) = from {
        let _cut_off = (&mut from).take(OUTPUT_BYTES_MAX).read_to_end(&mut bytes).await;
        let _cut_off = tokio::io::copy(&mut from, &mut tokio::io::sink()).await;
    }
    String::from_utf8_lossy(&bytes).into_owned()
}

fn exit_text(ended: std::io::Result<ExitStatus>) -> String {
    ended.map_or_else(|error| error.to_string(), |status| status.to_string())
}

/// Quotes a text as one word of a POSIX shell.
pub(super) fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

/// Whether a path needs no quoting for ssh and shells, and fits into a socket address.
pub(super) fn is_plain(path: &Path) -> bool {
    let bytes = path.as_os_str().as_encoded_bytes();
    let plain = |byte: &u8| byte.is_ascii_alphanumeric() || b"/._@+-".contains(byte);
    path.is_absolute() && bytes.len() <= SOCKET_BYTES_MAX && bytes.iter().all(plain)
}
