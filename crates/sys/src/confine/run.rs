//! The interpreter: carries out a program in the child, with nothing but system calls.

use super::calls::{self, Outcome};
use super::watch;
use super::{AHEAD, Code, LEASES_MAX, NO_REGISTER, Operation, Program, REGISTERS};
use crate::spawn::ResourceLimit;
use std::ffi::{CStr, c_int};
use std::os::fd::RawFd;

/// What is left to do for the command when its program has been carried out.
pub(crate) struct Run<'a> {
    candidates: &'a [u8],
}

impl<'a> Run<'a> {
    /// Paths to execute, in order; none when the child's own program is to be executed.
    pub(crate) fn candidates(&self) -> impl Iterator<Item = &'a CStr> + Clone + use<'a> {
        let parts = self.candidates.split_inclusive(|byte| *byte == 0);
        parts.filter_map(|path| CStr::from_bytes_with_nul(path).ok())
    }
}

/// A directory that only exists to be mounted upon, locked by us.
#[derive(Clone, Copy)]
pub(super) struct Lease<'a> {
    pub(super) parent: RawFd,
    pub(super) directory: RawFd,
    pub(super) name: &'a CStr,
}

/// Which of the processes this is.
enum Part {
    /// The one that was asked, alone or not yet joined by others.
    Child,
    Init {
        command: c_int,
        /// Where the command waits.
        tell: RawFd,
    },
    /// The command, as long as the operations are init's.
    Next { view: RawFd },
    Command {
        /// Where init says that everything is there, until it has.
        view: Option<RawFd>,
    },
}

/// Descriptors by the numbers that operations have for them.
pub(super) type Registers = [RawFd; REGISTERS];

pub(super) struct State<'a> {
    part: Part,
    registers: Registers,
    leases: [Option<Lease<'a>>; LEASES_MAX],
    /// Where init tells how the command ended.
    status: (RawFd, RawFd),
    /// What is left in the sets of capabilities does not come back.
    bounded: bool,
    limits: &'a [ResourceLimit],
}

/// Carries it out; an error is the number of the operation that failed, and why. Returns in the command only: the
/// processes on the way to it do their part and never return.
pub(crate) fn run<'a>(
    program: &'a Program,
    limits: &'a [ResourceLimit],
) -> std::result::Result<Run<'a>, (usize, c_int)> {
    let mut state = State {
        part: Part::Child,
        registers: [-1; REGISTERS],
        leases: [None; LEASES_MAX],
        status: (-1, -1),
        bounded: false,
        limits,
    };
    let mut candidates: &[u8] = &[];
    let mut umask = Some(calls::umask(0));
    for (index, operation) in program.operations().enumerate() {
        if matches!(state.part, Part::Next { .. }) && operation.code != Code::Command {
            continue;
        }
        if operation.code == Code::Candidates {
            candidates = operation.text(0);
        }
        if operation.code == Code::Command {
            umask.take().map(calls::umask);
        }
        state.carry_out(&operation).map_err(|errno| (index, errno))?;
    }
    umask.map(calls::umask);
    // "No inherited descriptors": whatever else was given is for this setup only.
    calls::close_at_exec(3).map_err(|errno| (0, errno))?;
    Ok(Run { candidates })
}

impl<'a> State<'a> {
    fn carry_out(&mut self, operation: &Operation<'a>) -> Outcome {
        let path = operation.string(0);
        match operation.code {
            Code::Lease => self.lease(path, operation.string(1)),
            Code::Join => {
                let number = RawFd::try_from(operation.value).map_err(|_| libc::EBADF)?;
                calls::set_namespace(number, operation.flags.cast_signed())
            }
            Code::Enter => self.enter(operation.flags),
            Code::Command => self.command(operation.flags == AHEAD),
            Code::View => self.wait_for_view(),
            Code::Write => write(path, operation.text(1)),
            Code::Private => calls::mount(None, c"/", libc::MS_REC | libc::MS_PRIVATE, None),
            Code::Take => {
                let at = calls::open_path(path, libc::O_PATH)?;
                let tree = calls::clone_tree(at);
                calls::close(at);
                self.keep(operation.register, tree?)
            }
            Code::Attributes => {
                let at = self.register(operation.register);
                calls::set_attributes(at, path, operation.value, operation.flags != 0)
            }
            Code::Place => self.place(operation.register, path),
            Code::New => {
                let (at, options) = (operation.string(1), operation.string(2));
                calls::mount(Some(path), at, operation.flags.into(), Some(options))
            }
            Code::Cover => {
                let at = operation.string(1);
                calls::bind(path, at)?;
                calls::set_attributes(libc::AT_FDCWD, at, operation.value, false)
            }
            Code::Open => {
                let opened = calls::open_path(path, libc::O_PATH | libc::O_DIRECTORY)?;
                self.keep(operation.register, opened)
            }
            Code::MakeDirectory => calls::make_directory(path, operation.value as u32),
            Code::MakeFile => {
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL;
                calls::open_at(libc::AT_FDCWD, path, flags, operation.value as u32).map(calls::close)
            }
            Code::MakeLink => calls::make_link(path, operation.string(1)),
            Code::Pivot => calls::pivot(self.register(operation.register)),
            Code::Close => {
                calls::close(self.register(operation.register));
                self.keep(operation.register, -1)
            }
            _ => self.give_up_rights(operation),
        }
    }

    /// What the command does to itself.
    fn give_up_rights(&mut self, operation: &Operation<'a>) -> Outcome {
        match operation.code {
            Code::Keyring => calls::join_new_keyring(),
            Code::Limit => calls::lower_limit(operation.flags, operation.value),
            Code::ChildLimits => self
                .limits
                .iter()
                .try_for_each(|limit| calls::set_limit(limit.resource, limit.soft, limit.hard)),
            Code::Ruleset => {
                let ruleset = calls::ruleset(operation.text(0))?;
                self.keep(operation.register, ruleset)
            }
            Code::Rule => {
                let at = match calls::open_path(operation.string(0), libc::O_PATH) {
                    Err(libc::ENOENT) if operation.flags & super::MAY_BE_GONE != 0 => return Ok(()),
                    at => at?,
                };
                let added = calls::add_rule(self.register(operation.register), at, operation.value);
                calls::close(at);
                added
            }
            Code::TerminalRule => {
                let ruleset = self.register(operation.register);
                let mut terminals = (0..3).filter(|fd| calls::is_terminal(*fd));
                terminals.try_for_each(|fd| calls::add_rule(ruleset, fd, operation.value))
            }
            Code::Enforce => {
                let ruleset = self.register(operation.register);
                let enforced = calls::enforce_rules(ruleset);
                calls::close(ruleset);
                enforced
            }
            Code::NoNewPrivileges => calls::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0),
            Code::Bounding => {
                self.bounded = true;
                bound_capabilities()
            }
            Code::DropCapabilities => {
                if !self.bounded {
                    bound_capabilities()?;
                }
                calls::set_capabilities(0)
            }
            Code::Filter => calls::filter(operation.text(0)),
            _ => Ok(()),
        }
    }

    fn register(&self, number: u8) -> RawFd {
        let none = if number == NO_REGISTER { libc::AT_FDCWD } else { -1 };
        self.registers.get(usize::from(number)).copied().unwrap_or(none)
    }

    fn keep(&mut self, number: u8, fd: RawFd) -> Outcome {
        *self.registers.get_mut(usize::from(number)).ok_or(libc::EBADF)? = fd;
        Ok(())
    }

    fn place(&mut self, register: u8, path: &CStr) -> Outcome {
        let tree = self.register(register);
        let target = calls::open_path(path, libc::O_PATH)?;
        let moved = calls::move_mount(tree, target);
        calls::close(target);
        calls::close(tree);
        self.keep(register, -1)?;
        moved
    }

    fn lease(&mut self, parent: &CStr, name: &'a CStr) -> Outcome {
        let parent = calls::open_path(parent, libc::O_PATH | libc::O_DIRECTORY)?;
        let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW | libc::O_NONBLOCK;
        let directory = calls::open_at(parent, name, flags, 0)?;
        calls::lock(directory, libc::LOCK_SH | libc::LOCK_NB)?;
        let free = self.leases.iter_mut().find(|lease| lease.is_none()).ok_or(libc::ENFILE)?;
        *free = Some(Lease { parent, directory, name });
        Ok(())
    }

    /// The outer process stays behind; init goes on.
    fn enter(&mut self, namespaces: u32) -> Outcome {
        let (read, write) = calls::pipe()?;
        self.status = (read, write);
        let init = calls::fork(namespaces)?;
        if init != 0 {
            watch::outer(init, read, &self.leases);
        }
        calls::close(read);
        for lease in self.leases.iter().flatten() {
            calls::close(lease.parent);
            calls::close(lease.directory);
        }
        watch::die_with_outer(write)?;
        self.fork_command()
    }

    /// The command begins beside init, with the same descriptors: so they can be opened here and used there.
    fn fork_command(&mut self) -> Outcome {
        let (view, tell) = calls::pipe()?;
        self.part = match calls::fork(libc::CLONE_FILES.cast_unsigned())? {
            0 => Part::Next { view },
            command => Part::Init { command, tell },
        };
        Ok(())
    }

    /// Init stays behind; the command goes on.
    fn command(&mut self, ahead: bool) -> Outcome {
        match self.part {
            Part::Init { command, tell } => {
                // Whatever directory we came with belongs to the view from before.
                calls::change_directory(c"/")?;
                own_null_devices()?;
                let (_, status) = self.status;
                watch::release(status, tell, &self.registers)?;
                watch::init(command, status)
            }
            Part::Next { view } => {
                self.part = Part::Command { view: Some(view) };
                // A copy of whoever started us, in sight of who may be here already. Exec undoes it.
                calls::prctl(libc::PR_SET_DUMPABLE, 0, 0)?;
                if ahead { Ok(()) } else { self.wait_for_view() }
            }
            Part::Child | Part::Command { .. } => Err(libc::EINVAL),
        }
    }

    /// Init has built the view, and has nothing left that the command has not.
    fn wait_for_view(&mut self) -> Outcome {
        let Part::Command { view: Some(view) } = self.part else { return Err(libc::EINVAL) };
        self.part = Part::Command { view: None };
        let mut bytes = [0; size_of::<Registers>()];
        calls::read_all(view, &mut bytes)?;
        let numbers = bytes.as_chunks().0.iter().copied().map(RawFd::from_ne_bytes);
        self.registers.iter_mut().zip(numbers).for_each(|(register, number)| *register = number);
        calls::change_directory(c"/")
    }
}

/// Where the host's null device is input or output, the view's own takes its place: what can be done to a file through
/// its descriptor depends on the mount that it was opened by, and the host's lets its owner change its mode.
fn own_null_devices() -> Outcome {
    for fd in 0..3 {
        let Some(how) = calls::null_device(fd) else { continue };
        match calls::open_path(c"/dev/null", how) {
            Ok(own) => calls::move_to(own, fd)?,
            // A policy may deny it; whoever owns it is not refused.
            Err(libc::EACCES | libc::ENOENT | libc::EROFS) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn write(path: &CStr, bytes: &[u8]) -> Outcome {
    let file = calls::open_at(libc::AT_FDCWD, path, libc::O_WRONLY, 0)?;
    let written = calls::write_all(file, bytes);
    calls::close(file);
    written
}

/// None comes back by executing something.
fn bound_capabilities() -> Outcome {
    for capability in 0..64 {
        match calls::prctl(libc::PR_CAPBSET_DROP, capability, 0) {
            Ok(()) => {}
            // The first number that there is none for; or we have no right to it, and so none to lose.
            Err(_) => break,
        }
    }
    calls::prctl(libc::PR_CAP_AMBIENT, libc::PR_CAP_AMBIENT_CLEAR_ALL as libc::c_ulong, 0)
}
