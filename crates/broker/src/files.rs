//! The files that a request names: looked up once, opened, hashed, and looked at again before they are executed.

use crate::environment::SECURE_PATH;
use outpost_approvals::hex;
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

/// The most of a file that is hashed: the largest programs have a few hundred megabytes.
const HASHED_BYTES_MAX: u64 = 2 * 1024 * 1024 * 1024;

/// Hashes that are remembered.
const KNOWN_MAX: usize = 256;

/// Two changes within this time can look like one to the clock of a file system.
const SETTLED: Duration = Duration::from_secs(2);

/// What tells a file from every other, and from itself when it has changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, serde::Serialize, serde::Deserialize)]
pub(crate) struct Identity {
    pub(crate) device: u64,
    pub(crate) inode: u64,
    pub(crate) size: u64,
    pub(crate) modified_ns: i128,
    pub(crate) changed_ns: i128,
}

impl Identity {
    fn of(file: &File) -> io::Result<Identity> {
        let of = file.metadata()?;
        let ns = |seconds: i64, rest: i64| i128::from(seconds) * 1_000_000_000 + i128::from(rest);
        Ok(Identity {
            device: of.dev(),
            inode: of.ino(),
            size: of.size(),
            modified_ns: ns(of.mtime(), of.mtime_nsec()),
            changed_ns: ns(of.ctime(), of.ctime_nsec()),
        })
    }
}

/// A file as it was when it was looked at.
#[derive(Clone, Debug)]
pub(crate) struct Pinned {
    /// Where it was found. Programs of several names know by it which of them they are.
    pub(crate) found: PathBuf,
    /// Where it really is, with no link on the way.
    pub(crate) path: PathBuf,
    pub(crate) file: Arc<OwnedFd>,
    pub(crate) identity: Identity,
    pub(crate) sha256: String,
    /// The kernel hands it to an interpreter, by name.
    pub(crate) is_script: bool,
    /// Nobody but root can change it or the way to it.
    pub(crate) is_guarded: bool,
}

/// Why a file cannot be used.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// As the kernel would say it at exec.
    Os(i32),
    /// Ours.
    Refused(String),
}

impl Unusable {
    fn from_io(error: &io::Error) -> Unusable {
        Unusable::Os(error.raw_os_error().unwrap_or(5))
    }
}

/// Where a program of this name could be, the first place first.
pub(crate) fn candidates(name: &str, directory: &Path) -> Vec<PathBuf> {
    match name.contains('/') {
        true => vec![directory.join(name)],
        false => SECURE_PATH.split(':').map(|dir| Path::new(dir).join(name)).collect(),
    }
}

/// Finds the program that a name stands for: on the secure path, or where it says. `guarded` wants one that only root
/// can change.
pub(crate) fn program(name: &str, directory: &Path, guarded: bool) -> Result<Pinned, Unusable> {
    const NOT_THERE: i32 = 2;
    const NOT_ALLOWED: i32 = 13;
    if name.is_empty() {
        return Err(Unusable::Os(NOT_THERE));
    }
    let mut refused = false;
    for candidate in candidates(name, directory) {
        let Ok(of) = std::fs::metadata(&candidate) else { continue };
        if !of.is_file() || of.mode() & 0o111 == 0 {
            refused = true;
            continue;
        }
        let pinned = pin(&candidate)?;
        if guarded && !pinned.is_guarded {
            return Err(Unusable::Refused(complaint(&pinned.found)));
        }
        return Ok(pinned);
    }
    Err(Unusable::Os(if refused { NOT_ALLOWED } else { NOT_THERE }))
}

/// Why a program that is not guarded is not run.
fn complaint(path: &Path) -> String {
    let at = root_only::weak_spot(path).unwrap_or_else(|| path.to_owned());
    let [path, at] =
        [path, at.as_path()].map(|path| outpost_approvals::display::quote(&path.to_string_lossy()));
    format!("{path} is not run with root's rights: others than root can change {at}")
}

/// Opens and hashes what a path leads to now.
pub(crate) fn pin(found: &Path) -> Result<Pinned, Unusable> {
    let fail = |error: io::Error| Unusable::from_io(&error);
    let path = std::fs::canonicalize(found).map_err(fail)?;
    let file = file::open(&path, Open::Foreign).map_err(|errno| Unusable::Os(errno.raw_os_error()))?;
    let file = File::from(file);
    if !file.metadata().map_err(fail)?.is_file() {
        return Err(Unusable::Os(13));
    }
    let identity = Identity::of(&file).map_err(fail)?;
    let (sha256, is_script) = hashed(&file, identity)?;
    let is_guarded = root_only::is_root_only(found);
    let found = found.to_owned();
    Ok(Pinned { found, path, file: Arc::new(file.into()), identity, sha256, is_script, is_guarded })
}

impl Pinned {
    /// Whether it is still what it was, and its name still stands for it. `thoroughly` reads it again: time has passed.
    pub(crate) fn is_unchanged(&self, thoroughly: bool) -> bool {
        let same = |file: &File| Identity::of(file).is_ok_and(|identity| identity == self.identity);
        let by_name = file::open(&self.found, Open::Foreign).is_ok_and(|file| same(&File::from(file)));
        let Ok(copy) = self.file.try_clone() else { return false };
        let ours = File::from(copy);
        let reread = || hash(&ours).is_ok_and(|(sha256, _)| sha256 == self.sha256);
        same(&ours) && by_name && (!thoroughly || reread())
    }
}

/// Hashes by identity, of files that had not changed for a while when they were read.
static KNOWN: Mutex<Option<HashMap<Identity, (String, bool)>>> = Mutex::new(None);

fn hashed(file: &File, identity: Identity) -> Result<(String, bool), Unusable> {
    let mut known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(found) = known.as_ref().and_then(|known| known.get(&identity)) {
        return Ok(found.clone());
    }
    drop(known);
    if identity.size > HASHED_BYTES_MAX {
        return Err(Unusable::Refused(format!(
            "a file of {} bytes is too large to be pinned",
            identity.size
        )));
    }
    let found = hash(file).map_err(|error| Unusable::from_io(&error))?;
    if Identity::of(file).ok() != Some(identity) {
        return Err(Unusable::Refused("the file changed while it was being looked at".into()));
    }
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default().as_nanos();
    let age = i128::try_from(now).unwrap_or(i128::MAX) - identity.changed_ns;
    if age > i128::try_from(SETTLED.as_nanos()).unwrap_or(i128::MAX) {
        known = KNOWN.lock().unwrap_or_else(PoisonError::into_inner);
        let known = known.get_or_insert_default();
        if known.len() >= KNOWN_MAX {
            known.clear();
        }
        known.insert(identity, found.clone());
    }
    Ok(found)
}

/// The digest from the beginning, and whether it begins as scripts do. Another descriptor of the same file may be read
/// at the same time, so the position is our own.
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
