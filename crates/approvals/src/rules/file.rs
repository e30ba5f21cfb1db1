//! Reads a file that decides, if only those can have written it who may decide.

use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use outpost_sys::limits::effective_uid;
use std::fs::{File, Metadata};
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

const BYTES_MAX: u64 = 1 << 20;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// The text of the file; none where there is no such file; otherwise what is wrong with it and what to do.
pub(super) fn read(path: &Path) -> Result<Option<String>, String> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(format!("cannot look at it: {error}")),
        Ok(found) => found,
    };
    if !found.is_file() {
        return Err("it is not a regular file; put the rules themselves there".into());
    }
    // Before it is opened: in a directory that nobody else can write, it stays the regular file that it is.
    check_directories(path)?;
    let opened = match file::open(path, Open::Read) {
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(format!("cannot open it: {errno}")),
        Ok(opened) => File::from(opened),
    };
    let found = opened.metadata().map_err(|error| format!("cannot look at it: {error}"))?;
    if !found.is_file() {
        return Err("it is not a regular file; put the rules themselves there".into());
    }
    check("it", &found, false)?;
    let bytes = file::read_whole(&opened, BYTES_MAX).map_err(|errno| match errno {
        Errno::FBIG => format!("it has more than {BYTES_MAX} bytes; rules are short"),
        errno => format!("cannot read it: {errno}"),
    })?;
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|error| format!("byte {} is not UTF-8", error.utf8_error().valid_up_to() + 1))
}

/// Every directory on the way, by the path as it was given and as it really is. Who can write one can put another file,
/// or another directory, in place of the one that was checked.
fn check_directories(path: &Path) -> Result<(), String> {
    let real = path.canonicalize().map_err(|error| format!("cannot look at it: {error}"))?;
    for path in [path, &real] {
        for (distance, directory) in path.ancestors().skip(1).enumerate() {
            if directory.as_os_str().is_empty() {
                continue;
            }
            let shown = crate::display::quote(&directory.to_string_lossy());
            let found =
                std::fs::metadata(directory).map_err(|error| format!("cannot look at {shown}: {error}"))?;
            // In a sticky one nobody can replace what is not theirs, but anybody can put a file that was missing.
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
        _ => Err(format!("{what} can be written by others; take that right away with chmod go-w")),
    }
}
