//! `/bin/true` from request to reply: one after the other with and without a sandbox, and eight in flight.

use super::{Contender, Pair, Server, start_all};
use crate::Result;
use crate::budget::{
    EXEC_IN_FLIGHT_RATIO_MIN, EXEC_OPEN_RATIO_MAX, EXEC_READ_ONLY_RATIO_MAX, EXEC_SANDBOX_RATIO_MAX, Table,
};
use crate::samples::Samples;
use std::time::Instant;

const COMMANDS: usize = 400;
const COMMANDS_QUICK: usize = 100;
const IN_FLIGHT: usize = 8;
/// Commands in each round of those in flight.
const BURST: usize = 160;
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 3;

const OPEN: &str = r#"{"command":["/bin/true"],"sandboxPolicy":{"type":"dangerFullAccess"}}"#;
const READ_ONLY: &str = r#"{"command":["/bin/true"],"sandboxPolicy":{"type":"readOnly"}}"#;

pub(super) fn measure(table: &mut Table, contenders: &[Contender], quick: bool) -> Result<()> {
    let mut servers = start_all(contenders)?;
    let none = || vec![Samples::default(); contenders.len()];
    let (mut open, mut read_only) = (none(), none());
    for server in &mut servers {
        one(server, OPEN)?;
        one(server, READ_ONLY)?;
    }
    for _ in 0..if quick { COMMANDS_QUICK } else { COMMANDS } {
        for (index, server) in servers.iter_mut().enumerate() {
            for (params, samples) in [(OPEN, &mut open), (READ_ONLY, &mut read_only)] {
                let begun = Instant::now();
                one(server, params)?;
                if let Some(samples) = samples.get_mut(index) {
                    samples.push_ms(begun.elapsed());
                }
            }
        }
    }
    let (mut in_flight, mut cpu) = (none(), none());
    for _ in 0..if quick { ROUNDS_QUICK } else { ROUNDS } {
        for (server, (rates, cpu)) in servers.iter_mut().zip(in_flight.iter_mut().zip(&mut cpu)) {
            let (before, begun) = (server.family.cpu_s(), Instant::now());
            burst(server)?;
            rates.push(BURST as f64 / begun.elapsed().as_secs_f64());
            cpu.push((server.family.cpu_s() - before) / BURST as f64 * 1e3);
        }
    }
    let medians = |samples: &[Samples]| samples.iter().map(Samples::median).collect::<Vec<f64>>();
    let p99s = |samples: &[Samples]| samples.iter().map(Samples::p99).collect::<Vec<f64>>();
    let pair = |name, unit| Pair { name, unit };
    pair("/bin/true without a sandbox, median", "ms").at_most(table, &medians(&open), EXEC_OPEN_RATIO_MAX);
    pair("/bin/true without a sandbox, p99", "ms").info(table, &p99s(&open));
    let read_only_medians = medians(&read_only);
    pair("/bin/true read-only, median", "ms").at_most(table, &read_only_medians, EXEC_READ_ONLY_RATIO_MAX);
    pair("/bin/true read-only, p99", "ms").info(table, &p99s(&read_only));
    if let (Some(read_only), Some(open)) = (read_only_medians.first(), medians(&open).first()) {
        let name = "exec: /bin/true read-only / without a sandbox";
        table.at_most(name, read_only / open, "x", EXEC_SANDBOX_RATIO_MAX);
    }
    let rates = medians(&in_flight);
    pair("read-only, 8 in flight, each second", "").at_least(table, &rates, EXEC_IN_FLIGHT_RATIO_MIN);
    pair("read-only, 8 in flight, CPU of each", "ms").info(table, &medians(&cpu));
    Ok(())
}

fn one(server: &mut Server, params: &str) -> Result<()> {
    server.send("command/exec", params)?;
    server.succeeded()
}

fn burst(server: &mut Server) -> Result<()> {
    for _ in 0..IN_FLIGHT {
        server.send("command/exec", READ_ONLY)?;
    }
    for done in 1..=BURST {
        server.succeeded()?;
        if done + IN_FLIGHT <= BURST {
            server.send("command/exec", READ_ONLY)?;
        }
    }
    Ok(())
}
