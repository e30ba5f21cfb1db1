//! Signs for an approver: with a key file, an ssh-agent or `ssh-keygen`.

use super::ssh_agent::Agent;
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use ssh_key::rand_core::OsRng;
use ssh_key::{Algorithm, HashAlg, LineEnding, PrivateKey, PublicKey};
use std::fs::File;
use std::io::{Read, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use zeroize::Zeroizing;

/// Maximum size of a key file.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Fixed paths of OpenSSH's program. A lookup in `PATH` could find another program.
const SSH_KEYGEN_PATHS: [&str; 2] = ["/usr/bin/ssh-keygen", "/usr/local/bin/ssh-keygen"];

/// Signs with one key. Blocking; never call on the async runtime. A hardware key waits for a touch.
pub enum Signer {
    /// A private key in this process.
    Local(Box<PrivateKey>),
    /// A key in an ssh-agent.
    Agent { agent: Agent, key: PublicKey },
    /// A hardware key, which needs `ssh-keygen -Y sign`.
    SshKeygen { file: PathBuf, key: PublicKey },
}

impl Signer {
    /// Creates an Ed25519 key in memory.
    pub fn random() -> Result<Signer> {
        let key = PrivateKey::random(&mut OsRng, Algorithm::Ed25519);
        key.map(|key| Signer::Local(Box::new(key)))
            .map_err(|error| Error::Key(format!("cannot generate a key: {error}")))
    }

    pub fn key(&self) -> &PublicKey {
        match self {
            Signer::Local(key) => key.public_key(),
            Signer::Agent { key, .. } | Signer::SshKeygen { key, .. } => key,
        }
    }

    /// Makes an SSHSIG over `message`.
    pub fn sign(&self, namespace: &str, message: &[u8]) -> Result<Vec<u8>> {
        match self {
            Signer::Local(key) => sign_with_key(key, namespace, message),
            Signer::Agent { agent, key } => agent.sign(key, namespace, message),
            Signer::SshKeygen { file, .. } => sign_with_ssh_keygen(file, namespace, message),
        }
    }
}

/// Makes an SSHSIG with a decrypted key.
pub(super) fn sign_with_key(key: &PrivateKey, namespace: &str, message: &[u8]) -> Result<Vec<u8>> {
    use ssh_encoding::Encode;
    let fail = |error: ssh_key::Error| Error::Key(format!("cannot sign: {error}"));
    let signature = key.sign(namespace, HashAlg::Sha512, message).map_err(fail)?;
    let mut bytes = Vec::new();
    signature.encode(&mut bytes).map_err(|error| fail(error.into()))?;
    Ok(bytes)
}

/// Runs `ssh-keygen -Y sign`, which prompts on the terminal.
fn sign_with_ssh_keygen(key: &Path, namespace: &str, message: &[u8]) -> Result<Vec<u8>> {
    let fail = |reason: &dyn std::fmt::Display| Error::file("sign by ssh-keygen with", key, reason);
    let program = SSH_KEYGEN_PATHS.iter().find(|program| Path::new(program).exists());
    let program = program.ok_or_else(|| fail(&"OpenSSH's ssh-keygen is not installed"))?;
    let mut command = Command::new(program);
    command.args(["-q", "-Y", "sign", "-n", namespace, "-f"]).arg(key);
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| fail(&error))?;
    if let Some(mut input) = child.stdin.take() {
        input.write_all(message).map_err(|error| fail(&error))?;
    }
    let done = child.wait_with_output().map_err(|error| fail(&error))?;
    if !done.status.success() {
        return Err(fail(&done.status));
    }
    let text = String::from_utf8_lossy(&done.stdout);
    let body: String = text.lines().filter(|line| !line.starts_with("-----")).collect();
    super::from_base64(&body).ok_or_else(|| fail(&"its output is not a signature"))
}

/// A private key file in OpenSSH format, possibly encrypted.
pub struct KeyFile {
    path: PathBuf,
    key: PrivateKey,
}

impl KeyFile {
    /// Creates an Ed25519 key. An empty passphrase leaves it unencrypted. Fails if the file exists.
    pub fn create(path: &Path, passphrase: &str, comment: &str) -> Result<KeyFile> {
        let fail = |reason: &dyn std::fmt::Display| Error::file("create the key", path, reason);
        let mut key = PrivateKey::random(&mut OsRng, Algorithm::Ed25519).map_err(|error| fail(&error))?;
        key.set_comment(comment);
        if !passphrase.is_empty() {
            key = key.encrypt(&mut OsRng, passphrase).map_err(|error| fail(&error))?;
        }
        write_new(path, &key).map_err(|error| fail(&error))?;
        Ok(KeyFile { path: path.to_owned(), key })
    }

    /// Reads a key file. The file must belong to this user or root, with no access for others.
    pub fn open(path: &Path) -> Result<KeyFile> {
        let fail = |reason: &dyn std::fmt::Display| Error::file("use the key", path, reason);
        let file = File::open(path).map_err(|error| fail(&error))?;
        let found = file.metadata().map_err(|error| fail(&error))?;
        let owned = [0, outpost_sys::process::effective_uid()].contains(&found.uid());
        if !owned || found.mode() & 0o077 != 0 {
            return Err(fail(&"others can read it, or it belongs to another user; `chmod 600` it"));
        }
        let mut text = Zeroizing::new(String::new());
        file.take(FILE_BYTES_MAX).read_to_string(&mut text).map_err(|error| fail(&error))?;
        let key = PrivateKey::from_openssh(text.as_bytes()).map_err(|error| fail(&error))?;
        Ok(KeyFile { path: path.to_owned(), key })
    }

    pub fn public(&self) -> &PublicKey {
        self.key.public_key()
    }

    /// Whether [`unlock`](KeyFile::unlock) needs a passphrase.
    pub fn is_encrypted(&self) -> bool {
        self.key.is_encrypted() && !self.is_hardware_key()
    }

    /// The file only refers to a key in hardware.
    fn is_hardware_key(&self) -> bool {
        matches!(self.key.algorithm(), Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256)
    }

    pub fn unlock(&self, passphrase: &str) -> Result<Signer> {
        if self.is_hardware_key() {
            return Ok(Signer::SshKeygen { file: self.path.clone(), key: self.public().clone() });
        }
        if !self.key.is_encrypted() {
            return Ok(Signer::Local(Box::new(self.key.clone())));
        }
        let key = self.key.decrypt(passphrase);
        let key = key.map_err(|_| Error::file("use the key", &self.path, "wrong passphrase"))?;
        Ok(Signer::Local(Box::new(key)))
    }
}

/// Writes a private key with mode 0600. Fails if the file exists.
pub(super) fn write_new(path: &Path, key: &PrivateKey) -> std::io::Result<()> {
    let text = key.to_openssh(LineEnding::LF).map_err(std::io::Error::other)?;
    let new = path.with_extension("new");
    let mut file = File::from(file::open(&new, Open::Replace)?);
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    // A rename would replace a key that another process created meanwhile.
    let linked = std::fs::hard_link(&new, path);
    let removed = std::fs::remove_file(&new);
    linked.and(removed)
}
