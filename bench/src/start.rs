//! A daemon that has nothing to do: how soon all its faces answer, and what it takes meanwhile.

use crate::Result;
use crate::budget::{IDLE_DAEMON_MB_MAX, SERVE_MS_MAX, Table};
use crate::daemon::{Daemon, private_kb};
use crate::samples::Samples;
use std::path::Path;
use std::time::{Duration, Instant};

const STARTS: usize = 40;
const STARTS_QUICK: usize = 10;
/// From the first answer until a daemon without clients is idle.
const IDLE_AFTER: Duration = Duration::from_millis(200);

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    let (mut starts, mut memory) = (Samples::default(), Samples::default());
    for _ in 0..if quick { STARTS_QUICK } else { STARTS } {
        let begun = Instant::now();
        // Its control socket answers last of all.
        let mut daemon = Daemon::start(binary)?;
        starts.push_ms(begun.elapsed());
        let worker = daemon.worker()?;
        // What only the start needed is given back a moment after it.
        std::thread::sleep(IDLE_AFTER);
        memory.push((private_kb(worker)? + private_kb(daemon.keeper()?)?) / 1024.0);
        daemon.stop()?;
    }
    table.at_most("serve until every face answers, median", starts.median(), "ms", SERVE_MS_MAX);
    table.info("serve until every face answers, p99", starts.p99(), "ms");
    table.at_most("idle daemon, all faces, worker and keeper", memory.median(), "MB", IDLE_DAEMON_MB_MAX);
    Ok(())
}
