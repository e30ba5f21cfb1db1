//! The approver's secret: told once to the human, kept as a digest that says nothing about it.

use crate::{Cause, Error, Result};
use outpost_sys::file::{self, Open};
use sha2::{Digest, Sha256};
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use subtle::ConstantTimeEq;

/// Random bytes of a secret.
const SECRET_BYTES: usize = 16;

/// Where an operator puts the digest so that nobody but root can replace it.
const SYSTEM_FILE: &str = "/etc/outpost/approver.sha256";

/// What a secret is compared with.
pub(crate) struct Verifier {
    file: PathBuf,
}

impl Verifier {
    /// Below the daemon's own state, unless root has put one where only root can.
    pub(crate) fn new(state: &Path) -> Verifier {
        let own = state.join("approver.sha256");
        let by_root =
            std::fs::metadata(SYSTEM_FILE).is_ok_and(|file| file.uid() == 0 && file.mode() & 0o022 == 0);
        Verifier { file: if by_root { SYSTEM_FILE.into() } else { own } }
    }

    fn digest(&self) -> Option<String> {
        let text = std::fs::read_to_string(&self.file).ok()?;
        let text = text.trim();
        (text.len() == 64).then(|| text.to_owned())
    }

    pub(crate) fn is_set(&self) -> bool {
        self.digest().is_some()
    }

    pub(crate) fn accepts(&self, secret: &str) -> bool {
        let given = hex(&Sha256::digest(secret.trim().as_bytes()));
        self.digest().is_some_and(|digest| digest.as_bytes().ct_eq(given.as_bytes()).into())
    }

    /// Makes a secret, stores its digest and returns it, the only time.
    pub(crate) fn renew(&self) -> Result<String> {
        let fail = |cause: Cause| Error::file("write", &self.file, cause);
        let random = outpost_sys::limits::random::<SECRET_BYTES>().map_err(|errno| fail(errno.into()))?;
        let secret = hex(&random);
        let digest = hex(&Sha256::digest(secret.as_bytes()));
        let new = self.file.with_extension("new");
        let file = file::open(&new, Open::Replace).map_err(|errno| fail(errno.into()))?;
        let mut file = std::fs::File::from(file);
        let written = writeln!(file, "{digest}").and_then(|()| file.sync_all());
        written.and_then(|()| std::fs::rename(&new, &self.file)).map_err(|error| fail(error.into()))?;
        Ok(secret)
    }
}

/// Lower-case hexadecimal digits.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
        let _infallible = write!(text, "{byte:02x}");
        text
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_secret_that_was_told_is_accepted() {
        let dir = tempfile::tempdir().unwrap();
        let verifier = Verifier { file: dir.path().join("approver.sha256") };
        assert!(!verifier.is_set());
        assert!(!verifier.accepts(""));
        let secret = verifier.renew().unwrap();
        assert!(verifier.accepts(&secret) && verifier.accepts(&format!("{secret}\n")));
        assert!(!verifier.accepts(&secret.to_uppercase()) || secret == secret.to_uppercase());
        let digest = std::fs::read_to_string(&verifier.file).unwrap();
        assert!(!verifier.accepts(digest.trim()), "what is stored does not open anything");
        let newer = verifier.renew().unwrap();
        assert!(!verifier.accepts(&secret) && verifier.accepts(&newer));
        std::fs::write(&verifier.file, "").unwrap();
        assert!(!verifier.accepts(""), "an empty file is no secret");
    }
}
