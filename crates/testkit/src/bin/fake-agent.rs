//! An agent CLI that follows directives of its prompt, for behaviour that real CLIs show too rarely. It is called by the
//! name of the CLI it replaces and writes claude's format; lines of other CLIs can be given verbatim.
//!
//! A prompt that begins with `do:` is a script, a step per line; see `Agent::step`. Others are those of the mock that the
//! original's own tests use: `echo:TEXT`, `error`, `slow`, `tools`.
//!
//! Called as `codex app-server` it answers the requests of that protocol, and warns before it has a thread, as codex does on
//! a host without bubblewrap. Its turn follows the prompt's script.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, clippy::expect_used)]

use outpost_sys::signal::{Signal, SignalFd, exit_by_signal};
use serde_json::{Value, json};
use std::io::{BufRead, Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

/// Between two looks at a file that is waited for.
const LOOK_AGAIN: Duration = Duration::from_millis(2);

/// The warning of codex 0.166 on a host without bubblewrap.
const NO_BUBBLEWRAP: &str =
    "Codex could not find bubblewrap on PATH. Install bubblewrap with your OS package manager.";

struct Agent {
    arguments: Vec<String>,
    /// The bytes of standard input, if it was read.
    input: Option<String>,
    session: String,
    /// Kept: while it lives, the signals are blocked.
    _deaf: Option<SignalFd>,
}

fn main() {
    let arguments: Vec<String> =
        std::env::args_os().map(|argument| argument.to_string_lossy().into_owned()).collect();
    match arguments.get(1).map(String::as_str) {
        Some("--version") if std::env::var_os("FAKE_AGENT_MUTE").is_some() => loop {
            std::thread::park();
        },
        Some("--version") => {
            let version = std::env::var("FAKE_AGENT_VERSION").unwrap_or_else(|_| "0.0.1".into());
            return println!("{version} (fake)");
        }
        Some("--grandchild") => grandchild(&arguments[2], &arguments[3]),
        _ => {}
    }
    let mut agent = Agent { arguments, input: None, session: "fake-session".into(), _deaf: None };
    if let Some(id) = agent.argument_after("--resume") {
        agent.session = id;
    }
    if agent.arguments.get(1).is_some_and(|argument| argument == "app-server") {
        return agent.serve();
    }
    let prompt = agent.prompt();
    agent.follow(&prompt);
}

/// Lives until it is killed, in its parent's session or in one of its own.
fn grandchild(session: &str, file: &str) -> ! {
    if session == "leaves" {
        rustix::process::setsid().unwrap();
    }
    write_whole(Path::new(file), &std::process::id().to_string());
    loop {
        std::thread::park();
    }
}

/// Atomic: a reader of the file finds the complete text.
fn write_whole(path: &Path, text: &str) {
    let half = path.with_extension("half");
    std::fs::write(&half, text).unwrap();
    std::fs::rename(half, path).unwrap();
}

fn out(bytes: &[u8]) {
    let mut stdout = std::io::stdout().lock();
    // As most CLIs, it ignores that the reader is gone.
    let _gone = stdout.write_all(bytes).and_then(|()| stdout.flush());
}

fn print_line(line: &Value) {
    out(format!("{line}\n").as_bytes());
}

fn partial(text: &str) -> Value {
    let event =
        json!({ "type": "content_block_delta", "index": 0, "delta": { "type": "text_delta", "text": text } });
    json!({ "type": "stream_event", "event": event })
}

fn assistant(block: &Value) -> Value {
    json!({ "type": "assistant", "message": { "role": "assistant", "content": [block] } })
}

/// Output of a shell command, as an agent's tool runs it.
fn shell(script: &str) -> String {
    let mut command = std::process::Command::new("/bin/sh");
    let done = command.args(["-c", script]).stdin(std::process::Stdio::null()).output().unwrap();
    String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
}

fn wait_for(file: &str) {
    while !Path::new(file).exists() {
        std::thread::sleep(LOOK_AGAIN);
    }
}

impl Agent {
    fn argument_after(&self, name: &str) -> Option<String> {
        let at = self.arguments.iter().position(|argument| argument == name)?;
        self.arguments.get(at + 1).cloned()
    }

    /// From wherever the prompt comes: an argument, a message on standard input, or all of standard input.
    fn prompt(&mut self) -> String {
        let is_prompt = |argument: &&String| {
            ["do:", "echo:"].iter().any(|begin| argument.starts_with(begin))
                || ["error", "slow", "tools"].contains(&argument.as_str())
        };
        if let Some(prompt) = self.arguments.iter().find(is_prompt) {
            return prompt.clone();
        }
        if self.argument_after("--input-format").as_deref() == Some("stream-json") {
            return self.read_message().expect("a message");
        }
        let mut text = String::new();
        std::io::stdin().read_to_string(&mut text).unwrap();
        self.input = Some(text.clone());
        text
    }

    fn read_line(&mut self) -> Option<Value> {
        let mut line = String::new();
        std::io::stdin().lock().read_line(&mut line).unwrap();
        self.input.get_or_insert_default().push_str(&line);
        (!line.is_empty()).then(|| serde_json::from_str(&line).unwrap())
    }

    fn read_message(&mut self) -> Option<String> {
        let message = self.read_line()?;
        Some(message["message"]["content"][0]["text"].as_str().unwrap().to_owned())
    }

    /// `codex app-server`, one turn after the other until the end of standard input.
    fn serve(&mut self) {
        while let Some(request) = self.read_line() {
            let reply = |result: Value| print_line(&json!({ "id": request["id"], "result": result }));
            match request["method"].as_str() {
                Some("initialize") => {
                    reply(json!({ "userAgent": "fake" }));
                    print_line(
                        &json!({ "method": "configWarning", "params": { "summary": NO_BUBBLEWRAP, "details": null } }),
                    );
                }
                Some("thread/start" | "thread/resume") => {
                    if let Ok(file) = std::env::var("FAKE_AGENT_THREAD_WAITS_FOR") {
                        wait_for(&file);
                    }
                    reply(json!({ "thread": { "id": self.session }, "model": "fake-model" }));
                }
                Some("turn/start") => {
                    reply(json!({ "turn": { "id": "turn", "status": "inProgress" } }));
                    let prompt = request["params"]["input"][0]["text"].as_str().unwrap().to_owned();
                    self.follow(&prompt);
                    let turn = json!({ "id": "turn", "status": "completed", "error": null });
                    print_line(&json!({ "method": "turn/completed", "params": { "turn": turn } }));
                }
                _ => {}
            }
        }
    }

    fn init(&self) -> Value {
        let model = self.argument_after("--model").unwrap_or_else(|| "fake-model".into());
        json!({ "type": "system", "subtype": "init", "session_id": self.session, "model": model })
    }

    fn result(&self) -> Value {
        json!({ "type": "result", "subtype": "success", "is_error": false, "result": "", "session_id": self.session })
    }

    fn text(&self, text: &str) {
        print_line(&assistant(&json!({ "type": "text", "text": text })));
    }

    fn follow(&mut self, prompt: &str) {
        match prompt.strip_prefix("do:") {
            Some(script) => script.lines().map(str::trim).for_each(|line| self.step(line)),
            None => self.mock(prompt),
        }
    }

    /// The prompts of the original's mock.
    fn mock(&self, prompt: &str) {
        print_line(&self.init());
        match prompt {
            "error" => {
                eprintln!("mock error");
                std::process::exit(1);
            }
            "slow" => {
                for word in ["slow ", "answer"] {
                    print_line(&partial(word));
                    std::thread::sleep(Duration::from_millis(300));
                }
                self.text("slow answer");
            }
            "tools" => {
                print_line(&assistant(
                    &json!({ "type": "tool_use", "id": "t1", "name": "Bash", "input": { "command": "ls -la" } }),
                ));
                self.text("used a tool");
            }
            other => {
                let text = other.strip_prefix("echo:").unwrap_or(other);
                print_line(&partial(text));
                self.text(text);
            }
        }
        print_line(&self.result());
    }

    /// One step of a script.
    fn step(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "" => {}
            "init" => print_line(&self.init()),
            "result" => print_line(&self.result()),
            // The conversation has this id from now on.
            "session" => rest.clone_into(&mut self.session),
            "fail" => {
                let failed = json!({ "type": "result", "subtype": "success", "is_error": true, "result": rest, "session_id": self.session });
                print_line(&failed);
            }
            "partial" => print_line(&partial(rest)),
            "text" => self.text(rest),
            "line" => out(format!("{rest}\n").as_bytes()),
            // Without an end of line.
            "bytes" => out(&hex(rest)),
            "stderr" => eprintln!("{rest}"),
            "count" => count(rest),
            "long" => self.text(&"x".repeat(rest.parse().unwrap())),
            "wait" => wait_for(rest),
            "touch" => write_whole(Path::new(rest), &std::process::id().to_string()),
            "sh" => self.text(&shell(rest)),
            "record" => self.record(rest),
            "ask" => ask(rest),
            "ask-large" => ask_large(rest),
            "ask-many" => ask_many(rest.parse().unwrap()),
            "await" => self.await_answer(rest),
            // Follows messages that come later, until there are none, as claude does with lines of JSON.
            "stay" => {
                while let Some(prompt) = self.read_message() {
                    self.follow(&prompt);
                }
            }
            "exit" => std::process::exit(rest.parse().unwrap()),
            "signal" => exit_by_signal(Signal::from_name(rest).unwrap()),
            "ignore-term" => self._deaf = Some(SignalFd::new(&[Signal::TERM]).unwrap()),
            "close-stdout" => rustix::stdio::dup2_stdout(std::fs::File::open("/dev/null").unwrap()).unwrap(),
            "child" => spawn_grandchild(rest),
            "hang" => loop {
                std::thread::park();
            },
            other => panic!("no such step: {other}"),
        }
    }

    fn record(&self, file: &str) {
        let environment: serde_json::Map<String, Value> = std::env::vars_os()
            .map(|(name, value)| (name.to_string_lossy().into_owned(), value.to_string_lossy().into()))
            .collect();
        let record = json!({
            "argv": self.arguments, "env": environment, "cwd": std::env::current_dir().unwrap(), "stdin": self.input,
            "pid": std::process::id(),
        });
        write_whole(Path::new(file), &record.to_string());
    }

    /// Waits for the answer to a question and prints it.
    fn await_answer(&mut self, id: &str) {
        loop {
            let Some(line) = self.read_line() else {
                eprintln!("no answer to {id}");
                std::process::exit(9);
            };
            if line["type"] == "control_response" && line["response"]["request_id"] == id {
                return self.text(&format!("answer {id}: {}", line["response"]["response"]));
            }
        }
    }
}

/// `FROM TO [PAUSE_US]`: deltas with the numbers, all at once or one by one.
fn count(numbers: &str) {
    let numbers: Vec<u64> = numbers.split(' ').map(|number| number.parse().unwrap()).collect();
    let mut lines = String::new();
    for number in numbers[0]..=numbers[1] {
        lines += &format!("{}\n", partial(&number.to_string()));
        match numbers.get(2) {
            Some(pause) => {
                out(lines.as_bytes());
                lines.clear();
                std::thread::sleep(Duration::from_micros(*pause));
            }
            None if lines.len() > 64 * 1024 => {
                out(lines.as_bytes());
                lines.clear();
            }
            None => {}
        }
    }
    out(lines.as_bytes());
}

/// `ID TOOL INPUT`
fn ask(question: &str) {
    let [id, tool, input] = question.splitn(3, ' ').collect::<Vec<_>>()[..] else { panic!("ask {question}") };
    let input: Value = serde_json::from_str(input).unwrap();
    let request = json!({ "subtype": "can_use_tool", "tool_name": tool, "input": input });
    print_line(&json!({ "type": "control_request", "request_id": id, "request": request }));
}

/// `ID BYTES`: a question about a file with so much in it.
fn ask_large(question: &str) {
    let (id, bytes) = question.split_once(' ').unwrap();
    let input = json!({ "file_path": "large", "content": "x".repeat(bytes.parse().unwrap()) });
    ask(&format!("{id} Write {input}"));
}

/// Questions `n1` to `nCOUNT`.
fn ask_many(count: usize) {
    (1..=count).for_each(|number| ask(&format!("n{number} Bash {{\"command\":\"echo {number}\"}}")));
}

/// `stays FILE` or `leaves FILE`: one that has our standard output, and where its pid goes. Returns once it runs.
fn spawn_grandchild(how: &str) {
    let (session, file) = how.split_once(' ').unwrap();
    let mut command = Command::new(std::env::current_exe().unwrap());
    command.args(["--grandchild", session, file]).stdin(Stdio::null());
    // Not reaped here: the parent of this program ends the tree.
    drop(command.spawn().unwrap());
    wait_for(file);
}

fn hex(text: &str) -> Vec<u8> {
    text.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}
