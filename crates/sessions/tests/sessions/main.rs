//! The sessions face as its clients see it: the real daemon, and `fake-agent` under the names of the CLIs, which does
//! everything that real ones do too rarely.

#![allow(clippy::unwrap_used, clippy::expect_used)]

mod asking;
mod calls;
mod elsewhere;
mod endings;
mod ends;
mod http;
mod kept;
mod kills;
mod kit;
mod many;
mod methods;
mod mock;
mod notices;
mod queue;
mod restart;
mod sandbox;
mod shell;
mod stand_in;
mod stopping;
mod streams;
