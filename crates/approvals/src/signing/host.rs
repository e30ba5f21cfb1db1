//! The host's own key: it signs questions, receipts and heads of the audit chain, and names the host in every statement.

use super::HOST_NAMESPACE;
use super::signer::{sign_with, write_new};
use crate::{Error, Result};
use outpost_sys::file::{self, Open};
use ssh_key::rand_core::OsRng;
use ssh_key::{Algorithm, PrivateKey, PublicKey};
use std::path::Path;

/// No key file is larger.
const FILE_BYTES_MAX: u64 = 64 * 1024;

/// An Ed25519 key in a file of the approvals directory.
pub struct HostKey {
    key: PrivateKey,
    blob: Vec<u8>,
    is_new: bool,
}

impl HostKey {
    /// Reads the key, or makes it at the first start.
    pub fn open(path: &Path) -> Result<HostKey> {
        let fail = |reason: &dyn std::fmt::Display| Error::file("use the host's key", path, reason);
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

    /// The public key in SSH's wire format, as statements have it.
    pub fn blob(&self) -> &[u8] {
        &self.blob
    }

    /// This start has made it.
    pub fn is_new(&self) -> bool {
        self.is_new
    }

    /// An SSHSIG of the host's over a message of the host's.
    pub fn sign(&self, message: &[u8]) -> Result<Vec<u8>> {
        sign_with(&self.key, HOST_NAMESPACE, message)
    }
}
