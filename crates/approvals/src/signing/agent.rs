//! A client of ssh-agent: the two messages that signing needs (draft-miller-ssh-agent).

use super::signature::envelope;
use crate::{Error, Result};
use ssh_encoding::{Decode, Encode};
use ssh_key::{HashAlg, PublicKey, SshSig};
use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

const REQUEST_IDENTITIES: u8 = 11;
const IDENTITIES_ANSWER: u8 = 12;
const SIGN_REQUEST: u8 = 13;
const SIGN_RESPONSE: u8 = 14;

/// OpenSSH's own limit.
const MESSAGE_BYTES_MAX: usize = 256 * 1024;

/// A hardware key waits for a touch, an agent with confirmation for its dialog.
const PATIENCE: Duration = Duration::from_secs(60);

/// An agent at its socket. Every call blocks: not for the async runtime.
#[derive(Clone, Debug)]
pub struct Agent {
    socket: PathBuf,
}

impl Agent {
    pub fn at(socket: &Path) -> Agent {
        Agent { socket: socket.to_owned() }
    }

    /// The agent of `SSH_AUTH_SOCK`, if it is set.
    pub fn of_environment() -> Option<Agent> {
        std::env::var_os("SSH_AUTH_SOCK")
            .filter(|path| !path.is_empty())
            .map(|path| Agent::at(Path::new(&path)))
    }

    /// The keys that the agent holds. Certificates and kinds that we do not know are left out.
    pub fn keys(&self) -> Result<Vec<PublicKey>> {
        let answer = self.ask(&[REQUEST_IDENTITIES], IDENTITIES_ANSWER)?;
        let mut rest = answer.as_slice();
        let read = |rest: &mut &[u8]| -> ssh_encoding::Result<Vec<PublicKey>> {
            let count = u32::decode(rest)?;
            let mut keys = Vec::new();
            for _ in 0..count {
                let (blob, comment) = (Vec::decode(rest)?, Vec::<u8>::decode(rest)?);
                if let Ok(mut key) = PublicKey::from_bytes(&blob) {
                    key.set_comment(String::from_utf8_lossy(&comment));
                    keys.push(key);
                }
            }
            Ok(keys)
        };
        read(&mut rest).map_err(|error| self.fail(&format!("malformed list of keys: {error}")))
    }

    /// An SSHSIG over `message` by a key that the agent holds.
    pub fn sign(&self, key: &PublicKey, namespace: &str, message: &[u8]) -> Result<Vec<u8>> {
        let fail = |error: ssh_key::Error| self.fail(&error.to_string());
        let data = SshSig::signed_data(namespace, HashAlg::Sha512, message).map_err(fail)?;
        let blob = key.to_bytes().map_err(fail)?;
        let mut request = vec![SIGN_REQUEST];
        for field in [&blob, &data] {
            field.encode(&mut request).map_err(|error| fail(error.into()))?;
        }
        request.extend_from_slice(&0u32.to_be_bytes());
        let answer = self.ask(&request, SIGN_RESPONSE)?;
        let bare = Vec::<u8>::decode(&mut answer.as_slice()).map_err(|error| fail(error.into()))?;
        Ok(envelope(namespace, &blob, &bare))
    }

    /// The body of the answer of the wanted kind.
    fn ask(&self, request: &[u8], wanted: u8) -> Result<Vec<u8>> {
        let fail = |error: std::io::Error| self.fail(&error.to_string());
        #[expect(clippy::disallowed_methods, reason = "no socket of ours: the person names the agent")]
        let mut stream = UnixStream::connect(&self.socket).map_err(fail)?;
        stream.set_read_timeout(Some(PATIENCE)).map_err(fail)?;
        stream.set_write_timeout(Some(PATIENCE)).map_err(fail)?;
        let mut message = Vec::with_capacity(request.len() + 4);
        request.encode(&mut message).map_err(|error| self.fail(&error.to_string()))?;
        stream.write_all(&message).map_err(fail)?;
        let mut length = [0; 4];
        stream.read_exact(&mut length).map_err(fail)?;
        let length = u32::from_be_bytes(length) as usize;
        if length == 0 || length > MESSAGE_BYTES_MAX {
            return Err(self.fail("malformed answer"));
        }
        let mut answer = vec![0; length];
        stream.read_exact(&mut answer).map_err(fail)?;
        match answer.split_first() {
            Some((kind, body)) if *kind == wanted => Ok(body.to_vec()),
            _ => Err(self.fail("the agent refused")),
        }
    }

    fn fail(&self, reason: &str) -> Error {
        Error::file("use the ssh-agent at", &self.socket, reason)
    }
}
