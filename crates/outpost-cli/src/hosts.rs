//! Remote hosts: the local directory of each with its forwarded sockets, and the lock that its `outpost connect` holds.

use outpost_sys::connect::{self, Trust};
use outpost_sys::file::{self, Open};
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::time::{Duration, Instant};

/// Longest name; the path of a socket has at most 107 bytes.
const NAME_BYTES_MAX: usize = 64;

/// Retries of the lock, because a concurrent `connector_pid` holds it for a moment.
const LOCK_TIMEOUT: Duration = Duration::from_secs(1);
const LOCK_RETRY_INTERVAL: Duration = Duration::from_millis(10);

/// The local name of a host. It is used as a directory name and in arguments of ssh.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostName(String);

impl HostName {
    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for HostName {
    type Err = String;

    fn from_str(text: &str) -> Result<HostName, String> {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || b"._@-".contains(&byte);
        let starts_plain =
            text.bytes().next().is_some_and(|first| first.is_ascii_alphanumeric() || first == b'_');
        match starts_plain && text.len() <= NAME_BYTES_MAX && text.bytes().all(is_plain) {
            true => Ok(HostName(text.to_owned())),
            false => Err(format!(
                "a host name has at most {NAME_BYTES_MAX} letters, digits, `.`, `_`, `@` and `-`, and starts with a letter, a digit or `_`"
            )),
        }
    }
}

/// The outpost binary on a remote host, and the directories of its daemon.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct RemoteProgram {
    pub(crate) binary: PathBuf,
    pub(crate) state: PathBuf,
    pub(crate) runtime: PathBuf,
}

/// Facts about a connected host, stored in `host.json`.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct HostInfo {
    /// Default working directory of remote commands.
    pub(crate) home: PathBuf,
    /// `None` for an older remote version that does not report it.
    #[serde(default)]
    pub(crate) program: Option<RemoteProgram>,
}

/// A remote host and its local directory.
#[derive(Clone, Debug)]
pub struct Host {
    pub(crate) name: HostName,
    /// Has the same file names as the runtime directory of a daemon.
    pub(crate) dir: PathBuf,
}

impl Host {
    pub(crate) fn at(runtime: &Path, name: HostName) -> Host {
        Host { dir: runtime.join("hosts").join(name.as_str()), name }
    }

    /// `outpost connect` holds this lock while it runs. The file contains its pid.
    pub(crate) fn lock_path(&self) -> PathBuf {
        self.dir.join("connect.lock")
    }

    fn info_path(&self) -> PathBuf {
        self.dir.join("host.json")
    }

    /// Takes the lock; `None` if another process holds it.
    pub(crate) fn try_lock(&self) -> Result<Option<OwnedFd>, String> {
        let path = self.lock_path();
        let fail = |errno| format!("{}: {errno}", path.display());
        let lock = file::open(&path, Open::Create).map_err(fail)?;
        let deadline = Instant::now() + LOCK_TIMEOUT;
        while !file::try_lock(&lock).map_err(fail)? {
            if Instant::now() > deadline {
                return Ok(None);
            }
            std::thread::sleep(LOCK_RETRY_INTERVAL);
        }
        file::set_size(&lock, 0).map_err(fail)?;
        file::write_all_at(&lock, format!("{}\n", std::process::id()).as_bytes(), 0).map_err(fail)?;
        Ok(Some(lock))
    }

    /// The pid of the running `outpost connect`, connected or reconnecting.
    pub(crate) fn connector_pid(&self) -> Option<i32> {
        // A shared lock, so that concurrent probes do not see each other as the holder.
        match fs::File::open(self.lock_path()).ok()?.try_lock_shared() {
            Err(fs::TryLockError::WouldBlock) => {
                fs::read_to_string(self.lock_path()).ok()?.trim().parse().ok()
            }
            _ => None,
        }
    }

    /// Whether `outpost connect` runs but its ssh connection is down, so that a retry can succeed.
    pub(crate) fn is_reconnecting(&self, control_socket: &Path) -> bool {
        let reached = connect::connect(control_socket, Trust::Own).is_ok();
        !reached && self.connector_pid().is_some()
    }

    pub(crate) fn info(&self) -> Result<HostInfo, String> {
        let path = self.info_path();
        let read = fs::read(&path).map_err(|error| error.to_string());
        let info = read.and_then(|text| serde_json::from_slice(&text).map_err(|error| error.to_string()));
        info.map_err(|reason| {
            format!("host {} is not connected yet: {}: {reason}", self.name.as_str(), path.display())
        })
    }

    pub(crate) fn write_info(&self, info: &HostInfo) -> Result<(), String> {
        let path = self.info_path();
        let text = serde_json::to_vec(info).map_err(|error| error.to_string())?;
        fs::write(&path, text).map_err(|error| format!("{}: {error}", path.display()))
    }
}

#[cfg(test)]
mod tests {
    use super::HostName;

    #[test]
    fn host_names_contain_no_path_or_option_syntax() {
        for name in ["me@build-1.example.org", "box", "_x", "10.0.0.1"] {
            assert!(name.parse::<HostName>().is_ok(), "{name}");
        }
        for name in ["", "..", ".x", "-oProxyCommand=x", "a/b", "a:b", "a b", "a%h", &"x".repeat(65)] {
            assert!(name.parse::<HostName>().is_err(), "{name}");
        }
    }
}
