//! Tokens that the daemon generates for its own TCP ports, each in a file with mode 0600.

use crate::failure::Failure;
use outpost_cli::redact;
use outpost_sys::file::{self, Open};
use std::io::Write;
use std::path::Path;

/// Random bytes in a token. The file contains them in hexadecimal.
const BYTES: usize = 32;

const FILE_BYTES_MAX: u64 = 4096;

/// Reads the token from this file or creates it. Log lines redact the token from then on.
pub(crate) fn load_or_create(path: &Path) -> Result<String, Failure> {
    let fail = |failure: Failure| failure.within(path.display());
    if let Some(token) = read(path) {
        redact::learn(&token);
        return Ok(token);
    }
    let random = outpost_sys::random::bytes::<BYTES>().map_err(|errno| fail(errno.into()))?;
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let created = file::open(path, Open::Replace).map_err(|errno| fail(errno.into()))?;
    std::fs::File::from(created).write_all(token.as_bytes()).map_err(|error| fail(error.into()))?;
    redact::learn(&token);
    Ok(token)
}

/// Reads the token from this file. A file that is too short was not written to its end.
fn read(path: &Path) -> Option<String> {
    let file = file::open(path, Open::Read).ok()?;
    let text = String::from_utf8(file::read_whole(&file, FILE_BYTES_MAX).ok()?).ok()?;
    let token = text.trim();
    (token.len() >= BYTES).then(|| token.to_owned())
}
