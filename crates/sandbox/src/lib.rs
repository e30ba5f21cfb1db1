//! Sandboxes: a policy becomes a plan, and the plan becomes a program that the child executes before exec.
//!
//! A [`Policy`] is what the request asks for. [`plan`] resolves it on this host into a plain value.
//! [`Confinement::build`] compiles the plan for the child. Whatever cannot be enforced is an [`Error`] that
//! names it; nothing is skipped silently.
//!
//! # Theory of operation
//!
//! `plan` turns a policy into a plain value: mounts from shallow to deep, so that the deepest path wins.
//! `Confinement::build` compiles the plan into a program for `sys::confine`, which the child interprets between clone
//! and exec with nothing but system calls. No helper program is executed, so nothing of ours is visible inside, and the
//! request's environment reaches the command only.
//!
//! A confined command has three processes. The *outer* one is the keeper's child; it waits and exits exactly as the
//! command did. *Init*, pid 1 of the pid namespace, builds the view, reaps, and kills what the command left behind. The
//! *command* drops its rights and executes. Outer and init hold no descriptors but a pipe between them, have no
//! capabilities and are not dumpable. Nothing executes while init can do more than the command.
//!
//! | layer | effect |
//! | --- | --- |
//! | namespaces | user (where we are not privileged), mount, pid, ipc, net. The empty network namespace is created once and joined |
//! | mounts | nosuid and nodev; recursively read-only; denied paths masked; own `/dev` and `/proc`; an empty root where reading is restricted |
//! | Landlock | the same reads and writes by path inside; TCP, abstract sockets and signals to the outside |
//! | seccomp | mounts, namespaces, keys, io_uring, bpf, userfaultfd, handles, TIOCSTI, set-id modes, foreign instruction sets, unknown calls; without network every socket but a stream pair, and ptrace |
//! | rest | no capabilities, no_new_privs, a session keyring of its own, 4,096 processes |
//!
//! A protected name that is missing (`.git`, `.codex`, `.agents` of a writable root, denied paths) is occupied by an
//! empty placeholder directory on the host while the command runs. Directories on the way to a protected path are
//! mounted upon themselves, so that they cannot be renamed; a link there that the command could replace is refused.
//!
//! # Limits
//!
//! - A process outside the sandbox can undo what depends on names: removing a protected directory on the host removes
//!   the mount upon it. A file with a second hard link is denied only under the name that was given.
//! - Deny patterns mask what matches at the start. What appears later in a writable directory is named by the plan, or
//!   refused, as the policy demands.
//! - 32-bit programs do not run, `openat2` and `clone3` are absent, setting set-id bits fails.
//! - With network on, Unix sockets of the host can be reached. Memory and disk are not limited here.
//! - Without namespaces only plans that Landlock can express run; others are refused with what is missing.

#![forbid(unsafe_code)]

mod causes;
mod confinement;
mod error;
mod filter;
mod globs;
mod host;
mod host_fs;
mod landlock;
mod placeholder;
mod plan;
mod policy;
mod private;
mod resolve;
mod sandbox_builder;

pub use causes::{advice, landlock_advice};
pub use confinement::{Confinement, DESCRIPTOR_FIRST, Layers};
pub use error::Error;
pub use host::{Host, Namespaces};
pub use placeholder::sweep;
pub use plan::{Context, Mount, MountKind, Plan, Root, Shadow, Shown, plan};
pub use policy::{AGENT_FILES, Access, EntryPath, Files, Policy, PolicyEntry, Reads, Special};
pub use private::PrivatePaths;
pub use sandbox_builder::SandboxBuilder;

/// A result of this crate.
pub type Result<T> = std::result::Result<T, Error>;
