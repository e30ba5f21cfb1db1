//! The crate's system calls against the running kernel. A test that the host does not allow is skipped, with
//! the reason on stderr.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

#[path = "sys/kit.rs"]
mod kit;

#[path = "sys/cgroup.rs"]
mod cgroup;
#[path = "sys/connect.rs"]
mod connect;
#[path = "sys/descriptors.rs"]
mod descriptors;
#[path = "sys/epoll.rs"]
mod epoll;
#[path = "sys/file.rs"]
mod file;
#[path = "sys/message.rs"]
mod message;
#[path = "sys/pidfd.rs"]
mod pidfd;
#[path = "sys/pipe.rs"]
mod pipe;
#[cfg(feature = "faults")]
#[path = "sys/plain_clone.rs"]
mod plain_clone;
#[path = "sys/pty.rs"]
mod pty;
#[path = "sys/signal.rs"]
mod signal;
#[path = "sys/spawn.rs"]
mod spawn;
#[path = "sys/unprivileged.rs"]
mod unprivileged;
