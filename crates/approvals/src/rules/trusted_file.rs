//! Reads a rules file, if only root or the daemon's user can have written it.

use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use outpost_sys::process::effective_uid;
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const BYTES_MAX: u64 = 1 << 20;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Returns the text, or `None` if the file does not exist. The error contains the cause and the next step.
pub(super) fn read(path: &Path) -> Result<Option<String>, String> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot stat it: {error}")),
        Ok(found) => found,
    };
    if !found.is_file() {
        return Err("it is not a regular file; replace it by the rules file itself".into());
    }
    // Check before opening: in a directory that no other user can write, the path stays a regular file.
    check_directories(path)?;
    let opened = match file::open(path, Open::Read) {
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(format!("cannot open it: {errno}")),
        Ok(opened) => File::from(opened),
    };
    let found = opened.metadata().map_err(|error| format!("cannot stat it: {error}"))?;
    if !found.is_file() {
        return Err("it is not a regular file; replace it by the rules file itself".into());
    }
    check("it", &found, false)?;
    let bytes = file::read_whole(&opened, BYTES_MAX).map_err(|errno| match errno {
        Errno::FBIG => format!("it has more than {BYTES_MAX} bytes"),
        errno => format!("cannot read it: {errno}"),
    })?;
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|error| format!("byte {} is not UTF-8", error.utf8_error().valid_up_to() + 1))
}

/// Checks every parent directory of the path, as given and with symlinks resolved. A user with write access to
/// one of them could replace what was checked.
fn check_directories(path: &Path) -> Result<(), String> {
    let real = path.canonicalize().map_err(|error| format!("cannot resolve its path: {error}"))?;
    for path in [path, &real] {
        for (distance, directory) in path.ancestors().skip(1).enumerate() {
            if directory.as_os_str().is_empty() {
                continue;
            }
            let shown = crate::display::quote(&directory.to_string_lossy());
            let found =
                std::fs::metadata(directory).map_err(|error| format!("cannot stat {shown}: {error}"))?;
            // In a sticky directory, other users cannot replace the file, but they can create a missing one.
            check(&format!("its directory {shown}"), &found, distance > 0)?;
        }
    }
    Ok(())
}

fn check(what: &str, found: &Metadata, sticky_suffices: bool) -> Result<(), String> {
    let own = effective_uid();
    if found.uid() != 0 && found.uid() != own {
        let owner = found.uid();
        return Err(format!("{what} belongs to user {owner}; it must belong to root or to user {own}"));
    }
    let is_guarded = sticky_suffices && found.mode() & STICKY != 0;
    match found.mode() & WRITABLE_BY_OTHERS {
        0 => Ok(()),
        _ if is_guarded => Ok(()),
        _ => Err(format!("{what} can be written by others; run chmod go-w")),
    }
}
