//! The interpreter: executes a sandbox program in the child, with system calls only.

use super::calls::{self, Outcome};
use super::watch;
use super::{Code, NO_REGISTER, Operation, PLACEHOLDERS_MAX, Program, REGISTERS};
use crate::spawn::ResourceLimit;
use rustix::fs::{FlockOperation, Mode, OFlags};
use rustix::thread::CapabilitySet;
use std::ffi::{CStr, c_int};
use std::os::fd::RawFd;

/// What the command still has to execute after its program was interpreted.
pub(crate) struct Run<'a> {
    candidates: &'a [u8],
}

impl<'a> Run<'a> {
    /// Paths to execute, in order; none when the child's own program is executed.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = &'a CStr> + Clone + use<'a> {
        let parts = self.candidates.split_inclusive(|byte| *byte == 0);
        parts.filter_map(|path| CStr::from_bytes_with_nul(path).ok())
    }
}

/// A locked placeholder directory.
#[derive(Clone, Copy)]
pub(super) struct Placeholder<'a> {
    pub(super) parent: RawFd,
    pub(super) directory: RawFd,
    pub(super) name: &'a CStr,
}

/// Which process of the sandbox this is.
enum Role {
    /// The process that the parent spawned, before init is forked.
    Child,
    Init {
        command: c_int,
        /// The write end of the pipe on which the command waits.
        view_ready: RawFd,
    },
    /// The command, while the operations are init's.
    PendingCommand { view: RawFd },
    Command {
        /// The pipe on which init reports that the view is ready; `None` after it did.
        view: Option<RawFd>,
    },
}

/// Descriptors by the numbers that operations have for them.
pub(super) type Registers = [RawFd; REGISTERS];

pub(super) struct State<'a> {
    role: Role,
    registers: Registers,
    placeholders: [Option<Placeholder<'a>>; PLACEHOLDERS_MAX],
    /// The pipe on which init reports the command's exit status.
    status: (RawFd, RawFd),
    /// The bounding and ambient sets are empty already.
    bounded: bool,
    limits: &'a [ResourceLimit],
}

/// Executes the program. An error is the index of the failed operation and its errno. Returns in the command
/// only: the outer process and init never return.
pub(crate) fn run<'a>(
    program: &'a Program,
    limits: &'a [ResourceLimit],
) -> std::result::Result<Run<'a>, (usize, c_int)> {
    let mut state = State {
        role: Role::Child,
        registers: [-1; REGISTERS],
        placeholders: [None; PLACEHOLDERS_MAX],
        status: (-1, -1),
        bounded: false,
        limits,
    };
    let mut candidates: &[u8] = &[];
    let mut umask = Some(rustix::process::umask(Mode::empty()));
    for (index, operation) in program.operations().enumerate() {
        if matches!(state.role, Role::PendingCommand { .. }) && operation.code != Code::BeginCommand {
            continue;
        }
        if operation.code == Code::Candidates {
            candidates = operation.text(0);
        }
        if operation.code == Code::BeginCommand {
            umask.take().map(rustix::process::umask);
        }
        state.execute(&operation).map_err(|errno| (index, errno))?;
    }
    umask.map(rustix::process::umask);
    // Descriptors other than the standard ones are for this setup only.
    calls::close_at_exec(3).map_err(|errno| (0, errno))?;
    Ok(Run { candidates })
}

impl<'a> State<'a> {
    fn execute(&mut self, operation: &Operation<'a>) -> Outcome {
        let path = operation.string(0);
        match operation.code {
            Code::HoldPlaceholder => self.hold_placeholder(path, operation.string(1)),
            Code::SetNs => {
                let number = RawFd::try_from(operation.value).map_err(|_| libc::EBADF)?;
                calls::set_namespace(number, operation.flags.cast_signed())
            }
            Code::ForkInit => self.fork_init(operation.flags),
            Code::BeginCommand => self.begin_command(),
            Code::AwaitView => self.await_view(),
            Code::WriteFile => write(path, operation.text(1)),
            Code::MakePrivate => calls::mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE, None),
            Code::OpenTree => {
                let at = calls::open_path(path, OFlags::PATH)?;
                let tree = calls::clone_tree(at);
                calls::close(at);
                self.set_register(operation.register, tree?)
            }
            Code::SetAttributes => {
                let at = self.register(operation.register);
                calls::set_attributes(at, path, operation.value, operation.flags != 0)
            }
            Code::MoveMount => self.move_mount(operation.register, path),
            Code::Mount => {
                let (at, options) = (operation.string(1), operation.string(2));
                calls::mount(Some(path), at, operation.flags.into(), Some(options))
            }
            Code::BindOver => {
                let at = operation.string(1);
                calls::bind(path, at)?;
                calls::set_attributes(libc::AT_FDCWD, at, operation.value, false)
            }
            Code::OpenDirectory => {
                let opened = calls::open_path(path, OFlags::PATH | OFlags::DIRECTORY)?;
                self.set_register(operation.register, opened)
            }
            Code::MakeDirectory => calls::make_directory(path, operation.value as u32),
            Code::MakeFile => {
                let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL;
                calls::open_at(libc::AT_FDCWD, path, flags, operation.value as u32).map(calls::close)
            }
            Code::MakeLink => calls::make_link(path, operation.string(1)),
            Code::PivotRoot => calls::pivot(self.register(operation.register)),
            Code::Close => {
                calls::close(self.register(operation.register));
                self.set_register(operation.register, -1)
            }
            _ => self.reduce_rights(operation),
        }
    }

    /// Operations that reduce the rights of the calling process.
    fn reduce_rights(&mut self, operation: &Operation<'a>) -> Outcome {
        match operation.code {
            Code::NewKeyring => calls::join_new_keyring(),
            Code::LowerLimit => calls::lower_limit(operation.flags, operation.value),
            Code::SetChildLimits => self
                .limits
                .iter()
                .try_for_each(|limit| calls::set_limit(limit.resource, limit.soft, limit.hard)),
            Code::CreateRuleset => {
                let ruleset = calls::ruleset(operation.text(0))?;
                self.set_register(operation.register, ruleset)
            }
            Code::AddRule => {
                let at = match calls::open_path(operation.string(0), OFlags::PATH) {
                    Err(libc::ENOENT) if operation.flags & super::MISSING_OK != 0 => return Ok(()),
                    at => at?,
                };
                let added = calls::add_rule(self.register(operation.register), at, operation.value);
                calls::close(at);
                added
            }
            Code::AddTerminalRule => {
                let ruleset = self.register(operation.register);
                let mut terminals = (0..3).filter(|fd| calls::is_terminal(*fd));
                terminals.try_for_each(|fd| calls::add_rule(ruleset, fd, operation.value))
            }
            Code::EnforceRuleset => {
                let ruleset = self.register(operation.register);
                let enforced = calls::enforce_rules(ruleset);
                calls::close(ruleset);
                enforced
            }
            Code::NoNewPrivileges => calls::set_no_new_privs(),
            Code::BoundCapabilities => {
                self.bounded = true;
                calls::bound_capabilities()
            }
            Code::DropCapabilities => {
                if !self.bounded {
                    calls::bound_capabilities()?;
                }
                calls::set_capabilities(CapabilitySet::empty())
            }
            Code::InstallFilter => calls::filter(operation.text(0)),
            _ => Ok(()),
        }
    }

    fn register(&self, number: u8) -> RawFd {
        let none = if number == NO_REGISTER { libc::AT_FDCWD } else { -1 };
        self.registers.get(usize::from(number)).copied().unwrap_or(none)
    }

    fn set_register(&mut self, number: u8, fd: RawFd) -> Outcome {
        *self.registers.get_mut(usize::from(number)).ok_or(libc::EBADF)? = fd;
        Ok(())
    }

    fn move_mount(&mut self, register: u8, path: &CStr) -> Outcome {
        let tree = self.register(register);
        let target = calls::open_path(path, OFlags::PATH)?;
        let moved = calls::move_mount(tree, target);
        calls::close(target);
        calls::close(tree);
        self.set_register(register, -1)?;
        moved
    }

    fn hold_placeholder(&mut self, parent: &CStr, name: &'a CStr) -> Outcome {
        let parent = calls::open_path(parent, OFlags::PATH | OFlags::DIRECTORY)?;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK;
        let directory = calls::open_at(parent, name, flags, 0)?;
        calls::lock(directory, FlockOperation::NonBlockingLockShared)?;
        let free = self.placeholders.iter_mut().find(|held| held.is_none()).ok_or(libc::ENFILE)?;
        *free = Some(Placeholder { parent, directory, name });
        Ok(())
    }

    /// Forks init. The outer process does not return.
    fn fork_init(&mut self, namespaces: u32) -> Outcome {
        let (read, write) = calls::pipe()?;
        self.status = (read, write);
        let init = calls::fork(namespaces)?;
        if init != 0 {
            watch::outer(init, read, &self.placeholders);
        }
        calls::close(read);
        for held in self.placeholders.iter().flatten() {
            calls::close(held.parent);
            calls::close(held.directory);
        }
        watch::die_with_outer(write)?;
        self.fork_command()
    }

    /// Forks the command with a shared descriptor table (CLONE_FILES), so that the command can use what init
    /// opens.
    fn fork_command(&mut self) -> Outcome {
        let (view, view_ready) = calls::pipe()?;
        self.role = match calls::fork(libc::CLONE_FILES.cast_unsigned())? {
            0 => Role::PendingCommand { view },
            command => Role::Init { command, view_ready },
        };
        Ok(())
    }

    /// Init stays behind as reaper; the command continues.
    fn begin_command(&mut self) -> Outcome {
        match self.role {
            Role::Init { command, view_ready } => {
                // The working directory belongs to the mount namespace from before.
                calls::change_directory(c"/")?;
                replace_null_devices()?;
                let (_, status) = self.status;
                watch::release_command(status, view_ready, &self.registers)?;
                watch::init(command, status)
            }
            Role::PendingCommand { view } => {
                self.role = Role::Command { view: Some(view) };
                // The command is a copy of its parent's memory, visible to other processes of the sandbox.
                // Exec resets this.
                calls::set_undumpable()
            }
            Role::Child | Role::Command { .. } => Err(libc::EINVAL),
        }
    }

    /// Waits until init has built the view and has no privilege left that the command does not have.
    fn await_view(&mut self) -> Outcome {
        let Role::Command { view: Some(view) } = self.role else { return Err(libc::EINVAL) };
        self.role = Role::Command { view: None };
        let mut bytes = [0; size_of::<Registers>()];
        calls::read_all(view, &mut bytes)?;
        let numbers = bytes.as_chunks().0.iter().copied().map(RawFd::from_ne_bytes);
        self.registers.iter_mut().zip(numbers).for_each(|(register, number)| *register = number);
        calls::change_directory(c"/")
    }
}

/// Replaces the host's null device on descriptors 0 to 2 by the one of the view. The allowed operations on an
/// open file depend on the mount that it was opened through, and the host's mount lets the owner change the
/// device's mode.
fn replace_null_devices() -> Outcome {
    for fd in 0..3 {
        let Some(access) = calls::null_device(fd) else { continue };
        match calls::open_path(c"/dev/null", access) {
            Ok(own) => calls::move_to(own, fd)?,
            // A policy may deny the device. The inherited one then stays.
            Err(libc::EACCES | libc::ENOENT | libc::EROFS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn write(path: &CStr, bytes: &[u8]) -> Outcome {
    let file = calls::open_at(libc::AT_FDCWD, path, OFlags::WRONLY, 0)?;
    let written = calls::write_all(file, bytes);
    calls::close(file);
    written
}
