//! 256 MiB from a command to its client in deltas, and what the server spends on it.

use super::{Contender, Pair, start_all};
use crate::Result;
use crate::budget::{EXEC_STREAM_RATIO_MIN, Table};
use crate::samples::Samples;
use std::time::Instant;

const BYTES: u64 = 256 * 1024 * 1024;
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 3;

pub(super) fn measure(table: &mut Table, contenders: &[Contender], quick: bool) -> Result<()> {
    let mut servers = start_all(contenders)?;
    let own = std::env::current_exe()?.display().to_string();
    let params = format!(
        r#"{{"command":["{own}","produce","{BYTES}"],"processId":"out","streamStdoutStderr":true,"disableOutputCap":true,"disableTimeout":true,"sandboxPolicy":{{"type":"dangerFullAccess"}}}}"#
    );
    let none = || vec![Samples::default(); contenders.len()];
    let (mut rates, mut cpu) = (none(), none());
    for _ in 0..if quick { ROUNDS_QUICK } else { ROUNDS } {
        for (server, (rates, cpu)) in servers.iter_mut().zip(rates.iter_mut().zip(&mut cpu)) {
            let (before, begun) = (server.family.cpu_s(), Instant::now());
            server.send("command/exec", &params)?;
            let received = server.drain()? / 4 * 3;
            let time = begun.elapsed();
            if received < BYTES {
                return Err(format!("of {BYTES} bytes only {received} came").into());
            }
            rates.push(BYTES as f64 / 1024.0 / 1024.0 / time.as_secs_f64());
            cpu.push(server.family.cpu_s() - before);
        }
    }
    let medians = |samples: &[Samples]| samples.iter().map(Samples::median).collect::<Vec<f64>>();
    Pair { name: "256 MiB in deltas", unit: "MiB/s" }.at_least(
        table,
        &medians(&rates),
        EXEC_STREAM_RATIO_MIN,
    );
    Pair { name: "256 MiB in deltas, all CPU time", unit: "s" }.info(table, &medians(&cpu));
    let memory: Result<Vec<f64>> =
        servers.iter().map(|server| Ok(server.family.memory()?.resident)).collect();

    Pair { name: "resident afterwards, all processes", unit: "MB" }.info(table, &memory?);
    Ok(())
}
