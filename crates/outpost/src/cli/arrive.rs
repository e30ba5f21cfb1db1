//! The other end of `outpost connect`: has a daemon of this binary run, and says where it listens.

use super::{Outcome, manage};
use crate::console;
use crate::hosts::ProgramThere;
use crate::own_token;
use crate::paths::Paths;
use crate::serve::{self, NotServing};
use crate::serve_again::{self, is_other_binary};
use clap::Args;
use outpost_control::client::Client;
use outpost_control::wire::Status;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

/// Before what is meant for `outpost connect`: a shell may say something of its own first.
pub(super) const MARK: &str = "outpost-connect";

/// How long a daemon may take to answer.
const PATIENCE: Duration = Duration::from_secs(30);

#[derive(Args)]
pub(super) struct Arrive {
    /// Leave a daemon that runs another binary alone
    #[arg(long)]
    keep: bool,
    /// Replace a daemon's binary also by an older one
    #[arg(long, conflicts_with = "keep")]
    force: bool,
}

/// What `outpost connect` is told.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct Arrived {
    pub(super) did: String,
    pub(super) version: String,
    pub(super) home: PathBuf,
    pub(super) control: PathBuf,
    pub(super) exec: PathBuf,
    pub(super) broker: PathBuf,
    pub(super) approvals: PathBuf,
    pub(super) sessions_port: Option<u16>,
    /// For those who read the file there, and that is this user.
    #[serde(default)]
    pub(super) sessions_token: Option<String>,
    #[serde(default)]
    pub(super) program: Option<ProgramThere>,
}

pub(super) fn run(paths: &Paths, options: &Arrive) -> Outcome {
    let (did, status) = match status(paths).filter(|status| !status.keeping) {
        None => ("started", start(paths)?),
        Some(status) if !options.keep && is_outdated(&status, options.force)? => {
            let binary = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
            ("upgraded", manage::replace_binary(paths, &binary)?)
        }
        Some(status) => ("found", status),
    };
    let port = std::fs::read_to_string(paths.sessions_port()).ok();
    let program = std::env::current_exe().ok().map(|binary| ProgramThere {
        binary,
        state: paths.state.clone(),
        runtime: paths.runtime.clone(),
    });
    let arrived = Arrived {
        did: did.into(),
        version: status.version,
        home: outpost_sys::user::home().filter(|home| home.is_absolute()).unwrap_or_else(|| "/".into()),
        control: paths.control_socket(),
        exec: paths.exec_socket(),
        broker: paths.broker_socket(),
        approvals: paths.approvals_socket(),
        sessions_token: own_token::read(&paths.sessions_token()),
        sessions_port: port.and_then(|port| port.trim().parse().ok()),
        program,
    };
    let text = serde_json::to_string(&arrived).map_err(|error| error.to_string())?;
    outln!("{MARK} arrived {}", console::json(&text));
    Ok(ExitCode::SUCCESS)
}

fn status(paths: &Paths) -> Option<Status> {
    let mut client = Client::connect(&paths.control_socket()).ok()?;
    client.set_patience(Some(PATIENCE)).ok()?;
    client.call("status", &()).ok()
}

/// Also wakes one that was stopped and keeps its processes.
fn start(paths: &Paths) -> Result<Status, String> {
    let options = serve::Options::in_background();
    match serve_again::serve(paths, &options) {
        Ok(_) | Err(NotServing::Taken(_)) => {}
        Err(NotServing::Failed(reason)) => return Err(reason),
    }
    let silent =
        || format!("the daemon does not answer; {} says why", paths.state.join("outpost.log").display());
    status(paths).ok_or_else(silent)
}

fn is_outdated(status: &Status, force: bool) -> Result<bool, String> {
    if !is_other_binary(status.worker_pid) {
        return Ok(false);
    }
    let ours = Version::ours();
    match Version::parse(&status.version) {
        Some(its) if its > ours && !force => Ok(false),
        Some(its) if its < ours => Ok(true),
        _ => Ok(digest(Path::new("/proc/self/exe"))?
            != digest(Path::new(&format!("/proc/{}/exe", status.worker_pid)))?),
    }
}

/// Which of two is newer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Version([u32; 3]);

impl Version {
    pub(super) fn ours() -> Version {
        Version::parse(env!("CARGO_PKG_VERSION")).unwrap_or(Version([0; 3]))
    }

    pub(super) fn parse(text: &str) -> Option<Version> {
        let release = text.split(['-', '+']).next()?;
        let mut parts = release.split('.').map(|part| part.parse().ok());
        let version = Version([parts.next()??, parts.next()??, parts.next()??]);
        parts.next().is_none().then_some(version)
    }
}

impl std::fmt::Display for Version {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Version([major, minor, patch]) = self;
        write!(f, "{major}.{minor}.{patch}")
    }
}

/// SHA-256 of a file, in the digits that sha256sum prints.
pub(super) fn digest(path: &Path) -> Result<String, String> {
    let fail = |error: std::io::Error| format!("{}: {error}", path.display());
    let mut file = File::open(path).map_err(fail)?;
    let mut buffer = vec![0; 256 * 1024];
    let mut hash = Sha256::new();
    loop {
        let read = std::io::Read::read(&mut file, &mut buffer).map_err(fail)?;
        if read == 0 {
            return Ok(outpost_approvals::hex(&hash.finalize()));
        }
        hash.update(buffer.get(..read).unwrap_or_default());
    }
}
