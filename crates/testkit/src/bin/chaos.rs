//! The long form of the nemesis: minutes of it, with the seed printed first, so that a failure can be run again.

#![forbid(unsafe_code)]

use clap::Parser;
use outpost_testkit::{Plan, binary_beside, kill_all_daemons, run};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

#[derive(Parser)]
struct Options {
    /// How long
    #[arg(long, default_value_t = 10)]
    minutes: u64,
    /// Decide as the run that printed this seed did
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long, default_value_t = 8)]
    clients: u64,
    /// Also take disk blocks, processes and descriptors away (as root)
    #[arg(long)]
    exhaustion: bool,
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let options = Options::parse();
    let clock = SystemTime::now().duration_since(UNIX_EPOCH)?.as_nanos() as u64;
    let seed = options.seed.unwrap_or(clock);
    let report_panic = std::panic::take_hook();
    std::panic::set_hook(Box::new(move |info| {
        // This build does not unwind, so nothing else would end the daemon.
        report_panic(info);
        kill_all_daemons();
    }));
    println!("seed {seed}: {} minutes, {} clients", options.minutes, options.clients);
    let ours = std::env::current_exe()?;
    let report = run(&Plan {
        outpost: binary_beside(&ours, "outpost"),
        producer: binary_beside(&ours, "producer"),
        kernel: None,
        seed,
        clients: options.clients,
        worker_kills: 200,
        keeper_kills: 20,
        upgrades: 20,
        exhaustions: if options.exhaustion { 20 } else { 0 },
        duration: Duration::from_secs(60 * options.minutes),
    })
    .map_err(|lack| format!("{lack:?}"))?;
    println!("{report:?}\nnothing was lost, doubled or left behind");
    Ok(())
}
