//! The broker face alone, in the foreground, called as the daemon it replaces: asks on its own terminal.

mod asking;

use crate::paths::Dirs;
use crate::place::Place;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser};
use outpost_approvals::guard::{Found, Places};
use outpost_approvals::{Approvals, Settings as Desk, hex};
use outpost_broker::{AskPassword, Rates, Server, Settings};
use outpost_sys::limits;
use outpost_sys::signal::Signal;
use sha2::{Digest, Sha256};
use std::ffi::OsString;
use std::io::ErrorKind as IoKind;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;
use tokio::net::UnixListener;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;

/// How long processes may take to end when the daemon does.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);

/// One prompt at a time: who asks meanwhile waits, and has all its time when its turn comes.
const UNSEEN_PATIENCE: Duration = Duration::from_secs(24 * 60 * 60);

/// As the original has them.
const ASK_SECONDS: u64 = 60;
const RUN_SECONDS: u64 = 300;

/// Runs commands for agents, with root's rights or without, once a human on this terminal has allowed each of them.
#[derive(Parser, Clone, Debug)]
#[command(name = "sudo-proxy", version = outpost_broker_wire::VERSION, disable_help_subcommand = true)]
struct Flags {
    /// Where to listen [default: $XDG_RUNTIME_DIR/sudo-proxy.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Say on standard error what is going on
    #[arg(long, short)]
    verbose: bool,
    /// Offer `a` at the prompt: everything without root's rights runs unasked from then on, until this process ends
    #[arg(long, overrides_with = "no_unattended_eligible")]
    unattended_eligible: bool,
    /// Do not offer it
    #[arg(long)]
    no_unattended_eligible: bool,
    /// How long a question waits for an answer, in seconds
    #[arg(
        long,
        value_name = "SECONDS",
        default_value_t = ASK_SECONDS,
        env = "SUDO_PROXY_PROMPT_TIMEOUT_SECS",
        value_parser = |text: &str| lenient_seconds(text, ASK_SECONDS)
    )]
    ask_timeout: u64,
    /// How long a command may run, in seconds
    #[arg(long, value_name = "SECONDS", default_value_t = RUN_SECONDS, env = "SUDO_PROXY_EXEC_TIMEOUT_SECS", value_parser = |text: &str| lenient_seconds(text, RUN_SECONDS))]
    run_timeout: u64,
    /// The operator's rules [default: $XDG_CONFIG_HOME/outpost/rules.toml]
    #[arg(long, value_name = "FILE")]
    rules: Option<PathBuf>,
    /// Requests that one client may make in a minute; without it there is no such limit
    #[arg(long, value_name = "COUNT")]
    requests_per_minute: Option<usize>,
    /// Take it that a denial is meant: pause who is denied three times in a row, do not ask the same again at once
    #[arg(long)]
    firm: bool,
    /// Accepted from the original's command line, but not offered
    #[arg(long, hide = true)]
    host: Option<String>,
    #[arg(long, hide = true)]
    login: Option<String>,
    #[arg(long, hide = true)]
    pkexec: bool,
    #[arg(long, hide = true)]
    forward_agent: bool,
}

/// "falling back to the default when the variable is unset or invalid"
fn lenient_seconds(text: &str, default: u64) -> Result<u64, std::convert::Infallible> {
    Ok(text.parse().unwrap_or(default))
}

pub(crate) fn run(arguments: impl Iterator<Item = OsString>) -> ExitCode {
    let command = [OsString::from("sudo-proxy")].into_iter().chain(arguments);
    let parsed =
        Flags::command().try_get_matches_from(command).and_then(|found| Flags::from_arg_matches(&found));
    let flags = match parsed {
        Ok(flags) => flags,
        Err(error) => return explain(&error),
    };
    crate::log::begin(if flags.verbose { "info" } else { "warn" });
    match serve(&flags) {
        Ok(code) => code,
        Err(reason) => {
            errln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// In the original's words where it has some.
fn explain(error: &clap::Error) -> ExitCode {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(argument))) => {
            errln!("unknown option: {argument}");
            ExitCode::FAILURE
        }
        _ => {
            let _nobody_reads = error.print();
            if error.use_stderr() { ExitCode::FAILURE } else { ExitCode::SUCCESS }
        }
    }
}

fn serve(flags: &Flags) -> Result<ExitCode, String> {
    for (given, flag) in [
        (flags.host.is_some(), "--host"),
        (flags.pkexec, "--pkexec"),
        (flags.forward_agent, "--forward-agent"),
    ] {
        if given {
            return Err(format!(
                "{flag} is not offered: this daemon serves the host it runs on, with sudo; start it there over ssh"
            ));
        }
    }
    let socket = match &flags.socket {
        Some(socket) => {
            std::path::absolute(socket).map_err(|error| format!("{}: {error}", socket.display()))?
        }
        None => default_socket(),
    };
    let state = state_dir(&socket)?;
    // Passwords are typed here.
    limits::hide_memory().map_err(|errno| format!("cannot hide this process's memory: {errno}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    let ended = runtime.block_on(work(flags, &socket, &state));
    // A terminal that takes nothing must not hold us.
    runtime.shutdown_background();
    ended
}

fn default_socket() -> PathBuf {
    let own = || format!("/run/user/{}", limits::effective_uid()).into();
    let dir = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(own, PathBuf::from);
    dir.join("sudo-proxy.sock")
}

/// What has to be remembered, for each socket apart. Without a home, beside the socket.
fn state_dir(socket: &Path) -> Result<PathBuf, String> {
    let name: String = hex(&Sha256::digest(socket.as_os_str().as_bytes())).chars().take(16).collect();
    match Dirs::from_environment().resolve() {
        Ok(paths) => Ok(paths.state.join("sudo-proxy").join(name)),
        Err(_) => {
            let dir =
                socket.parent().ok_or_else(|| format!("{}: not a path for a socket", socket.display()))?;
            Ok(dir.join(format!(".sudo-proxy-{name}")))
        }
    }
}

async fn work(flags: &Flags, socket: &Path, state: &Path) -> Result<ExitCode, String> {
    let rules = crate::config::rules(flags.rules.clone());
    let desk = Desk { dir: state.to_owned(), rules, etc: Places::default().etc(), ..Desk::default() };
    // Whoever has the books has the socket.
    let approvals =
        Approvals::open(desk, &[outpost_broker::SCHEMA]).map_err(|error| match error.is_in_use() {
            true => format!("sudo-proxy is already running on {}", socket.display()),
            false => error.to_string(),
        })?;
    // Before there is a socket to be left behind.
    let asked_to_end = asked_to_end()?;
    let listener = bind(socket)?;
    let place = Place::make(&state.join("processes"))?;
    let engine = place.engine()?;
    let (asks, passwords) = mpsc::channel(1);
    let mut settings = settings(flags);
    let (askpass, sudos) = crate::broker_face::askpass(state, AskPassword::Terminal(asks))?;
    settings.askpass = Some(askpass);
    let signer = approvals.enroll_terminal().await.map_err(|error| error.to_string())?;
    let server = Server::new(engine.clone(), approvals, settings);
    tokio::spawn(server.serve_askpass(sudos));
    if flags.verbose {
        errln!("sudo-proxy listening on {}", socket.display());
    }
    if Places::default().find() != Found::Absent {
        errln!("sudo-proxy: this host has a guard: requests are decided there, with `outpost approve`");
    }
    server.resume().await;
    tokio::spawn(server.clone().serve(listener));
    let eligible = flags.unattended_eligible && !flags.no_unattended_eligible;
    tokio::spawn(asking::ask_all(server.clone(), signer, passwords, eligible));
    let ended_by = tokio::select! {
        () = server.stopped() => None,
        signal = asked_to_end => Some(signal),
    };
    let _gone_already = std::fs::remove_file(socket);
    let _late = engine.shut_down(SHUTDOWN_PATIENCE).await;
    place.erase();
    if let Some(signal) = ended_by {
        // So that whoever waits for us learns why.
        outpost_sys::signal::end_by(signal);
    }
    Ok(ExitCode::SUCCESS)
}

fn settings(flags: &Flags) -> Settings {
    let rates = match flags.firm {
        true => Rates::default(),
        false => Rates::NONE,
    };
    Settings {
        ask_patience: Duration::from_secs(flags.ask_timeout),
        unseen_patience: Some(UNSEEN_PATIENCE),
        run_patience: Duration::from_secs(flags.run_timeout),
        rates: Rates { per_minute: flags.requests_per_minute, pending: None, ..rates },
        agent: crate::broker_face::own_agent(),
        stoppable: true,
        guard: Some(Places::default()),
        ..Settings::default()
    }
}

/// A socket that somebody answers on is left alone; one that nobody does is replaced.
fn bind(socket: &Path) -> Result<UnixListener, String> {
    let fail = |error: std::io::Error| match error.kind() {
        IoKind::AddrInUse => format!("sudo-proxy is already running on {}", socket.display()),
        _ => format!("{}: {error}", socket.display()),
    };
    let listener = crate::socket::bind_if_free(socket).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    UnixListener::from_std(listener).map_err(fail)
}

fn asked_to_end() -> Result<impl Future<Output = Signal>, String> {
    let fail = |error: std::io::Error| format!("cannot wait for signals: {error}");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(fail)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(fail)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(fail)?;
    Ok(async move {
        tokio::select! {
            _asked = interrupt.recv() => Signal::INT,
            _asked = terminate.recv() => Signal::TERM,
            _asked = hangup.recv() => Signal::HUP,
        }
    })
}
