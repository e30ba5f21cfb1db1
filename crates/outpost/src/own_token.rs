//! Tokens that the daemon makes for its own ports, each in a file that only this user can read.

use crate::failure::Failure;
use crate::redact;
use outpost_sys::file::{self, Open};
use std::io::Write;
use std::path::Path;

/// Random bytes of a token; the file has two digits for each.
const BYTES: usize = 32;

/// No token is longer.
const FILE_BYTES_MAX: u64 = 4096;

/// The token in this file, made if there is none. It is kept out of the log.
pub(crate) fn make(path: &Path) -> Result<String, Failure> {
    let fail = |failure: Failure| failure.within(path.display());
    if let Some(token) = read(path) {
        redact::learn(&token);
        return Ok(token);
    }
    let random = outpost_sys::limits::random::<BYTES>().map_err(|errno| fail(errno.into()))?;
    let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
    let made = file::open(path, Open::Replace).map_err(|errno| fail(errno.into()))?;
    std::fs::File::from(made).write_all(token.as_bytes()).map_err(|error| fail(error.into()))?;
    redact::learn(&token);
    Ok(token)
}

/// The token in this file, if there is a whole one.
pub(crate) fn read(path: &Path) -> Option<String> {
    let file = file::open(path, Open::Read).ok()?;
    let text = String::from_utf8(file::read_whole(&file, FILE_BYTES_MAX).ok()?).ok()?;
    let token = text.trim();
    (token.len() >= BYTES).then(|| token.to_owned())
}
