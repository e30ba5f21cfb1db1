//! What tests share: a daemon in a directory of its own, deterministic bytes, and the nemesis.
//!
//! Code here may panic: a test that cannot continue has failed.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

mod actor;
mod agents;
mod app_server;
pub mod approver;
mod broker;
mod broker_client;
mod daemon;
mod exhaustion;
mod fake_cli;
mod guard;
mod kernel;
mod lack;
mod memory_cgroup;
mod model;
mod nemesis;
mod noise;
mod process;
mod relay;
mod sessions;
mod small_disk;
mod sshd;
mod svg;
mod terminal;
mod user;

pub use agents::{AgentHome, Ran};
pub use app_server::{AppServer, Delta, Options};
pub use approver::ApproverKey;
pub use broker::{Broker, BrokerOptions, stamp};
pub use broker_client::BrokerClient;
pub use daemon::{Daemon, Half, binary_beside, kill_all_daemons, kill_marked, pause};
pub use fake_cli::install_fake_clis;
pub use guard::{ANN, BOB, Guard, broker_request};
pub use lack::{Lack, enclosing_function, installed, no_cgroups, process_events, report_lack, root, x86_64};
pub use memory_cgroup::MemoryCgroup;
pub use model::{Model, Received};
pub use nemesis::{Plan, Report, run};
pub use noise::Noise;
pub use process::process;
pub use relay::{Relay, RelayClient, TOKEN};
pub use sessions::{EventReader, HttpAnswer, SessionsClient, Sse};
pub use small_disk::SmallDisk;
pub use sshd::{Sshd, SshdOptions};
pub use terminal::Terminal;
pub use user::{as_user, connect, without_root};
