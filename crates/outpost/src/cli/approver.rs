//! An approver's end: the daemon's socket, the host's key that is expected there, and the key that signs decisions.

mod known_hosts;
pub(super) mod signer;

pub(super) use crate::console::printable;
use crate::paths::Paths;
use clap::Args;
use known_hosts::KnownHosts;
use outpost_approvals::signing::Signer;
use outpost_approvals::wire::Answer;
use outpost_approvals::{Client, Decision, Error, Hello, Question, display};
use outpost_sys::connect::Trust;
use outpost_sys::limits;
use signer::Choice;
use std::path::PathBuf;
use std::sync::Arc;

/// The answer to a script that still has the old secret.
const OLD_SECRET: &str = "the approver's secret is not used any more: decisions are signed\n\
    hint: `outpost approvals enroll` makes a key; leave --secret-file out";

#[derive(Args)]
pub(super) struct Options {
    /// The approver's key: a private key in OpenSSH's format, or the public half of one in ssh-agent [default: approver.key
    /// in the state directory, or an enrolled key in ssh-agent]
    #[arg(long, global = true, display_order = 799, value_name = "FILE", env = "OUTPOST_APPROVER_KEY")]
    key: Option<PathBuf>,
    /// Sign by ssh-agent, with the key of this fingerprint or the only one that fits
    #[arg(
        long,
        global = true,
        display_order = 800,
        value_name = "FINGERPRINT",
        num_args = 0..=1,
        require_equals = true,
        default_missing_value = "",
        conflicts_with = "key"
    )]
    ssh_agent: Option<String>,
    /// The approver socket [default: approvals.sock in the runtime directory]
    #[arg(long, global = true, display_order = 801, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[arg(long, global = true, hide = true, value_name = "PATH", env = "OUTPOST_APPROVER_SECRET_FILE")]
    secret_file: Option<PathBuf>,
}

/// How to be an approver, as often as it takes.
pub(super) struct Approver {
    socket: PathBuf,
    trust: Trust,
    known: KnownHosts,
    pub(super) choice: Choice,
    signer: Option<Arc<Signer>>,
    /// How the audit names this program.
    program: &'static str,
}

/// A connection to a host that has proven its key.
pub(super) struct Connected {
    pub(super) client: Client,
    pub(super) hello: Hello,
}

impl Options {
    pub(super) fn approver(&self, paths: &Paths, program: &'static str) -> Result<Approver, String> {
        // A process that reads the key, or types in our place, can approve.
        limits::hide_memory().map_err(|errno| format!("cannot hide this process's memory: {errno}"))?;
        if self.secret_file.is_some() {
            return Err(OLD_SECRET.into());
        }
        // A socket that a person names may be that of another user's daemon.
        let (socket, trust) = match &self.socket {
            Some(socket) => (socket.clone(), Trust::Owner),
            None => (paths.approvals_socket(), paths.trust()),
        };
        let name = match &paths.host {
            Some(host) => host.name.as_str().to_owned(),
            None => socket.display().to_string(),
        };
        Ok(Approver {
            known: KnownHosts::new(paths.known_hosts(), name),
            choice: Choice {
                key: self.key.clone(),
                ssh_agent: self.ssh_agent.clone(),
                default_key: paths.approver_key(),
            },
            socket,
            trust,
            signer: None,
            program,
        })
    }
}

impl Approver {
    pub(super) async fn connect(&self) -> Result<Connected, String> {
        let hint = "is the daemon running, and is it yours? `outpost serve` starts one";
        self.try_connect().await.map_err(|error| match error {
            Error::File { .. } => format!("{error}; {hint}"),
            error => error.to_string(),
        })
    }

    /// The same for a client that tries again: its error distinguishes a daemon that is away from one that is refused.
    pub(super) async fn try_connect(&self) -> outpost_approvals::Result<Connected> {
        let mut client = Client::connect(&self.socket, self.trust).await?;
        let hello = client.hello(self.program).await?;
        self.known.check(&hello.host).map_err(Error::Refused)?;
        Ok(Connected { client, hello })
    }

    /// Makes the key ready that signs decisions, asking for what it needs. Not needed for a user that decides without a signature.
    pub(super) async fn prepare(&mut self, connected: &mut Connected) -> Result<(), String> {
        if self.signer.is_none() {
            let enrolled = keys(&mut connected.client).await?;
            self.signer = self.choice.signer(&enrolled, connected.hello.trusted).await?.map(Arc::new);
        }
        Ok(())
    }

    /// Decides a question as it was shown.
    pub(super) async fn decide(
        &self,
        connected: &mut Connected,
        question: &Question,
        decision: Decision,
    ) -> outpost_approvals::Result<()> {
        // With the newest head: the decision vouches for the chain up to it.
        let hello = connected.client.hello(self.program).await?;
        self.known.check(&hello.host).map_err(Error::Refused)?;
        connected.hello = hello;
        connected.client.decide(&connected.hello, question, decision, self.signer.clone()).await
    }
}

/// The approvers of the host.
pub(super) async fn keys(client: &mut Client) -> Result<Vec<outpost_approvals::approvers::Listed>, String> {
    match client.ask(&outpost_approvals::wire::Request::Keys).await.map_err(|error| error.to_string())? {
        Answer::Keys { keys, .. } => Ok(keys),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn unexpected(answer: &Answer) -> String {
    let text = serde_json::to_string(answer).unwrap_or_default();
    format!("the daemon answered something else than it was asked: {}", display::claim(&text, 200))
}
