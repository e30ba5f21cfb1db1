//! Reads a rules file, if only root or the daemon's user can have written it.

use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use outpost_sys::process::effective_uid;
use std::fs::{File, Metadata};
use std::io::{self, ErrorKind};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use thiserror::Error;

const BYTES_MAX: u64 = 1 << 20;
const WRITABLE_BY_OTHERS: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Why a rules file cannot be trusted or read, with the next step. `what` is the file or one of its directories.
#[derive(Debug, Error)]
pub(super) enum FileError {
    #[error("cannot stat {what}: {cause}")]
    Stat {
        what: String,
        #[source]
        cause: io::Error,
    },
    #[error("cannot resolve its path: {0}")]
    Resolve(#[source] io::Error),
    #[error("cannot open it: {0}")]
    Open(#[source] Errno),
    #[error("cannot read it: {0}")]
    Read(#[source] Errno),
    #[error("it is not a regular file; replace it by the rules file itself")]
    NotRegular,
    #[error("it has more than {BYTES_MAX} bytes")]
    TooLarge,
    #[error("byte {0} is not UTF-8")]
    NotUtf8(usize),
    #[error("{what} belongs to user {owner}; it must belong to root or to user {own}")]
    Owner { what: String, owner: u32, own: u32 },
    #[error("{what} can be written by others; run chmod go-w")]
    Writable { what: String },
}

impl FileError {
    fn stat(what: &str) -> impl FnOnce(io::Error) -> FileError {
        let what = what.to_owned();
        |cause| FileError::Stat { what, cause }
    }
}

/// Returns the text, or `None` if the file does not exist.
pub(super) fn read(path: &Path) -> Result<Option<String>, FileError> {
    let found = match std::fs::symlink_metadata(path) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(FileError::stat("it")(error)),
        Ok(found) => found,
    };
    if !found.is_file() {
        return Err(FileError::NotRegular);
    }
    // Check before opening: in a directory that no other user can write, the path stays a regular file.
    check_directories(path)?;
    let opened = match file::open(path, Open::Read) {
        Err(Errno::NOENT) => return Ok(None),
        Err(errno) => return Err(FileError::Open(errno)),
        Ok(opened) => File::from(opened),
    };
    let found = opened.metadata().map_err(FileError::stat("it"))?;
    if !found.is_file() {
        return Err(FileError::NotRegular);
    }
    check("it", &found, false)?;
    let bytes = file::read_whole(&opened, BYTES_MAX).map_err(|errno| match errno {
        Errno::FBIG => FileError::TooLarge,
        errno => FileError::Read(errno),
    })?;
    let text = String::from_utf8(bytes);
    text.map(Some).map_err(|error| FileError::NotUtf8(error.utf8_error().valid_up_to() + 1))
}

/// Checks every parent directory of the path, as given and with symlinks resolved. A user with write access to
/// one of them could replace what was checked.
fn check_directories(path: &Path) -> Result<(), FileError> {
    let real = path.canonicalize().map_err(FileError::Resolve)?;
    for path in [path, &real] {
        for (distance, directory) in path.ancestors().skip(1).enumerate() {
            if directory.as_os_str().is_empty() {
                continue;
            }
            let shown = crate::display::quote(&directory.to_string_lossy());
            let found = std::fs::metadata(directory).map_err(FileError::stat(&shown))?;
            // In a sticky directory, other users cannot replace the file, but they can create a missing one.
            check(&format!("its directory {shown}"), &found, distance > 0)?;
        }
    }
    Ok(())
}

fn check(what: &str, found: &Metadata, sticky_suffices: bool) -> Result<(), FileError> {
    let own = effective_uid();
    if found.uid() != 0 && found.uid() != own {
        let owner = found.uid();
        return Err(FileError::Owner { what: what.to_owned(), owner, own });
    }
    let is_guarded = sticky_suffices && found.mode() & STICKY != 0;
    match found.mode() & WRITABLE_BY_OTHERS {
        0 => Ok(()),
        _ if is_guarded => Ok(()),
        _ => Err(FileError::Writable { what: what.to_owned() }),
    }
}
