//! The directories of processes, `<state>/processes/<slot>`: a description and the journal each.

use crate::spec::{Key, Slot, Supervision};
use crate::{Error, Result};
use outpost_journal::StdinLog;
use outpost_sys::Errno;
use outpost_sys::file::{self, Open};
use outpost_sys::identity::this_boot;
use serde::{Deserialize, Serialize};
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The largest description that is read.
const DESCRIPTION_BYTES_MAX: u64 = 16 * 1024 * 1024;

/// The file of the description.
const DESCRIPTION: &str = "process.json";

/// An empty file of this name exists while the tree of a process is being killed.
const KILL: &str = "kill";

/// The description of a process. It has neither the environment nor stdin, which may be secret.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Description {
    pub(crate) key: Key,
    pub(crate) program: String,
    pub(crate) arguments: Vec<String>,
    pub(crate) directory: Option<String>,
    pub(crate) terminal: bool,
    pub(crate) started_ms: u64,
    pub(crate) started_by: String,
    #[serde(flatten)]
    pub(crate) supervision: Supervision,
    /// The boot id of the host; empty in a description of an older version.
    #[serde(default)]
    pub(crate) boot_id: String,
    /// Whether the process is sandboxed; `None` in a description of an older version. Loopback ports refuse clients
    /// unless this is known to be false.
    #[serde(default)]
    pub(crate) confined: Option<bool>,
}

/// The disk space that a prepared slot has for its description.
pub(crate) const DESCRIPTION_RESERVED_BYTES: u64 = 4096;

/// The content of the directory of a process that no keeper holds.
pub(crate) enum Recalled {
    Described(Box<Description>),
    /// The description of a process is lost.
    Lost,
    /// No process was started in this prepared slot.
    Unused,
}

/// The directory of a record that is being erased has this suffix.
const REMOVED: &str = ".removed";

/// The directory of all processes.
pub(crate) struct ProcessDirs {
    processes: PathBuf,
}

/// Reserves disk space for a description.
pub(crate) fn reserve(file: &OwnedFd, bytes: u64) -> Result<()> {
    file::reserve(file, bytes)
        .map_err(|errno| Error::io("reserve room for", "the description of a process", errno))
}

impl Description {
    /// Replaces a description that was lost by a power failure.
    pub(crate) fn lost(slot: Slot) -> Description {
        Description {
            key: Key::new("lost", "", &slot.to_string()),
            program: String::new(),
            arguments: Vec::new(),
            directory: None,
            terminal: false,
            started_ms: slot.made_ms(),
            started_by: String::new(),
            supervision: Supervision::default(),
            boot_id: String::new(),
            confined: None,
        }
    }

    pub(crate) fn is_lost(&self) -> bool {
        self.program.is_empty()
    }

    /// Whether the host was restarted since. False when that is unknown.
    pub(crate) fn is_of_another_boot(&self) -> bool {
        !self.boot_id.is_empty() && !this_boot().is_empty() && self.boot_id != this_boot()
    }

    /// The content of the file.
    pub(crate) fn encode(&self) -> Result<Vec<u8>> {
        serde_json::to_vec(self).map_err(|_| Error::Invalid { what: "the description" })
    }
}

impl ProcessDirs {
    /// Opens the directory, or creates it for this user only.
    pub(crate) fn open(state: &Path) -> Result<ProcessDirs> {
        let processes = state.join("processes");
        let mut builder = fs::DirBuilder::new();
        builder
            .recursive(true)
            .mode(0o700)
            .create(&processes)
            .map_err(|error| Error::path("create", &processes, &error))?;
        Ok(ProcessDirs { processes })
    }

    /// Finishes removals that an earlier worker began. Blocking.
    pub(crate) fn erase_leftovers(&self) {
        let Ok(entries) = fs::read_dir(&self.processes) else { return };
        let is_removed = |path: &PathBuf| path.to_str().is_some_and(|path| path.ends_with(REMOVED));
        entries.flatten().map(|entry| entry.path()).filter(is_removed).for_each(|dir| erase(&dir));
    }

    pub(crate) fn dir(&self, slot: Slot) -> PathBuf {
        self.processes.join(slot.to_string())
    }

    /// Creates the directory of a new process with an empty description.
    pub(crate) fn create(&self, slot: Slot) -> Result<(PathBuf, OwnedFd)> {
        let dir = self.dir(slot);
        fs::DirBuilder::new()
            .mode(0o700)
            .create(&dir)
            .map_err(|error| Error::path("create", &dir, &error))?;
        let path = dir.join(DESCRIPTION);
        let description = file::open(&path, Open::Replace)
            .map_err(|errno| Error::io("create", path.display().to_string(), errno))?;
        Ok((dir, description))
    }

    /// Whether a description was written. Before, the file is empty.
    pub(crate) fn is_described(&self, slot: Slot) -> Result<bool> {
        let path = self.dir(slot).join(DESCRIPTION);
        match fs::metadata(&path) {
            Ok(found) => Ok(found.len() > 0),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(Error::path("stat", &path, &error)),
        }
    }

    /// Records that the tree of a process is being killed. If this worker dies meanwhile, the next one finishes that.
    pub(crate) fn record_kill(&self, slot: Slot) {
        let recorded = file::open(self.dir(slot).join(KILL), Open::Create);
        // Without a directory the next worker has no process to kill.
        if let Err(errno) = recorded.as_ref().map_err(|errno| *errno)
            && errno != Errno::NOENT
        {
            tracing::warn!(process = %slot, %errno, "cannot record a kill; if this worker dies, the next one does not finish it");
        }
    }

    /// The tree was killed.
    pub(crate) fn remove_kill_record(&self, slot: Slot) {
        let _never_recorded = fs::remove_file(self.dir(slot).join(KILL));
    }

    /// Whether an earlier worker has not finished killing the tree of a process.
    pub(crate) fn is_kill_due(&self, slot: Slot) -> bool {
        self.dir(slot).join(KILL).exists()
    }

    /// Reads the directory of a process that no keeper holds.
    pub(crate) fn recall(&self, slot: Slot) -> Result<Recalled> {
        use std::io::ErrorKind::{FileTooLarge, InvalidData, NotFound, UnexpectedEof};
        let dir = self.dir(slot);
        let path = dir.join(DESCRIPTION);
        match read_description(&path) {
            Ok(description) => Ok(Recalled::Described(Box::new(description))),
            Err(error) if matches!(error.kind(), FileTooLarge | InvalidData | NotFound | UnexpectedEof) => {
                let is_unused = is_unused(&dir).map_err(|error| Error::path("list", &dir, &error))?;
                Ok(if is_unused { Recalled::Unused } else { Recalled::Lost })
            }
            Err(error) => Err(Error::path("read", &path, &error)),
        }
    }

    /// Whether nothing was written to the directory of a process for this long.
    pub(crate) fn is_older_than(&self, slot: Slot, age: Duration) -> bool {
        let written = fs::metadata(self.dir(slot)).and_then(|found| found.modified());
        written.is_ok_and(|time| time.elapsed().is_ok_and(|since| since > age))
    }

    /// Syncs the file system of the state directory.
    pub(crate) fn sync_file_system(&self) -> Result<()> {
        let synced = file::open(&self.processes, Open::Directory).and_then(file::sync_file_system);
        synced.map_err(|errno| Error::io("sync", self.processes.display().to_string(), errno))
    }

    /// Syncs a description and the name of its directory.
    pub(crate) fn sync_description(&self, slot: Slot) -> Result<()> {
        let path = self.dir(slot).join(DESCRIPTION);
        let synced = file::open(&path, Open::Read).and_then(file::sync_data);
        let synced =
            synced.and_then(|()| file::open(&self.processes, Open::Directory)).and_then(file::sync_directory);
        synced.map_err(|errno| Error::io("sync", path.display().to_string(), errno))
    }

    /// The slots of all directories.
    pub(crate) fn slots(&self) -> Result<Vec<Slot>> {
        let entries =
            fs::read_dir(&self.processes).map_err(|error| Error::path("list", &self.processes, &error))?;
        Ok(entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect())
    }

    /// Frees the disk space of a stdin log without further deliveries. The number of accepted bytes stays known.
    pub(crate) fn empty_stdin_log(&self, slot: Slot) {
        if let Err(error) = StdinLog::retire(&self.dir(slot).join("stdin")) {
            tracing::debug!(process = %slot, %error, "cannot free the disk space of a stdin log");
        }
    }

    /// The time of the last record of a process, in milliseconds since 1970. Blocking.
    pub(crate) fn last_recorded_ms(&self, slot: Slot) -> u64 {
        let modified = fs::metadata(self.dir(slot).join("index")).and_then(|metadata| metadata.modified());
        let since = modified.ok().and_then(|time| time.duration_since(std::time::UNIX_EPOCH).ok());
        since.map_or(0, |since| since.as_millis() as u64)
    }

    /// The number of accepted bytes of stdin of an ended process.
    pub(crate) fn stdin_accepted(&self, slot: Slot) -> u64 {
        StdinLog::accepted_by(&self.dir(slot).join("stdin")).unwrap_or(0)
    }

    /// Erases the record of a slot. Blocking. Renames first, so that a partly erased record is never listed.
    pub(crate) fn remove(&self, slot: Slot) {
        let dir = self.dir(slot);
        let removed = dir.with_extension(REMOVED.trim_start_matches('.'));
        match fs::rename(&dir, &removed) {
            Ok(()) => erase(&removed),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
            Err(_) => erase(&dir),
        }
    }
}

fn read_description(path: &Path) -> std::io::Result<Description> {
    if fs::metadata(path)?.len() > DESCRIPTION_BYTES_MAX {
        return Err(std::io::ErrorKind::FileTooLarge.into());
    }
    Ok(serde_json::from_slice(&fs::read(path)?)?)
}

/// Whether no file of a directory has content. A prepared slot has two empty files.
fn is_unused(dir: &Path) -> std::io::Result<bool> {
    for entry in fs::read_dir(dir)? {
        if entry?.metadata()?.len() > 0 {
            return Ok(false);
        }
    }
    Ok(true)
}

fn erase(dir: &Path) {
    if let Err(error) = fs::remove_dir_all(dir)
        && error.kind() != std::io::ErrorKind::NotFound
    {
        tracing::warn!(dir = %dir.display(), %error, "cannot remove the record of a process");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::{AtCap, Descendants, Drain};

    /// Every combination of settings that the engine needs after the start.
    fn all() -> impl Iterator<Item = Supervision> {
        let drains = [Drain::default(), Drain { quiet: Duration::ZERO, longest: Duration::from_secs(5) }];
        let caps = [None, Some(0), Some(1), Some(u64::MAX)];
        [AtCap::DropHead, AtCap::WaitForReaders].into_iter().flat_map(move |at_cap| {
            [Descendants::Keep, Descendants::Kill].into_iter().flat_map(move |descendants| {
                drains.into_iter().flat_map(move |drain| {
                    caps.into_iter().map(move |journal_bytes_max| Supervision {
                        at_cap,
                        journal_bytes_max,
                        drain,
                        descendants,
                    })
                })
            })
        })
    }

    #[test]
    fn the_description_keeps_what_the_engine_needs_after_a_start() {
        assert_eq!(all().count(), 32);
        for supervision in all() {
            let description = Description { supervision, ..Description::lost(Slot(7)) };
            let read: Description = serde_json::from_slice(&description.encode().unwrap()).unwrap();
            assert_eq!(read.supervision, supervision);
        }
    }

    #[test]
    fn the_description_keeps_whether_the_process_is_confined() {
        for confined in [Some(true), Some(false)] {
            let description = Description { confined, ..Description::lost(Slot(7)) };
            let read: Description = serde_json::from_slice(&description.encode().unwrap()).unwrap();
            assert_eq!(read.confined, confined);
        }
    }

    #[test]
    fn a_description_of_an_older_version_has_the_defaults() {
        let older = br#"{"key":{"face":"f","scope":"","id":"i"},"program":"/bin/true","arguments":[],"directory":null,
            "terminal":false,"started_ms":1,"started_by":"","drain":{"quiet":{"secs":0,"nanos":1},"longest":{"secs":2,"nanos":0}}}"#;
        let read: Description = serde_json::from_slice(older).unwrap();
        let drain = Drain { quiet: Duration::from_nanos(1), longest: Duration::from_secs(2) };
        assert_eq!(read.supervision, Supervision { drain, ..Supervision::default() });
        assert_eq!(read.confined, None, "unknown");
    }
}
