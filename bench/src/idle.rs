//! What a thousand children cost that do nothing.

use crate::Result;
use crate::budget::{IDLE_CHILD_KB_MAX, RESTART_MANY_MS_MAX, Table};
use crate::daemon::{Daemon, private_kb};
use crate::samples::Samples;
use std::path::Path;
use std::time::Instant;

const CHILDREN: usize = 1000;

const RESTARTS: usize = 5;
const RESTARTS_QUICK: usize = 3;

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    let mut daemon = Daemon::start(binary)?;
    let (worker_before, keeper_before) = memory(&mut daemon)?;
    let slab_before = slab_kb()?;
    let begun = Instant::now();
    for _ in 0..CHILDREN {
        daemon.spawn(&["/bin/sleep", "100000"])?;
    }
    let spawned_in = begun.elapsed();
    let (worker, keeper) = memory(&mut daemon)?;
    let slab = slab_kb()?;
    let each = |after: f64, before: f64| (after - before) / CHILDREN as f64;
    let mut restarts = Samples::default();
    for _ in 0..if quick { RESTARTS_QUICK } else { RESTARTS } {
        restarts.push_ms(daemon.restart_worker()?.answer);
    }
    let running = daemon.status()?.running;
    let (worker_again, _) = memory(&mut daemon)?;
    let stopped_in = daemon.stop()?;
    if running != CHILDREN {
        return Err(format!("{running} children are left of {CHILDREN}").into());
    }
    let both = each(worker + keeper, worker_before + keeper_before);
    table.at_most("idle child, worker and keeper", both, "kB", IDLE_CHILD_KB_MAX);
    table.info("idle child, worker", each(worker, worker_before), "kB");
    table.info("idle child, worker that took it over", each(worker_again, worker_before), "kB");
    table.info("idle child, keeper", each(keeper, keeper_before), "kB");
    table.info("idle child, all kernel slabs, the child's own too", each(slab, slab_before), "kB");
    let name = "kill -9 of the worker until the next one answers, 1000 children, median";
    table.at_most(name, restarts.median(), "ms", RESTART_MANY_MS_MAX);
    table.info("starting 1000 children one after the other", spawned_in.as_secs_f64(), "s");
    table.info("ending the daemon with 1000 children", stopped_in.as_secs_f64(), "s");
    Ok(())
}

fn memory(daemon: &mut Daemon) -> Result<(f64, f64)> {
    let worker = daemon.worker()?;
    Ok((private_kb(worker)?, private_kb(daemon.keeper()?)?))
}

fn slab_kb() -> Result<f64> {
    let text = std::fs::read_to_string("/proc/meminfo")?;
    let line = text.lines().find_map(|line| line.strip_prefix("Slab:")).ok_or("no Slab in /proc/meminfo")?;
    Ok(line.trim().trim_end_matches(" kB").parse()?)
}
