//! The broker face as a client sees it, in turn with its original: `true` that an operator's rule allows, against `true`
//! under the grant that the original gives on its terminal.

use crate::Result;
use crate::budget::{BROKER_RATIO_MAX, Table};
use crate::family::{Family, Memory};
use crate::samples::Samples;
use outpost_testkit::{Terminal, stamp};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const REQUESTS: usize = 300;
const REQUESTS_QUICK: usize = 60;
const IN_FLIGHT: usize = 8;

/// How long anything may take before there is nothing to measure.
const TIMEOUT: Duration = Duration::from_secs(20);

/// In the environment of a daemon and of what it starts for itself.
const MARKER: &str = "OUTPOST_BENCH_BROKER";

const RULES: &str =
    "[[rule]]\nname = \"true\"\ndecision = \"allow\"\ncommand = [\"/usr/bin/true\"]\nprivileged = false\n";

/// A running daemon of one of both kinds.
struct Contender {
    socket: PathBuf,
    terminal: Terminal,
    family: Family,
    _dir: tempfile::TempDir,
}

impl Contender {
    fn start(binary: &Path, flags: &[&str], rules: Option<&str>) -> Result<Contender> {
        let dir = tempfile::tempdir()?;
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::os::unix::fs::symlink(binary, path("sudo-proxy"))?;
        let mut arguments = vec![path("sudo-proxy"), "--socket".into(), path("socket")];
        arguments.extend(flags.iter().map(|flag| (*flag).to_owned()));
        if let Some(rules) = rules {
            std::fs::write(path("rules.toml"), rules)?;
            std::fs::set_permissions(path("rules.toml"), PermissionsExt::from_mode(0o600))?;
            arguments.extend(["--rules".into(), path("rules.toml")]);
        }
        let environment = ["HOME", "XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME"]
            .map(|name| (name.to_owned(), dir.path().display().to_string()));
        let secure = ("PATH".to_owned(), "/usr/sbin:/usr/bin:/sbin:/bin".to_owned());
        let marker = (MARKER.to_owned(), dir.path().display().to_string());
        let family = Family::new(MARKER, &marker.1);
        let environment: Vec<_> = environment.into_iter().chain([secure, marker]).collect();
        let terminal = Terminal::start(&arguments, &environment, "/");
        let contender = Contender { socket: dir.path().join("socket"), terminal, family, _dir: dir };
        let begun = Instant::now();
        while outpost_testkit::connect(&contender.socket).is_err() {
            if begun.elapsed() > TIMEOUT {
                return Err(format!("{}: {}", binary.display(), contender.terminal.screen()).into());
            }
            outpost_testkit::pause();
        }
        Ok(contender)
    }

    /// Has the human on the terminal allow everything without privileges, as the original can.
    fn grant(&mut self) -> Result<()> {
        let stream = self.send("grant")?;
        if self.terminal.find("[y/N/a]", 0, TIMEOUT).is_none() {
            return Err(format!("no prompt: {}", self.terminal.screen()).into());
        }
        self.terminal.key(b"a");
        receive(&stream)
    }

    fn send(&self, id: &str) -> Result<UnixStream> {
        let mut stream = outpost_testkit::connect(&self.socket)?;
        let time = stamp(0);
        let line = format!(
            "{{\"id\":\"{id}\",\"time\":\"{time}\",\"session\":\"bench\",\"pipeline\":[[\"true\"]],\"privileged\":false}}\n"
        );
        stream.write_all(line.as_bytes())?;
        Ok(stream)
    }

    fn one(&self, id: &str) -> Result<Duration> {
        let begun = Instant::now();
        receive(&self.send(id)?)?;
        Ok(begun.elapsed())
    }
}

fn receive(stream: &UnixStream) -> Result<()> {
    stream.set_read_timeout(Some(TIMEOUT))?;
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line)?;
    match line.contains("\"status\":\"ok\"") && line.contains("\"exit_code\":0") {
        true => Ok(()),
        false => Err(format!("the daemon printed {line:?}").into()),
    }
}

pub(crate) fn measure(table: &mut Table, binary: &Path, peer: Option<&Path>, quick: bool) -> Result<()> {
    let mut contenders = vec![Contender::start(binary, &[], Some(RULES))?];
    match peer {
        Some(peer) => {
            let mut original = Contender::start(peer, &["--unattended-eligible"], None)?;
            original.grant()?;
            contenders.push(original);
        }
        None => println!(
            "broker: without the original (--peer-broker or OUTPOST_BROKER_PEER); only ours is measured"
        ),
    }
    let mut times = vec![Samples::default(); contenders.len()];
    let mut together = vec![Samples::default(); contenders.len()];
    for round in 0..if quick { REQUESTS_QUICK } else { REQUESTS } {
        for (contender, times) in contenders.iter().zip(&mut times) {
            times.push_ms(contender.one(&format!("a{round}"))?);
        }
        if round % 10 == 0 {
            for (contender, together) in contenders.iter().zip(&mut together) {
                let begun = Instant::now();
                let sent: Result<Vec<_>> =
                    (0..IN_FLIGHT).map(|number| contender.send(&format!("b{round}-{number}"))).collect();
                sent?.iter().try_for_each(receive)?;
                together.push_ms(begun.elapsed());
            }
        }
    }
    let both = |samples: &[Samples], of: fn(&Samples) -> f64| samples.iter().map(of).collect::<Vec<f64>>();
    let medians = both(&times, Samples::median);
    report(table, "true that a rule allows, median", "ms", &medians);
    if let [ours, original] = medians.as_slice() {
        let name = "broker: true that a rule allows, median / original";
        table.at_most(name, ours / original, "x", BROKER_RATIO_MAX);
    }
    report(table, "true that a rule allows, p99", "ms", &both(&times, Samples::p99));
    report(table, "eight at once, until the last answer, median", "ms", &both(&together, Samples::median));
    report_costs(table, &contenders)
}

/// What the same requests have cost either side.
fn report_costs(table: &mut Table, contenders: &[Contender]) -> Result<()> {
    let cpu: Vec<f64> = contenders.iter().map(|contender| contender.family.cpu_s()).collect();
    report(table, "CPU of all that, commands included", "s", &cpu);
    let memory: Vec<Memory> =
        contenders.iter().map(|contender| contender.family.memory()).collect::<Result<_>>()?;
    let all = |of: fn(&Memory) -> f64| memory.iter().map(of).collect::<Vec<f64>>();
    report(table, "peak resident, all processes", "MB", &all(|memory| memory.peak));
    report(table, "proportional after it, all processes", "MB", &all(|memory| memory.proportional));
    Ok(())
}

fn report(table: &mut Table, name: &str, unit: &'static str, figures: &[f64]) {
    for (figure, label) in figures.iter().zip(["", ", the original"]) {
        table.info(&format!("broker: {name}{label}"), *figure, unit);
    }
}
