//! What a caller says about a process to be: its name, its program, its stdio.

use crate::{Environment, Error, Result};
use outpost_sys::confine;
use outpost_sys::credentials::Credentials;
use outpost_sys::pty::Size;
use outpost_sys::spawn::{ResourceLimit, Standing};
use serde::{Deserialize, Serialize};
use std::ffi::{CStr, CString, OsStr, OsString};
use std::fmt;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

/// Names a process: which face, which scope within it (a connection, a session, or empty), and the caller's own id. An
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

/// A slot has the milliseconds of the clock above so many bits.
pub(crate) const SLOT_CLOCK_SHIFT: u32 = 12;

/// The engine's own number of a process, never used twice. Written as hexadecimal digits.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Slot(pub(crate) u64);

impl Slot {
    /// When the place was made, in milliseconds since 1970: slots are numbered by the clock.
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

/// What the child's descriptors 0, 1 and 2 are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stdio {
    /// Output by two pipes; stdin a pipe or empty.
    Pipes { stdin: bool },
    /// All three a new terminal of this size, which controls the child's new session.
    Terminal(Size),
    /// Nothing goes in and nothing comes out.
    Null,
}

/// What to do when the key names a process that lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OnTaken {
    Refuse,
    /// The old process loses its key, its readers and its life.
    Replace,
}

/// What happens when a journal is full and a reader has not read its oldest output.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum AtCap {
    /// The output is dropped, and readers see the gap. The process waits for a reader that keeps up.
    #[default]
    DropHead,
    /// The process waits for its readers, however slow, and for its first one.
    WaitForReaders,
}

/// How long output is waited for after the exit, while a descendant holds the pipes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Drain {
    /// Silence of this length is the end.
    pub quiet: Duration,
    /// However much comes, the exit is not kept back longer than this.
    pub longest: Duration,
}

impl Default for Drain {
    fn default() -> Drain {
        Drain { quiet: Duration::from_millis(100), longest: Duration::from_secs(2) }
    }
}

/// What happens to the descendants of a process when it has ended itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum Rest {
    #[default]
    Lives,
    /// It is killed, once the exit has been recorded.
    Ends,
}

/// The part of a [`Spawn`] that the engine acts on after the start. It is kept in the description on disk and read from
/// there only, so every worker acts on the same values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub(crate) struct Supervision {
    pub(crate) at_cap: AtCap,
    pub(crate) journal_bytes_max: Option<u64>,
    pub(crate) drain: Drain,
    pub(crate) rest: Rest,
}

/// Open files that take the place of what would be made or looked up for a process.
#[derive(Clone, Debug, Default)]
pub struct Given {
    /// Its standard input, such as the end of another process's pipe.
    pub stdin: Option<Arc<OwnedFd>>,
    /// Its standard output, which then is not in the journal.
    pub stdout: Option<Arc<OwnedFd>>,
    /// What is executed, whatever the program's name stands for by then.
    pub program: Option<Arc<OwnedFd>>,
    /// Where it begins.
    pub directory: Option<Arc<OwnedFd>>,
}

/// A process to be.
#[derive(Clone, Debug)]
pub struct Spawn {
    pub key: Key,
    /// Absolute, or relative to the directory. Looking a name up in some PATH is the caller's business.
    pub program: PathBuf,
    /// The whole argument list, the program's own name first.
    pub arguments: Vec<OsString>,
    /// The whole environment.
    pub environment: Environment,
    pub directory: Option<PathBuf>,
    pub stdio: Stdio,
    /// With [`Stdio::Pipes`].
    pub given: Given,
    /// Descriptors besides the first three, under the numbers the child is to have them.
    pub descriptors: Vec<(Arc<OwnedFd>, u8)>,
    /// What the child does to itself before it executes the program, which it looks up inside then. It gets the
    /// descriptors above, the program does not.
    pub confinement: Option<Arc<confine::Program>>,
    /// A session of its own; a terminal implies it.
    pub new_session: bool,
    pub limits: Vec<ResourceLimit>,
    pub umask: Option<u32>,
    /// The user that it runs as, if not the daemon's; only root's daemon can. Not with a confinement.
    pub credentials: Option<Credentials>,
    pub on_taken: OnTaken,
    pub at_cap: AtCap,
    /// The most its journal takes on disk, if that is not what the others may.
    pub journal_bytes_max: Option<u64>,
    pub drain: Drain,
    pub rest: Rest,
    /// Where there is no cgroup: whether the child may carry a mark in its environment, by which descendants are found that
    /// left their group, their session and their parents. Without it those are out of reach.
    pub marked: bool,
    /// Who asked, for people who look at the list.
    pub started_by: String,
}

impl Spawn {
    /// A program with pipes, this process's environment, and defaults for everything else.
    pub fn new(key: Key, command: impl IntoIterator<Item = impl Into<OsString>>) -> Spawn {
        Spawn { environment: Environment::of_this_process(), ..Spawn::bare(key, command) }
    }

    /// The same with an empty environment, for who has another one.
    pub fn bare(key: Key, command: impl IntoIterator<Item = impl Into<OsString>>) -> Spawn {
        let arguments: Vec<OsString> = command.into_iter().map(Into::into).collect();
        Spawn {
            key,
            program: arguments.first().map(PathBuf::from).unwrap_or_default(),
            arguments,
            environment: Environment::default(),
            directory: None,
            stdio: Stdio::Pipes { stdin: true },
            given: Given::default(),
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
            rest: Rest::Lives,
            marked: true,
            started_by: String::new(),
        }
    }

    /// What the keeper is told, as it is sent. `marker` is added to the environment where descendants are found by it.
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
        let standing = match (self.stdio, self.new_session) {
            (Stdio::Terminal(_), _) => Standing::Terminal,
            (_, true) => Standing::Session,
            (_, false) => Standing::Group,
        };
        let given = |limit: &&ResourceLimit| !self.limits.iter().any(|own| own.resource == limit.resource);
        let spec: outpost_keeper::Spec<&CStr> = outpost_keeper::Spec {
            program: &program,
            arguments: arguments.iter().map(CString::as_c_str).collect(),
            environment: environment.iter().chain(&marker).map(CString::as_c_str).collect(),
            directory: directory.as_deref(),
            standing,
            limits: limits.iter().filter(given).chain(&self.limits).copied().collect(),
            umask: self.umask,
            oom_score,
            confinement: self.confinement.as_deref().cloned(),
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
