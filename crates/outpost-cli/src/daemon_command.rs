//! Commands that start or become the daemon, with their options. The binary runs them.

use crate::flags::Flags;
use crate::remote_bootstrap::RemoteBootstrap;
use clap::{Args, Subcommand};
use std::ffi::OsString;
use std::path::PathBuf;

#[derive(Subcommand)]
pub enum DaemonCommand {
    /// Start the daemon, in the foreground or in the background; exits with 3 if it is already running
    Serve(ServeOptions),
    /// Relay face: -serve, -bridge, -stop, -version, -install, with the flags of the daemon it replaces
    #[command(disable_help_flag = true)]
    Relay {
        #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
        flags: Vec<OsString>,
    },
    /// Exec face on standard input and output: sandboxed commands, as `codex app-server` runs them
    AppServer(AppServer),
    /// Started by the keeper
    #[command(hide = true)]
    Worker(WorkerArgs),
    /// Run by `outpost connect` on the remote host
    #[command(name = "arrive", hide = true)]
    RemoteBootstrap(RemoteBootstrap),
}

#[derive(Args, Clone, Debug, Default)]
pub struct ServeOptions {
    /// Run in the background: returns when every face serves; the log is outpost.log in the state directory
    #[arg(long)]
    pub detach: bool,
    #[command(flatten)]
    pub flags: Flags,
}

#[derive(Args, Clone, Debug)]
pub struct AppServer {
    /// Where to listen
    #[arg(long, value_name = "URL", default_value = "stdio://")]
    pub listen: String,
}

/// Arguments that the keeper passes to each worker.
#[derive(Args, Clone, Debug)]
pub struct WorkerArgs {
    /// Soft and hard descriptor limit for children: a number or `unlimited`
    #[arg(long, value_name = "SOFT:HARD")]
    pub descriptors: Option<String>,
    #[arg(long, allow_hyphen_values = true)]
    pub oom_score: Option<i32>,
    /// The log file that standard error refers to
    #[arg(long)]
    pub log_file: Option<PathBuf>,
    /// Watchdog interval of the supervisor
    #[arg(long, value_name = "MS")]
    pub watchdog_ms: Option<u64>,
    #[command(flatten)]
    pub flags: Flags,
}
