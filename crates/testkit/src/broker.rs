//! A real broker on a terminal and a socket of its own, a human who presses keys, and the end of all when the test is over.
//!
//! With `OUTPOST_BROKER_PEER` set to the path of the original (`sudo-proxy`, 1.2.0), the same tests run against it: that is
//! how their expectations are checked. What we do otherwise on purpose is skipped then, by [`Broker::is_original`].

use crate::broker_client::BrokerClient;
use crate::daemon::{TIMEOUT, binary_beside, kill_marked, owner, pause};
use crate::kernel;
use crate::lack::Lack;
use crate::terminal::Terminal;
use outpost_sys::pidfd::Exit;
use outpost_sys::signal::Signal;
use serde_json::Value;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Where `scripts/fetch-broker-peer` installs the original's client.
const SUDO_REQUEST: &str = "/var/tmp/outpost-broker-peer-1.2.0/bin/sudo-request";

/// How a prompt ends; in all of them that can be answered with one key.
const PROMPT: &str = "[y/N";

/// Between two presses of a key that may not count yet: ours ignores those in the first 0.7 s a prompt is visible.
const PRESS_AGAIN: Duration = Duration::from_millis(100);

/// How a broker is started. The defaults are those of most tests.
#[derive(Clone, Default)]
pub struct BrokerOptions {
    /// Over the environment that every test has; `None` unsets.
    pub env: Vec<(String, Option<String>)>,
    /// As another user; only root can.
    pub uid: Option<u32>,
    /// As on an older kernel: 6.8, 6.1 or 5.10.
    pub kernel: Option<&'static str>,
    /// Behind `--socket`.
    pub flags: Vec<String>,
    /// Without `--socket`.
    pub default_socket: bool,
}

impl BrokerOptions {
    pub fn env(mut self, name: &str, value: &str) -> BrokerOptions {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    pub fn uid(mut self, uid: u32) -> BrokerOptions {
        self.uid = Some(uid);
        self
    }

    pub fn kernel(mut self, kernel: &'static str) -> BrokerOptions {
        self.kernel = Some(kernel);
        self
    }

    pub fn flag(mut self, flag: &str) -> BrokerOptions {
        self.flags.push(flag.into());
        self
    }

    pub fn default_socket(mut self) -> BrokerOptions {
        self.default_socket = true;
        self
    }
}

pub struct Broker {
    terminal: Terminal,
    options: BrokerOptions,
    /// How far the screen was read: everything before belongs to prompts that are over.
    read: usize,
    /// Last field: dropped after the processes that use it.
    dir: TempDir,
}

/// The path of the original, when the tests are to run against it.
fn original() -> Option<PathBuf> {
    std::env::var_os("OUTPOST_BROKER_PEER").filter(|path| !path.is_empty()).map(PathBuf::from)
}

/// The time so many seconds from now, as the contract's example has it.
pub fn stamp(offset_seconds: i64) -> String {
    let time = jiff::Timestamp::now() + jiff::SignedDuration::from_secs(offset_seconds);
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

impl Broker {
    /// Whether tests talk to the original instead of to us.
    pub fn is_original() -> bool {
        original().is_some()
    }

    /// The original's own client: `OUTPOST_SUDO_REQUEST`, or beside the original, or where `scripts/setup-tests` has it.
    pub fn sudo_request() -> Result<PathBuf, Lack> {
        let named =
            std::env::var_os("OUTPOST_SUDO_REQUEST").filter(|path| !path.is_empty()).map(PathBuf::from);
        let beside = || original().map(|path| path.with_file_name("sudo-request"));
        let path = named.or_else(beside).unwrap_or_else(|| PathBuf::from(SUDO_REQUEST));
        match path.exists() {
            true => Ok(path),
            false => Err(Lack::of_setup(format!(
                "{} is missing; scripts/fetch-broker-peer installs it",
                path.display()
            ))),
        }
    }

    /// Started, and its socket accepts.
    pub fn start(options: &BrokerOptions) -> Broker {
        let dir = tempfile::Builder::new().prefix("outpost-broker-").tempdir().unwrap();
        for name in ["home", "run", "state", "config", "work"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        if let Some(uid) = options.uid {
            for name in ["", "home", "run", "state", "config", "work"] {
                std::os::unix::fs::chown(dir.path().join(name), Some(uid), Some(uid)).unwrap();
            }
        }
        if original().is_none() {
            let test = std::env::current_exe().unwrap();
            // A test is in `deps`, the programs are one up.
            let ours = binary_beside(&test.parent().unwrap().parent().unwrap().join("tests"), "outpost");
            std::os::unix::fs::symlink(ours, dir.path().join("sudo-proxy")).unwrap();
        }
        let terminal = launch(dir.path(), options);
        let broker = Broker { terminal, options: options.clone(), read: 0, dir };
        broker.wait_accepting();
        broker
    }

    /// Another one with the same flags, on the same socket and on a terminal of its own.
    pub fn second(&self) -> Terminal {
        launch(self.dir(), &self.options)
    }

    /// Another one with these flags alone.
    pub fn second_with(&self, flags: &[String]) -> Terminal {
        launch(
            self.dir(),
            &BrokerOptions { default_socket: true, flags: flags.to_vec(), ..self.options.clone() },
        )
    }

    /// Killed, and started again in the same directories.
    pub fn restart(&mut self) {
        self.terminal.signal(Signal::KILL);
        self.terminal.wait();
        self.terminal = launch(self.dir(), &self.options);
        self.read = 0;
        self.wait_accepting();
    }

    fn wait_accepting(&self) {
        drop(BrokerClient::wait_connect(&self.socket(), || {
            let runs = self.terminal.runs();
            assert!(runs, "it has ended: {}", self.screen());
            runs
        }));
    }

    /// The directory that has everything of this broker.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    /// A path for the files of a test.
    pub fn path(&self, name: &str) -> PathBuf {
        self.dir().join("work").join(name)
    }

    pub fn socket(&self) -> PathBuf {
        self.dir().join("run/sudo-proxy.sock")
    }

    pub fn pid(&self) -> i32 {
        self.terminal.pid()
    }

    pub fn terminal(&mut self) -> &mut Terminal {
        &mut self.terminal
    }

    pub fn screen(&self) -> String {
        self.terminal.screen()
    }

    /// How the daemon ended, which it must do within reason.
    pub fn wait(&mut self) -> Exit {
        self.terminal.wait()
    }

    /// Waits until the daemon runs nothing any more.
    pub fn wait_childless(&self) {
        let begun = Instant::now();
        while !self.terminal.family().is_empty() {
            assert!(begun.elapsed() < TIMEOUT, "still running: {:?}", self.terminal.family());
            pause();
        }
    }

    pub fn connect(&self) -> BrokerClient {
        BrokerClient::connect(&self.socket())
    }

    /// A connection over which these bytes were sent.
    pub fn send_raw(&self, bytes: impl AsRef<[u8]>) -> BrokerClient {
        let mut client = self.connect();
        client.send(bytes);
        client
    }

    /// A connection over which a request was sent.
    pub fn send(&self, request: &Value) -> BrokerClient {
        self.send_raw(format!("{request}\n"))
    }

    /// The whole answer to a request that needs no human.
    pub fn request(&self, request: &Value) -> String {
        self.send(request).answer()
    }

    /// The same; fails at once if a human is asked.
    pub fn request_unasked(&self, request: &Value) -> String {
        let mut client = self.send(request);
        let begun = Instant::now();
        while !client.has_answer(Duration::from_millis(2)) {
            assert!(!self.has_prompt(), "{request:.300} is asked about: {}", self.unread());
            assert!(begun.elapsed() < TIMEOUT, "neither prompt nor answer: {}", self.screen());
        }
        client.answer()
    }

    /// The whole answer to a request; a question about it is approved.
    pub fn run(&mut self, request: &Value) -> String {
        let mut client = self.send(request);
        let begun = Instant::now();
        // Either the answer or the prompt comes first; no single descriptor signals both.
        while !client.has_answer(Duration::from_millis(2)) {
            if self.terminal.find(PROMPT, self.read, Duration::ZERO).is_some() {
                self.approve();
                break;
            }
            assert!(begun.elapsed() < TIMEOUT, "neither prompt nor answer: {}", self.screen());
        }
        client.answer()
    }

    /// Waits until the screen has this text behind the last prompt that was answered.
    pub fn wait_screen(&self, wanted: &str) {
        let found = self.terminal.find(wanted, self.read, TIMEOUT);
        assert!(found.is_some(), "the screen never showed {wanted:?}: {:?}", self.screen());
    }

    /// Waits for a prompt that was not answered yet, and until its keys can be pressed.
    pub fn wait_prompt(&self) {
        self.wait_screen(PROMPT);
        let begun = Instant::now();
        // The original throws away what was typed before it reads keys.
        while !self.terminal.reads_keys() {
            assert!(begun.elapsed() < TIMEOUT, "no keys are read: {}", self.screen());
            pause();
        }
    }

    /// Whether such a prompt is there now.
    pub fn has_prompt(&self) -> bool {
        self.terminal.find(PROMPT, self.read, Duration::ZERO).is_some()
    }

    /// The screen from the end of the last prompt that was answered.
    pub fn unread(&self) -> String {
        self.terminal.screen_from(self.read)
    }

    /// Sends keys without waiting for a prompt.
    pub fn key(&mut self, bytes: &[u8]) {
        self.terminal.key(bytes);
    }

    /// Waits for a new prompt and presses `y`.
    pub fn approve(&mut self) {
        self.answer_prompt(b"y", "Approved");
    }

    /// Waits for a new prompt and presses `n`.
    pub fn deny(&mut self) {
        self.answer_prompt(b"n", "Denied");
    }

    /// Waits for a new prompt and presses a key until the screen shows the outcome.
    pub fn answer_prompt(&mut self, key: &[u8], outcome: &str) {
        self.wait_prompt();
        let begun = Instant::now();
        loop {
            self.key(key);
            let again = if Broker::is_original() { TIMEOUT } else { PRESS_AGAIN };
            if let Some(end) = self.terminal.find(outcome, self.read, again) {
                self.read = end;
                return;
            }
            assert!(begun.elapsed() < TIMEOUT, "no {outcome:?} of {key:?}: {:?}", self.screen());
        }
    }

    /// Takes the screen as read up to here.
    pub fn skip_screen(&mut self) {
        self.read = self.terminal.drawn_bytes();
    }
}

impl Drop for Broker {
    fn drop(&mut self) {
        // Halves of ours that live apart; the terminal ends all others.
        kill_marked(&format!("OUTPOST_TEST_DAEMON={}", self.dir().display()));
    }
}

/// Starts the daemon with a fixed environment, overridden by the options.
fn launch(dir: &Path, options: &BrokerOptions) -> Terminal {
    let at = |name: &str| dir.join(name).display().to_string();
    let mut arguments = kernel::prefix(options.kernel);
    if let Some(uid) = options.uid {
        arguments.extend(["/usr/bin/env".to_owned(), "setpriv".to_owned(), "--clear-groups".to_owned()]);
        arguments.extend([format!("--reuid={uid}"), format!("--regid={uid}")]);
    }
    arguments.push(original().map_or_else(|| at("sudo-proxy"), |path| path.display().to_string()));
    if !options.default_socket {
        arguments.extend(["--socket".to_owned(), at("run/sudo-proxy.sock")]);
    }
    arguments.extend(options.flags.iter().cloned());
    let (owner_name, owner_value) = owner();
    let mut environment = vec![
        ("PATH".to_owned(), "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin".to_owned()),
        ("HOME".to_owned(), at("home")),
        ("XDG_RUNTIME_DIR".to_owned(), at("run")),
        ("XDG_STATE_HOME".to_owned(), at("state")),
        ("XDG_CONFIG_HOME".to_owned(), at("config")),
        ("TERM".to_owned(), "xterm".to_owned()),
        ("LANG".to_owned(), "C.UTF-8".to_owned()),
        ("NO_COLOR".to_owned(), "1".to_owned()),
        ("OUTPOST_TEST_DAEMON".to_owned(), dir.display().to_string()),
        (owner_name.to_owned(), owner_value),
    ];
    for (name, value) in &options.env {
        environment.retain(|(known, _)| known != name);
        environment.extend(value.clone().map(|value| (name.clone(), value)));
    }
    Terminal::start(&arguments, &environment, &at("work"))
}
