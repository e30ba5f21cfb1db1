//! Which key signs: a file, ssh-agent, or what `ssh-keygen` has for a hardware key; and the passphrase it may need.

use crate::tty;
use outpost_approvals::approvers::Listed;
use outpost_approvals::signing::{Agent, KeyFile, PublicKey, Signer, fingerprint};
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use tokio::signal::unix::{SignalKind, signal};
use zeroize::Zeroizing;

/// The key that the command line names.
#[derive(Clone)]
pub(in crate::cli) struct Choice {
    pub(in crate::cli) key: Option<PathBuf>,
    /// Empty for the only one that fits.
    pub(in crate::cli) ssh_agent: Option<String>,
    pub(in crate::cli) default_key: PathBuf,
}

impl Choice {
    /// The key that signs decisions at a host with these approvers. None for a user that decides without a signature.
    pub(super) async fn signer(&self, enrolled: &[Listed], trusted: bool) -> Result<Option<Signer>, String> {
        let fits = |key: &PublicKey| {
            enrolled.iter().any(|listed| listed.usable && listed.fingerprint == fingerprint(key))
        };
        if let Some(file) = &self.key {
            return of_file(file).await.map(Some);
        }
        if let Some(print) = &self.ssh_agent {
            return of_agent(print, &fits).map(Some);
        }
        if self.default_key.exists() {
            return of_file(&self.default_key).await.map(Some);
        }
        if let Ok(signer) = of_agent("", &fits) {
            return Ok(Some(signer));
        }
        match trusted {
            true => Ok(None),
            false => Err("a decision is signed, and there is no key to sign with\n\
                          hint: `outpost approvals enroll` makes one; --key FILE or --ssh-agent names another"
                .into()),
        }
    }
}

/// A key of ssh-agent: the one with this fingerprint, or the only one that fits.
pub(in crate::cli) fn of_agent(print: &str, fits: &dyn Fn(&PublicKey) -> bool) -> Result<Signer, String> {
    let agent = Agent::of_environment()
        .ok_or("there is no ssh-agent: SSH_AUTH_SOCK is not set\nhint: `eval $(ssh-agent)` starts one")?;
    let held = agent.keys().map_err(|error| error.to_string())?;
    let wanted = |key: &&PublicKey| if print.is_empty() { fits(key) } else { fingerprint(key) == print };
    let mut found = held.iter().filter(wanted);
    match (found.next(), found.next()) {
        (Some(key), None) => Ok(Signer::Agent { key: key.clone(), agent }),
        (Some(_), Some(_)) => {
            Err("several keys of ssh-agent fit\nhint: name one with --ssh-agent=FINGERPRINT".into())
        }
        (None, _) => {
            let prints: Vec<String> = held.iter().map(fingerprint).collect();
            Err(format!("no key of ssh-agent fits; it has {}", prints.join(", ")))
        }
    }
}

/// A key file: a private key, asking for its passphrase, or the public half of a key that ssh-agent holds.
pub(in crate::cli) async fn of_file(path: &Path) -> Result<Signer, String> {
    if let Some(public) = public_of(path) {
        let held = |key: &PublicKey| key.key_data() == public.key_data();
        return of_agent("", &held).map_err(|why| format!("{} is a public key, and {why}", path.display()));
    }
    let file = KeyFile::open(path).map_err(|error| error.to_string())?;
    if !file.is_encrypted() {
        return file.unlock("").map_err(|error| error.to_string());
    }
    if !std::io::stdin().is_terminal() {
        return Err(format!(
            "the key {} has a passphrase, and there is no terminal to ask for it\n\
             hint: add the key to ssh-agent, and name it with --ssh-agent",
            path.display()
        ));
    }
    let passphrase = ask_passphrase("Passphrase of the approver's key:").await?;
    let unlock = move || file.unlock(&passphrase).map_err(|error| error.to_string());
    tokio::task::spawn_blocking(unlock).await.map_err(|error| error.to_string())?
}

/// The public key that a file has, if that is what it has.
pub(in crate::cli) fn public_of(path: &Path) -> Option<PublicKey> {
    let bytes = std::fs::metadata(path).ok()?.len();
    let text = (bytes < 64 * 1024).then(|| std::fs::read_to_string(path).ok())??;
    PublicKey::from_openssh(text.trim()).ok()
}

pub(in crate::cli) async fn ask_passphrase(what: &str) -> Result<Zeroizing<String>, String> {
    let stop = SignalKind::interrupt();
    let mut interrupted = signal(stop).map_err(|error| format!("cannot wait for signals: {error}"))?;
    // One that is interrupted leaves the terminal as it was.
    let typed = tokio::select! {
        typed = tty::ask_secret(what) => typed,
        _ = interrupted.recv() => Ok(None),
    };
    let typed = typed.map_err(|error| format!("cannot ask for the passphrase: {error}"))?;
    typed.ok_or_else(|| "no passphrase was given".into())
}
