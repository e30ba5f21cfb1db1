//! The host key. It signs receipts and audit heads, and identifies the host in every statement.

use super::HOST_NAMESPACE;
use super::signer::{sign_with_key, write_new};
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use ssh_key::rand_core::OsRng;
use ssh_key::{Algorithm, PrivateKey, PublicKey};
use std::path::Path;

/// Maximum size of a key file.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// An Ed25519 key in the ledger's directory.
pub struct HostKey {
    key: PrivateKey,
    blob: Vec<u8>,
    is_new: bool,
}

impl HostKey {
    /// Reads the key. The first start creates it.
    pub fn open(path: &Path) -> Result<HostKey> {
        let fail = |reason: &dyn std::fmt::Display| Error::file("use the host key", path, reason);
        let is_new = !path.exists();
        if is_new {
            let mut key = PrivateKey::random(&mut OsRng, Algorithm::Ed25519).map_err(|error| fail(&error))?;
            key.set_comment("outpost host");
            write_new(path, &key).map_err(|error| fail(&error))?;
        }
        let file = file::open(path, Open::Read).map_err(|errno| fail(&errno))?;
        let text = file::read_whole(&file, FILE_BYTES_MAX).map_err(|errno| fail(&errno))?;
        let text = zeroize::Zeroizing::new(text);
        let key = PrivateKey::from_openssh(text.as_slice()).map_err(|error| fail(&error))?;
        let blob = key.public_key().to_bytes().map_err(|error| fail(&error))?;
        Ok(HostKey { key, blob, is_new })
    }

    pub fn public(&self) -> &PublicKey {
        self.key.public_key()
    }

    /// The public key in SSH wire format, as in statements.
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// Whether this start has created the key.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// Makes an SSHSIG in the host namespace.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>> {
        sign_with_key(&self.key, HOST_NAMESPACE, message)
    }
}
