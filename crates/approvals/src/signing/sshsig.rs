//! SSHSIG: builds the envelope of a signature, and verifies one.

use super::{SignedError, base64, from_base64};
use serde::{Deserialize, Serialize};
use ssh_encoding::{Decode, Encode, Reader};
use ssh_key::public::KeyData;
use ssh_key::{HashAlg, PublicKey, Signature, SshSig};

/// `SSH_SK_USER_PRESENCE_REQD`: the hardware key was touched for this signature.
const SK_USER_PRESENT: u8 = 1;

/// Flags and counter after the signature of a hardware key.
const SK_TRAILER_BYTES: usize = 5;

/// A message and its signature, both in base64, as sent and stored.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Signed {
    /// The message.
    pub statement: String,
    /// The SSHSIG without armor, in one line. Empty if the user decides by uid.
    #[serde(default)]
    pub signature: String,
}

impl Signed {
    pub fn new(statement: &[u8], signature: &[u8]) -> Signed {
        Signed { statement: base64(statement), signature: base64(signature) }
    }

    pub fn statement_bytes(&self) -> Result<Vec<u8>, SignedError> {
        from_base64(&self.statement).ok_or(SignedError::Base64("statement"))
    }

    pub fn signature_bytes(&self) -> Result<Vec<u8>, SignedError> {
        from_base64(&self.signature).ok_or(SignedError::Base64("signature"))
    }
}

/// Verifies an SSHSIG over `message` and returns its key. The caller checks whether that key may sign.
pub fn verify(namespace: &str, message: &[u8], signature: &[u8]) -> Result<PublicKey, SignedError> {
    let (key, hash, made) = parse(namespace, signature)?;
    let is_hardware = matches!(key.key_data(), KeyData::SkEd25519(_) | KeyData::SkEcdsaSha2NistP256(_));
    if is_hardware {
        let trailer = made.as_bytes().len().checked_sub(SK_TRAILER_BYTES);
        let flags = trailer.and_then(|at| made.as_bytes().get(at).copied());
        if flags.is_none_or(|flags| flags & SK_USER_PRESENT == 0) {
            return Err(SignedError::Untouched);
        }
    }
    let mismatch = |_| SignedError::Mismatch;
    let envelope = SshSig::new(key.key_data().clone(), namespace, hash, made).map_err(mismatch)?;
    key.verify(namespace, message, &envelope).map_err(mismatch)?;
    Ok(key)
}

/// Parses an SSHSIG. `SshSig::decode` of ssh-key 0.6 accepts inconsistent lengths, and a signature must have
/// one encoding only.
fn parse(namespace: &str, signature: &[u8]) -> Result<(PublicKey, HashAlg, Signature), SignedError> {
    let unreadable = |_| SignedError::Unreadable;
    let mut rest = signature.strip_prefix(b"SSHSIG").ok_or(SignedError::NotSshsig)?;
    let version = u32::decode(&mut rest).map_err(unreadable)?;
    if version != SshSig::VERSION {
        return Err(SignedError::Version(version));
    }
    let mut next = || Vec::<u8>::decode(&mut rest).map_err(unreadable);
    let (blob, space, reserved, hash, bare) = (next()?, next()?, next()?, next()?, next()?);
    if !rest.is_finished() || !reserved.is_empty() {
        return Err(SignedError::UnexpectedBytes);
    }
    if space != namespace.as_bytes() {
        return Err(SignedError::Namespace(namespace.to_owned()));
    }
    let hash = match hash.as_slice() {
        b"sha256" => HashAlg::Sha256,
        b"sha512" => HashAlg::Sha512,
        _ => return Err(SignedError::UnknownHash),
    };
    let key = PublicKey::from_bytes(&blob).map_err(SignedError::Key)?;
    if key.to_bytes().ok().as_ref() != Some(&blob) {
        return Err(SignedError::KeyForm);
    }
    let mut rest = bare.as_slice();
    let name = String::decode(&mut rest).map_err(unreadable)?;
    let mut data = Vec::<u8>::decode(&mut rest).map_err(unreadable)?;
    // Flags and counter of a hardware key. Empty for other keys.
    data.extend_from_slice(rest);
    if name != key.algorithm().as_str() {
        return Err(SignedError::Algorithm);
    }
    let made = Signature::new(key.algorithm(), data).map_err(|_| SignedError::Unreadable)?;
    Ok((key, hash, made))
}

/// Builds the SSHSIG of a bare signature over [`SshSig::signed_data`] with SHA-512. `bare` has the agent's
/// format: algorithm and blob.
///
/// `SshSig::encode` of ssh-key 0.6 loses the flags of `sk-ecdsa` signatures.
pub(super) fn envelope(namespace: &str, key: &[u8], bare: &[u8]) -> Vec<u8> {
    let mut bytes = b"SSHSIG".to_vec();
    bytes.extend_from_slice(&SshSig::VERSION.to_be_bytes());
    for field in [key, namespace.as_bytes(), b"", b"sha512", bare] {
        // Writing to a `Vec` cannot fail.
        let _ = field.encode(&mut bytes);
    }
    bytes
}

/// The fingerprint for messages and records: `SHA256:…`, as `ssh-keygen -l` prints it.
pub fn fingerprint(key: &PublicKey) -> String {
    key.fingerprint(HashAlg::Sha256).to_string()
}
