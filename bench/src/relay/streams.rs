//! A gigabyte out, once live and once from the journal, and a quarter of one in.

use super::{Relay, cpu_s, timed};
use crate::Result;
use crate::budget::{
    RELAY_REPLAY_GB_MIN, RELAY_STDIN_MB_MIN, RELAY_STREAM_CPU_MAX, RELAY_STREAM_RATIO_MIN, Table,
    WORKER_AFTER_OUTPUT_MB_MAX,
};
use crate::daemon::private_kb;
use crate::samples::Samples;
use crate::throughput;
use std::io::Write as _;
use std::path::Path;

const BYTES: u64 = throughput::BYTES;
const ROUNDS: usize = 5;
const ROUNDS_QUICK: usize = 3;

const STDIN_BYTES: usize = 256 * 1024 * 1024;

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    let relay = Relay::start(binary)?;
    let worker = relay.worker()?;
    let pattern = throughput::floor::pattern();
    let [mut floor, mut floor_cpu, mut ours, mut ours_cpu, mut replay, mut stdin] = <[Samples; 6]>::default();
    for _ in 0..if quick { ROUNDS_QUICK } else { ROUNDS } {
        let round = throughput::through_floor()?;
        floor.push(BYTES as f64 / 1e9 / round.time.as_secs_f64());
        floor_cpu.push(round.cpu_ticks as f64 / crate::daemon::TICKS);

        let before = cpu_s(worker)?;
        let ((), time) = timed(|| live(&relay))?;
        ours.push(BYTES as f64 / 1e9 / time.as_secs_f64());
        ours_cpu.push(cpu_s(worker)? - before);

        let (received, time) = timed(|| from_journal(&relay))?;
        replay.push(received as f64 / 1e9 / time.as_secs_f64());

        let ((), time) = timed(|| feed(&relay, &pattern))?;
        stdin.push(STDIN_BYTES as f64 / 1e6 / time.as_secs_f64());
    }
    let memory_mb = private_kb(worker)? / 1024.0;
    table.info("relay: floor of the stream, no journal", floor.median(), "GB/s");
    table.info("relay: 1 GiB to one client", ours.median(), "GB/s");
    let ratio = ours.median() / floor.median();
    table.at_least("relay: 1 GiB to one client / floor", ratio, "x", RELAY_STREAM_RATIO_MIN);
    let ratio = ours_cpu.median() / floor_cpu.median();
    table.at_most("relay: CPU of the daemon for it / floor", ratio, "x", RELAY_STREAM_CPU_MAX);
    table.at_least("relay: replay of it, on the wire", replay.median(), "GB/s", RELAY_REPLAY_GB_MIN);
    table.at_least("relay: 256 MiB into a child, in order", stdin.median(), "MB/s", RELAY_STDIN_MB_MIN);
    table.at_most(
        "relay: private memory of the worker afterwards",
        memory_mb,
        "MB",
        WORKER_AFTER_OUTPUT_MB_MAX,
    );
    Ok(())
}

fn live(relay: &Relay) -> Result<()> {
    let own = std::env::current_exe()?.display().to_string();
    let mut client = relay.connect()?;
    client.send(
        "process.spawn",
        &format!(r#"{{"id":"out","command":"{own}","args":["produce","{BYTES}"]}}"#),
    )?;
    let received = client.drain()?;
    if received / 4 * 3 < BYTES {
        return Err(format!("of {BYTES} bytes only {} came", received / 4 * 3).into());
    }
    Ok(())
}

/// Bytes on the wire.
fn from_journal(relay: &Relay) -> Result<u64> {
    let mut client = relay.connect()?;
    client.send("process.reattach", r#"{"id":"out","fromSeq":0}"#)?;
    let received = client.drain()?;
    if received / 4 * 3 < BYTES {
        return Err(format!("of {BYTES} bytes only {} were replayed", received / 4 * 3).into());
    }
    Ok(received)
}

/// A request that carries `data`.
fn stdin_line(data: &[u8]) -> Vec<u8> {
    use base64::Engine;
    let data = base64::engine::general_purpose::STANDARD.encode(data);
    let token = super::TOKEN;
    format!("{{\"jsonrpc\":\"2.0\",\"id\":2,\"method\":\"process.stdin\",\"params\":{{\"id\":\"in\",\"data\":\"{data}\"}},\"auth\":\"{token}\"}}\n").into()
}

/// Writes while another thread reads the answers. The child reports the byte count and the order.
fn feed(relay: &Relay, pattern: &[u8]) -> Result<()> {
    let whole_bytes = pattern.len();
    let whole = stdin_line(pattern);
    let rest = stdin_line(pattern.get(..STDIN_BYTES % whole_bytes).unwrap_or_default());
    let own = std::env::current_exe()?.display().to_string();
    let mut client = relay.connect()?;
    client.call(
        "process.spawn",
        &format!(r#"{{"id":"in","command":"{own}","args":["consume","{STDIN_BYTES}"]}}"#),
    )?;
    let mut writer = client.writer.try_clone()?;
    let writing = std::thread::spawn(move || -> std::io::Result<()> {
        let mut left = STDIN_BYTES;
        while left > 0 {
            let line = if left >= whole_bytes { &whole } else { &rest };
            writer.write_all(line)?;
            left = left.saturating_sub(whole_bytes);
        }
        Ok(())
    });
    loop {
        let line = client.line()?;
        if line.contains("\"error\"") {
            return Err(line.into());
        }
        if line.contains("\"exit\"") {
            writing.join().map_err(|_| "the writer failed")??;
            return if line.contains("\"exitCode\":0}") {
                Ok(())
            } else {
                Err("the child got something else".into())
            };
        }
    }
}
