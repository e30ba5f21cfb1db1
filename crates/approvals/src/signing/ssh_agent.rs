//! A minimal ssh-agent client: lists keys and signs (draft-miller-ssh-agent).

use super::sshsig::envelope;
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

/// A hardware key waits for a touch, and an agent may ask for confirmation.
const TIMEOUT: Duration = Duration::from_secs(60);

/// An agent at a socket. Blocking; never call on the async runtime.
#[derive(Clone, Debug)]
pub struct Agent {
    socket: PathBuf,
}

impl Agent {
    pub fn new(socket: &Path) -> Agent {
        Agent { socket: socket.to_owned() }
    }

    /// The agent of `SSH_AUTH_SOCK`, if it is set.
    pub fn from_env() -> Option<Agent> {
        std::env::var_os("SSH_AUTH_SOCK")
            .filter(|path| !path.is_empty())
            .map(|path| Agent::new(Path::new(&path)))
    }

    /// The keys of the agent. Certificates and unsupported algorithms are skipped.
    pub fn keys(&self) -> Result<Vec<PublicKey>> {
        let answer = self.request(&[REQUEST_IDENTITIES], IDENTITIES_ANSWER)?;
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

    /// Makes an SSHSIG over `message` with a key of the agent.
    pub fn sign(&self, key: &PublicKey, namespace: &str, message: &[u8]) -> Result<Vec<u8>> {
        let fail = |error: ssh_key::Error| self.fail(&error.to_string());
        let data = SshSig::signed_data(namespace, HashAlg::Sha512, message).map_err(fail)?;
        let blob = key.to_bytes().map_err(fail)?;
        let mut request = vec![SIGN_REQUEST];
        for field in [&blob, &data] {
            field.encode(&mut request).map_err(|error| fail(error.into()))?;
        }
        request.extend_from_slice(&0u32.to_be_bytes());
        let answer = self.request(&request, SIGN_RESPONSE)?;
        let bare = Vec::<u8>::decode(&mut answer.as_slice()).map_err(|error| fail(error.into()))?;
        Ok(envelope(namespace, &blob, &bare))
    }

    /// Sends a request and returns the body of the reply, which must have the wanted type.
    fn request(&self, request: &[u8], wanted: u8) -> Result<Vec<u8>> {
        let fail = |error: std::io::Error| self.fail(&error.to_string());
        #[expect(clippy::disallowed_methods, reason = "not an Outpost socket: the user names the agent")]
        let mut stream = UnixStream::connect(&self.socket).map_err(fail)?;
        stream.set_read_timeout(Some(TIMEOUT)).map_err(fail)?;
        stream.set_write_timeout(Some(TIMEOUT)).map_err(fail)?;
        let mut message = Vec::with_capacity(request.len() + 4);
        request.encode(&mut message).map_err(|error| self.fail(&error.to_string()))?;
        stream.write_all(&message).map_err(fail)?;
        let mut length = [0; 4];
        stream.read_exact(&mut length).map_err(fail)?;
        let length = u32::from_be_bytes(length) as usize;
        if length == 0 || length > MESSAGE_BYTES_MAX {
            return Err(self.fail("malformed reply"));
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
