//! The remote end of `outpost connect`: upgrades a running daemon and reports its sockets.

use super::{Outcome, lifecycle};
use crate::console;
use crate::hosts::RemoteProgram;
use crate::paths::Paths;
use clap::Args;
use outpost_control::client::Client;
use outpost_control::wire::{Status, StatusQuery};
use semver::Version;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::cmp::Ordering;
use std::fs::{self, File};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Marks the lines for `outpost connect`. A login shell may print other lines first.
pub(super) const LINE_MARK: &str = "outpost-connect";

/// How long the daemon may take to reply.
const STATUS_TIMEOUT: Duration = Duration::from_secs(30);

#[derive(Args)]
pub struct RemoteBootstrap {
    /// Do not upgrade a running daemon
    #[arg(long)]
    keep: bool,
    /// Replace the daemon's binary even by an older one
    #[arg(long, conflicts_with = "keep")]
    force: bool,
}

/// The report to `outpost connect`, as JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct RemoteDaemon {
    /// `started`, `upgraded` or `found`.
    #[serde(rename = "did")]
    pub(super) action: String,
    pub(super) version: String,
    pub(super) home: PathBuf,
    pub(super) control: PathBuf,
    pub(super) exec: PathBuf,
    pub(super) broker: PathBuf,
    pub(super) approvals: PathBuf,
    pub(super) sessions: PathBuf,
    pub(super) sessions_port: Option<u16>,
    #[serde(default)]
    pub(super) program: Option<RemoteProgram>,
}

/// Reports the running daemon and upgrades it if it is outdated. None if no daemon serves, so that one must be started.
pub fn report_running(paths: &Paths, options: &RemoteBootstrap) -> Result<Option<ExitCode>, String> {
    let Some(status) = status(paths).filter(|status| !status.keeping) else { return Ok(None) };
    if options.keep || !is_outdated(&status, options.force)? {
        return report(paths, "found", status).map(Some);
    }
    let binary = std::env::current_exe().map_err(|error| format!("cannot find this program: {error}"))?;
    report(paths, "upgraded", lifecycle::replace_binary(paths, &binary)?).map(Some)
}

/// Reports the daemon that was started.
pub fn report_started(paths: &Paths) -> Outcome {
    let no_reply =
        || format!("the daemon does not reply\nhint: see {}", paths.state.join("outpost.log").display());
    report(paths, "started", status(paths).ok_or_else(no_reply)?)
}

fn report(paths: &Paths, action: &str, status: Status) -> Outcome {
    let port = fs::read_to_string(paths.sessions_port()).ok();
    let program = std::env::current_exe().ok().map(|binary| RemoteProgram {
        binary,
        state: paths.state.clone(),
        runtime: paths.runtime.clone(),
    });
    let remote = RemoteDaemon {
        action: action.into(),
        version: status.version,
        home: outpost_sys::user::home().filter(|home| home.is_absolute()).unwrap_or_else(|| "/".into()),
        control: paths.control_socket(),
        exec: paths.exec_socket(),
        broker: paths.broker_socket(),
        approvals: paths.approvals_socket(),
        sessions: paths.sessions_socket(),
        sessions_port: port.and_then(|port| port.trim().parse().ok()),
        program,
    };
    let text = serde_json::to_string(&remote).map_err(|error| error.to_string())?;
    outln!("{LINE_MARK} arrived {}", console::json(&text));
    Ok(ExitCode::SUCCESS)
}

fn status(paths: &Paths) -> Option<Status> {
    let mut client = Client::connect(&paths.control_socket()).ok()?;
    client.set_timeout(Some(STATUS_TIMEOUT)).ok()?;
    client.call("status", &StatusQuery { await_faces: true }).ok()
}

fn is_outdated(status: &Status, force: bool) -> Result<bool, String> {
    if !is_other_binary(status.worker_pid) {
        return Ok(false);
    }
    let its = Version::parse(&status.version).ok();
    match its.map(|its| its.cmp_precedence(&own_version())) {
        Some(Ordering::Greater) if !force => Ok(false),
        Some(Ordering::Less) => Ok(true),
        _ => Ok(digest(Path::new("/proc/self/exe"))?
            != digest(Path::new(&format!("/proc/{}/exe", status.worker_pid)))?),
    }
}

/// Whether the worker runs another executable than this process.
pub fn is_other_binary(worker: u32) -> bool {
    let id = |path: String| fs::metadata(path).ok().map(|found| (found.dev(), found.ino()));
    let worker = id(format!("/proc/{worker}/exe"));
    worker.is_some() && worker != id("/proc/self/exe".into())
}

/// The version of this program.
pub(super) fn own_version() -> Version {
    Version::parse(env!("CARGO_PKG_VERSION")).unwrap_or(Version::new(0, 0, 0))
}

/// SHA-256 of a file in hex, as sha256sum prints it.
pub(super) fn digest(path: &Path) -> Result<String, String> {
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = File::open(path).map_err(fail)?;
    let mut buffer = vec![0; 256 * 1024];
    let mut hash = Sha256::new();
    loop {
        let read = std::io::Read::read(&mut file, &mut buffer).map_err(fail)?;
        if read == 0 {
            return Ok(outpost_ledger::hex(&hash.finalize()));
        }
        hash.update(buffer.get(..read).unwrap_or_default());
    }
}
