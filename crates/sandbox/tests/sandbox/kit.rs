//! Shared test helpers: run real commands in sandboxes and inspect the results.

use outpost_sandbox::{Access, Confinement, Context, Host, Plan, Policy, PolicyEntry, Reads, Special, plan};
use outpost_sys::pidfd::{self, ExitCause};
use outpost_sys::spawn::{self, Child, Executable, Failure, SessionKind, WorkingDirectory};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub(crate) fn root() -> bool {
    outpost_sys::process::effective_uid() == 0
}

/// One host for all tests, as in a daemon. Its state directory stays empty and is left to the system's cleanup.
pub(crate) fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| Host::probe(&state()).unwrap())
}

pub(crate) fn state() -> PathBuf {
    std::env::temp_dir().join(format!("outpost-sandbox-test-{}", outpost_sys::process::effective_uid()))
}

/// A command's output and exit.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) cause: ExitCause,
    pub(crate) out: String,
}

impl Done {
    pub(crate) fn ok(&self) -> bool {
        self.cause == ExitCause::Code(0)
    }
}

/// A directory with a workspace in it.
pub(crate) struct Fixture {
    dir: tempfile::TempDir,
    pub(crate) network: bool,
}

impl Fixture {
    /// Not directly in /tmp, which policies make writable.
    pub(crate) fn new() -> Fixture {
        let dir = tempfile::Builder::new().prefix("outpost-sandbox-").tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(dir.path().join("ws")).unwrap();
        Fixture { dir, network: false }
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn ws(&self) -> PathBuf {
        self.path("ws")
    }

    pub(crate) fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.path(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, text).unwrap();
        path
    }

    pub(crate) fn names(&self, name: &str) -> Vec<String> {
        let entries = fs::read_dir(self.path(name)).unwrap();
        let mut names: Vec<String> =
            entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub(crate) fn context(&self) -> Context {
        Context { cwd: self.ws(), tmpdir: None }
    }

    pub(crate) fn read_only(&self) -> Policy {
        Policy::read_only(&Reads::Everything, self.network)
    }

    pub(crate) fn workspace_write(&self) -> Policy {
        Policy::workspace_write(&[], &Reads::Everything, self.network, true, true)
    }

    /// Everything is readable, the workspace is writable, and these entries come on top.
    pub(crate) fn profile(&self, more: &[(&str, Access)]) -> Policy {
        let mut entries = vec![
            PolicyEntry::special(Special::Root, Access::Read),
            PolicyEntry::special(Special::CurrentWorkingDirectory, Access::Write),
        ];
        entries.extend(more.iter().map(|(path, access)| PolicyEntry::path(self.path(path), *access)));
        Policy::restricted(entries, self.network)
    }

    pub(crate) fn run(&self, policy: &Policy, line: &[&str]) -> Done {
        self.start(policy, line).unwrap()
    }

    /// Runs a shell script in the workspace, with stdout and stderr combined.
    pub(crate) fn sh(&self, policy: &Policy, script: &str) -> Done {
        self.run(policy, &["/bin/sh", "-c", script])
    }

    pub(crate) fn start(&self, policy: &Policy, line: &[&str]) -> Result<Done, Failure> {
        start_on(host(), policy, &self.context(), line)
    }
}

pub(crate) fn start_on(
    host: &Host,
    policy: &Policy,
    context: &Context,
    line: &[&str],
) -> Result<Done, Failure> {
    run_plan(host, &plan(policy, context).unwrap(), &context.cwd, line)
}

pub(crate) fn run_plan(host: &Host, plan: &Plan, cwd: &Path, line: &[&str]) -> Result<Done, Failure> {
    let confinement = Confinement::build(plan, host).unwrap();
    let (read, write) = pipe();
    let started = launch(&confinement, cwd, line, SessionKind::Session, [&write, &write, &write])?;
    drop(write);
    let mut bytes = Vec::new();
    File::from(read).read_to_end(&mut bytes).unwrap();
    Ok(Done { cause: end(&started), out: String::from_utf8_lossy(&bytes).into_owned() })
}

pub(crate) fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

/// Waits for the exit and reaps.
pub(crate) fn end(started: &spawn::Started) -> ExitCause {
    use rustix::event::{PollFd, PollFlags, poll};
    poll(&mut [PollFd::new(&started.pidfd, PollFlags::IN)], None).unwrap();
    pidfd::reap(&started.pidfd).unwrap().unwrap().cause
}

pub(crate) fn launch(
    confinement: &Confinement,
    cwd: &Path,
    line: &[&str],
    session: SessionKind,
    stdio: [&OwnedFd; 3],
) -> Result<spawn::Started, Failure> {
    let line: Vec<CString> = line.iter().map(|word| CString::new(*word).unwrap()).collect();
    let arguments: Vec<&CStr> = line.iter().map(CString::as_c_str).collect();
    let cwd = CString::new(cwd.to_str().unwrap()).unwrap();
    let mut descriptors: Vec<_> = stdio.iter().zip(0..).map(|(fd, number)| (fd.as_fd(), number)).collect();
    descriptors.extend(confinement.descriptors());
    spawn::spawn(&Child {
        directory: Some(WorkingDirectory::Path(&cwd)),
        confinement: Some(&confinement.program),
        ..Child::new(
            Executable::Path(&line[0]),
            &arguments,
            &[c"PATH=/usr/local/bin:/usr/bin:/bin", c"HOME=/root"],
            session,
            &descriptors,
        )
    })
}
