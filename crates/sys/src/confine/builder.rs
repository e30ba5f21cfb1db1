//! Compiles a sandbox program: one method per operation.

use super::{Code, HEAD_BYTES, MAGIC, NO_REGISTER, Program, REGISTERS};
use std::ffi::CStr;
use std::os::fd::RawFd;

/// Attributes of mounts.
pub mod attr {
    pub const READ_ONLY: u32 = libc::MOUNT_ATTR_RDONLY as u32;
    pub const NO_SUID: u32 = libc::MOUNT_ATTR_NOSUID as u32;
    pub const NO_DEVICES: u32 = libc::MOUNT_ATTR_NODEV as u32;
    pub const NO_EXEC: u32 = libc::MOUNT_ATTR_NOEXEC as u32;
}

/// A descriptor that one operation opens and later operations use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Register(u8);

/// A program under construction.
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
        // A longer text exceeds the program's size limit, which the check refuses.
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
    /// The finished program; `None` when the operations are out of order or too many.
    pub fn finish(self) -> Option<Program> {
        Program::from_bytes(&self.bytes)
    }

    /// An unused register; `None` when all are in use.
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

    /// Outer process: holds a shared lock on a placeholder directory. When the command has ended, removes the
    /// directory if no other process holds a lock.
    pub fn hold_placeholder(&mut self, parent: &CStr, name: &CStr) {
        let texts = [parent.to_bytes_with_nul(), name.to_bytes_with_nul(), &[]];
        self.push(Code::HoldPlaceholder, (NO_REGISTER, NO_REGISTER), 0, 0, texts);
    }

    /// Outer process: joins the user namespace behind a descriptor of the child.
    pub fn set_user_ns(&mut self, descriptor: RawFd) {
        self.set_ns(descriptor, libc::CLONE_NEWUSER);
    }

    /// Outer process: joins the network namespace behind a descriptor of the child.
    pub fn set_network_ns(&mut self, descriptor: RawFd) {
        self.set_ns(descriptor, libc::CLONE_NEWNET);
    }

    fn set_ns(&mut self, descriptor: RawFd, kind: libc::c_int) {
        let number = u64::try_from(descriptor).unwrap_or(u64::MAX);
        self.push(Code::SetNs, (NO_REGISTER, NO_REGISTER), kind.cast_unsigned(), number, [&[]; 3]);
    }

    /// Forks init into new pid, mount and IPC namespaces, and into the requested ones.
    pub fn fork_init(&mut self, user: bool, network: bool) {
        let mut flags = libc::CLONE_NEWPID | libc::CLONE_NEWNS | libc::CLONE_NEWIPC;
        flags |= if user { libc::CLONE_NEWUSER } else { 0 };
        flags |= if network { libc::CLONE_NEWNET } else { 0 };
        self.push(Code::ForkInit, (NO_REGISTER, NO_REGISTER), flags.cast_unsigned(), 0, [&[]; 3]);
    }

    /// Writes to an existing file with one write(2).
    pub fn write_file(&mut self, path: &CStr, bytes: &[u8]) {
        self.push(Code::WriteFile, (NO_REGISTER, NO_REGISTER), 0, 0, [path.to_bytes_with_nul(), bytes, &[]]);
    }

    /// Makes all mounts private: mount events propagate in neither direction.
    pub fn make_private(&mut self) {
        self.plain(Code::MakePrivate);
    }

    /// Clones the mounts at and below a path that contains no symbolic link (open_tree(2)).
    pub fn open_tree(&mut self, path: &CStr, into: Register) {
        self.on_path(Code::OpenTree, (into.0, NO_REGISTER), 0, 0, path);
    }

    /// Sets attributes of a cloned tree, recursively.
    pub fn set_tree_attributes(&mut self, tree: Register, attributes: u32) {
        self.on_path(Code::SetAttributes, (tree.0, NO_REGISTER), 1, attributes.into(), c"");
    }

    /// Sets attributes of the mount at a path, and of those below it if `recursive`.
    pub fn set_path_attributes(&mut self, path: &CStr, attributes: u32, recursive: bool) {
        let registers = (NO_REGISTER, NO_REGISTER);
        self.on_path(Code::SetAttributes, registers, recursive.into(), attributes.into(), path);
    }

    /// Mounts a cloned tree at a path that contains no symbolic link (move_mount(2)).
    pub fn move_mount(&mut self, tree: Register, path: &CStr) {
        self.on_path(Code::MoveMount, (tree.0, NO_REGISTER), 0, 0, path);
    }

    /// Bind-mounts one path over another with these attributes. Both paths must be names that only init
    /// creates.
    pub fn bind_over(&mut self, with: &CStr, path: &CStr, attributes: u32) {
        let texts = [with.to_bytes_with_nul(), path.to_bytes_with_nul(), &[]];
        self.push(Code::BindOver, (NO_REGISTER, NO_REGISTER), 0, attributes.into(), texts);
    }

    /// Mounts a new file system.
    pub fn mount(&mut self, kind: &CStr, path: &CStr, attributes: u32, options: &CStr) {
        let texts = [kind.to_bytes_with_nul(), path.to_bytes_with_nul(), options.to_bytes_with_nul()];
        self.push(Code::Mount, (NO_REGISTER, NO_REGISTER), attributes, 0, texts);
    }

    /// Opens a directory as O_PATH.
    pub fn open_directory(&mut self, path: &CStr, into: Register) {
        self.on_path(Code::OpenDirectory, (into.0, NO_REGISTER), 0, 0, path);
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

    /// Makes an opened mount the root and detaches the old root.
    pub fn pivot_root(&mut self, root: Register) {
        self.push(Code::PivotRoot, (root.0, NO_REGISTER), 0, 0, [&[]; 3]);
    }

    pub fn close(&mut self, register: Register) {
        self.push(Code::Close, (register.0, NO_REGISTER), 0, 0, [&[]; 3]);
    }

    /// Starts the command. It executes the following operations concurrently with init, so none of them may
    /// depend on paths.
    pub fn begin_command(&mut self) {
        self.plain(Code::BeginCommand);
    }

    /// The command waits until init has built the view and dropped its privileges. It then has init's
    /// registers.
    pub fn await_view(&mut self) {
        self.plain(Code::AwaitView);
    }

    /// Joins a new, empty session keyring.
    pub fn new_keyring(&mut self) {
        self.plain(Code::NewKeyring);
    }

    /// Limits the number of processes, unless a lower limit is in force.
    pub fn limit_processes(&mut self, count: u64) {
        self.push(Code::LowerLimit, (NO_REGISTER, NO_REGISTER), libc::RLIMIT_NPROC, count, [&[]; 3]);
    }

    /// Sets the resource limits that the child's spec requests.
    pub fn set_child_limits(&mut self) {
        self.plain(Code::SetChildLimits);
    }

    /// Creates a Landlock ruleset that handles these file accesses, network accesses and scopes.
    pub fn create_ruleset(&mut self, files: u64, network: u64, scopes: u64, into: Register) {
        let attributes = [files.to_ne_bytes(), network.to_ne_bytes(), scopes.to_ne_bytes()].concat();
        self.push(Code::CreateRuleset, (into.0, NO_REGISTER), 0, 0, [&attributes, &[], &[]]);
    }

    /// Allows accesses at and below a path.
    pub fn allow(&mut self, ruleset: Register, path: &CStr, files: u64) {
        self.on_path(Code::AddRule, (ruleset.0, NO_REGISTER), 0, files, path);
    }

    /// The same, for a path that may not exist at that time.
    pub fn allow_if_exists(&mut self, ruleset: Register, path: &CStr, files: u64) {
        self.on_path(Code::AddRule, (ruleset.0, NO_REGISTER), super::MISSING_OK, files, path);
    }

    /// Allows accesses to the terminal behind descriptors 0, 1 and 2. Its name is not visible in the sandbox,
    /// but `/dev/stderr` resolves to it.
    pub fn allow_terminal(&mut self, ruleset: Register, files: u64) {
        self.push(Code::AddTerminalRule, (ruleset.0, NO_REGISTER), 0, files, [&[]; 3]);
    }

    pub fn enforce_ruleset(&mut self, ruleset: Register) {
        self.push(Code::EnforceRuleset, (ruleset.0, NO_REGISTER), 0, 0, [&[]; 3]);
    }

    pub fn no_new_privileges(&mut self) {
        self.plain(Code::NoNewPrivileges);
    }

    /// Empties the bounding and ambient capability sets, so that exec grants none. The current capabilities
    /// stay.
    pub fn bound_capabilities(&mut self) {
        self.plain(Code::BoundCapabilities);
    }

    /// Drops all capabilities. The bounding set is emptied as well.
    pub fn drop_capabilities(&mut self) {
        self.plain(Code::DropCapabilities);
    }

    /// Installs a seccomp filter, given as the kernel's instructions.
    pub fn install_filter(&mut self, instructions: &[u8]) {
        self.push(Code::InstallFilter, (NO_REGISTER, NO_REGISTER), 0, 0, [instructions, &[], &[]]);
    }
}
