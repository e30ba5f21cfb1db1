//! Running real commands confined, and looking at what came of it.

use outpost_sandbox::{Access, Confinement, Context, Entry, Host, Plan, Policy, Reads, Special, plan};
use outpost_sys::pidfd::{self, How};
use outpost_sys::spawn::{self, Child, Directory, Failure, Program, Standing};
use std::ffi::{CStr, CString};
use std::fs::{self, File};
use std::io::Read;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub(crate) fn root() -> bool {
    outpost_sys::limits::effective_uid() == 0
}

/// One for all tests, as in a daemon. Its directory is removed by the system's own tidying: it stays empty.
pub(crate) fn host() -> &'static Host {
    static HOST: OnceLock<Host> = OnceLock::new();
    HOST.get_or_init(|| Host::probe(&state()).unwrap())
}

pub(crate) fn state() -> PathBuf {
    std::env::temp_dir().join(format!("outpost-sandbox-test-{}", outpost_sys::limits::effective_uid()))
}

/// What a command wrote and how it ended.
#[derive(Debug)]
pub(crate) struct Done {
    pub(crate) how: How,
    pub(crate) out: String,
}

impl Done {
    pub(crate) fn ok(&self) -> bool {
        self.how == How::Code(0)
    }
}

/// A place with a workspace in it.
pub(crate) struct Place {
    dir: tempfile::TempDir,
    pub(crate) network: bool,
}

impl Place {
    /// Below the home of all temporary things, but not in /tmp itself, which policies open.
    pub(crate) fn new() -> Place {
        let dir = tempfile::Builder::new().prefix("outpost-sandbox-").tempdir_in("/var/tmp").unwrap();
        fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(dir.path().join("ws")).unwrap();
        Place { dir, network: false }
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

    /// Everything can be read, the workspace be written to, and these on top.
    pub(crate) fn profile(&self, more: &[(&str, Access)]) -> Policy {
        let mut entries = vec![
            Entry::special(Special::Root, Access::Read),
            Entry::special(Special::CurrentWorkingDirectory, Access::Write),
        ];
        entries.extend(more.iter().map(|(path, access)| Entry::path(self.path(path), *access)));
        Policy::restricted(entries, self.network)
    }

    pub(crate) fn run(&self, policy: &Policy, line: &[&str]) -> Done {
        self.start(policy, line).unwrap()
    }

    /// A shell script in the workspace; both outputs in one.
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
    let started = launch(&confinement, cwd, line, Standing::Session, [&write, &write, &write])?;
    drop(write);
    let mut bytes = Vec::new();
    File::from(read).read_to_end(&mut bytes).unwrap();
    Ok(Done { how: end(&started), out: String::from_utf8_lossy(&bytes).into_owned() })
}

pub(crate) fn pipe() -> (OwnedFd, OwnedFd) {
    rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC).unwrap()
}

/// Waits for the end and reaps.
pub(crate) fn end(started: &spawn::Started) -> How {
    use rustix::event::{PollFd, PollFlags, poll};
    poll(&mut [PollFd::new(&started.pidfd, PollFlags::IN)], None).unwrap();
    pidfd::reap(&started.pidfd).unwrap().unwrap().how
}

pub(crate) fn launch(
    confinement: &Confinement,
    cwd: &Path,
    line: &[&str],
    standing: Standing,
    stdio: [&OwnedFd; 3],
) -> Result<spawn::Started, Failure> {
    let line: Vec<CString> = line.iter().map(|word| CString::new(*word).unwrap()).collect();
    let arguments: Vec<&CStr> = line.iter().map(CString::as_c_str).collect();
    let cwd = CString::new(cwd.to_str().unwrap()).unwrap();
    let mut descriptors: Vec<_> = stdio.iter().zip(0..).map(|(fd, number)| (fd.as_fd(), number)).collect();
    descriptors.extend(confinement.descriptors());
    spawn::spawn(&Child {
        directory: Some(Directory::Path(&cwd)),
        confinement: Some(&confinement.program),
        ..Child::new(
            Program::Path(&line[0]),
            &arguments,
            &[c"PATH=/usr/local/bin:/usr/bin:/bin", c"HOME=/root"],
            standing,
            &descriptors,
        )
    })
}
