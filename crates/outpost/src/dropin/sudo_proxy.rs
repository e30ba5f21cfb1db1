//! The `sudo-proxy` drop-in: the broker face alone, in the foreground, with prompts on its own terminal.

mod terminal;

use super::run_dir::RunDir;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use clap::{CommandFactory, FromArgMatches, Parser};
use outpost_approvals::guard::{GuardPaths, GuardStatus};
use outpost_approvals::{Approvals, Settings as ApprovalSettings};
use outpost_broker::{PasswordSource, RateLimits, Server, Settings};
use outpost_cli::errln;
use outpost_cli::paths::Dirs;
use outpost_ledger::hex;
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

/// How long processes may take to exit at the shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a question may wait for its prompt. There is one prompt at a time, and the ask timeout starts with the prompt.
const UNSEEN_TIMEOUT: Duration = Duration::from_secs(24 * 60 * 60);

/// Defaults of the original.
const ASK_SECONDS: u64 = 60;
const RUN_SECONDS: u64 = 300;

/// Runs commands for agents, with root's rights or without, once a human on this terminal has allowed each of them.
#[derive(Parser, Clone, Debug)]
#[command(name = "sudo-proxy", version = outpost_broker_wire::VERSION, disable_help_subcommand = true)]
struct Flags {
    /// Where to listen [default: $XDG_RUNTIME_DIR/sudo-proxy.sock]
    #[arg(long, value_name = "PATH")]
    socket: Option<PathBuf>,
    /// Print log lines to standard error
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
    /// Enforce denials: pause a client after three denials in a row, and do not prompt for a denied request again at once
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
    outpost_cli::log::init(if flags.verbose { "info" } else { "warn" });
    match serve(&flags) {
        Ok(code) => code,
        Err(reason) => {
            errln!("error: {reason}");
            ExitCode::FAILURE
        }
    }
}

/// Prints the original's message for an unknown option, and clap's otherwise.
fn explain(error: &clap::Error) -> ExitCode {
    match (error.kind(), error.get(ContextKind::InvalidArg)) {
        (ErrorKind::UnknownArgument, Some(ContextValue::String(argument))) => {
            errln!("unknown option: {argument}");
            ExitCode::FAILURE
        }
        _ => {
            let _stderr_closed = error.print();
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
    // The user types passwords into this process.
    outpost_sys::process::set_undumpable()
        .map_err(|errno| format!("cannot hide this process's memory: {errno}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    let outcome = runtime.block_on(serve_until_stopped(flags, &socket, &state));
    // A blocked write to the terminal must not delay the exit.
    runtime.shutdown_background();
    outcome
}

fn default_socket() -> PathBuf {
    let own = || format!("/run/user/{}", outpost_sys::process::effective_uid()).into();
    let dir = std::env::var_os("XDG_RUNTIME_DIR").map_or_else(own, PathBuf::from);
    dir.join("sudo-proxy.sock")
}

/// The state directory of this socket. Without a home directory it is beside the socket.
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

async fn serve_until_stopped(flags: &Flags, socket: &Path, state: &Path) -> Result<ExitCode, String> {
    let rules = outpost_cli::config::rules(flags.rules.clone());
    let approval_settings = ApprovalSettings {
        dir: state.to_owned(),
        rules,
        etc: GuardPaths::default().etc(),
        ..ApprovalSettings::default()
    };
    // The lock on the database also covers the socket.
    let approvals =
        Approvals::open(approval_settings, &[outpost_broker::SCHEMA]).map_err(|error| {
            match error.is_in_use() {
                true => format!("sudo-proxy is already running on {}", socket.display()),
                false => error.to_string(),
            }
        })?;
    // Install the signal handlers before the socket exists, so that a signal cannot leave it behind.
    let termination_signal = termination_signal()?;
    let listener = bind(socket)?;
    let run_dir = RunDir::create(&state.join("processes"))?;
    let engine = run_dir.start_engine()?;
    let (password_sender, passwords) = mpsc::channel(1);
    let mut settings = settings(flags);
    let (askpass, askpass_listener) =
        crate::daemon::broker_face::askpass(state, PasswordSource::Terminal(password_sender))?;
    settings.askpass = Some(askpass);
    let signer = approvals.enroll_terminal().await.map_err(|error| error.to_string())?;
    let server = Server::new(engine.clone(), approvals, settings);
    tokio::spawn(server.serve_askpass(askpass_listener));
    if flags.verbose {
        errln!("sudo-proxy listening on {}", socket.display());
    }
    if GuardPaths::default().status() != GuardStatus::Absent {
        errln!("sudo-proxy: this host has a guard: requests are decided there, with `outpost approve`");
    }
    server.resume().await;
    tokio::spawn(server.clone().serve(listener));
    let eligible = flags.unattended_eligible && !flags.no_unattended_eligible;
    tokio::spawn(terminal::run_prompts(server.clone(), signer, passwords, eligible));
    let ended_by = tokio::select! {
        () = server.stop_requested() => None,
        signal = termination_signal => Some(signal),
    };
    let _gone_already = std::fs::remove_file(socket);
    let _late = engine.shut_down(SHUTDOWN_TIMEOUT).await;
    run_dir.remove();
    if let Some(signal) = ended_by {
        // Die of the same signal, so that the parent sees the cause.
        outpost_sys::signal::exit_by_signal(signal);
    }
    Ok(ExitCode::SUCCESS)
}

fn settings(flags: &Flags) -> Settings {
    let rates = match flags.firm {
        true => RateLimits::default(),
        false => RateLimits::NONE,
    };
    Settings {
        ask_timeout: Duration::from_secs(flags.ask_timeout),
        unseen_timeout: Some(UNSEEN_TIMEOUT),
        run_timeout: Duration::from_secs(flags.run_timeout),
        rate_limits: RateLimits { per_minute: flags.requests_per_minute, pending_max: None, ..rates },
        ssh_agent: crate::daemon::broker_face::own_agent(),
        client_may_stop: true,
        guard: Some(GuardPaths::default()),
        ..Settings::default()
    }
}

/// Binds the socket. Replaces an existing one only if no process listens on it.
fn bind(socket: &Path) -> Result<UnixListener, String> {
    let fail = |error: std::io::Error| match error.kind() {
        IoKind::AddrInUse => format!("sudo-proxy is already running on {}", socket.display()),
        _ => format!("{}: {error}", socket.display()),
    };
    let listener = crate::daemon::socket::bind_if_free(socket).map_err(fail)?;
    listener.set_nonblocking(true).map_err(fail)?;
    UnixListener::from_std(listener).map_err(fail)
}

fn termination_signal() -> Result<impl Future<Output = Signal>, String> {
    let fail = |error: std::io::Error| format!("cannot wait for signals: {error}");
    let mut interrupt = signal(SignalKind::interrupt()).map_err(fail)?;
    let mut terminate = signal(SignalKind::terminate()).map_err(fail)?;
    let mut hangup = signal(SignalKind::hangup()).map_err(fail)?;
    Ok(async move {
        tokio::select! {
            _received = interrupt.recv() => Signal::INT,
            _received = terminate.recv() => Signal::TERM,
            _received = hangup.recv() => Signal::HUP,
        }
    })
}
