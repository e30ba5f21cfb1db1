//! `outpost mcp`: runs the MCP server on standard input and output.

use super::Outcome;
use crate::paths::Paths;
use clap::Args;
use std::path::PathBuf;
use std::process::ExitCode;

#[derive(Args)]
pub(super) struct Mcp {
    /// Broker socket [default: that of the running daemon]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
}

pub(super) fn run(paths: &Paths, options: Mcp) -> Outcome {
    let broker = paths.broker(options.socket)?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    let served = runtime.block_on(outpost_mcp::serve(broker));
    // Do not wait for the thread that is blocked in a read of standard input.
    runtime.shutdown_background();
    served.map(|()| ExitCode::SUCCESS).map_err(|error| error.to_string())
}
