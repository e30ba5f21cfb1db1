//! The side-by-side benchmark: the daemon against floor programs of our own, measured in the same run.
//!
//! This machine's load changes from minute to minute, so nothing here is compared with a number from another day where
//! a ratio will do: each of our figures is measured in turn with the floor's, several times, and medians are compared.

#![forbid(unsafe_code)]

mod approve;
mod broker;
mod budget;
mod daemon;
mod exec;
mod family;
mod idle;
mod latency;
mod relay;
mod restart;
mod samples;
mod sessions;
mod start;
mod throughput;

use budget::Table;
use clap::{Parser, Subcommand};
use std::path::PathBuf;
use std::process::ExitCode;

/// Any error; the benchmark only prints it.
type Result<T> = std::result::Result<T, Box<dyn std::error::Error + Send + Sync>>;

/// Measures the daemon and checks its budgets.
#[derive(Parser)]
#[command(name = "bench")]
struct Cli {
    /// Fewer rounds: a look, not a measurement
    #[arg(long)]
    quick: bool,
    /// Only these parts
    #[arg(long, value_enum)]
    part: Vec<Part>,
    /// The original of the exec face (`codex`, 0.124.0), to be measured in the same run; scripts/fetch-exec-peer installs it
    #[arg(long, value_name = "PATH", env = "OUTPOST_EXEC_PEER")]
    peer_exec: Option<PathBuf>,
    /// The original of the broker face (`sudo-proxy`, 1.2.0); scripts/fetch-broker-peer installs it
    #[arg(long, value_name = "PATH", env = "OUTPOST_BROKER_PEER")]
    peer_broker: Option<PathBuf>,
    #[command(subcommand)]
    role: Option<Role>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum Part {
    Start,
    Throughput,
    Idle,
    Spawn,
    Restart,
    Relay,
    Exec,
    Broker,
    Sessions,
}

/// What this program also is when it measures itself.
#[derive(Subcommand)]
enum Role {
    /// Writes so many bytes to standard output, as fast as it can
    #[command(hide = true)]
    Produce { bytes: u64 },
    /// Reads this many bytes from standard input; the exit code shows whether they match the pattern
    #[command(hide = true)]
    Consume { bytes: usize },
    /// Answers each read on the connection it accepts on standard input with a fixed line
    #[command(hide = true)]
    Echo,
    /// Runs the producer and sends what it writes to a socket, without a journal
    #[command(hide = true)]
    Floor { bytes: u64 },
    /// Starts programs from a small process, our way and the C library's in turn
    #[command(hide = true)]
    Starts { rounds: usize },
}

fn main() -> ExitCode {
    let called = std::env::args_os().next().unwrap_or_default();
    if std::path::Path::new(&called).ends_with(sessions::AGENT_NAME) {
        return if sessions::run_agent().is_ok() { ExitCode::SUCCESS } else { ExitCode::FAILURE };
    }
    let cli = Cli::parse();
    let outcome = match &cli.role {
        Some(Role::Produce { bytes }) => throughput::floor::produce(*bytes).map(|()| true),
        Some(Role::Consume { bytes }) => throughput::floor::consume(*bytes),
        Some(Role::Echo) => relay::echo().map(|()| true),
        Some(Role::Floor { bytes }) => throughput::floor::run(*bytes).map(|()| true),
        Some(Role::Starts { rounds }) => latency::starts(*rounds).map(|()| true),
        None => measure(&cli),
    };
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("bench: {error}");
            ExitCode::from(2)
        }
    }
}

/// Whether every budget was kept.
fn measure(cli: &Cli) -> Result<bool> {
    if cfg!(debug_assertions) {
        return Err("a debug build measures nothing; run it with `cargo run --release`".into());
    }
    let binary = daemon::build()?;
    let wanted = |part| cli.part.is_empty() || cli.part.contains(&part);
    let mut table = Table::default();
    if wanted(Part::Start) {
        start::measure(&mut table, &binary, cli.quick)?;
    }
    if wanted(Part::Throughput) {
        throughput::measure(&mut table, &binary, cli.quick)?;
    }
    if wanted(Part::Idle) {
        idle::measure(&mut table, &binary, cli.quick)?;
    }
    if wanted(Part::Spawn) {
        latency::measure(&mut table, &binary, cli.quick)?;
    }
    if wanted(Part::Restart) {
        restart::measure(&mut table, &binary, cli.quick)?;
    }
    if wanted(Part::Relay) {
        relay::measure(&mut table, &binary, cli.quick)?;
    }
    if wanted(Part::Exec) {
        exec::measure(&mut table, &binary, cli.peer_exec.as_deref(), cli.quick)?;
    }
    if wanted(Part::Broker) {
        broker::measure(&mut table, &binary, cli.peer_broker.as_deref(), cli.quick)?;
        approve::measure(&mut table, &binary, cli.quick)?;
    }
    if wanted(Part::Sessions) {
        sessions::measure(&mut table, &binary, cli.quick)?;
    }
    print!("{table}");
    Ok(table.is_kept())
}
