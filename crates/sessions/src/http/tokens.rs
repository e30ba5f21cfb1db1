//! Bearer tokens. The file holds their digests, and the daemon reads it again after each change.

use crate::{Error, Result};
use jiff::Timestamp;
use outpost_sys::file::{self, Open};
use outpost_wire::{TokenCheck, is_same_secret};
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// Limits of the file.
const TOKENS_MAX: usize = 1000;
const FILE_BYTES_MAX: u64 = 1024 * 1024;

/// Prefix of every token, which secret scanners can search for.
const PREFIX: &str = "outpost_";

/// A token in the file. The digest verifies a token but cannot be used as one.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Token {
    pub label: String,
    pub sha256: String,
    pub created: String,
}

/// The tokens in a file.
pub struct Tokens {
    path: PathBuf,
    known: Mutex<(Option<Stamp>, Vec<Token>)>,
    /// Digests of tokens from other sources.
    others: Vec<String>,
}

/// Inode, size and ctime of the file, to detect a change.
type Stamp = (u64, u64, i64, i64);

impl Tokens {
    pub fn at(path: impl Into<PathBuf>) -> Tokens {
        Tokens { path: path.into(), known: Mutex::default(), others: Vec::new() }
    }

    /// Accepts these tokens too.
    pub fn with(mut self, others: &[String]) -> Tokens {
        self.others = others.iter().map(|token| digest(token.as_bytes())).collect();
        self
    }

    /// Whether the token is valid now. Compares in constant time.
    fn is_valid(&self, token: &[u8]) -> bool {
        let digest = digest(token);
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = stamp(&self.path);
        if known.0 != stamp || stamp.is_none() {
            // An unreadable file holds no valid token.
            *known = (stamp, self.list().unwrap_or_default());
        }
        let all = known.1.iter().map(|token| &token.sha256).chain(&self.others);
        all.fold(false, |found, known| found | is_same_secret(digest.as_bytes(), known.as_bytes()))
    }

    pub fn into_check(self) -> TokenCheck {
        TokenCheck::new(move |token| self.is_valid(token))
    }

    pub fn list(&self) -> Result<Vec<Token>> {
        let fail = |reason: &dyn std::fmt::Display| Error::file("read", &self.path, reason);
        let text = match file::open(&self.path, Open::Read) {
            Ok(file) => file::read_whole(&file, FILE_BYTES_MAX).map_err(|errno| fail(&errno))?,
            Err(outpost_sys::Errno::NOENT) => return Ok(Vec::new()),
            Err(errno) => return Err(fail(&errno)),
        };
        serde_json::from_slice(&text).map_err(|error| fail(&error))
    }

    /// Creates a token under an unused label. Only its digest is stored, so this is the only time it can be seen.
    pub fn create(&self, label: &str) -> Result<String> {
        let fail = |reason: &str| Err(Error::file("add a token to", &self.path, reason));
        let is_allowed =
            !label.is_empty() && label.len() <= 64 && label.chars().all(|c| c.is_ascii_graphic());
        if !is_allowed {
            return fail("a label has 1 to 64 letters, digits and signs, no blanks");
        }
        let mut tokens = self.list()?;
        if tokens.iter().any(|token| token.label == label) {
            return fail("the label is taken; choose another one or revoke it first");
        }
        if tokens.len() >= TOKENS_MAX {
            return fail("there are too many tokens; revoke some first");
        }
        let random = outpost_sys::random::bytes::<32>()
            .map_err(|errno| Error::io("make a token for", &self.path, errno))?;
        let token = format!("{PREFIX}{}", outpost_ledger::hex(&random));
        tokens.push(Token {
            label: label.to_owned(),
            sha256: digest(token.as_bytes()),
            created: Timestamp::now().to_string(),
        });
        self.save(&tokens)?;
        Ok(token)
    }

    /// Returns whether the label existed.
    pub fn revoke(&self, label: &str) -> Result<bool> {
        let mut tokens = self.list()?;
        let before = tokens.len();
        tokens.retain(|token| token.label != label);
        if tokens.len() == before {
            return Ok(false);
        }
        self.save(&tokens)?;
        Ok(true)
    }

    fn save(&self, tokens: &[Token]) -> Result<()> {
        let fail = |error: std::io::Error| Error::io("write", &self.path, error);
        if let Some(dir) = self.path.parent() {
            std::fs::create_dir_all(dir).map_err(fail)?;
        }
        let new = self.path.with_extension("new");
        let text = serde_json::to_vec_pretty(tokens).unwrap_or_default();
        let mut options = std::fs::OpenOptions::new();
        let written =
            options.write(true).create(true).truncate(true).mode(0o600).open(&new).and_then(|mut file| {
                file.write_all(&text)?;
                file.sync_all()?;
                std::fs::rename(&new, &self.path)
            });
        written.map_err(fail)
    }
}

fn digest(token: &[u8]) -> String {
    outpost_ledger::hex(&Sha256::digest(token))
}

fn stamp(path: &Path) -> Option<Stamp> {
    let file = std::fs::metadata(path).ok()?;
    Some((file.ino(), file.len(), file.ctime(), file.ctime_nsec()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_is_valid_from_its_creation_until_it_is_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("tokens.json");
        let (daemon, command) = (Tokens::at(&path), Tokens::at(&path));
        assert!(!daemon.is_valid(b""));
        let token = command.create("laptop").unwrap();
        assert!(daemon.is_valid(token.as_bytes()));
        assert!(!daemon.is_valid(b"outpost_0"));
        let stored = std::fs::read_to_string(&path).unwrap();
        assert!(!stored.contains(token.trim_start_matches(PREFIX)), "{stored}");
        assert_eq!(std::fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert!(command.create("laptop").is_err());
        assert!(command.create("a b").is_err());
        assert!(command.revoke("laptop").unwrap());
        assert!(!command.revoke("laptop").unwrap());
        assert!(!daemon.is_valid(token.as_bytes()));
    }
}
