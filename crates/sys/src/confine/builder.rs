//! Compiling a confinement: one method for each operation.

use super::{AHEAD, Code, HEAD_BYTES, MAGIC, NO_REGISTER, Program, REGISTERS};
use std::ffi::CStr;
use std::os::fd::RawFd;

/// Attributes of mounts.
pub mod attr {
    pub const READ_ONLY: u32 = libc::MOUNT_ATTR_RDONLY as u32;
    pub const NO_SUID: u32 = libc::MOUNT_ATTR_NOSUID as u32;
    pub const NO_DEVICES: u32 = libc::MOUNT_ATTR_NODEV as u32;
    pub const NO_EXEC: u32 = libc::MOUNT_ATTR_NOEXEC as u32;
}

/// A descriptor that one operation opens and others use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(u8);

/// A program in the making.
#[derive(Debug)]
pub struct Builder {
    pub(super) bytes: Vec<u8>,
    registers: u8,
}

/// Appends one operation.
pub(super) fn append(
    bytes: &mut Vec<u8>,
    code: Code,
    (register, other): (u8, u8),
    flags: u32,
    value: u64,
    texts: [&[u8]; 3],
) {
    bytes.reserve(HEAD_BYTES + texts.iter().map(|text| text.len()).sum::<usize>());
    bytes.extend([code as u8, register, other, 0]);
    bytes.extend(flags.to_le_bytes());
    bytes.extend(value.to_le_bytes());
    for text in texts {
        // A longer one makes the program too long, which the check refuses.
        bytes.extend(u32::try_from(text.len()).unwrap_or(u32::MAX).to_le_bytes());
    }
    texts.into_iter().for_each(|text| bytes.extend(text));
}

impl Default for Builder {
    fn default() -> Builder {
        Builder { bytes: MAGIC.to_vec(), registers: 0 }
    }
}

impl Builder {
    /// The finished program; `None` when the operations are in no sensible order or too many.
    pub fn finish(self) -> Option<Program> {
        Program::from_bytes(&self.bytes)
    }

    /// A register that nothing uses yet; `None` when there are no more.
    pub fn register(&mut self) -> Option<Register> {
        let register = Some(self.registers).filter(|number| usize::from(*number) < REGISTERS)?;
        self.registers += 1;
        Some(Register(register))
    }

    fn push(&mut self, code: Code, registers: (u8, u8), flags: u32, value: u64, texts: [&[u8]; 3]) {
        append(&mut self.bytes, code, registers, flags, value, texts);
    }

    fn plain(&mut self, code: Code) {
        self.push(code, (NO_REGISTER, NO_REGISTER), 0, 0, [&[]; 3]);
    }

    fn on_path(&mut self, code: Code, registers: (u8, u8), flags: u32, value: u64, path: &CStr) {
        self.push(code, registers, flags, value, [path.to_bytes_with_nul(), &[], &[]]);
    }

    /// Outer: keeps a shared lock on an empty directory, and when everything has ended removes it, if nobody else
    /// holds one.
    pub fn lease(&mut self, parent: &CStr, name: &CStr) {
        let texts = [parent.to_bytes_with_nul(), name.to_bytes_with_nul(), &[]];
        self.push(Code::Lease, (NO_REGISTER, NO_REGISTER), 0, 0, texts);
    }

    /// Outer: joins the user namespace behind a descriptor of the child.
    pub fn join_user(&mut self, descriptor: RawFd) {
        self.join(descriptor, libc::CLONE_NEWUSER);
    }

    /// Outer: joins the network namespace behind a descriptor of the child.
    pub fn join_network(&mut self, descriptor: RawFd) {
        self.join(descriptor, libc::CLONE_NEWNET);
    }

    fn join(&mut self, descriptor: RawFd, kind: libc::c_int) {
        let number = u64::try_from(descriptor).unwrap_or(u64::MAX);
        self.push(Code::Join, (NO_REGISTER, NO_REGISTER), kind.cast_unsigned(), number, [&[]; 3]);
    }

    /// Begins init: in new pid, mount and IPC namespaces, and those asked for.
    pub fn enter(&mut self, user: bool, network: bool) {
        let mut flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC;
        flags |= if user { libc::CLONE_NEWUSER } else { 0 };
        flags |= if network { libc::CLONE_NEWNET } else { 0 };
        self.push(Code::Enter, (NO_REGISTER, NO_REGISTER), flags.cast_unsigned(), 0, [&[]; 3]);
    }

    /// Writes to an existing file at once.
    pub fn write(&mut self, path: &CStr, bytes: &[u8]) {
        self.push(Code::Write, (NO_REGISTER, NO_REGISTER), 0, 0, [path.to_bytes_with_nul(), bytes, &[]]);
    }

    /// No mount of ours is seen outside, nor theirs here.
    pub fn private(&mut self) {
        self.plain(Code::Private);
    }

    /// A detached copy of the mounts at and below a path without symbolic links.
    pub fn take(&mut self, path: &CStr, into: Register) {
        self.on_path(Code::Take, (into.0, NO_REGISTER), 0, 0, path);
    }

    /// Sets attributes of a taken tree, all of it.
    pub fn restrict(&mut self, tree: Register, attributes: u32) {
        self.on_path(Code::Attributes, (tree.0, NO_REGISTER), 1, attributes.into(), c"");
    }

    /// Sets attributes of the mount at a path, and of those below it if `recursive`.
    pub fn restrict_path(&mut self, path: &CStr, attributes: u32, recursive: bool) {
        let registers = (NO_REGISTER, NO_REGISTER);
        self.on_path(Code::Attributes, registers, recursive.into(), attributes.into(), path);
    }

    /// Mounts a taken tree at a path without symbolic links.
    pub fn place(&mut self, tree: Register, path: &CStr) {
        self.on_path(Code::Place, (tree.0, NO_REGISTER), 0, 0, path);
    }

    /// Mounts what is at one path over another, with these attributes. Neither may be a name that somebody else made.
    pub fn cover(&mut self, with: &CStr, path: &CStr, attributes: u32) {
        let texts = [with.to_bytes_with_nul(), path.to_bytes_with_nul(), &[]];
        self.push(Code::Cover, (NO_REGISTER, NO_REGISTER), 0, attributes.into(), texts);
    }

    /// Mounts a new file system.
    pub fn new_mount(&mut self, kind: &CStr, path: &CStr, attributes: u32, options: &CStr) {
        let texts = [kind.to_bytes_with_nul(), path.to_bytes_with_nul(), options.to_bytes_with_nul()];
        self.push(Code::New, (NO_REGISTER, NO_REGISTER), attributes, 0, texts);
    }

    /// Opens a directory, only to name things by it.
    pub fn open(&mut self, path: &CStr, into: Register) {
        self.on_path(Code::Open, (into.0, NO_REGISTER), 0, 0, path);
    }

    pub fn make_directory(&mut self, path: &CStr, mode: u32) {
        self.on_path(Code::MakeDirectory, (NO_REGISTER, NO_REGISTER), 0, mode.into(), path);
    }

    pub fn make_file(&mut self, path: &CStr, mode: u32) {
        self.on_path(Code::MakeFile, (NO_REGISTER, NO_REGISTER), 0, mode.into(), path);
    }

    pub fn make_link(&mut self, path: &CStr, target: &CStr) {
        let texts = [path.to_bytes_with_nul(), target.to_bytes_with_nul(), &[]];
        self.push(Code::MakeLink, (NO_REGISTER, NO_REGISTER), 0, 0, texts);
    }

    /// Makes an opened mount the root and lets go of the one before.
    pub fn pivot(&mut self, root: Register) {
        self.push(Code::Pivot, (root.0, NO_REGISTER), 0, 0, [&[]; 3]);
    }

    pub fn close(&mut self, register: Register) {
        self.push(Code::Close, (register.0, NO_REGISTER), 0, 0, [&[]; 3]);
    }

    /// Begins the command, which does what follows while init is still at work: nothing that has to do with paths.
    pub fn command(&mut self) {
        self.push(Code::Command, (NO_REGISTER, NO_REGISTER), AHEAD, 0, [&[]; 3]);
    }

    /// The command waits until what it will see is there and init has withdrawn. It then has init's registers.
    pub fn view(&mut self) {
        self.plain(Code::View);
    }

    /// A session keyring of its own, empty.
    pub fn keyring(&mut self) {
        self.plain(Code::Keyring);
    }

    /// A resource limit, unless a lower one is in force.
    pub fn limit_processes(&mut self, count: u64) {
        self.push(Code::Limit, (NO_REGISTER, NO_REGISTER), libc::RLIMIT_NPROC, count, [&[]; 3]);
    }

    /// The limits that the child was to have anyway.
    pub fn child_limits(&mut self) {
        self.plain(Code::ChildLimits);
    }

    /// Begins a Landlock ruleset: accesses to files, to the network, and scopes that it deals with.
    pub fn ruleset(&mut self, files: u64, network: u64, scopes: u64, into: Register) {
        let attributes = [files.to_ne_bytes(), network.to_ne_bytes(), scopes.to_ne_bytes()].concat();
        self.push(Code::Ruleset, (into.0, NO_REGISTER), 0, 0, [&attributes, &[], &[]]);
    }

    /// Allows accesses at and below a path.
    pub fn allow(&mut self, ruleset: Register, path: &CStr, files: u64) {
        self.on_path(Code::Rule, (ruleset.0, NO_REGISTER), 0, files, path);
    }

    /// The same, for a path that may be gone by then.
    pub fn allow_if_there(&mut self, ruleset: Register, path: &CStr, files: u64) {
        self.on_path(Code::Rule, (ruleset.0, NO_REGISTER), super::MAY_BE_GONE, files, path);
    }

    /// Allows accesses to the terminal behind 0, 1 or 2, if there is one: its name lies outside of what is seen here, but
    /// `/dev/stderr` leads to it.
    pub fn allow_terminal(&mut self, ruleset: Register, files: u64) {
        self.push(Code::TerminalRule, (ruleset.0, NO_REGISTER), 0, files, [&[]; 3]);
    }

    pub fn enforce(&mut self, ruleset: Register) {
        self.push(Code::Enforce, (ruleset.0, NO_REGISTER), 0, 0, [&[]; 3]);
    }

    pub fn no_new_privileges(&mut self) {
        self.plain(Code::NoNewPrivileges);
    }

    /// No capability comes back by executing something; those that are there stay for now.
    pub fn bound_capabilities(&mut self) {
        self.plain(Code::Bounding);
    }

    /// None is left, and none comes back.
    pub fn drop_capabilities(&mut self) {
        self.plain(Code::DropCapabilities);
    }

    /// A seccomp filter, as the kernel reads its instructions.
    pub fn filter(&mut self, instructions: &[u8]) {
        self.push(Code::Filter, (NO_REGISTER, NO_REGISTER), 0, 0, [instructions, &[], &[]]);
    }
}
