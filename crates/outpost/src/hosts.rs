//! Other hosts: where the forwarded sockets of each are on this one, and whether `outpost connect` is up for it.

use outpost_sys::connect::{self, Trust};
use outpost_sys::file::{self, Open};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Longer names leave no room for a socket's path.
const NAME_BYTES_MAX: usize = 64;

/// Somebody may just be looking whether it is taken.
const LOCK_PATIENCE: Duration = Duration::from_secs(1);
const LOCK_PAUSE: Duration = Duration::from_millis(10);

/// What a host is called here. It is the name of a directory, and stands in ssh's arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostName(String);

impl HostName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<HostName, String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
        let begins = text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_');
        match begins && text.len() <= NAME_BYTES_MAX && text.bytes().all(is_plain) {
            true => Ok(HostName(text.to_owned())),
            false => Err(format!(
                "a name has at most {NAME_BYTES_MAX} letters, digits, `.`, `_`, `@` and `-`, and begins with one of the first two"
            )),
        }
    }
}

/// This program on another host, and where its daemon keeps things.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct ProgramThere {
    pub(crate) binary: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) runtime: PathBuf,
}

/// What is known of a host while it is connected.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct About {
    /// Where commands begin there.
    pub(crate) home: PathBuf,
    /// How this program is called there; a daemon that is older than this is does not tell.
    #[serde(default)]
    pub(crate) program: Option<ProgramThere>,
}

/// A host with a place here.
#[derive(Clone, Debug)]
pub(crate) struct Host {
    pub(crate) name: HostName,
    /// As the daemon's runtime directory is there: the same names.
    pub(crate) dir: PathBuf,
}

impl Host {
    pub(crate) fn at(runtime: &Path, name: HostName) -> Host {
        Host { dir: runtime.join("hosts").join(name.as_str()), name }
    }

    /// Held by `outpost connect` as long as it is up, and says which process that is.
    pub(crate) fn lock_path(&self) -> PathBuf {
        self.dir.join("connect.lock")
    }

    fn about_path(&self) -> PathBuf {
        self.dir.join("host.json")
    }

    /// None when another has it.
    pub(crate) fn take_lock(&self) -> Result<Option<OwnedFd>, String> {
        let path = self.lock_path();
        let fail = |errno| format!("{}: {errno}", path.display());
        let lock = file::open(&path, Open::Create).map_err(fail)?;
        let deadline = Instant::now() + LOCK_PATIENCE;
        while !file::try_lock(&lock).map_err(fail)? {
            if Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::sleep(LOCK_PAUSE);
        }
        file::set_size(&lock, 0).map_err(fail)?;
        file::write_all_at(&lock, format!("{}\n", std::process::id()).as_bytes(), 0).map_err(fail)?;
        Ok(Some(lock))
    }

    /// The process that is connected, or on its way to be again.
    pub(crate) fn connected_by(&self) -> Option<i32> {
        // Shared: several may look at once, and none of them is taken for its holder.
        match fs::File::open(self.lock_path()).ok()?.try_lock_shared() {
            Err(fs::TryLockError::WouldBlock) => {
                fs::read_to_string(self.lock_path()).ok()?.trim().parse().ok()
            }
            _ => None,
        }
    }

    /// Connected as far as anybody wants to be, and ssh is not there: it is about to be again.
    pub(crate) fn is_away(&self, control_socket: &Path) -> bool {
        let reached = connect::connect(control_socket, Trust::Own).is_ok();
        !reached && self.connected_by().is_some()
    }

    pub(crate) fn about(&self) -> Result<About, String> {
        let path = self.about_path();
        let read = fs::read(&path).map_err(|error| error.to_string());
        let about = read.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
        about.map_err(|reason| {
            format!("{} is not connected yet ({}: {reason})", self.name.as_str(), path.display())
        })
    }

    pub(crate) fn write_about(&self, about: &About) -> Result<(), String> {
        let path = self.about_path();
        let text = serde_json::to_vec(about).map_err(|error| error.to_string())?;
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::HostName;

    #[test]
    fn names_are_nothing_but_names() {
        for name in ["me@build-1.example.org", "box", "_x", "10.0.0.1"] {
            assert!(name.parse::<HostName>().is_ok(), "{name}");
        }
        for name in ["", "..", ".x", "-oProxyCommand=x", "a/b", "a:b", "a b", "a%h", &"x".repeat(65)] {
            assert!(name.parse::<HostName>().is_err(), "{name}");
        }
    }
}
