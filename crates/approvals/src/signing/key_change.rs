//! The statement that enrolls, renames, expires or revokes an approver's key.

use super::encoding::{Decoder, Encoder};
use super::{DecodeError, SignedError, VALID_MS};
use outpost_ledger::audit::Head;

const MAGIC: &str = "outpost-key-statement";

/// Maximum number of users or hosts in a scope.
const SCOPE_NAMES_MAX: u64 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeyAction {
    Enroll,
    Rename,
    /// Sets the expiry of the key.
    Expire,
    Revoke,
}

impl KeyAction {
    pub fn name(self) -> &'static str {
        match self {
            KeyAction::Enroll => "enroll",
            KeyAction::Rename => "rename",
            KeyAction::Expire => "expire",
            KeyAction::Revoke => "revoke",
        }
    }
}

/// A change of one key. `root`, `users` and `hosts` apply to `Enroll`; `not_after_ms` applies to `Enroll` and
/// `Expire`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyChange {
    /// The public key of the host that owns the list, in SSH wire format.
    pub host: Vec<u8>,
    pub action: KeyAction,
    /// The approver's public key, in SSH wire format.
    pub key: Vec<u8>,
    pub name: String,
    /// May decide what runs as root.
    pub root: bool,
    /// Users whose questions this key may decide. Empty: all users.
    pub users: Vec<String>,
    /// Host names where this key may decide. Empty: all hosts.
    pub hosts: Vec<String>,
    /// Expiry in Unix milliseconds; 0 means never.
    pub not_after_ms: u64,
    pub head: Head,
    pub issued_ms: u64,
    pub expires_ms: u64,
}

impl KeyChange {
    /// Creates a change, issued now, with an unlimited scope.
    pub fn new(action: KeyAction, host: &[u8], head: Head, key: &[u8], name: &str) -> KeyChange {
        let issued_ms = outpost_ledger::unix_ms();
        KeyChange {
            host: host.to_vec(),
            action,
            key: key.to_vec(),
            name: name.to_owned(),
            root: true,
            users: Vec::new(),
            hosts: Vec::new(),
            not_after_ms: 0,
            head,
            issued_ms,
            expires_ms: issued_ms.saturating_add(VALID_MS),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        Encoder::new(MAGIC)
            .string(&self.host)
            .string(self.action.name())
            .string(&self.key)
            .string(&self.name)
            .string(if self.root { "root" } else { "" })
            .strings(&self.users)
            .strings(&self.hosts)
            .number(self.not_after_ms)
            .head(&self.head)
            .number(self.issued_ms)
            .number(self.expires_ms)
            .bytes()
    }

    pub fn decode(bytes: &[u8]) -> Result<KeyChange, SignedError> {
        KeyChange::parse(bytes).map_err(SignedError::KeyStatement)
    }

    fn parse(bytes: &[u8]) -> Result<KeyChange, DecodeError> {
        let mut from = Decoder::new(bytes, MAGIC)?;
        let host = from.bytes("host key")?;
        let action = match from.text("action")?.as_str() {
            "enroll" => KeyAction::Enroll,
            "rename" => KeyAction::Rename,
            "expire" => KeyAction::Expire,
            "revoke" => KeyAction::Revoke,
            _ => return Err(DecodeError::Unknown("action")),
        };
        let (key, name) = (from.bytes("key")?, from.text("name")?);
        let root = match from.text("scope")?.as_str() {
            "root" => true,
            "" => false,
            _ => return Err(DecodeError::Unknown("scope")),
        };
        let (users, hosts) =
            (from.strings("users", SCOPE_NAMES_MAX)?, from.strings("hosts", SCOPE_NAMES_MAX)?);
        let not_after_ms = from.number("end of the key")?;
        let head = from.head()?;
        let (issued_ms, expires_ms) = (from.number("time of issue")?, from.number("expiry")?);
        from.end()?;
        Ok(KeyChange {
            host,
            action,
            key,
            name,
            root,
            users,
            hosts,
            not_after_ms,
            head,
            issued_ms,
            expires_ms,
        })
    }
}
