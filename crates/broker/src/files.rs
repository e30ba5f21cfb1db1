//! Pinned files: looks up, opens and hashes the files of a request once, and verifies them before execution.

use crate::environment::SECURE_PATH;
use outpost_ledger::hex;
use outpost_sys::file::{self, Open};
use outpost_sys::root_only;
use sha2::{Digest, Sha256};
use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime};

/// Largest file that is hashed. The largest known programs have a few hundred megabytes.
const HASHED_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;

/// Entries in the hash cache.
const HASH_CACHE_MAX: usize = 256;

/// File systems with coarse timestamps can give two changes within this time the same ctime. Hashes of files that
/// changed more recently are not cached.
const RACY_WINDOW: Duration = Duration::from_secs(2);

pub(crate) const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EACCES: i32 = 13;

/// Identifies a file and its state: changes of its content or inode change this value.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct FileIdentity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) modified_ns: i128,
    pub(crate) changed_ns: i128,
}

impl FileIdentity {
    fn of(file: &File) -> io::Result<FileIdentity> {
        let metadata = file.metadata()?;
        let ns = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Ok(FileIdentity {
            device: metadata.dev(),
            inode: metadata.ino(),
            size: metadata.size(),
            modified_ns: ns(metadata.mtime(), metadata.mtime_nsec()),
            changed_ns: ns(metadata.ctime(), metadata.ctime_nsec()),
        })
    }
}

/// An open file with its identity and hash at the time of the lookup.
#[derive(Clone, Debug)]
pub(crate) struct PinnedFile {
    /// Path of the lookup, possibly a symlink. Multi-call binaries choose their command by its file name.
    pub(crate) lookup_path: PathBuf,
    /// Canonical path, without symlinks.
    pub(crate) real_path: PathBuf,
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) identity: FileIdentity,
    pub(crate) sha256: String,
    /// Starts with `#!`: the kernel passes its path to an interpreter.
    pub(crate) is_script: bool,
    /// Only root can change the file or a directory of its path.
    pub(crate) is_root_only: bool,
}

/// Why a file cannot be pinned.
#[derive(Debug)]
pub(crate) enum LookupError {
    /// The errno that exec would return.
    Os(i32),
    /// The broker's policy refuses the file.
    Refused(String),
}

impl LookupError {
    fn from_io(error: &io::Error) -> LookupError {
        LookupError::Os(error.raw_os_error().unwrap_or(EIO))
    }
}

/// The paths at which exec would search a program of this name, in order.
pub(crate) fn candidate_paths(name: &str, directory: &Path) -> Vec<PathBuf> {
    match name.contains('/') {
        true => vec![directory.join(name)],
        false => SECURE_PATH.split(':').map(|dir| Path::new(dir).join(name)).collect(),
    }
}

/// Finds and pins a program on the secure path, or at the path that `name` gives. With `require_root_only`, a program
/// that other users can change is refused.
pub(crate) fn program(
    name: &str,
    directory: &Path,
    require_root_only: bool,
) -> Result<PinnedFile, LookupError> {
    if name.is_empty() {
        return Err(LookupError::Os(ENOENT));
    }
    let mut found_unusable = false;
    for candidate in candidate_paths(name, directory) {
        let Ok(metadata) = std::fs::metadata(&candidate) else { continue };
        if !metadata.is_file() || metadata.mode() & 0o111 == 0 {
            found_unusable = true;
            continue;
        }
        let pinned = pin(&candidate)?;
        if require_root_only && !pinned.is_root_only {
            return Err(LookupError::Refused(not_root_only_message(&pinned.lookup_path)));
        }
        return Ok(pinned);
    }
    Err(LookupError::Os(if found_unusable { EACCES } else { ENOENT }))
}

/// The message for a program that users other than root can change.
fn not_root_only_message(path: &Path) -> String {
    let at = root_only::weak_spot(path).unwrap_or_else(|| path.to_owned());
    let [path, at] =
        [path, at.as_path()].map(|path| outpost_approvals::display::quote(&path.to_string_lossy()));
    format!("{path} is not run with root's rights: others than root can change {at}")
}

/// Opens and hashes the file at a path.
pub(crate) fn pin(lookup_path: &Path) -> Result<PinnedFile, LookupError> {
    let fail = |error: io::Error| LookupError::from_io(&error);
    let real_path = std::fs::canonicalize(lookup_path).map_err(fail)?;
    let file =
        file::open(&real_path, Open::Foreign).map_err(|errno| LookupError::Os(errno.raw_os_error()))?;
    let file = File::from(file);
    if !file.metadata().map_err(fail)?.is_file() {
        return Err(LookupError::Os(EACCES));
    }
    let identity = FileIdentity::of(&file).map_err(fail)?;
    let (sha256, is_script) = cached_hash(&file, identity)?;
    let is_root_only = root_only::is_root_only(lookup_path);
    let (lookup_path, file) = (lookup_path.to_owned(), Arc::new(file.into()));
    Ok(PinnedFile { lookup_path, real_path, file, identity, sha256, is_script, is_root_only })
}

impl PinnedFile {
    /// Whether the open file is unchanged and the lookup path still leads to it. `rehash` also compares the content.
    pub(crate) fn is_unchanged(&self, rehash: bool) -> bool {
        let same = |file: &File| FileIdentity::of(file).is_ok_and(|identity| identity == self.identity);
        let same_path =
            file::open(&self.lookup_path, Open::Foreign).is_ok_and(|file| same(&File::from(file)));
        let Ok(copy) = self.file.try_clone() else { return false };
        let pinned = File::from(copy);
        let same_content = || hash(&pinned).is_ok_and(|(sha256, _)| sha256 == self.sha256);
        same(&pinned) && same_path && (!rehash || same_content())
    }
}

/// Hashes of files that were older than [`RACY_WINDOW`] when they were read.
static HASH_CACHE: Mutex<Option<HashMap<FileIdentity, (String, bool)>>> = Mutex::new(None);

/// The SHA-256 of a file, and whether the file is a script.
fn cached_hash(file: &File, identity: FileIdentity) -> Result<(String, bool), LookupError> {
    let mut cache = HASH_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(hash) = cache.as_ref().and_then(|cache| cache.get(&identity)) {
        return Ok(hash.clone());
    }
    drop(cache);
    if identity.size > HASHED_BYTES_MAX {
        return Err(LookupError::Refused(format!(
            "a file of {} bytes is too large to be pinned",
            identity.size
        )));
    }
    let hashed = hash(file).map_err(|error| LookupError::from_io(&error))?;
    if FileIdentity::of(file).ok() != Some(identity) {
        return Err(LookupError::Refused("the file changed while it was being looked at".into()));
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let age = i128::try_from(now).unwrap_or(i128::MAX) - identity.changed_ns;
    if age > i128::try_from(RACY_WINDOW.as_nanos()).unwrap_or(i128::MAX) {
        cache = HASH_CACHE.lock().unwrap_or_else(PoisonError::into_inner);
        let cache = cache.get_or_insert_default();
        if cache.len() >= HASH_CACHE_MAX {
            cache.clear();
        }
        cache.insert(identity, hashed.clone());
    }
    Ok(hashed)
}

/// The SHA-256 of the whole file, and whether it starts with `#!`. Uses `pread`: other threads may read the same open
/// file description.
fn hash(file: &File) -> io::Result<(String, bool)> {
    use std::os::unix::fs::FileExt;
    let mut digest = Sha256::new();
    let mut buffer = vec![0; 256 * 1024];
    let (mut at, mut is_script) = (0, false);
    loop {
        let read = match file.read_at(&mut buffer, at) {
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            read => read?,
        };
        let bytes = buffer.get(..read).unwrap_or_default();
        if bytes.is_empty() {
            return Ok((hex(&digest.finalize()), is_script));
        }
        is_script |= at == 0 && bytes.starts_with(b"#!");
        digest.update(bytes);
        at += read as u64;
    }
}
