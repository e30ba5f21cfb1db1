//! Start of a command, prepared on a blocking thread: its sandbox, its program, and the spawn request.

use crate::lookup;
use crate::policy::{PreparedSandbox, SandboxRequest};
use crate::server::Server;
use crate::wire::{Failure, OVERLOADED};
use outpost_engine::{AtCap, Descendants, Drain, Environment, Error, Key, Spawn, Stdio, Step};
use outpost_sys::Errno;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::OnceLock;
use std::time::Duration;

/// Journal size at which the command waits for its client.
const JOURNAL_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// "waits for EOF on both streams at most 2 s", also without output.
const DRAIN: Duration = Duration::from_secs(2);

pub(crate) struct Start {
    pub(crate) arguments: Vec<String>,
    pub(crate) environment: Environment,
    pub(crate) directory: PathBuf,
    pub(crate) stdio: Stdio,
    pub(crate) confinement: SandboxRequest,
}

/// The contract's error of a command that was not started. `ready` describes the failed operation of the sandbox.
pub(super) fn start_failure(error: &Error, ready: Option<&PreparedSandbox>) -> Failure {
    match error {
        Error::Start { failure, .. } => {
            let os = std::io::Error::from_raw_os_error(failure.errno.raw_os_error());
            let not_spawned = Failure::internal(format!("failed to spawn command: {os}"));
            match failure.step {
                // "program or cwd"
                Step::Exec | Step::Directory => not_spawned,
                // Too long for the keeper's message as well.
                Step::Prepare if failure.errno == Errno::TOOBIG => not_spawned,
                Step::Confine => {
                    let what = ready.and_then(|ready| ready.describe(failure.operation));
                    let what = what.unwrap_or_default();
                    Failure::internal(format!("exec failed: cannot confine the command: {what}: {os}"))
                }
                step => Failure::internal(format!("exec failed: {step:?}: {os}")),
            }
        }
        Error::Busy => Failure::new(OVERLOADED, "Server overloaded; retry later."),
        _ => Failure::internal(format!("exec failed: {error}")),
    }
}

impl Start {
    /// Whether `prepare` makes no blocking call: the kernel resolves a name with a slash.
    pub(super) fn needs_no_blocking(&self, server: &Server) -> bool {
        let named = self.arguments.first().is_some_and(|name| name.contains('/'));
        named && !matches!(self.stdio, Stdio::Terminal(_)) && self.confinement.needs_no_blocking(server)
    }

    /// Builds the spawn request. `kept` receives the sandbox, which must outlive the command.
    pub(super) fn prepare(
        self,
        server: &Server,
        key: Key,
        kept: &OnceLock<PreparedSandbox>,
    ) -> Result<Spawn, Failure> {
        self.refuse_zero_bytes()?;
        let Start { arguments, environment, directory, stdio, confinement } = self;
        let terminal = matches!(stdio, Stdio::Terminal(_));
        let ready = confinement.build(server)?;
        let name = arguments.first().map(String::as_str).unwrap_or_default();
        let candidates = lookup::candidates(name, &directory, &environment, terminal)?;
        let program = match ready.is_confined() {
            // The sandbox may show other files: the kernel resolves the program inside.
            true => candidates.first().cloned().unwrap_or_default(),
            false => lookup::find_executable(name, &candidates, &directory, &environment, terminal)?,
        };
        let drain = match terminal {
            true => Drain::default(),
            false => Drain { quiet: DRAIN, longest: DRAIN },
        };
        let mut spawn = Spawn {
            program,
            environment,
            directory: Some(directory),
            stdio,
            new_session: true,
            at_cap: AtCap::WaitForReaders,
            journal_bytes_max: Some(JOURNAL_BYTES_MAX),
            drain,
            descendants: Descendants::Kill,
            started_by: format!("exec connection {}", key.scope),
            ..Spawn::bare(key, arguments)
        };
        ready.confine(&mut spawn, &candidates)?;
        let _set_once = kept.set(ready);
        Ok(spawn)
    }

    fn refuse_zero_bytes(&self) -> Result<(), Failure> {
        let mut words =
            self.arguments.iter().map(String::as_bytes).chain([self.directory.as_os_str().as_bytes()]);
        match words.any(|bytes| bytes.contains(&0)) || self.environment.has_zero() {
            true => Err(Failure::internal("failed to spawn command: nul byte found in provided data")),
            false => Ok(()),
        }
    }
}
