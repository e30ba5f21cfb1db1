//! How long clients wait when the worker is killed.

use crate::Result;
use crate::budget::{RESTART_MS_MAX, Table};
use crate::daemon::Daemon;
use crate::samples::Samples;
use std::path::Path;

const KILLS: usize = 40;
const KILLS_QUICK: usize = 20;

const CHILDREN: usize = 10;

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    let mut daemon = Daemon::start(binary)?;
    for _ in 0..CHILDREN {
        daemon.spawn(&["/bin/sleep", "100000"])?;
    }
    let (mut restarts, mut faces) = (Samples::default(), Samples::default());
    for _ in 0..if quick { KILLS_QUICK } else { KILLS } {
        let restart = daemon.restart_worker()?;
        restarts.push_ms(restart.answer);
        faces.push_ms(restart.faces);
    }
    let running = daemon.status()?.running;
    daemon.stop()?;
    if running != CHILDREN {
        return Err(format!("{running} children are left of {CHILDREN}").into());
    }
    table.at_most(
        "kill -9 of the worker until the next one answers, median",
        restarts.median(),
        "ms",
        RESTART_MS_MAX,
    );
    table.info("kill -9 of the worker until the next one answers, p99", restarts.p99(), "ms");
    table.info("kill -9 of the worker until all faces have started, median", faces.median(), "ms");
    Ok(())
}
