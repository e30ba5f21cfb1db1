//! From an approver's signed decision to the answer of the command that it allows.

use crate::Result;
use crate::budget::Table;
use crate::samples::Samples;
use outpost_testkit::approver::hello;
use outpost_testkit::{ApproverKey, Daemon, stamp};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

const REQUESTS: usize = 200;
const REQUESTS_QUICK: usize = 40;

/// How long anything may take before there is nothing to measure.
const TIMEOUT: Duration = Duration::from_secs(20);

/// A connection of JSON lines.
struct Lines {
    reader: BufReader<UnixStream>,
}

impl Lines {
    fn connect(socket: &Path) -> Result<Lines> {
        let stream = outpost_testkit::connect(socket)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Lines { reader: BufReader::new(stream) })
    }

    fn send(&mut self, request: &Value) -> Result<()> {
        Ok(self.reader.get_mut().write_all(format!("{request}\n").as_bytes())?)
    }

    fn receive(&mut self) -> Result<Value> {
        let mut line = String::new();
        self.reader.read_line(&mut line)?;
        Ok(serde_json::from_str(&line)?)
    }

    fn ask(&mut self, request: &Value) -> Result<Value> {
        self.send(request)?;
        self.receive()
    }
}

pub(crate) fn measure(table: &mut Table, binary: &Path, quick: bool) -> Result<()> {
    let limits = "[broker]\nrequests_per_minute = 0\npending_max = 0\n";
    let dir = tempfile::tempdir()?;
    let config = dir.path().join("outpost.toml");
    std::fs::write(&config, limits)?;
    let daemon = Daemon::start_with(binary, &["--config", &config.display().to_string()]);
    let [broker, approvals] = ["run/broker.sock", "run/approvals.sock"].map(|name| daemon.dir().join(name));
    let key = ApproverKey::random();
    let (mut approver, mut watcher) = (Lines::connect(&approvals)?, Lines::connect(&approvals)?);
    let host = approver.ask(&hello())?;
    approver.ask(&key.enrollment(&host))?;
    watcher.ask(&json!({ "do": "watch" }))?;
    let mut times = Samples::default();
    for round in 0..if quick { REQUESTS_QUICK } else { REQUESTS } {
        let mut client = Lines::connect(&broker)?;
        client.send(&json!({
            "id": round.to_string(), "time": stamp(0), "session": "bench", "pipeline": [["true"]],
            "privileged": false,
        }))?;
        let asked = watcher.receive()?;
        let begun = Instant::now();
        // As the command line does it: the newest head first, then the signature.
        let host = approver.ask(&hello())?;
        let decided = approver.ask(&key.decision(&host, &asked["question"], &json!({ "allow": true })))?;
        let answer = client.receive()?;
        times.push_ms(begun.elapsed());
        if decided["is"] != "decided" || answer["status"] != "ok" {
            return Err(format!("{decided} {answer}").into());
        }
        watcher.receive()?;
    }
    table.info("approvals: signed decision to the answer of true, median", times.median(), "ms");
    table.info("approvals: signed decision to the answer of true, p99", times.p99(), "ms");
    Ok(())
}
