//! The way to the daemon's approver socket: where it is, and the secret that may have to be proven there.

pub(super) use crate::console::printable;
use crate::paths::Paths;
use crate::tty;
use clap::Args;
use outpost_approvals::wire::{Answer, Request};
use outpost_approvals::{Client, Error, display};
use outpost_sys::connect::Trust;
use outpost_sys::limits;
use std::io::{IsTerminal, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};
use zeroize::Zeroizing;

/// The longest secret in a file.
const SECRET_BYTES_MAX: u64 = 1024;

#[derive(Args)]
pub(super) struct Options {
    /// The file that has the approver's secret; without it, the secret is asked for on the terminal where one is needed
    #[arg(
        long,
        global = true,
        display_order = 800,
        value_name = "PATH",
        env = "OUTPOST_APPROVER_SECRET_FILE"
    )]
    secret_file: Option<PathBuf>,
    /// The approver socket [default: approvals.sock in the runtime directory]
    #[arg(long, global = true, display_order = 801, value_name = "PATH")]
    socket: Option<PathBuf>,
}

/// How to be an approver, as often as it takes.
pub(super) struct Approver {
    socket: PathBuf,
    trust: Trust,
    secret: Option<Zeroizing<String>>,
    /// What the audit calls this program.
    program: &'static str,
}

/// A connection on which decisions can be made.
pub(super) struct Proven {
    pub(super) client: Client,
    /// What the audit calls us.
    pub(super) name: String,
}

impl Options {
    pub(super) fn approver(&self, paths: &Paths, program: &'static str) -> Result<Approver, String> {
        // Who has the secret, or can type in our place, can approve.
        limits::hide_memory().map_err(|errno| format!("cannot hide this process's memory: {errno}"))?;
        let secret = self.secret_file.as_deref().map(read_secret).transpose()?;
        // A socket that a person names may be that of another user's daemon.
        let (socket, trust) = match &self.socket {
            Some(socket) => (socket.clone(), Trust::Owner),
            None => (paths.approvals_socket(), paths.trust()),
        };
        Ok(Approver { socket, trust, secret, program })
    }
}

impl Approver {
    /// A connection that may decide. Asks for the secret, once, if the daemon wants one and there is somebody to ask.
    pub(super) async fn prove(&mut self) -> Result<Proven, String> {
        let mut client = self.connect().await?;
        match self.proven(&mut client).await {
            Ok(name) => Ok(Proven { client, name }),
            Err(Error::SecretWanted(why)) => {
                self.ask_secret(&why).await?;
                let name = self.proven(&mut client).await.map_err(|error| error.to_string())?;
                Ok(Proven { client, name })
            }
            Err(error) => Err(error.to_string()),
        }
    }

    /// The same with what is known already: nobody is asked.
    pub(super) async fn prove_again(&self) -> outpost_approvals::Result<Proven> {
        let mut client = Client::connect(&self.socket, self.trust).await?;
        let name = self.proven(&mut client).await?;
        Ok(Proven { client, name })
    }

    /// Has a new secret made. The old one, if there is one, has to be proven first.
    pub(super) async fn enroll(&mut self) -> Result<String, String> {
        let mut client = self.connect().await?;
        if self.secret.is_some() {
            self.proven(&mut client).await.map_err(|error| error.to_string())?;
        }
        let answer = match client.ask(&Request::Enroll).await {
            Err(Error::SecretWanted(why)) => {
                self.ask_secret(&why).await?;
                self.proven(&mut client).await.map_err(|error| error.to_string())?;
                client.ask(&Request::Enroll).await
            }
            answer => answer,
        };
        match answer.map_err(|error| error.to_string())? {
            Answer::Enrolled { secret } => Ok(secret),
            other => Err(unexpected(&other)),
        }
    }

    async fn connect(&self) -> Result<Client, String> {
        let hint = "is the daemon running, and is it yours? `outpost serve` starts one";
        Client::connect(&self.socket, self.trust).await.map_err(|error| match error {
            Error::Refused(reason) => reason,
            error => format!("{error}; {hint}"),
        })
    }

    async fn proven(&self, client: &mut Client) -> outpost_approvals::Result<String> {
        let secret = self.secret.as_ref().map(|secret| secret.to_string());
        let prove = Request::Prove { secret, client: self.program.to_owned() };
        match client.ask(&prove).await? {
            Answer::Welcome { name } => Ok(name),
            other => Err(Error::Refused(unexpected(&other))),
        }
    }

    async fn ask_secret(&mut self, why: &str) -> Result<(), String> {
        if !std::io::stdin().is_terminal() {
            return Err(format!("{why}; name the file that has it with --secret-file"));
        }
        let stop = SignalKind::interrupt();
        let mut interrupted = signal(stop).map_err(|error| format!("cannot wait for signals: {error}"))?;
        // Whoever is interrupted leaves the terminal as it was.
        let typed = tokio::select! {
            typed = tty::ask_secret("Approver's secret:") => typed,
            _ = interrupted.recv() => Ok(None),
        };
        let typed = typed.map_err(|error| format!("cannot ask for the approver's secret: {error}"))?;
        self.secret = Some(typed.ok_or("no secret was given")?);
        Ok(())
    }
}

fn read_secret(path: &Path) -> Result<Zeroizing<String>, String> {
    let fail = |error: std::io::Error| format!("cannot read the secret in {}: {error}", path.display());
    let file = std::fs::File::open(path).map_err(fail)?;
    let found = file.metadata().map_err(fail)?;
    if found.is_file() && found.mode() & 0o077 != 0 {
        return Err(format!(
            "others can read the secret in {0}: `chmod 600 {0}`, and have a new one made",
            path.display()
        ));
    }
    let mut secret = Zeroizing::new(String::new());
    file.take(SECRET_BYTES_MAX).read_to_string(&mut secret).map_err(fail)?;
    if secret.trim().is_empty() {
        return Err(format!("there is no secret in {}", path.display()));
    }
    Ok(secret)
}

pub(super) fn unexpected(answer: &Answer) -> String {
    let text = serde_json::to_string(answer).unwrap_or_default();
    format!("the daemon answered something else than it was asked: {}", display::claim(&text, 200))
}
