//! Selection of the signing key: a key file, ssh-agent, or a hardware key via `ssh-keygen`.

use crate::tty;
use outpost_approvals::approvers::ApproverInfo;
use outpost_approvals::signing::{Agent, KeyFile, PublicKey, Signer, fingerprint};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};
use zeroize::Zeroizing;

/// The key options of the command line.
#[derive(Clone)]
pub(crate) struct Choice {
    pub(crate) key: Option<PathBuf>,
    /// A fingerprint; empty for the only enrolled key.
    pub(crate) ssh_agent: Option<String>,
    pub(crate) default_key: PathBuf,
}

impl Choice {
    /// The key that signs decisions for a host with these approvers. `None` if a trusted user has no key.
    pub(super) async fn signer(
        &self,
        enrolled: &[ApproverInfo],
        trusted: bool,
    ) -> Result<Option<Signer>, String> {
        let fits = |key: &PublicKey| {
            enrolled.iter().any(|listed| listed.usable && listed.fingerprint == fingerprint(key))
        };
        if let Some(file) = &self.key {
            return file_signer(file).await.map(Some);
        }
        if let Some(print) = &self.ssh_agent {
            return agent_signer(print, &fits).map(Some);
        }
        if self.default_key.exists() {
            return file_signer(&self.default_key).await.map(Some);
        }
        if let Ok(signer) = agent_signer("", &fits) {
            return Ok(Some(signer));
        }
        match trusted {
            true => Ok(None),
            false => Err("no approver key is set up\n\
                          hint: run `outpost approvals enroll` once, or name a key with --key FILE or --ssh-agent"
                .into()),
        }
    }
}

/// A key of ssh-agent: the one with this fingerprint, or the only one that `fits` accepts.
pub(crate) fn agent_signer(print: &str, fits: &dyn Fn(&PublicKey) -> bool) -> Result<Signer, String> {
    let agent = Agent::from_env()
        .ok_or("no ssh-agent: SSH_AUTH_SOCK is not set\nhint: start one with `eval $(ssh-agent)`")?;
    let held = agent.keys().map_err(|error| error.to_string())?;
    let wanted = |key: &&PublicKey| if print.is_empty() { fits(key) } else { fingerprint(key) == print };
    let mut found = held.iter().filter(wanted);
    match (found.next(), found.next()) {
        (Some(key), None) => Ok(Signer::Agent { key: key.clone(), agent }),
        (Some(_), Some(_)) => {
            Err("several keys in ssh-agent match\nhint: name one with --ssh-agent=FINGERPRINT".into())
        }
        (None, _) => {
            let prints: Vec<String> = held.iter().map(fingerprint).collect();
            Err(format!("no key in ssh-agent matches; it has: {}", prints.join(", ")))
        }
    }
}

/// The signer for a key file: a private key, after its passphrase prompt, or the public half of a key in ssh-agent.
pub(crate) async fn file_signer(path: &Path) -> Result<Signer, String> {
    if let Some(public) = read_public_key(path) {
        let held = |key: &PublicKey| key.key_data() == public.key_data();
        return agent_signer("", &held).map_err(|why| format!("{} is a public key: {why}", path.display()));
    }
    let file = KeyFile::open(path).map_err(|error| error.to_string())?;
    if !file.is_encrypted() {
        return file.unlock("").map_err(|error| error.to_string());
    }
    if !std::io::stdin().is_terminal() {
        return Err(format!(
            "the key {} has a passphrase, but there is no terminal to ask for it\n\
             hint: add the key to ssh-agent and use --ssh-agent",
            path.display()
        ));
    }
    let passphrase = ask_passphrase("Passphrase of the approver key:").await?;
    let unlock = move || file.unlock(&passphrase).map_err(|error| error.to_string());
    tokio::task::spawn_blocking(unlock).await.map_err(|error| error.to_string())?
}

/// The public key in a file; `None` if the file contains something else.
pub(crate) fn read_public_key(path: &Path) -> Option<PublicKey> {
    let bytes = std::fs::metadata(path).ok()?.len();
    let text = (bytes < 64 * 1024).then(|| std::fs::read_to_string(path).ok())??;
    PublicKey::from_openssh(text.trim()).ok()
}

pub(crate) async fn ask_passphrase(what: &str) -> Result<Zeroizing<String>, String> {
    let stop = SignalKind::interrupt();
    let mut interrupted = signal(stop).map_err(|error| format!("cannot install signal handlers: {error}"))?;
    // Catch SIGINT, so that the terminal is restored.
    let typed = tokio::select! {
        typed = tty::ask_secret(what) => typed,
        _ = interrupted.recv() => Ok(None),
    };
    let typed = typed.map_err(|error| format!("cannot ask for the passphrase: {error}"))?;
    typed.ok_or_else(|| "no passphrase entered".into())
}
