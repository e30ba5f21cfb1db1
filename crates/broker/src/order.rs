//! An order: a request that passed every gate, with everything it means looked up and fixed. What a human decides about
//! is this, and what runs is this.

use crate::asker::Asker;
use crate::environment;
use crate::files::{self, Identity, Pinned, Unusable};
use crate::wire::{Action, Request};
use outpost_approvals::hex;
use outpost_approvals::rules::is_interpreter;
use outpost_sys::credentials::Credentials;
use outpost_sys::file::{self, Open};
use outpost_sys::user::{self, User};
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, HashSet};
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Everything that is decided.
#[derive(Clone, Debug)]
pub(crate) struct Order {
    pub(crate) request: Request,
    pub(crate) run_as: User,
    /// What its processes become before they execute, if they do not run as the daemon does.
    pub(crate) credentials: Option<Credentials>,
    /// The user that asked.
    pub(crate) asked_by: u32,
    pub(crate) environment: BTreeMap<String, String>,
    pub(crate) cwd: PathBuf,
    pub(crate) directory: Arc<OwnedFd>,
    pub(crate) programs: Vec<Pinned>,
    /// The files that an interpreter is given, by stage. They are checked, but the interpreter opens them by name.
    pub(crate) operands: Vec<Operands>,
    pub(crate) digest: String,
}

/// The files that a stage is given, if it executes what it is given: which of them it executes, only it knows.
#[derive(Clone, Debug, Default)]
pub(crate) struct Operands {
    pub(crate) pinned: Vec<Pinned>,
    /// Files that cannot be compared, since they cannot be read or are too many.
    pub(crate) loose: usize,
}

/// Files of a stage that are hashed.
const OPERANDS_MAX: usize = 8;

/// Everything that the digest is of, in the order it is written.
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

/// A file of an order. With its time, since a file that was replaced by its like can have the same number.
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
    fn of(file: &Pinned) -> CanonicalFile<'_> {
        let Identity { device, inode, size, modified_ns, changed_ns: _ } = file.identity;
        CanonicalFile { path: &file.path, device, inode, size, modified_ns, sha256: &file.sha256 }
    }
}

/// Why a request is no order.
pub(crate) enum NoOrder {
    /// The program of a stage cannot be executed, for this reason of the kernel's.
    Program(usize, i32),
    /// A variable that may not be set. Its request has not used up its id.
    Variable(String),
    Refused(String),
}

impl Order {
    /// Looks everything up: names with the rights of the user that asks, so that no answer tells what other directories
    /// have in them. Waits for the disk.
    pub(crate) fn make(request: Request, agent: Option<String>, asker: &Asker) -> Result<Order, NoOrder> {
        if asker.credentials.is_some() && request.forward_agent {
            let reason = "forward_agent is not available here: commands of this user are run by the guard, which cannot \
                          reach its SSH agent";
            return Err(NoOrder::Refused(reason.into()));
        }
        match request.privileged {
            false => asker
                .looking(|| Order::look_up(request, agent, asker))
                .unwrap_or_else(|why| Err(NoOrder::Refused(why))),
            true => {
                let visible = asker.looking(|| check_visible(&request));
                visible.unwrap_or_else(|why| Err(NoOrder::Refused(why)))?;
                Order::look_up(request, agent, asker)
            }
        }
    }

    fn look_up(request: Request, agent: Option<String>, asker: &Asker) -> Result<Order, NoOrder> {
        let fail = |reason: String| NoOrder::Refused(reason);
        let run_as = run_as(&request, asker).map_err(fail)?;
        let strictly = request.privileged && request.action == Action::Exec;
        environment::check(&request.env, strictly, &run_as).map_err(NoOrder::Variable)?;
        let (cwd, directory) = open_directory(request.cwd.as_deref().unwrap_or("/")).map_err(fail)?;
        let mut programs = Vec::with_capacity(request.pipeline.len());
        let mut operands = Vec::with_capacity(request.pipeline.len());
        for (at, stage) in request.pipeline.iter().enumerate() {
            let name = stage.first().map(String::as_str).unwrap_or_default();
            let program =
                files::program(name, &cwd, request.privileged).map_err(|unusable| match unusable {
                    Unusable::Os(errno) => NoOrder::Program(at, errno),
                    Unusable::Refused(reason) => NoOrder::Refused(reason),
                })?;
            operands.push(operands_of(&program, stage, &cwd));
            programs.push(program);
        }
        let agent = agent.filter(|_| request.forward_agent);
        let environment = environment::of_command(&request.env, &run_as, agent);
        let directory = Arc::new(directory);
        let credentials = asker.credentials.clone().filter(|_| !request.privileged);
        let asked_by = asker.user.uid;
        let mut order = Order {
            request,
            run_as,
            credentials,
            asked_by,
            environment,
            cwd,
            directory,
            programs,
            operands,
            digest: String::new(),
        };
        order.digest = order.compute_digest().map_err(fail)?;
        Ok(order)
    }

    /// Every file that is looked at.
    pub(crate) fn files(&self) -> impl Iterator<Item = &Pinned> {
        self.programs.iter().chain(self.operands.iter().flat_map(|of_stage| &of_stage.pinned))
    }

    fn compute_digest(&self) -> Result<String, String> {
        use std::os::unix::fs::MetadataExt;
        let link = format!("/proc/self/fd/{}", self.directory.as_raw_fd());
        let of = std::fs::metadata(link).map_err(|error| format!("{}: {error}", self.cwd.display()))?;
        let canonical = Canonical {
            version: 3,
            pipeline: &self.request.pipeline,
            environment: &self.environment,
            cwd: &self.cwd,
            directory: (of.dev(), of.ino()),
            run_as: self.run_as.uid,
            asked_by: self.asked_by,
            privileged: self.request.privileged,
            forward_agent: self.request.forward_agent,
            files: self.files().map(CanonicalFile::of).collect(),
        };
        let text = serde_json::to_vec(&canonical).map_err(|error| error.to_string())?;
        Ok(hex(&Sha256::digest(&text)))
    }

    /// Whether everything is still as it was decided about. `thoroughly` when time has passed since.
    pub(crate) fn is_unchanged(&self, thoroughly: bool) -> Result<(), String> {
        for file in self.files() {
            if !file.is_unchanged(thoroughly) {
                let path = outpost_approvals::display::quote(&file.found.to_string_lossy());
                return Err(format!("{path} changed after it was looked at, so it was not run; ask again"));
            }
        }
        match self.compute_digest()? == self.digest {
            true => Ok(()),
            false => Err("the working directory changed after it was looked at; ask again".into()),
        }
    }

    /// Whether a link gives a program a name that is not its own. `reboot` may be `systemctl`, by that name.
    pub(crate) fn is_renamed(&self) -> bool {
        self.programs.iter().any(|program| program.found.file_name() != program.path.file_name())
    }

    /// Whether a decision may be remembered: never for what executes what it is given.
    pub(crate) fn is_rememberable(&self) -> bool {
        let stages = self.programs.iter().zip(&self.request.pipeline);
        !stages.into_iter().any(|(program, stage)| {
            let asked = stage.first().map(String::as_str).unwrap_or_default();
            program.is_script || is_interpreter(&program.path.to_string_lossy()) || is_interpreter(asked)
        })
    }
}

/// The user that a request would run as.
pub(crate) fn run_as(request: &Request, asker: &Asker) -> Result<User, String> {
    if !request.privileged {
        return Ok(asker.user.clone());
    }
    let found = user::by_uid(0).map_err(|errno| format!("cannot look up user 0: {errno}"))?;
    Ok(found.unwrap_or_else(|| User { uid: 0, gid: 0, name: "root".into(), home: "/".into() }))
}

/// Whether the asking user can see the directory and the programs that a request names.
fn check_visible(request: &Request) -> Result<(), NoOrder> {
    const NOT_THERE: i32 = 2;
    if request.action != Action::Exec {
        return Ok(());
    }
    let cwd = real_directory(request.cwd.as_deref().unwrap_or("/")).map_err(NoOrder::Refused)?;
    for (at, stage) in request.pipeline.iter().enumerate() {
        let name = stage.first().map(String::as_str).unwrap_or_default();
        let mut errno = NOT_THERE;
        let seen = |path: &PathBuf| match std::fs::metadata(path) {
            Ok(_) => true,
            Err(error) => {
                errno = error.raw_os_error().unwrap_or(NOT_THERE);
                false
            }
        };
        if !files::candidates(name, &cwd).iter().any(seen) {
            return Err(NoOrder::Program(at, errno));
        }
    }
    Ok(())
}

/// The directory by its real name.
fn real_directory(path: &str) -> Result<PathBuf, String> {
    let real = std::fs::canonicalize(path);
    real.map_err(|error| format!("cwd {}: {error}", outpost_approvals::display::quote(path)))
}

/// The directory by its real name, and open.
fn open_directory(path: &str) -> Result<(PathBuf, OwnedFd), String> {
    let real = real_directory(path)?;
    let directory = file::open(&real, Open::Directory);
    let directory =
        directory.map_err(|errno| format!("cwd {}: {errno}", outpost_approvals::display::quote(path)))?;
    Ok((real, directory))
}

/// Every argument that is a file, or is an option's value that is one, of a program that executes what it is given.
fn operands_of(program: &Pinned, stage: &[String], cwd: &Path) -> Operands {
    let mut operands = Operands::default();
    let asked = stage.first().map(String::as_str).unwrap_or_default();
    if !is_interpreter(&program.path.to_string_lossy()) && !is_interpreter(asked) {
        return operands;
    }
    let named = |argument: &String| match argument.split_once('=') {
        Some((_, value)) if argument.starts_with('-') => Some(value.to_owned()),
        // As in `-f/some/file`.
        None if argument.starts_with('-') => argument.get(2..).map(str::to_owned),
        _ => Some(argument.clone()),
    };
    let mut seen = HashSet::new();
    for path in stage.iter().skip(1).filter_map(named).map(|name| cwd.join(name)) {
        if !path.is_file() || !seen.insert(path.clone()) {
            continue;
        }
        let room = operands.pinned.len() < OPERANDS_MAX;
        match room.then(|| files::pin(&path).ok()).flatten() {
            Some(pinned) => operands.pinned.push(pinned),
            None => operands.loose += 1,
        }
    }
    operands
}

#[cfg(test)]
mod tests {
    use super::*;

    /// An operand may contain `=` and still be a file; only an option's value stands behind it.
    #[test]
    fn every_file_that_an_interpreter_is_given_is_pinned() {
        let dir = tempfile::tempdir().unwrap();
        let dir = std::fs::canonicalize(dir.path()).unwrap();
        for name in ["a=b", "value", "short", "plain"] {
            std::fs::write(dir.join(name), name).unwrap();
        }
        let shell = files::program("sh", &dir, false).unwrap();
        let stage = ["sh", "a=b", "--file=value", "-fshort", "plain", "plain", "missing", "--", "-"];
        let operands = operands_of(&shell, &stage.map(str::to_owned), &dir);
        let pinned: Vec<&std::ffi::OsStr> =
            operands.pinned.iter().filter_map(|pinned| pinned.path.file_name()).collect();
        assert_eq!(pinned, ["a=b", "value", "short", "plain"]);
        assert_eq!(operands.loose, 0);
        let other = files::program("true", &dir, false).unwrap();
        assert!(operands_of(&other, &["true".into(), "plain".into()], &dir).pinned.is_empty());
    }
}
