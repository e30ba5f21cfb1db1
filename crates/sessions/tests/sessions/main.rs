//! The sessions face as clients see it: the real daemon with `fake-agent` in place of the CLIs, which does on demand
//! what real ones do rarely.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod codecast_daemon;
mod codecast_mock;
mod command_line;
mod http;
mod interrupt;
mod invocation;
mod kit;
mod methods;
mod notices;
mod permissions;
mod queue;
mod remote;
mod restart;
mod sandbox;
mod scale;
mod shutdown;
mod streams;
mod terminal_events;
mod warm_process;
mod worker_death;
