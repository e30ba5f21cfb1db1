//! Everything that can sign for an approver: a key file, an agent, `ssh-keygen`.

use super::agent::Agent;
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

/// No key file that we can use is larger.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// Where OpenSSH's program is, if it is installed by the system. A name in `PATH` could stand for anything.
const SSH_KEYGEN: [&str; 2] = ["/usr/bin/ssh-keygen", "/usr/local/bin/ssh-keygen"];

/// Signs with one key. Every call blocks, some for the touch of a hardware key: not for the async runtime.
pub enum Signer {
    /// A private key in this process.
    Own(Box<PrivateKey>),
    /// A key that an agent holds.
    Agent { agent: Agent, key: PublicKey },
    /// A key file that `ssh-keygen -Y sign` can use and we cannot: a hardware key's.
    Program { file: PathBuf, key: PublicKey },
}

impl Signer {
    /// A new Ed25519 key in memory.
    pub fn random() -> Result<Signer> {
        let key = PrivateKey::random(&mut OsRng, Algorithm::Ed25519);
        key.map(|key| Signer::Own(Box::new(key)))
            .map_err(|error| Error::Key(format!("cannot make a key: {error}")))
    }

    pub fn key(&self) -> &PublicKey {
        match self {
            Signer::Own(key) => key.public_key(),
            Signer::Agent { key, .. } | Signer::Program { key, .. } => key,
        }
    }

    /// An SSHSIG over `message`.
    pub fn sign(&self, namespace: &str, message: &[u8]) -> Result<Vec<u8>> {
        match self {
            Signer::Own(key) => sign_with(key, namespace, message),
            Signer::Agent { agent, key } => agent.sign(key, namespace, message),
            Signer::Program { file, .. } => sign_by_program(file, namespace, message),
        }
    }
}

/// An SSHSIG by a key that is not encrypted.
pub(super) fn sign_with(key: &PrivateKey, namespace: &str, message: &[u8]) -> Result<Vec<u8>> {
    use ssh_encoding::Encode;
    let fail = |error: ssh_key::Error| Error::Key(format!("cannot sign: {error}"));
    let signature = key.sign(namespace, HashAlg::Sha512, message).map_err(fail)?;
    let mut bytes = Vec::new();
    signature.encode(&mut bytes).map_err(|error| fail(error.into()))?;
    Ok(bytes)
}

/// Runs `ssh-keygen -Y sign`, which asks on the terminal for what the key needs.
fn sign_by_program(key: &Path, namespace: &str, message: &[u8]) -> Result<Vec<u8>> {
    let fail = |reason: &dyn std::fmt::Display| Error::file("sign by ssh-keygen with", key, reason);
    let program = SSH_KEYGEN.iter().find(|program| Path::new(program).exists());
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

/// A private key in OpenSSH's file format, as far as it can be read without its passphrase.
pub struct KeyFile {
    path: PathBuf,
    key: PrivateKey,
}

impl KeyFile {
    /// Makes a new Ed25519 key. An empty passphrase leaves the file unencrypted. Fails where the file exists.
    pub fn create(path: &Path, passphrase: &str, comment: &str) -> Result<KeyFile> {
        let fail = |reason: &dyn std::fmt::Display| Error::file("make the key", path, reason);
        let mut key = PrivateKey::random(&mut OsRng, Algorithm::Ed25519).map_err(|error| fail(&error))?;
        key.set_comment(comment);
        if !passphrase.is_empty() {
            key = key.encrypt(&mut OsRng, passphrase).map_err(|error| fail(&error))?;
        }
        write_new(path, &key).map_err(|error| fail(&error))?;
        Ok(KeyFile { path: path.to_owned(), key })
    }

    /// Reads a key file. It must belong to this user or root, and nobody else may read it.
    pub fn open(path: &Path) -> Result<KeyFile> {
        let fail = |reason: &dyn std::fmt::Display| Error::file("use the key", path, reason);
        let file = File::open(path).map_err(|error| fail(&error))?;
        let found = file.metadata().map_err(|error| fail(&error))?;
        let owned = [0, outpost_sys::limits::effective_uid()].contains(&found.uid());
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

    /// Whether [`unlock`](KeyFile::unlock) needs the passphrase.
    pub fn is_encrypted(&self) -> bool {
        self.key.is_encrypted() && !self.is_foreign()
    }

    /// The key itself is elsewhere: the file is a handle for `ssh-keygen`.
    fn is_foreign(&self) -> bool {
        matches!(self.key.algorithm(), Algorithm::SkEd25519 | Algorithm::SkEcdsaSha2NistP256)
    }

    pub fn unlock(&self, passphrase: &str) -> Result<Signer> {
        if self.is_foreign() {
            return Ok(Signer::Program { file: self.path.clone(), key: self.public().clone() });
        }
        if !self.key.is_encrypted() {
            return Ok(Signer::Own(Box::new(self.key.clone())));
        }
        let key = self.key.decrypt(passphrase);
        let key = key.map_err(|_| Error::file("use the key", &self.path, "wrong passphrase"))?;
        Ok(Signer::Own(Box::new(key)))
    }
}

/// Writes a private key where nothing is yet, readable for this user only.
pub(super) fn write_new(path: &Path, key: &PrivateKey) -> std::io::Result<()> {
    let text = key.to_openssh(LineEnding::LF).map_err(std::io::Error::other)?;
    let new = path.with_extension("new");
    let mut file = File::from(file::open(&new, Open::Replace)?);
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    // Not rename: that would replace a key which was made meanwhile.
    let linked = std::fs::hard_link(&new, path);
    let removed = std::fs::remove_file(&new);
    linked.and(removed)
}
