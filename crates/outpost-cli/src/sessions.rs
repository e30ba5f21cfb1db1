//! `outpost sessions`: works with agent sessions over the Unix socket of the sessions face.

mod print;
mod transport;

use super::Outcome;
use super::reconnect::{HOST_CONNECTION_LOST, RECONNECT_TIMEOUT, retry_interval};
use crate::paths::{Paths, untrusted_message};
use clap::{Args, Subcommand, ValueEnum};
use outpost_sys::connect::{self, Trust};
use print::Printer;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::{Component, PathBuf};
use std::process::ExitCode;
use std::time::{Duration, Instant};
use transport::SocketConnector;

/// Largest reply to a call.
const REPLY_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// Excerpt of an unexpected reply in a message.
const EXCERPT_CHARS: usize = 200;

/// Largest excerpt of an HTTP error body in a message.
const ERROR_BYTES_MAX: u64 = 1024;

#[derive(Args)]
pub(super) struct Sessions {
    #[command(subcommand)]
    command: Command,
}

#[derive(Clone, Copy, ValueEnum)]
enum Agent {
    Claude,
    Codex,
    Gemini,
    Opencode,
}

#[derive(Clone, Copy, ValueEnum)]
enum Mode {
    Auto,
    Code,
    Plan,
    Ask,
}

#[derive(Subcommand)]
enum Command {
    /// List the sessions
    List {
        /// Print JSON
        #[arg(long)]
        json: bool,
    },
    /// Create a session in a directory and print its id
    Create {
        /// Project directory; a bare name is a directory in ~/Projects
        path: String,
        /// Agent CLI of the session
        #[arg(long, default_value = "claude")]
        agent: Agent,
        /// Which tools the agent may use without approval
        #[arg(long, default_value = "ask")]
        mode: Mode,
        /// Model of the agent [default: that of its configuration]
        #[arg(long)]
        model: Option<String>,
    },
    /// Send a message and stream the reply
    Send {
        /// Id of the session, or a prefix of it
        session: String,
        /// Message [default: standard input]
        message: Option<String>,
        /// Print events as JSON
        #[arg(long)]
        json: bool,
    },
    /// Print the events of a session, from all clients
    Watch {
        /// Id of the session, or a prefix of it
        session: String,
        /// Start after this event
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        after: u64,
        /// Print events as JSON
        #[arg(long)]
        json: bool,
    },
    /// Stop the current turn and drop queued messages
    Interrupt {
        /// Id of the session, or a prefix of it
        session: String,
    },
    /// Delete a session and stop its processes
    Destroy {
        /// Id of the session, or a prefix of it
        session: String,
    },
}

pub(super) fn run(paths: &Paths, options: Sessions) -> Outcome {
    let daemon = Daemon::find(paths)?;
    match options.command {
        Command::List { json } => list(&daemon, json),
        Command::Create { path, agent, mode, model } => {
            // A path relative to the current directory is resolved here; the daemon has another directory.
            let first = std::path::Path::new(&path).components().next();
            let path = match matches!(first, Some(Component::CurDir | Component::ParentDir)) {
                true if paths.host.is_some() => {
                    return Err(format!("--host needs an absolute path on the remote host, got {path}"));
                }
                true => std::path::absolute(&path).map_or(path, |path| path.display().to_string()),
                false => path,
            };
            let name =
                |value: Option<clap::builder::PossibleValue>| value.map(|value| value.get_name().to_owned());
            let params = json!({
                "path": path, "cli_type": name(agent.to_possible_value()), "mode": name(mode.to_possible_value()),
                "model": model,
            });
            let created = daemon.call("session.create", &params)?;
            print_line(created.get("sessionId").and_then(Value::as_str).unwrap_or_default());
            Ok(ExitCode::SUCCESS)
        }
        Command::Send { session, message, json } => {
            let message = match message {
                Some(message) => message,
                None => std::io::read_to_string(std::io::stdin()).map_err(|error| error.to_string())?,
            };
            send(paths, &daemon, &daemon.session(&session)?, &message, json)
        }
        Command::Watch { session, after, json } => {
            watch(paths, &daemon, &daemon.session(&session)?, after, json)
        }
        Command::Interrupt { session } => {
            let session = daemon.session(&session)?;
            let done = daemon.call("session.interrupt", &json!({ "sessionId": session }))?;
            let found = done.get("interrupted") == Some(&Value::Bool(true));
            print_line(if found { "interrupted" } else { "no turn was running" });
            Ok(ExitCode::SUCCESS)
        }
        Command::Destroy { session } => {
            let session = daemon.session(&session)?;
            daemon.call("session.destroy", &json!({ "sessionId": session }))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn print_line(text: &str) {
    outln!("{text}");
}

/// The sessions face, by its Unix socket.
struct Daemon {
    socket: PathBuf,
    trust: Trust,
    /// How long a call may take; `None` for no limit.
    timeout: Option<Duration>,
}

impl Daemon {
    fn find(paths: &Paths) -> Result<Daemon, String> {
        paths.check_runtime()?;
        let socket = paths.sessions_socket();
        match socket.exists() {
            true => Ok(Daemon { socket, trust: paths.trust(), timeout: None }),
            false => Err(format!(
                "the sessions face is not running (no socket at {})\nhint: {}",
                socket.display(),
                paths.start_hint()
            )),
        }
    }

    fn post(&self, method: &str, params: &Value) -> Result<ureq::Body, String> {
        let body = json!({ "method": method, "params": params }).to_string();
        let config = ureq::Agent::config_builder().proxy(None).timeout_global(self.timeout);
        // No redirect: its host name would be looked up for a remote host's daemon.
        let config = config.http_status_as_error(false).max_redirects(0);
        let connector = SocketConnector { socket: self.socket.clone(), trust: self.trust };
        let agent = ureq::Agent::with_parts(config.build(), connector, outpost_relay_install::Resolver);
        let request = agent.post("http://localhost/rpc").content_type("application/json");
        let socket = self.socket.display();
        let answer = request.send(body).map_err(|error| {
            let untrusted = match &error {
                ureq::Error::Io(error) => connect::untrusted(error),
                _ => None,
            };
            untrusted.map_or_else(|| format!("{socket}: {error}"), untrusted_message)
        })?;
        let status = answer.status();
        let mut body = answer.into_body();
        if status != 200 {
            let mut why = String::new();
            let _cut = body.as_reader().take(ERROR_BYTES_MAX).read_to_string(&mut why);
            return Err(format!("{socket}: {status}: {}", why.trim().escape_debug()));
        }
        Ok(body)
    }

    fn call(&self, method: &str, params: &Value) -> Result<Value, String> {
        let mut text = String::new();
        let mut body = self.post(method, params)?;
        let read = body.as_reader().take(REPLY_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| format!("{}: {error}", self.socket.display()))?;
        result(&text)
    }

    /// The session whose id has this prefix.
    fn session(&self, prefix: &str) -> Result<String, String> {
        let listed = self.call("session.list", &json!({}))?;
        let sessions = listed.get("sessions").and_then(Value::as_array);
        let ids = sessions.into_iter().flatten().filter_map(|session| session.get("sessionId")?.as_str());
        let found: Vec<&str> = ids.filter(|id| id.starts_with(prefix)).collect();
        match found.as_slice() {
            [one] => Ok((*one).to_owned()),
            [] => Err(format!("no such session: {prefix}\nhint: `outpost sessions list` shows all sessions")),
            _ => Err(format!(
                "{} sessions start with {prefix}\nhint: use a longer prefix of the id",
                found.len()
            )),
        }
    }
}

fn result(text: &str) -> Result<Value, String> {
    let reply: Value = serde_json::from_str(text).map_err(|_| {
        let excerpt: String = text.chars().take(EXCERPT_CHARS).collect();
        format!("unexpected reply from the daemon: {excerpt:?}")
    })?;
    match reply.get("error") {
        Some(error) => Err(error
            .get("message")
            .and_then(Value::as_str)
            .unwrap_or("the daemon gave no reason")
            .to_owned()),
        None => Ok(reply.get("result").cloned().unwrap_or_default()),
    }
}

fn list(daemon: &Daemon, as_json: bool) -> Outcome {
    let listed = daemon.call("monitor.sessions", &json!({}))?;
    let sessions = listed.get("sessions").cloned().unwrap_or_default();
    if as_json {
        print_line(&crate::console::json(&sessions.to_string()));
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = vec![COLUMNS.map(str::to_owned)];
    table.extend(sessions.as_array().into_iter().flatten().map(cells));
    super::print_table(&table);
    Ok(ExitCode::SUCCESS)
}

/// The columns of the session table.
pub(super) const COLUMNS: [&str; 7] = ["ID", "AGENT", "MODE", "STATUS", "WAITING", "UNREAD", "PATH"];
pub(super) const STATUS: usize = 3;

/// The cells of a session, unescaped.
fn cells(session: &Value) -> [String; 7] {
    let text = |at: &str| match session.pointer(at) {
        Some(Value::String(text)) => text.clone(),
        Some(value) => value.to_string(),
        None => String::new(),
    };
    let id: String = text("/sessionId").chars().take(8).collect();
    [
        id,
        text("/cliType"),
        text("/mode"),
        text("/status"),
        text("/queue/userPending"),
        text("/queue/responsePending"),
        text("/path"),
    ]
}

/// A row for each session, for `outpost top`.
pub(super) fn rows(paths: &Paths, timeout: Duration) -> Result<Vec<[String; 7]>, String> {
    let daemon = Daemon { timeout: Some(timeout), ..Daemon::find(paths)? };
    let listed = daemon.call("monitor.sessions", &json!({}))?;
    let sessions = listed.get("sessions").and_then(Value::as_array);
    Ok(sessions.into_iter().flatten().map(cells).collect())
}

/// How a stream ended.
enum StreamEnd {
    Complete,
    /// The reason of the failure.
    Broken(String),
}

/// The events of a session, read across reconnects.
struct EventStream<'a> {
    paths: &'a Paths,
    session: &'a str,
    printer: Printer,
    wanted: Wanted,
    /// Sequence number of the last event received.
    last_seq: Option<u64>,
}

/// The events to print.
enum Wanted {
    AllEvents,
    /// The events of one turn: its number once known, and whether it is over.
    Answer {
        turn: Option<u64>,
        is_over: bool,
    },
}

/// Sends a message and prints the events of its turn.
fn send(paths: &Paths, daemon: &Daemon, session: &str, message: &str, as_json: bool) -> Outcome {
    let body = daemon.post("session.send", &json!({ "sessionId": session, "message": message }))?;
    let wanted = Wanted::Answer { turn: None, is_over: false };
    EventStream { paths, session, printer: Printer::new(as_json), wanted, last_seq: None }.run(body)
}

/// Prints all events after a sequence number.
fn watch(paths: &Paths, daemon: &Daemon, session: &str, after: u64, as_json: bool) -> Outcome {
    let body = daemon.post("session.reconnect", &json!({ "sessionId": session, "cursor": after }))?;
    let (printer, wanted) = (Printer::new(as_json), Wanted::AllEvents);
    EventStream { paths, session, printer, wanted, last_seq: Some(after) }.run(body)
}

impl EventStream<'_> {
    /// Exits with failure if the last turn failed.
    fn run(mut self, body: ureq::Body) -> Outcome {
        let mut end = self.print(body, false)?;
        while let StreamEnd::Broken(reason) = end {
            let Some(last) = self.last_seq else {
                return Err(format!("{reason}\nhint: `outpost sessions watch` shows the rest of the turn"));
            };
            end = match self.is_over() {
                true => StreamEnd::Complete,
                false => self.print(self.reconnect(last)?, true)?,
            };
        }
        self.printer.end();
        Ok(if self.printer.has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// Prints one response body. After a reconnect the stream does not end with the turn, so the end of the turn is
    /// checked here.
    fn print(&mut self, mut body: ureq::Body, is_reconnect: bool) -> Result<StreamEnd, String> {
        let mut reader = BufReader::new(body.as_reader());
        let mut line = String::new();
        let mut is_first = true;
        loop {
            line.clear();
            match reader.by_ref().take(REPLY_BYTES_MAX).read_line(&mut line) {
                Ok(0) => return Ok(StreamEnd::Broken("the daemon closed the connection".into())),
                Ok(_) => {}
                Err(error) => {
                    return Ok(StreamEnd::Broken(format!("lost the connection to the daemon: {error}")));
                }
            }
            let text = line.trim_end();
            if is_first && text.starts_with('{') {
                result(text)?;
            }
            is_first = false;
            // A partial event is sent again after a reconnect.
            let is_whole = line.ends_with('\n');
            match text.strip_prefix("data: ").filter(|_| is_whole) {
                Some("[DONE]") => return Ok(StreamEnd::Complete),
                Some(event) => {
                    self.on_event(event);
                    if is_reconnect && self.is_over() {
                        return Ok(StreamEnd::Complete);
                    }
                }
                None => {}
            }
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.wanted, Wanted::Answer { is_over: true, .. })
    }

    fn on_event(&mut self, text: &str) {
        let Ok(event) = serde_json::from_str::<Value>(text) else { return };
        let number = |name: &str| event.get(name).and_then(Value::as_u64);
        self.last_seq = number("seq").or(self.last_seq);
        if let Wanted::Answer { turn, is_over } = &mut self.wanted {
            *turn = turn.or(number("turn"));
            if number("turn") != *turn {
                return;
            }
            let kind = event.get("type").and_then(Value::as_str);
            *is_over |= turn.is_some() && matches!(kind, Some("result" | "error" | "interrupted"));
        }
        self.printer.print(&event, text);
    }

    /// Resumes the stream after this event, with retries while the daemon or the host is unreachable.
    fn reconnect(&self, last: u64) -> Result<ureq::Body, String> {
        let params = json!({ "sessionId": self.session, "cursor": last });
        let mut deadline = Instant::now() + RECONNECT_TIMEOUT;
        loop {
            let attempt =
                Daemon::find(self.paths).and_then(|daemon| daemon.post("session.reconnect", &params));
            match attempt {
                Ok(body) => return Ok(body),
                Err(_) if Instant::now() >= deadline && self.paths.is_reconnecting() => {
                    errln!("outpost: {HOST_CONNECTION_LOST}");
                    deadline = Instant::now() + RECONNECT_TIMEOUT;
                }
                Err(reason) if Instant::now() >= deadline => {
                    return Err(format!(
                        "{reason}\nhint: `outpost sessions watch` shows the rest of the turn"
                    ));
                }
                Err(_) => std::thread::sleep(retry_interval(self.paths)),
            }
        }
    }
}
