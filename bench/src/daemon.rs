//! A daemon of our own in a directory of its own, which is gone with everything it started when we are done.

use crate::Result;
use outpost_control::client::Client;
use outpost_control::wire::{ProcessRef, Spawn, Spawned, Status, StatusQuery};
use outpost_sys::pidfd;
use outpost_sys::procfs;
use outpost_sys::signal::Signal;
use serde_json::json;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// How long the daemon may take for anything before the benchmark gives up.
const TIMEOUT: Duration = Duration::from_secs(30);
/// Poll interval for state without a notification.
const LOOK_AGAIN: Duration = Duration::from_micros(200);

/// Clock ticks in a second, in which /proc counts CPU time: the same number on every Linux there is.
pub(crate) const TICKS: f64 = 100.0;

/// The program as it is given away, made up to date when cargo runs us.
pub(crate) fn build() -> Result<PathBuf> {
    if std::env::var_os("CARGO").is_some() {
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../scripts/build");
        let built = Command::new(script).arg("--quiet").status()?;
        if !built.success() {
            return Err("the daemon cannot be built".into());
        }
    }
    let binary = std::env::current_exe()?.with_file_name("outpost");
    match binary.exists() {
        true => Ok(binary),
        false => Err(format!("{} is not there; `make build` makes it", binary.display()).into()),
    }
}

/// How long a client waited after a worker was killed.
pub(crate) struct Restart {
    /// Until the next worker answered.
    pub(crate) answer: Duration,
    /// Until its faces had started.
    pub(crate) faces: Duration,
}

pub(crate) struct Daemon {
    keeper: Child,
    socket: PathBuf,
    client: Client,
    // Last field: dropped after the processes that write into it.
    dir: TempDir,
}

impl Daemon {
    pub(crate) fn start(binary: &Path) -> Result<Daemon> {
        let dir = tempfile::tempdir()?;
        let (state, runtime) = (dir.path().join("state"), dir.path().join("run"));
        let mut keeper = Command::new(binary)
            .arg("serve")
            .arg("--state-dir")
            .arg(&state)
            .arg("--runtime-dir")
            .arg(&runtime)
            .env("OUTPOST_LOG", "error")
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .spawn()?;
        let socket = runtime.join("control.sock");
        let client = match connect_when_there(&socket, &mut keeper) {
            Ok(client) => client,
            Err(error) => {
                keeper.kill()?;
                keeper.wait()?;
                return Err(error);
            }
        };
        Ok(Daemon { keeper, socket, client, dir })
    }

    pub(crate) fn socket(&self) -> &Path {
        &self.socket
    }

    pub(crate) fn spawn(&mut self, command: &[&str]) -> Result<Spawned> {
        let command = command.iter().map(Into::into).collect();
        Ok(self.client.call("spawn", &Spawn { command, ..Spawn::default() })?)
    }

    /// Drops an ended process and waits until its files are gone: freeing them must not burden what is measured next.
    pub(crate) fn forget(&mut self, process: &str) -> Result<()> {
        let journal = self.dir.path().join("state/processes").join(process);
        let _answer: serde_json::Value =
            self.client.call("forget", &ProcessRef { process: process.to_owned() })?;
        let begun = Instant::now();
        while journal.exists() {
            if begun.elapsed() > TIMEOUT {
                return Err(format!("{} does not go away", journal.display()).into());
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(())
    }

    pub(crate) fn status(&mut self) -> Result<Status> {
        Ok(self.client.call("status", &json!({}))?)
    }

    pub(crate) fn worker(&mut self) -> Result<i32> {
        Ok(i32::try_from(self.status()?.worker_pid)?)
    }

    pub(crate) fn keeper(&self) -> Result<i32> {
        Ok(i32::try_from(self.keeper.id())?)
    }

    /// Kills the worker and waits until another one and its faces answer.
    pub(crate) fn restart_worker(&mut self) -> Result<Restart> {
        let old = self.worker()?;
        let worker = outpost_testkit::process(old)?;
        let begun = Instant::now();
        pidfd::signal(&worker, Signal::KILL)?;
        while begun.elapsed() < TIMEOUT {
            // A dying worker may still take a connection; then there is an end instead of an answer.
            if let Ok(mut client) = connect(&self.socket)
                && let Ok(status) = client.call::<Status>("status", &json!({}))
                && i64::from(status.worker_pid) != i64::from(old)
            {
                let answer = begun.elapsed();
                let _status: Status = client.call("status", &StatusQuery { await_faces: true })?;
                self.client = client;
                return Ok(Restart { answer, faces: begun.elapsed() });
            }
        }
        Err("no worker came back".into())
    }

    /// Ends the daemon and everything it runs; returns how long that took.
    pub(crate) fn stop(mut self) -> Result<Duration> {
        let begun = Instant::now();
        let _answer: serde_json::Value = self.client.call("stop", &json!({}))?;
        match self.has_ended_within(TIMEOUT)? {
            true => Ok(begun.elapsed()),
            false => Err("the daemon does not end".into()),
        }
    }

    fn has_ended_within(&mut self, timeout: Duration) -> Result<bool> {
        let begun = Instant::now();
        while self.keeper.try_wait()?.is_none() {
            if begun.elapsed() > timeout {
                return Ok(false);
            }
            std::thread::sleep(LOOK_AGAIN);
        }
        Ok(true)
    }

    /// Asks first; then the worker goes, whatever else runs below the keeper, and the keeper.
    fn end_by_force(&mut self) {
        let asked = self.client.call::<serde_json::Value>("stop", &json!({})).is_ok();
        if asked && matches!(self.has_ended_within(TIMEOUT), Ok(true)) {
            return;
        }
        let kill = |pid: i32, signal| {
            outpost_testkit::process(pid).and_then(|process| pidfd::signal(&process, signal))
        };
        let Ok(keeper) = self.keeper() else { return };
        // Each of the two starts the other again: the keeper must stand still while its worker dies.
        let _gone = kill(keeper, Signal::STOP);
        let below = procfs::all().into_iter().filter(|stat| stat.parent == keeper).map(|stat| stat.pid);
        for pid in below {
            let _gone = kill(pid, Signal::KILL);
        }
        let _dead_already = self.keeper.kill();
        let _reaped_already = self.keeper.wait();
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        if !matches!(self.keeper.try_wait(), Ok(Some(_))) {
            self.end_by_force();
        }
    }
}

fn connect(socket: &Path) -> Result<Client> {
    let client = Client::connect(socket)?;
    client.set_timeout(Some(TIMEOUT))?;
    Ok(client)
}

fn connect_when_there(socket: &Path, keeper: &mut Child) -> Result<Client> {
    let begun = Instant::now();
    loop {
        if let Ok(mut client) = connect(socket)
            && client.call::<Status>("status", &json!({})).is_ok()
        {
            return Ok(client);
        }
        if keeper.try_wait()?.is_some() || begun.elapsed() > TIMEOUT {
            return Err("the daemon does not start".into());
        }
        std::thread::sleep(LOOK_AGAIN);
    }
}

/// Private memory of a process in kilobytes.
pub(crate) fn private_kb(pid: i32) -> Result<f64> {
    let bytes =
        procfs::private_dirty_memory(pid).ok_or_else(|| format!("process {pid} cannot be looked at"))?;
    Ok(bytes as f64 / 1024.0)
}
