//! The description of a process to start: its name, its program, its stdio.

use crate::{Environment, Error, Result};
use outpost_sys::confine;
use outpost_sys::credentials::Credentials;
use outpost_sys::pty::Size;
use outpost_sys::spawn::{ResourceLimit, SessionKind};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// The name of a process: the face, the scope within it (a connection, a session, or empty), and the caller's id. An
/// empty id stands for the slot number.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Key {
    pub face: String,
    pub scope: String,
    pub id: String,
}

impl Key {
    pub fn new(face: &str, scope: &str, id: &str) -> Key {
        Key { face: face.to_owned(), scope: scope.to_owned(), id: id.to_owned() }
    }
}

/// A slot has the milliseconds of the clock above this many bits.
pub(crate) const SLOT_CLOCK_SHIFT: u32 = 12;

/// The engine's number of a process, never used twice. Written in hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub(crate) u64);

impl Slot {
    /// When the slot was prepared, in milliseconds since 1970.
    pub(crate) fn made_ms(self) -> u64 {
        self.0 >> SLOT_CLOCK_SHIFT
    }
}

impl fmt::Display for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:x}", self.0)
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl FromStr for Slot {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> std::result::Result<Slot, Self::Err> {
        u64::from_str_radix(text, 16).map(Slot)
    }
}

/// The child's descriptors 0, 1 and 2.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// Two pipes for output; a pipe or `/dev/null` for stdin.
    Pipes { stdin: bool },
    /// A new terminal of this size, which controls the child's new session.
    Terminal(Size),
    /// `/dev/null`.
    Null,
}

/// The reaction to a key of a running process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTaken {
    Refuse,
    /// The old process is killed and its record is dropped.
    Replace,
}

/// The reaction to a full journal whose oldest output a reader has not read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AtCap {
    /// The oldest output is dropped, and readers see the gap. The process waits for a reader that keeps up.
    #[default]
    DropHead,
    /// The process waits for all its readers, and for the first one.
    WaitForReaders,
}

/// The wait for output after the exit, while a descendant holds the pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Silence of this length ends the wait.
    pub quiet: Duration,
    /// The longest wait.
    pub longest: Duration,
}

impl Default for Drain {
    fn default() -> Drain {
        Drain { quiet: Duration::from_millis(100), longest: Duration::from_secs(2) }
    }
}

/// What happens to the descendants of a process after its exit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Descendants {
    #[default]
    #[serde(rename = "Lives")]
    Keep,
    /// They are killed when the exit is recorded.
    #[serde(rename = "Ends")]
    Kill,
}

/// The part of a [`Spawn`] that the engine needs after the start. It is read from the description on disk only, so
/// every worker uses the same values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Supervision {
    pub(crate) at_cap: AtCap,
    pub(crate) journal_bytes_max: Option<u64>,
    pub(crate) drain: Drain,
    #[serde(rename = "rest")]
    pub(crate) descendants: Descendants,
}

/// Open files that replace what the engine would make or look up for a process.
#[derive(Clone, Debug, Default)]
pub struct OpenFiles {
    /// Standard input.
    pub stdin: Option<Arc<OwnedFd>>,
    /// Standard output. It is not in the journal then.
    pub stdout: Option<Arc<OwnedFd>>,
    /// The file to execute.
    pub program: Option<Arc<OwnedFd>>,
    /// The working directory.
    pub directory: Option<Arc<OwnedFd>>,
}

/// A process to start.
#[derive(Clone, Debug)]
pub struct Spawn {
    pub key: Key,
    /// Absolute, or relative to the directory. The caller resolves a name by PATH.
    pub program: PathBuf,
    /// The whole argument list, with the program's name first.
    pub arguments: Vec<OsString>,
    /// The whole environment.
    pub environment: Environment,
    pub directory: Option<PathBuf>,
    pub stdio: Stdio,
    /// With [`Stdio::Pipes`].
    pub open_files: OpenFiles,
    /// More descriptors, with their numbers in the child.
    pub descriptors: Vec<(Arc<OwnedFd>, u8)>,
    /// The sandbox that the child enters before exec. It resolves the program inside.
    pub confinement: Option<confine::Prepared>,
    /// A session of its own; a terminal implies it.
    pub new_session: bool,
    pub limits: Vec<ResourceLimit>,
    pub umask: Option<u32>,
    /// The user of the process, if it is not the daemon's. Only a daemon of root can do that, and not with a
    /// confinement.
    pub credentials: Option<Credentials>,
    pub on_taken: OnTaken,
    pub at_cap: AtCap,
    /// The size limit of its journal, if it differs from the configured one.
    pub journal_bytes_max: Option<u64>,
    pub drain: Drain,
    pub descendants: Descendants,
    /// Where there is no cgroup: whether the child has a marker in its environment. By that the engine finds
    /// descendants that left their group, their session and their parents.
    pub marked: bool,
    /// The client, for lists.
    pub started_by: String,
}

impl Spawn {
    /// A program with pipes, this process's environment, and defaults for everything else.
    pub fn new(key: Key, command: impl IntoIterator<Item = impl Into<OsString>>) -> Spawn {
        Spawn { environment: Environment::of_this_process(), ..Spawn::bare(key, command) }
    }

    /// The same with an empty environment.
    pub fn bare(key: Key, command: impl IntoIterator<Item = impl Into<OsString>>) -> Spawn {
        let arguments: Vec<OsString> = command.into_iter().map(Into::into).collect();
        Spawn {
            key,
            program: arguments.first().map(PathBuf::from).unwrap_or_default(),
            arguments,
            environment: Environment::default(),
            directory: None,
            stdio: Stdio::Pipes { stdin: true },
            open_files: OpenFiles::default(),
            descriptors: Vec::new(),
            confinement: None,
            new_session: false,
            limits: Vec::new(),
            umask: None,
            credentials: None,
            on_taken: OnTaken::Refuse,
            at_cap: AtCap::DropHead,
            journal_bytes_max: None,
            drain: Drain::default(),
            descendants: Descendants::Keep,
            marked: true,
            started_by: String::new(),
        }
    }

    /// The specification for the keeper, as bytes. `marker` is added to the environment.
    pub(crate) fn keeper_spec(
        &self,
        marker: Option<&str>,
        limits: &[ResourceLimit],
        oom_score: Option<i32>,
    ) -> Result<Vec<u8>> {
        let environment = self.environment.entries().ok_or(Error::Invalid { what: "the environment" })?;
        let marker =
            marker.map(|marker| CString::new(marker).map_err(|_| Error::Invalid { what: "the marker" }));
        let marker = marker.transpose()?;
        let program = c_string(self.program.as_os_str(), "the program")?;
        let arguments = self.arguments.iter().map(|text| c_string_or_empty(text, "an argument"));
        let arguments = arguments.collect::<Result<Vec<CString>>>()?;
        let directory = self.directory.as_ref().map(|path| c_string(path.as_os_str(), "the directory"));
        let directory = directory.transpose()?;
        let session = match (self.stdio, self.new_session) {
            (Stdio::Terminal(_), _) => SessionKind::Terminal,
            (_, true) => SessionKind::Session,
            (_, false) => SessionKind::Group,
        };
        let given = |limit: &&ResourceLimit| !self.limits.iter().any(|own| own.resource == limit.resource);
        let spec: outpost_keeper::Spec<&CStr> = outpost_keeper::Spec {
            program: &program,
            arguments: arguments.iter().map(CString::as_c_str).collect(),
            environment: environment.iter().chain(&marker).map(CString::as_c_str).collect(),
            directory: directory.as_deref(),
            session,
            limits: limits.iter().filter(given).chain(&self.limits).copied().collect(),
            umask: self.umask,
            oom_score,
            confinement: self.confinement.as_ref().map(|prepared| prepared.program.clone()),
            credentials: self.credentials.clone(),
        };
        Ok(spec.encode())
    }
}

fn c_string(text: &OsStr, what: &'static str) -> Result<CString> {
    match text.is_empty() {
        true => Err(Error::Invalid { what }),
        false => c_string_or_empty(text, what),
    }
}

fn c_string_or_empty(text: &OsStr, what: &'static str) -> Result<CString> {
    CString::new(text.as_bytes()).map_err(|_| Error::Invalid { what })
}
