//! A program from request to exit frame against posix_spawn and wait, and the daemon from nothing to its first pong.

use super::{Relay, timed};
use crate::Result;
use crate::budget::{RELAY_SPAWN_RATIO_MAX, RELAY_START_MS_MAX, Table};
use crate::samples::Samples;
use std::path::Path;
use std::process::Command;

const SPAWNS: usize = 1000;
const SPAWNS_QUICK: usize = 300;
const STARTS: usize = 20;

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    let relay = Relay::start(binary)?;
    let (mut ours, mut theirs) = (Samples::default(), Samples::default());
    let mut client = relay.connect()?;
    for _ in 0..if quick { SPAWNS_QUICK } else { SPAWNS } {
        let ((), time) = timed(|| {
            client.send("process.spawn", r#"{"id":"true","command":"/bin/true"}"#)?;
            while !client.line()?.contains("\"exit\"") {}
            Ok(())
        })?;
        ours.push_us(time);
        let (_, time) = timed(|| Ok(Command::new("/bin/true").spawn()?.wait()?))?;
        theirs.push_us(time);
    }
    drop(relay);
    let mut starts = Samples::default();
    for _ in 0..STARTS {
        let relay = Relay { binary: binary.to_owned(), dir: tempfile::tempdir()? };
        let ((), time) = timed(|| {
            relay.serve()?;
            relay.connect()?.call("server.ping", "{}").map(|_| ())
        })?;
        starts.push_ms(time);
    }
    table.info("relay: posix_spawn and wait, median", theirs.median(), "us");
    table.info("relay: spawn to exit frame, median", ours.median(), "us");
    let ratio = ours.median() / theirs.median();
    table.at_most("relay: spawn to exit frame / posix_spawn and wait", ratio, "x", RELAY_SPAWN_RATIO_MAX);
    table.at_most("relay: -serve to first pong, median", starts.median(), "ms", RELAY_START_MS_MAX);
    Ok(())
}
