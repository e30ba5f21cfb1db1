//! From nothing to the handshake, and the memory of a server that has done something and waits.

use super::{Contender, Pair};
use crate::Result;
use crate::budget::{EXEC_IDLE_RATIO_MAX, EXEC_START_RATIO_MAX, Table};
use crate::samples::Samples;
use std::time::{Duration, Instant};

const STARTS: usize = 30;
const STARTS_QUICK: usize = 10;

/// Nothing is asked of a server for so long before it counts as idle.
const QUIET: Duration = Duration::from_secs(2);

pub(super) fn measure(table: &mut Table, contenders: &[Contender], quick: bool) -> Result<()> {
    let mut starts = vec![Samples::default(); contenders.len()];
    for round in 0..=if quick { STARTS_QUICK } else { STARTS } {
        for (contender, samples) in contenders.iter().zip(&mut starts) {
            let begun = Instant::now();
            let server = contender.start()?;
            // The first one fills caches and makes directories.
            if round > 0 {
                samples.push_ms(begun.elapsed());
            }
            drop(server);
        }
    }
    let medians: Vec<f64> = starts.iter().map(Samples::median).collect();
    let name = "start to initialize reply, median";
    Pair { name, unit: "ms" }.at_most(table, &medians, EXEC_START_RATIO_MAX);

    let mut memory = Vec::new();
    // One at a time: pages that two servers share would count half.
    for contender in contenders {
        let mut server = contender.start()?;
        for policy in ["dangerFullAccess", "readOnly"] {
            server.send(
                "command/exec",
                &format!(r#"{{"command":["/bin/true"],"sandboxPolicy":{{"type":"{policy}"}}}}"#),
            )?;
            server.succeeded()?;
        }
        // Both have time to free what only commands need.
        std::thread::sleep(QUIET);
        let used = server.family.memory()?;
        memory.push((used.private_dirty, used.proportional));
    }
    let (dirty, pss): (Vec<f64>, Vec<f64>) = memory.into_iter().unzip();
    Pair { name: "idle, private dirty, all processes", unit: "MB" }.at_most(
        table,
        &dirty,
        EXEC_IDLE_RATIO_MAX,
    );
    Pair { name: "idle, proportional, all processes", unit: "MB" }.info(table, &pss);
    Ok(())
}
