//! `outpost run` and `outpost logs`: a process's output here, whatever happens to the daemon meanwhile.

use super::{Outcome, connect, explain};
use crate::paths::Paths;
use clap::Args;
use outpost_control::client::{CallError, Client};
use outpost_control::wire::{self, Attached, ExitStatus, Message, Spawned, StdinApplied};
use outpost_wire::base64;
use std::io::{Read, Write};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// How long a daemon may be away before we give up on it.
const RECONNECT_PATIENCE: Duration = Duration::from_secs(30);
const RECONNECT_PAUSE: Duration = Duration::from_millis(20);

/// Input sent at a time.
const STDIN_BYTES: usize = 48 * 1024;

#[derive(Args)]
pub(super) struct Run {
    /// A name to find it by
    #[arg(long, default_value = "")]
    name: String,
    /// Print the process's number and return at once
    #[arg(long)]
    detach: bool,
    /// The command and its arguments
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<String>,
}

#[derive(Args)]
pub(super) struct Logs {
    /// The id or the number of the process
    process: String,
    /// Go on as more comes, until it ends
    #[arg(short, long)]
    follow: bool,
    /// Begin behind this sequence number
    #[arg(long, default_value_t = 0)]
    since: u64,
}

pub(super) fn run(paths: &Paths, options: Run) -> Outcome {
    let environment: Vec<(String, String)> = std::env::vars().collect();
    let directory = std::env::current_dir().ok().map(|dir| dir.display().to_string());
    let params = wire::Spawn {
        id: options.name,
        command: options.command,
        environment: Some(environment),
        directory,
        stdin: !options.detach,
        ..wire::Spawn::default()
    };
    let spawned: Spawned = connect(paths)?.call("spawn", &params).map_err(explain)?;
    if options.detach {
        println!("{}", spawned.process);
        return Ok(ExitCode::SUCCESS);
    }
    let (input_paths, process) = (paths.clone(), spawned.process.clone());
    std::thread::spawn(move || send_stdin(&input_paths, &process));
    let exit = follow(paths, &spawned.process, 0, true)?;
    Ok(exit_code(exit))
}

pub(super) fn logs(paths: &Paths, options: &Logs) -> Outcome {
    follow(paths, &options.process, options.since, options.follow)?;
    Ok(ExitCode::SUCCESS)
}

/// A shell's convention for signals; 255 when nobody knows.
fn exit_code(exit: Option<ExitStatus>) -> ExitCode {
    let code = match exit.map(|exit| (exit.code, exit.signal)) {
        Some((Some(code), _)) => u8::try_from(code).unwrap_or(255),
        Some((None, Some(signal))) => u8::try_from(128 + signal).unwrap_or(255),
        _ => 255,
    };
    ExitCode::from(code)
}

/// Writes output behind `after` to our own, reconnecting as often as it takes. Without `wait`, only what is there now.
fn follow(paths: &Paths, process: &str, after: u64, wait: bool) -> Result<Option<ExitStatus>, String> {
    let mut last = after;
    loop {
        let mut client = reconnect(paths)?;
        let attach = wire::Attach { process: process.to_owned(), after: last };
        match follow_once(&mut client, &attach, &mut last, wait) {
            Ok(exit) => return Ok(exit),
            Err(CallError::Refused(failure)) => return Err(failure.message),
            Err(CallError::Lost(_)) => {}
        }
    }
}

fn follow_once(
    client: &mut Client,
    attach: &wire::Attach,
    last: &mut u64,
    wait: bool,
) -> Result<Option<ExitStatus>, CallError> {
    let attached: Attached = client.call("attach", attach)?;
    while wait || *last < attached.last_seq {
        let message = client.receive()?;
        if let Some(first) = message.first_seq {
            eprintln!("outpost: output before number {first} was dropped to keep within the limit");
            *last = first - 1;
        }
        if message.stalled == Some(true) {
            eprintln!("outpost: the disk is full; the process waits until there is room");
        }
        show(&message)?;
        *last = message.seq.unwrap_or(*last);
        if message.exit.is_some() {
            return Ok(message.exit);
        }
    }
    Ok(None)
}

fn show(message: &Message) -> std::io::Result<()> {
    let Some(bytes) = message.data.as_deref().and_then(|data| base64::decode(data.as_bytes())) else {
        return Ok(());
    };
    match message.stream.as_deref() {
        Some("stderr") => std::io::stderr().write_all(&bytes),
        _ => {
            let mut out = std::io::stdout().lock();
            out.write_all(&bytes)?;
            out.flush()
        }
    }
}

fn reconnect(paths: &Paths) -> Result<Client, String> {
    let deadline = Instant::now() + RECONNECT_PATIENCE;
    loop {
        match connect(paths) {
            Err(_) if Instant::now() < deadline => std::thread::sleep(RECONNECT_PAUSE),
            outcome => return outcome,
        }
    }
}

/// Sends our stdin by offsets, so that a repeated piece is not applied twice.
fn send_stdin(paths: &Paths, process: &str) {
    let mut offset = 0u64;
    let mut buffer = vec![0; STDIN_BYTES];
    let mut stdin = std::io::stdin().lock();
    while let Ok(read) = stdin.read(&mut buffer) {
        let Some(bytes) = buffer.get(..read).filter(|bytes| !bytes.is_empty()) else { break };
        let mut data = Vec::new();
        base64::append(&mut data, bytes);
        let data = String::from_utf8(data).unwrap_or_default();
        let params = wire::Stdin { process: process.to_owned(), offset: Some(offset), data };
        if repeat::<StdinApplied>(paths, "stdin", &params).is_none() {
            return;
        }
        offset += bytes.len() as u64;
    }
    let _ended = repeat::<()>(paths, "closeStdin", &wire::Which { process: process.to_owned() });
}

/// Calls until an answer comes; `None` when it is a refusal or no daemon is there.
fn repeat<T: serde::de::DeserializeOwned>(
    paths: &Paths,
    method: &str,
    params: &impl serde::Serialize,
) -> Option<T> {
    loop {
        match reconnect(paths).ok()?.call(method, params) {
            Ok(answer) => return Some(answer),
            Err(CallError::Refused(_)) => return None,
            Err(CallError::Lost(_)) => {}
        }
    }
}
