//! `outpost sessions`: conversations with agents, from the command line.

mod print;

use super::Outcome;
use super::patience::{ELSEWHERE_LOST, RECONNECT_PATIENCE, reconnect_pause};
use crate::own_token;
use crate::paths::Paths;
use clap::{Args, Subcommand, ValueEnum};
use print::Printer;
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Read};
use std::path::Component;
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// The most of an answer that is read at once.
const ANSWER_BYTES_MAX: u64 = 256 * 1024 * 1024;

/// The most of a refusal that is shown.
const REFUSAL_BYTES_MAX: u64 = 1024;

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
        #[arg(long)]
        json: bool,
    },
    /// Begin a session in a directory and print its id
    Create {
        /// The project's directory; a bare name is one below ~/Projects
        path: String,
        #[arg(long, default_value = "claude")]
        agent: Agent,
        /// What the agent may do without a human's answer
        #[arg(long, default_value = "ask")]
        mode: Mode,
        #[arg(long)]
        model: Option<String>,
    },
    /// Send a message and print the answer as it comes
    Send {
        /// The session, or the beginning of its id
        session: String,
        /// The message; from standard input without one
        message: Option<String>,
        /// Print events as they are
        #[arg(long)]
        json: bool,
    },
    /// Print what a session has said and says, whoever asked
    Watch {
        session: String,
        /// Only what comes after this event
        #[arg(long, value_name = "SEQ", default_value_t = 0)]
        after: u64,
        #[arg(long)]
        json: bool,
    },
    /// End what a session does now, and forget what waits
    Interrupt { session: String },
    /// End a session with everything it runs
    Destroy { session: String },
}

pub(super) fn run(paths: &Paths, options: Sessions) -> Outcome {
    let daemon = Daemon::find(paths)?;
    match options.command {
        Command::List { json } => list(&daemon, json),
        Command::Create { path, agent, mode, model } => {
            // A path that means something here means the same there.
            let begin = std::path::Path::new(&path).components().next();
            let path = match matches!(begin, Some(Component::CurDir | Component::ParentDir)) {
                true if paths.host.is_some() => {
                    return Err(format!("{path} is of this host; say where on the other one, from `/` on"));
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
            let made = daemon.call("session.create", &params)?;
            say(made.get("sessionId").and_then(Value::as_str).unwrap_or_default());
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
            say(if found { "interrupted" } else { "it was doing nothing" });
            Ok(ExitCode::SUCCESS)
        }
        Command::Destroy { session } => {
            let session = daemon.session(&session)?;
            daemon.call("session.destroy", &json!({ "sessionId": session }))?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

fn say(text: &str) {
    outln!("{text}");
}

/// Where the daemon answers.
struct Daemon {
    url: String,
    /// The daemon's own token, as far as this user can read it: root's daemon demands one.
    token: Option<String>,
    /// How long an answer may take, if not for ever.
    patience: Option<Duration>,
}

impl Daemon {
    fn find(paths: &Paths) -> Result<Daemon, String> {
        paths.check_runtime()?;
        let url = std::fs::read_to_string(paths.sessions_url());
        match url.or_else(|_| Daemon::forwarded(paths)) {
            Ok(url) if url.starts_with("https:") => Err(format!(
                "the daemon answers at {url}, to those who have a token, and these commands have none: let it listen on \
                 loopback ([sessions] listen = \"127.0.0.1:9100\"), or ask it as `outpost token create` says"
            )),
            Ok(url) => Ok(Daemon { url, token: own_token::read(&paths.sessions_token()), patience: None }),
            Err(reason) => Err(reason),
        }
    }

    /// Of a host that is connected nothing is here but a port.
    fn forwarded(paths: &Paths) -> Result<String, String> {
        let file = paths.sessions_port();
        let port = std::fs::read_to_string(&file).ok().and_then(|text| text.trim().parse::<u16>().ok());
        let port = port.ok_or_else(|| {
            format!(
                "no daemon has left its port in {}; {} ([sessions] listen = \"none\" closes the port)",
                file.display(),
                paths.remedy()
            )
        })?;
        Ok(format!("http://127.0.0.1:{port}/rpc"))
    }

    fn post(&self, method: &str, params: &Value) -> Result<ureq::Body, String> {
        let body = json!({ "method": method, "params": params }).to_string();
        let config = ureq::Agent::config_builder().proxy(None).timeout_global(self.patience);
        let config = config.http_status_as_error(false);
        let connector = ureq::unversioned::transport::DefaultConnector::default();
        let agent = ureq::Agent::with_parts(config.build(), connector, outpost_relay::Resolver);
        let mut request = agent.post(&self.url).content_type("application/json");
        if let Some(token) = &self.token {
            request = request.header("authorization", format!("Bearer {token}"));
        }
        let answer = request.send(body).map_err(|error| format!("{}: {error}", self.url))?;
        let status = answer.status();
        let mut body = answer.into_body();
        if status != 200 {
            let mut why = String::new();
            let _cut = body.as_reader().take(REFUSAL_BYTES_MAX).read_to_string(&mut why);
            return Err(format!("{}: {status}: {}", self.url, why.trim().escape_debug()));
        }
        Ok(body)
    }

    fn call(&self, method: &str, params: &Value) -> Result<Value, String> {
        let mut text = String::new();
        let mut body = self.post(method, params)?;
        let read = body.as_reader().take(ANSWER_BYTES_MAX).read_to_string(&mut text);
        read.map_err(|error| format!("{}: {error}", self.url))?;
        result(&text)
    }

    /// The session whose id begins so.
    fn session(&self, prefix: &str) -> Result<String, String> {
        let listed = self.call("session.list", &json!({}))?;
        let sessions = listed.get("sessions").and_then(Value::as_array);
        let ids = sessions.into_iter().flatten().filter_map(|session| session.get("sessionId")?.as_str());
        let found: Vec<&str> = ids.filter(|id| id.starts_with(prefix)).collect();
        match found.as_slice() {
            [one] => Ok((*one).to_owned()),
            [] => Err(format!("there is no session {prefix}; `outpost sessions list` shows them")),
            _ => Err(format!("{} sessions begin with {prefix}; give more of the id", found.len())),
        }
    }
}

fn result(text: &str) -> Result<Value, String> {
    let answer: Value = serde_json::from_str(text).map_err(|_| format!("the daemon answers {text:?}"))?;
    match answer.get("error") {
        Some(error) => Err(error.get("message").and_then(Value::as_str).unwrap_or("it failed").to_owned()),
        None => Ok(answer.get("result").cloned().unwrap_or_default()),
    }
}

fn list(daemon: &Daemon, as_json: bool) -> Outcome {
    let listed = daemon.call("monitor.sessions", &json!({}))?;
    let sessions = listed.get("sessions").cloned().unwrap_or_default();
    if as_json {
        say(&crate::console::json(&sessions.to_string()));
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = vec![HEAD.map(str::to_owned)];
    table.extend(sessions.as_array().into_iter().flatten().map(cells));
    super::print_table(&table);
    Ok(ExitCode::SUCCESS)
}

/// What a table says about a session.
pub(super) const HEAD: [&str; 7] = ["ID", "AGENT", "MODE", "STATUS", "WAITING", "UNREAD", "PATH"];
pub(super) const STATUS: usize = 3;

/// As the daemon has them: not for a terminal yet.
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

/// A row for each session, for one who does not wait for ever.
pub(super) fn rows(paths: &Paths, patience: Duration) -> Result<Vec<[String; 7]>, String> {
    let daemon = Daemon { patience: Some(patience), ..Daemon::find(paths)? };
    let listed = daemon.call("monitor.sessions", &json!({}))?;
    let sessions = listed.get("sessions").and_then(Value::as_array);
    Ok(sessions.into_iter().flatten().map(cells).collect())
}

/// How far a stream got.
enum Came {
    /// To its end.
    Whole,
    /// It broke off, for this reason.
    Part(String),
}

/// What is being followed, over as many connections as it takes.
struct Following<'a> {
    paths: &'a Paths,
    session: &'a str,
    printer: Printer,
    wanted: Wanted,
    /// The last event that was printed, by its number.
    last: Option<u64>,
}

/// What of a session is wanted.
enum Wanted {
    Everything,
    /// The answer to a message: the turn that events are of, when it is known, and whether it is over.
    Answer {
        turn: Option<u64>,
        is_over: bool,
    },
}

/// Prints the answer to a message.
fn send(paths: &Paths, daemon: &Daemon, session: &str, message: &str, as_json: bool) -> Outcome {
    let body = daemon.post("session.send", &json!({ "sessionId": session, "message": message }))?;
    let wanted = Wanted::Answer { turn: None, is_over: false };
    Following { paths, session, printer: Printer::new(as_json), wanted, last: None }.work(body)
}

/// Prints everything after an event.
fn watch(paths: &Paths, daemon: &Daemon, session: &str, after: u64, as_json: bool) -> Outcome {
    let body = daemon.post("session.reconnect", &json!({ "sessionId": session, "cursor": after }))?;
    let (printer, wanted) = (Printer::new(as_json), Wanted::Everything);
    Following { paths, session, printer, wanted, last: Some(after) }.work(body)
}

impl Following<'_> {
    /// Fails if the last turn did.
    fn work(mut self, body: ureq::Body) -> Outcome {
        let mut came = self.print(body, false)?;
        while let Came::Part(reason) = came {
            let Some(last) = self.last else {
                return Err(format!("{reason}; `outpost sessions watch` shows what came of it"));
            };
            came = match self.is_over() {
                true => Came::Whole,
                false => self.print(self.again(last)?, true)?,
            };
        }
        self.printer.end();
        Ok(if self.printer.has_failed { ExitCode::FAILURE } else { ExitCode::SUCCESS })
    }

    /// The stream of a cursor goes on with other turns, where the answer to a message would end.
    fn print(&mut self, mut body: ureq::Body, goes_on: bool) -> Result<Came, String> {
        let mut reader = BufReader::new(body.as_reader());
        let mut line = String::new();
        let mut is_first = true;
        loop {
            line.clear();
            match reader.read_line(&mut line) {
                Ok(0) => return Ok(Came::Part("the daemon went away".into())),
                Ok(_) => {}
                Err(error) => return Ok(Came::Part(format!("the stream broke off ({error})"))),
            }
            let text = line.trim_end();
            if is_first && text.starts_with('{') {
                result(text)?;
            }
            is_first = false;
            // Half an event comes again as a whole.
            let is_whole = line.ends_with('\n');
            match text.strip_prefix("data: ").filter(|_| is_whole) {
                Some("[DONE]") => return Ok(Came::Whole),
                Some(event) => {
                    self.take(event);
                    if goes_on && self.is_over() {
                        return Ok(Came::Whole);
                    }
                }
                None => {}
            }
        }
    }

    fn is_over(&self) -> bool {
        matches!(self.wanted, Wanted::Answer { is_over: true, .. })
    }

    fn take(&mut self, text: &str) {
        let Ok(event) = serde_json::from_str::<Value>(text) else { return };
        let number = |name: &str| event.get(name).and_then(Value::as_u64);
        self.last = number("seq").or(self.last);
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

    /// The rest of the stream, from a daemon that is there again or a host that is reached again.
    fn again(&self, last: u64) -> Result<ureq::Body, String> {
        let params = json!({ "sessionId": self.session, "cursor": last });
        let mut deadline = Instant::now() + RECONNECT_PATIENCE;
        loop {
            let attempt =
                Daemon::find(self.paths).and_then(|daemon| daemon.post("session.reconnect", &params));
            match attempt {
                Ok(body) => return Ok(body),
                Err(_) if Instant::now() >= deadline && self.paths.is_away() => {
                    errln!("outpost: {ELSEWHERE_LOST}");
                    deadline = Instant::now() + RECONNECT_PATIENCE;
                }
                Err(reason) if Instant::now() >= deadline => {
                    return Err(format!("{reason}; `outpost sessions watch` shows what came of it"));
                }
                Err(_) => std::thread::sleep(reconnect_pause(self.paths)),
            }
        }
    }
}
