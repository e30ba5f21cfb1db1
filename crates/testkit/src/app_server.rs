//! A real `outpost app-server` on pipes of its own, a client that sees every line, and the end of both when the test is over.
//!
//! With `OUTPOST_EXEC_PEER` set to the path of the original (`codex`, 0.124.0), the same tests run against it: that is how
//! their expectations are checked. What we do otherwise on purpose is skipped then, by [`AppServer::is_original`].

use crate::daemon::{TIMEOUT, binary_beside, kill_marked, owner};
use crate::kernel;
use outpost_sys::epoll::wait_readable;
use outpost_sys::pidfd;
use outpost_sys::signal::Signal;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Configuration of the original when it replaces ours: no network beyond loopback, no updates.
const ORIGINAL_CONFIG: &str =
    "check_for_update_on_startup = false\n[analytics]\nenabled = false\n[features]\nplugins = false\n";

/// How a server is started. The defaults are those of most tests.
#[derive(Clone, Default)]
pub struct Options {
    /// Where it runs; a directory of its own otherwise, which is not below `/tmp`.
    pub cwd: Option<PathBuf>,
    /// Over the environment of the test; `None` unsets.
    pub env: Vec<(String, Option<String>)>,
    /// As another user; only root can.
    pub uid: Option<u32>,
    /// As on an older kernel: 6.8, 6.1 or 5.10.
    pub kernel: Option<&'static str>,
    /// Behind `app-server`.
    pub arguments: Vec<String>,
}

impl Options {
    pub fn env(mut self, name: &str, value: &str) -> Options {
        self.env.push((name.into(), Some(value.into())));
        self
    }

    pub fn without_env(mut self, name: &str) -> Options {
        self.env.push((name.into(), None));
        self
    }

    pub fn uid(mut self, uid: u32) -> Options {
        self.uid = Some(uid);
        self
    }

    pub fn kernel(mut self, kernel: &'static str) -> Options {
        self.kernel = Some(kernel);
        self
    }

    pub fn cwd(mut self, cwd: &Path) -> Options {
        self.cwd = Some(cwd.to_owned());
        self
    }
}

/// One notification of output.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delta {
    pub stream: String,
    pub bytes: Vec<u8>,
    pub cap_reached: bool,
}

pub struct AppServer {
    child: Child,
    /// To the thread that writes: a client that waits for room in a pipe must still read, or both wait for ever.
    stdin: Option<mpsc::Sender<Vec<u8>>>,
    stdout: ChildStdout,
    buffer: Vec<u8>,
    last_id: u64,
    /// Replies that the test has not consumed yet, by their ids as JSON.
    replies: BTreeMap<String, String>,
    deltas: BTreeMap<String, Vec<Delta>>,
    /// Every line that came, in order.
    lines: Vec<String>,
    /// Last field: dropped after the processes that use it.
    dir: TempDir,
}

/// The path of the original, when the tests are to run against it.
fn original() -> Option<PathBuf> {
    std::env::var_os("OUTPOST_EXEC_PEER").filter(|path| !path.is_empty()).map(PathBuf::from)
}

impl AppServer {
    /// Whether tests talk to the original instead of to us.
    pub fn is_original() -> bool {
        original().is_some()
    }

    /// Started, with the handshake behind it.
    pub fn start(options: &Options) -> AppServer {
        let mut server = AppServer::launch(options);
        server.initialize();
        server
    }

    /// Started, without the handshake.
    pub fn launch(options: &Options) -> AppServer {
        // Below /tmp everything is writable for a workspace policy, and the original makes no helper there.
        let dir = tempfile::Builder::new().prefix("outpost-exec-").tempdir_in("/var/tmp").unwrap();
        let home = dir.path().join("home");
        std::fs::create_dir(&home).unwrap();
        std::fs::create_dir(dir.path().join("cwd")).unwrap();
        let program = match original() {
            Some(path) => {
                std::fs::write(home.join("config.toml"), ORIGINAL_CONFIG).unwrap();
                path
            }
            None => {
                let ours = std::env::current_exe().unwrap();
                // A test is in `deps`, the programs are one up.
                binary_beside(&ours.parent().unwrap().parent().unwrap().join("tests"), "outpost")
            }
        };
        let mut command = match options.uid {
            None => kernel::command(options.kernel, &program),
            Some(uid) => {
                for path in [dir.path(), &home, &dir.path().join("cwd"), &home.join("config.toml")] {
                    let _missing = std::os::unix::fs::chown(path, Some(uid), Some(uid));
                }
                let mut command = kernel::command(options.kernel, Path::new("setpriv"));
                command.args([format!("--reuid={uid}"), format!("--regid={uid}"), "--clear-groups".into()]);
                command.arg(&program);
                command
            }
        };
        let owner = owner();
        command
            .arg("app-server")
            .args(&options.arguments)
            .current_dir(options.cwd.clone().unwrap_or_else(|| dir.path().join("cwd")))
            .env("PATH", "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin")
            .env("HOME", &home)
            .env("CODEX_HOME", &home)
            .env("OUTPOST_STATE_DIR", dir.path().join("state"))
            .env("OUTPOST_TEST_DAEMON", dir.path())
            .env(owner.0, owner.1)
            .env_remove("TMPDIR")
            .env_remove("OUTPOST_EXEC_PEER");
        for (name, value) in &options.env {
            match value {
                Some(value) => command.env(name, value),
                None => command.env_remove(name),
            };
        }
        let log = std::fs::File::create(dir.path().join("log")).unwrap();
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(log).process_group(0);
        let mut child = command.spawn().unwrap_or_else(|error| panic!("{}: {error}", program.display()));
        let mut pipe = child.stdin.take().unwrap();
        let (stdin, writes) = mpsc::channel::<Vec<u8>>();
        std::thread::spawn(move || {
            for bytes in writes {
                // A server that is gone reads no more; the test sees that by missing replies.
                if pipe.write_all(&bytes).is_err() {
                    break;
                }
            }
        });
        AppServer {
            stdout: child.stdout.take().unwrap(),
            child,
            stdin: Some(stdin),
            buffer: Vec::new(),
            last_id: 0,
            replies: BTreeMap::new(),
            deltas: BTreeMap::new(),
            lines: Vec::new(),
            dir,
        }
    }

    /// The directory that has everything of this server, its home among it.
    pub fn dir(&self) -> &Path {
        self.dir.path()
    }

    pub fn home(&self) -> PathBuf {
        self.dir().join("home")
    }

    /// Where it runs when nothing else was asked for.
    pub fn cwd(&self) -> PathBuf {
        self.dir().join("cwd")
    }

    pub fn pid(&self) -> i32 {
        self.child.id().cast_signed()
    }

    pub fn log(&self) -> String {
        std::fs::read_to_string(self.dir().join("log")).unwrap_or_default()
    }

    /// The reply to a plain `initialize`, which must succeed.
    pub fn initialize(&mut self) -> String {
        let reply =
            self.call("initialize", &json!({"clientInfo": {"name": "tests", "title": null, "version": "1"}}));
        assert!(reply.contains(r#""result":{"#), "{reply}; log: {}", self.log());
        self.send("{\"method\":\"initialized\"}\n");
        reply
    }

    /// Bytes as they are. Never waits.
    pub fn send(&mut self, bytes: impl AsRef<[u8]>) {
        let stdin = self.stdin.as_ref().expect("input was closed");
        let _gone = stdin.send(bytes.as_ref().to_vec());
    }

    /// Sends a request under the next number; returns the number.
    pub fn request(&mut self, method: &str, params: &Value) -> u64 {
        self.last_id += 1;
        let id = self.last_id;
        self.send(json!({"id": id, "method": method, "params": params}).to_string() + "\n");
        id
    }

    /// Sends a request and returns the whole line of its reply.
    pub fn call(&mut self, method: &str, params: &Value) -> String {
        let id = self.request(method, params);
        self.reply(id)
    }

    /// `command/exec`; the members of its result.
    pub fn exec(&mut self, params: &Value) -> Value {
        let reply = self.call("command/exec", params);
        let mut reply: Value = serde_json::from_str(&reply).unwrap();
        assert!(reply.get("result").is_some(), "{params}: {reply}; log: {}", self.log());
        reply["result"].take()
    }

    /// The line of a reply, which may have come already.
    pub fn reply(&mut self, id: u64) -> String {
        self.reply_to(&id.to_string())
    }

    /// The same for an id of any kind, as JSON.
    pub fn reply_to(&mut self, id: &str) -> String {
        let begun = Instant::now();
        loop {
            if let Some(line) = self.replies.remove(id) {
                return line;
            }
            let timeout = TIMEOUT.saturating_sub(begun.elapsed());
            if self.next_within(timeout).is_none() {
                panic!("no reply to {id}; lines: {:?}; log: {}", self.lines, self.log());
            }
        }
    }

    /// Whether the reply has come, without reading anything more.
    pub fn has_reply(&self, id: u64) -> bool {
        self.replies.contains_key(&id.to_string())
    }

    /// The next line of any kind, which must come.
    pub fn line(&mut self) -> String {
        let Some(line) = self.next_within(TIMEOUT) else {
            panic!("nothing comes; lines: {:?}; log: {}", self.lines, self.log());
        };
        // A reply is consumed once.
        self.replies.retain(|_, reply| *reply != line);
        line
    }

    /// The next line of any kind; none when time is up or the server has closed its output.
    pub fn next_within(&mut self, timeout: Duration) -> Option<String> {
        let begun = Instant::now();
        let mut searched = 0;
        let end = loop {
            let rest = self.buffer.get(searched..).unwrap_or_default();
            if let Some(end) = memchr::memchr(b'\n', rest) {
                break searched + end;
            }
            searched = self.buffer.len();
            if !wait_readable(&self.stdout, timeout.saturating_sub(begun.elapsed())).unwrap() {
                return None;
            }
            let mut piece = vec![0; 256 * 1024];
            match self.stdout.read(&mut piece).unwrap() {
                0 => return None,
                read => self.buffer.extend_from_slice(piece.get(..read).unwrap()),
            }
        };
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        let line = String::from_utf8(line).unwrap().trim_end_matches('\n').to_owned();
        self.sort(&line);
        self.lines.push(line.clone());
        Some(line)
    }

    /// Remembers what a line is.
    fn sort(&mut self, line: &str) {
        let message: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{line:?}: {error}"));
        if message["method"] == "command/exec/outputDelta" {
            let params = &message["params"];
            let text = |name: &str| params[name].as_str().unwrap_or_else(|| panic!("{line}")).to_owned();
            let bytes = outpost_wire::base64::decode(text("deltaBase64").as_bytes()).unwrap();
            let cap_reached = params["capReached"].as_bool().unwrap();
            let delta = Delta { stream: text("stream"), bytes, cap_reached };
            self.deltas.entry(text("processId")).or_default().push(delta);
        } else if let Some(id) = message.get("id") {
            self.replies.insert(id.to_string(), line.to_owned());
        }
    }

    /// Every line so far.
    pub fn lines(&self) -> &[String] {
        &self.lines
    }

    /// What came of a command so far.
    pub fn deltas(&self, process: &str) -> &[Delta] {
        self.deltas.get(process).map_or(&[], Vec::as_slice)
    }

    /// All bytes of a stream so far.
    pub fn output(&self, process: &str, stream: &str) -> Vec<u8> {
        let deltas = self.deltas(process).iter().filter(|delta| delta.stream == stream);
        deltas.flat_map(|delta| delta.bytes.clone()).collect()
    }

    /// The same as text, whatever its bytes are.
    pub fn text(&self, process: &str, stream: &str) -> String {
        String::from_utf8_lossy(&self.output(process, stream)).into_owned()
    }

    /// Reads until standard output of a command holds this text.
    pub fn wait_output(&mut self, process: &str, wanted: &str) {
        let begun = Instant::now();
        while !self.text(process, "stdout").contains(wanted) {
            let timeout = TIMEOUT.saturating_sub(begun.elapsed());
            assert!(
                self.next_within(timeout).is_some(),
                "{process} never wrote {wanted:?}, but {:?}; lines: {:?}",
                self.text(process, "stdout"),
                self.lines
            );
        }
    }

    /// Ends the input. The server is expected to end, too.
    pub fn close(&mut self) {
        self.stdin = None;
    }

    /// How the server ended, which it must do within reason.
    pub fn wait(&mut self) -> ExitStatus {
        let process = crate::process(self.pid()).unwrap();
        assert!(wait_readable(&process, TIMEOUT).unwrap(), "the server still runs; log: {}", self.log());
        self.child.wait().unwrap()
    }

    /// `kill -9`.
    pub fn kill(&mut self) {
        pidfd::signal(crate::process(self.pid()).unwrap(), Signal::KILL).unwrap();
    }
}

impl Drop for AppServer {
    fn drop(&mut self) {
        self.stdin = None;
        let _gone = self.child.kill();
        let _reaped = self.child.wait();
        // Halves of ours that live apart, and commands of either that nothing else ends.
        kill_marked(&format!("OUTPOST_TEST_DAEMON={}", self.dir().display()));
    }
}
