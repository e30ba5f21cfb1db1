//! Pinned requests: a valid request with its programs, directory, user and environment resolved, under one digest.
//!
//! Rules, grants and humans decide about this digest, and exactly the pinned files run.

use crate::environment;
use crate::files::{self, ENOENT, FileIdentity, LookupError, PinnedFile};
use crate::requester::Requester;
use crate::wire::{Action, Request};
use outpost_approvals::rules::is_interpreter;
use outpost_ledger::hex;
use outpost_sys::credentials::Credentials;
use outpost_sys::file::{self, Open};
use outpost_sys::user::{self, User};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// A resolved request.
#[derive(Clone, Debug)]
pub(crate) struct PinnedRequest {
    pub(crate) request: Request,
    pub(crate) run_as: User,
    /// The credentials of its processes. None: those of the daemon.
    pub(crate) credentials: Option<Credentials>,
    /// The uid of the requesting user.
    pub(crate) requested_by: u32,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) cwd: PathBuf,
    /// The working directory, open.
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) programs: Vec<PinnedFile>,
    /// For each stage, the file arguments of an interpreter. They are verified before the start, but the interpreter
    /// opens them by name.
    pub(crate) operands: Vec<Operands>,
    pub(crate) digest: String,
}

/// The file arguments of a stage whose program is an interpreter. Which of them it executes is unknown.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operands {
    pub(crate) pinned: Vec<PinnedFile>,
    /// Number of files that are not pinned: unreadable ones, and those beyond [`OPERANDS_MAX`].
    pub(crate) unpinned: usize,
}

/// Operands of a stage that are pinned.
const OPERANDS_MAX: usize = 8;

/// The input of the digest. The field order is part of the format.
#[derive(Serialize)]
struct Canonical<'a> {
    version: u32,
    pipeline: &'a [Vec<String>],
    environment: &'a BTreeMap<String, String>,
    cwd: &'a Path,
    directory: (u64, u64),
    run_as: u32,
    asked_by: u32,
    privileged: bool,
    forward_agent: bool,
    files: Vec<CanonicalFile<'a>>,
}

/// A pinned file in the digest. Includes the mtime, since a replacement can reuse the inode number.
#[derive(Serialize)]
struct CanonicalFile<'a> {
    path: &'a Path,
    device: u64,
    inode: u64,
    size: u64,
    modified_ns: i128,
    sha256: &'a str,
}

impl CanonicalFile<'_> {
    fn of(file: &PinnedFile) -> CanonicalFile<'_> {
        let FileIdentity { device, inode, size, modified_ns, changed_ns: _ } = file.identity;
        CanonicalFile { path: &file.real_path, device, inode, size, modified_ns, sha256: &file.sha256 }
    }
}

/// Why a request cannot be pinned.
pub(crate) enum ResolveError {
    /// The program of this stage cannot be executed; the errno of exec.
    Program(usize, i32),
    /// The request sets a forbidden variable. Its id stays unused.
    Variable(String),
    Refused(String),
}

impl PinnedRequest {
    /// Resolves a request. Paths are looked up with the file permissions of the requesting user, so that responses
    /// reveal nothing about directories that this user cannot read. Blocking; never call on the async runtime.
    pub(crate) fn resolve(
        request: Request,
        ssh_agent: Option<String>,
        requester: &Requester,
    ) -> Result<PinnedRequest, ResolveError> {
        if requester.credentials.is_some() && request.forward_agent {
            let reason = "forward_agent is not available here: commands of this user are run by the guard, which cannot \
                          reach its SSH agent";
            return Err(ResolveError::Refused(reason.into()));
        }
        match request.privileged {
            false => requester
                .with_file_access(|| PinnedRequest::pin(request, ssh_agent, requester))
                .unwrap_or_else(|reason| Err(ResolveError::Refused(reason))),
            true => {
                let visible = requester.with_file_access(|| check_visible(&request));
                visible.unwrap_or_else(|reason| Err(ResolveError::Refused(reason)))?;
                PinnedRequest::pin(request, ssh_agent, requester)
            }
        }
    }

    /// Pins with the file permissions of the current thread.
    fn pin(
        request: Request,
        ssh_agent: Option<String>,
        requester: &Requester,
    ) -> Result<PinnedRequest, ResolveError> {
        let fail = |reason: String| ResolveError::Refused(reason);
        let run_as = run_as(&request, requester).map_err(fail)?;
        let runs_as_root = request.privileged && request.action == Action::Exec;
        environment::check(&request.env, runs_as_root, &run_as).map_err(ResolveError::Variable)?;
        let (cwd, directory) = open_directory(request.cwd.as_deref().unwrap_or("/")).map_err(fail)?;
        let mut programs = Vec::with_capacity(request.pipeline.len());
        let mut operands = Vec::with_capacity(request.pipeline.len());
        for (at, stage) in request.pipeline.iter().enumerate() {
            let name = stage.first().map(String::as_str).unwrap_or_default();
            let program = files::program(name, &cwd, request.privileged).map_err(|error| match error {
                LookupError::Os(errno) => ResolveError::Program(at, errno),
                LookupError::Refused(reason) => ResolveError::Refused(reason),
            })?;
            operands.push(operands_of(&program, stage, &cwd));
            programs.push(program);
        }
        let ssh_agent = ssh_agent.filter(|_| request.forward_agent);
        let environment = environment::command_environment(&request.env, &run_as, ssh_agent);
        let directory = Arc::new(directory);
        let credentials = requester.credentials.clone().filter(|_| !request.privileged);
        let requested_by = requester.user.uid;
        let mut pinned = PinnedRequest {
            request,
            run_as,
            credentials,
            requested_by,
            environment,
            cwd,
            directory,
            programs,
            operands,
            digest: String::new(),
        };
        pinned.digest = pinned.compute_digest().map_err(fail)?;
        Ok(pinned)
    }

    /// Every pinned file: programs, then operands.
    pub(crate) fn files(&self) -> impl Iterator<Item = &PinnedFile> {
        self.programs.iter().chain(self.operands.iter().flat_map(|of_stage| &of_stage.pinned))
    }

    fn compute_digest(&self) -> Result<String, String> {
        use std::os::unix::fs::MetadataExt;
        let link = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        let metadata = std::fs::metadata(link).map_err(|error| format!("{}: {error}", self.cwd.display()))?;
        let canonical = Canonical {
            version: 3,
            pipeline: &self.request.pipeline,
            environment: &self.environment,
            cwd: &self.cwd,
            directory: (metadata.dev(), metadata.ino()),
            run_as: self.run_as.uid,
            asked_by: self.requested_by,
            privileged: self.request.privileged,
            forward_agent: self.request.forward_agent,
            files: self.files().map(CanonicalFile::of).collect(),
        };
        let text = serde_json::to_vec(&canonical).map_err(|error| error.to_string())?;
        Ok(hex(&Sha256::digest(&text)))
    }

    /// Verifies that the files and the directory are unchanged. `rehash` also compares the content of the files, for
    /// use after a wait. The error is the message for the client.
    pub(crate) fn check_unchanged(&self, rehash: bool) -> Result<(), String> {
        for file in self.files() {
            if !file.is_unchanged(rehash) {
                let path = outpost_approvals::display::quote(&file.lookup_path.to_string_lossy());
                return Err(format!("{path} changed after it was looked at, so it was not run; ask again"));
            }
        }
        match self.compute_digest()? == self.digest {
            true => Ok(()),
            false => Err("the working directory changed after it was looked at; ask again".into()),
        }
    }

    /// Whether a symlink gives a program another file name. Example: `reboot` is a link to `systemctl`.
    pub(crate) fn is_renamed(&self) -> bool {
        self.programs.iter().any(|program| program.lookup_path.file_name() != program.real_path.file_name())
    }

    /// Whether an approver may store a grant for this digest. Not for scripts and interpreters, whose arguments are code.
    pub(crate) fn is_rememberable(&self) -> bool {
        let stages = self.programs.iter().zip(&self.request.pipeline);
        !stages.into_iter().any(|(program, stage)| {
            let name = stage.first().map(String::as_str).unwrap_or_default();
            program.is_script || is_interpreter(&program.real_path.to_string_lossy()) || is_interpreter(name)
        })
    }
}

/// The target user of a request.
pub(crate) fn run_as(request: &Request, requester: &Requester) -> Result<User, String> {
    if !request.privileged {
        return Ok(requester.user.clone());
    }
    let found = user::by_uid(0).map_err(|errno| format!("cannot look up user 0: {errno}"))?;
    Ok(found.unwrap_or_else(|| User { uid: 0, gid: 0, name: "root".into(), home: "/".into() }))
}

/// Fails if the requesting user cannot reach the directory or a program of a privileged request. Runs with that user's
/// file permissions.
fn check_visible(request: &Request) -> Result<(), ResolveError> {
    if request.action != Action::Exec {
        return Ok(());
    }
    let cwd = real_directory(request.cwd.as_deref().unwrap_or("/")).map_err(ResolveError::Refused)?;
    for (at, stage) in request.pipeline.iter().enumerate() {
        let name = stage.first().map(String::as_str).unwrap_or_default();
        let mut errno = ENOENT;
        let exists = |path: &PathBuf| match std::fs::metadata(path) {
            Ok(_) => true,
            Err(error) => {
                errno = error.raw_os_error().unwrap_or(ENOENT);
                false
            }
        };
        if !files::candidate_paths(name, &cwd).iter().any(exists) {
            return Err(ResolveError::Program(at, errno));
        }
    }
    Ok(())
}

/// The canonical path of a directory.
fn real_directory(path: &str) -> Result<PathBuf, String> {
    let real = std::fs::canonicalize(path);
    real.map_err(|error| format!("cwd {}: {error}", outpost_approvals::display::quote(path)))
}

/// The canonical path of a directory and its descriptor.
fn open_directory(path: &str) -> Result<(PathBuf, OwnedFd), String> {
    let real = real_directory(path)?;
    let directory = file::open(&real, Open::Directory);
    let directory =
        directory.map_err(|errno| format!("cwd {}: {errno}", outpost_approvals::display::quote(path)))?;
    Ok((real, directory))
}

/// The operands of an interpreter: each argument, or option value, that names an existing file. Empty for other
/// programs.
fn operands_of(program: &PinnedFile, stage: &[String], cwd: &Path) -> Operands {
    let mut operands = Operands::default();
    let name = stage.first().map(String::as_str).unwrap_or_default();
    if !is_interpreter(&program.real_path.to_string_lossy()) && !is_interpreter(name) {
        return operands;
    }
    let file_name = |argument: &String| match argument.split_once('=') {
        Some((_, value)) if argument.starts_with('-') => Some(value.to_owned()),
        // `-f/some/file`
        None if argument.starts_with('-') => argument.get(2..).map(str::to_owned),
        _ => Some(argument.clone()),
    };
    let mut seen = HashSet::new();
    for path in stage.iter().skip(1).filter_map(file_name).map(|name| cwd.join(name)) {
        if !path.is_file() || !seen.insert(path.clone()) {
            continue;
        }
        let room = operands.pinned.len() < OPERANDS_MAX;
        match room.then(|| files::pin(&path).ok()).flatten() {
            Some(pinned) => operands.pinned.push(pinned),
            None => operands.unpinned += 1,
        }
    }
    operands
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A file name may contain `=`. Only in an option does the value follow the `=`.
    #[test]
    fn every_file_argument_of_an_interpreter_is_pinned() {
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::canonicalize(dir.path()).unwrap();
        for name in ["a=b", "value", "short", "plain"] {
            std::fs::write(dir.join(name), name).unwrap();
        }
        let shell = files::program("sh", &dir, false).unwrap();
        let stage = ["sh", "a=b", "--file=value", "-fshort", "plain", "plain", "missing", "--", "-"];
        let operands = operands_of(&shell, &stage.map(str::to_owned), &dir);
        let pinned: Vec<&std::ffi::OsStr> =
            operands.pinned.iter().filter_map(|pinned| pinned.real_path.file_name()).collect();
        assert_eq!(pinned, ["a=b", "value", "short", "plain"]);
        assert_eq!(operands.unpinned, 0);
        let other = files::program("true", &dir, false).unwrap();
        assert!(operands_of(&other, &["true".into(), "plain".into()], &dir).pinned.is_empty());
    }
}
