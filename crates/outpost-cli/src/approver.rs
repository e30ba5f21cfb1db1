//! The approver's client: connects to the daemon, checks its host key, and signs decisions.

mod known_hosts;
pub(super) mod signer;

pub(super) use crate::console::printable;
use crate::paths::Paths;
use clap::Args;
use known_hosts::KnownHosts;
use outpost_approvals::signing::Signer;
use outpost_approvals::wire::ServerMessage;
use outpost_approvals::{Client, Decision, Error, Hello, Question, display};
use outpost_sys::connect::Trust;
use signer::Choice;
use std::path::PathBuf;
use std::sync::Arc;

/// The error for a script that still passes the previous secret.
const OLD_SECRET: &str = "approver secrets no longer work: decisions are signed with a key\n\
    hint: run `outpost approvals enroll` once, and omit --secret-file";

#[derive(Args)]
pub(super) struct Options {
    /// Approver key: an OpenSSH private key, or the public half of a key in ssh-agent [default: approver.key in the state
    /// directory, or an enrolled key in ssh-agent]
    #[arg(long, global = true, display_order = 799, value_name = "FILE", env = "OUTPOST_APPROVER_KEY")]
    key: Option<PathBuf>,
    /// Sign with ssh-agent, with the key of this fingerprint or the only enrolled one
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
    /// Approver socket [default: approvals.sock in the runtime directory]
    #[arg(long, global = true, display_order = 801, value_name = "PATH")]
    socket: Option<PathBuf>,
    #[arg(long, global = true, hide = true, value_name = "PATH", env = "OUTPOST_APPROVER_SECRET_FILE")]
    secret_file: Option<PathBuf>,
}

/// The settings of an approver, reusable for reconnects.
pub(super) struct Approver {
    socket: PathBuf,
    trust: Trust,
    known: KnownHosts,
    pub(super) choice: Choice,
    signer: Option<Arc<Signer>>,
    /// The name of this program in the audit log.
    program: &'static str,
}

/// A connection whose host key was checked.
pub(super) struct Connected {
    pub(super) client: Client,
    pub(super) hello: Hello,
}

impl Options {
    pub(super) fn approver(&self, paths: &Paths, program: &'static str) -> Result<Approver, String> {
        // A process that could read the key from our memory, or trace us, could approve.
        outpost_sys::process::set_undumpable()
            .map_err(|errno| format!("cannot hide this process's memory: {errno}"))?;
        if self.secret_file.is_some() {
            return Err(OLD_SECRET.into());
        }
        // An explicit socket may belong to the daemon of another user.
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
        let hint = "start the daemon with `outpost serve --detach`, or name another with --socket";
        self.try_connect().await.map_err(|error| match error {
            Error::File { .. } => format!("{error}\nhint: {hint}"),
            error => error.to_string(),
        })
    }

    /// Like `connect`, for clients that retry: the error distinguishes an unreachable daemon from a refusal.
    pub(super) async fn try_connect(&self) -> outpost_approvals::Result<Connected> {
        let mut client = Client::connect(&self.socket, self.trust).await?;
        let hello = client.hello(self.program).await?;
        self.known.check(&hello.host).map_err(Error::Refused)?;
        Ok(Connected { client, hello })
    }

    /// Loads the signing key and asks for its passphrase. A trusted user decides without a key.
    pub(super) async fn prepare(&mut self, connected: &mut Connected) -> Result<(), String> {
        if self.signer.is_none() {
            let enrolled = keys(&mut connected.client).await?;
            self.signer = self.choice.signer(&enrolled, connected.hello.trusted).await?.map(Arc::new);
        }
        Ok(())
    }

    /// Signs and submits a decision about the question as shown.
    pub(super) async fn decide(
        &self,
        connected: &mut Connected,
        question: &Question,
        decision: Decision,
    ) -> outpost_approvals::Result<()> {
        // The signature covers the newest head of the audit chain.
        let hello = connected.client.hello(self.program).await?;
        self.known.check(&hello.host).map_err(Error::Refused)?;
        connected.hello = hello;
        connected.client.decide(&connected.hello, question, decision, self.signer.clone()).await
    }
}

/// The approver keys of the host.
pub(super) async fn keys(
    client: &mut Client,
) -> Result<Vec<outpost_approvals::approvers::ApproverInfo>, String> {
    match client.ask(&outpost_approvals::wire::Request::Keys).await.map_err(|error| error.to_string())? {
        ServerMessage::Keys { keys, .. } => Ok(keys),
        other => Err(unexpected(&other)),
    }
}

pub(super) fn unexpected(answer: &ServerMessage) -> String {
    let text = serde_json::to_string(answer).unwrap_or_default();
    format!("unexpected reply from the daemon: {}", display::escape_untrusted(&text, 200))
}
