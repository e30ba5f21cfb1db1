//! Test clients of `outpost mcp`: rmcp's client, and a raw line client.

use outpost_sys::epoll::wait_readable;
use outpost_testkit::{Broker, BrokerOptions, binary_beside};
use rmcp::model::{
    CallToolRequestParams, CallToolResult, ClientCapabilities, ClientConfig, Implementation,
    ProgressNotificationParam, ProtocolVersion,
};
use rmcp::service::{NotificationContext, RoleClient, RunningService};
use rmcp::transport::TokioChildProcess;
use rmcp::{ClientHandler, ClientLifecycleMode, ClientServiceExt};
use serde_json::{Value, json};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc;
use std::time::Duration;
use tokio::sync::mpsc as queue;

/// Time limit for every wait.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(60);

pub(crate) fn broker() -> Broker {
    Broker::start(&BrokerOptions::default())
}

pub(crate) fn outpost() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    // Tests are in `deps`, binaries in its parent.
    binary_beside(&test.parent().unwrap().parent().unwrap().join("tests"), "outpost")
}

fn mcp(socket: &Path) -> Command {
    let mut command = Command::new(outpost());
    command.args(["mcp", "--socket"]).arg(socket).env_remove("OUTPOST_LOG");
    command
}

/// Arguments for an unprivileged shell script.
pub(crate) fn sh(script: &str) -> Value {
    json!({"argv": ["sh", "-c", script], "reason": "a test", "privileged": false})
}

/// The arguments with these replaced or added.
pub(crate) fn with(mut arguments: Value, more: Value) -> Value {
    for (name, value) in more.as_object().unwrap() {
        arguments[name] = value.clone();
    }
    arguments
}

/// The handler of rmcp's client. It forwards progress notifications.
pub(crate) struct Listener {
    progress: queue::UnboundedSender<ProgressNotificationParam>,
}

impl ClientHandler for Listener {
    fn get_info(&self) -> ClientConfig {
        ClientConfig::new(ClientCapabilities::default(), Implementation::new("the-tests", "7.0"))
    }

    async fn on_progress(
        &self,
        progress: ProgressNotificationParam,
        _context: NotificationContext<RoleClient>,
    ) {
        let _closed = self.progress.send(progress);
    }
}

pub(crate) struct Client {
    pub(crate) service: RunningService<RoleClient, Listener>,
    pub(crate) progress: queue::UnboundedReceiver<ProgressNotificationParam>,
}

impl Client {
    /// With the `initialize` handshake.
    pub(crate) async fn start(socket: &Path) -> Client {
        Client::start_in(socket, ClientLifecycleMode::Initialize).await
    }

    /// With `server/discover`, since 2026.
    pub(crate) async fn start_modern(socket: &Path) -> Client {
        let preferred_versions = vec![ProtocolVersion::V_2026_07_28];
        Client::start_in(socket, ClientLifecycleMode::Discover { preferred_versions }).await
    }

    async fn start_in(socket: &Path, mode: ClientLifecycleMode) -> Client {
        let transport = TokioChildProcess::new(tokio::process::Command::from(mcp(socket))).unwrap();
        let (sender, progress) = queue::unbounded_channel();
        let service = Listener { progress: sender }.serve_with_lifecycle(transport, mode).await.unwrap();
        Client { service, progress }
    }

    /// Calls `execute` in a task.
    pub(crate) fn execute(&self, arguments: Value) -> Call {
        let peer = self.service.peer().clone();
        Call(tokio::spawn(async move {
            let params = CallToolRequestParams::new("execute").with_arguments(object(arguments));
            let called = tokio::time::timeout(TIMEOUT, peer.call_tool(params)).await;
            called.expect("no result in time").unwrap()
        }))
    }

    pub(crate) async fn status(&self) -> CallToolResult {
        self.service.call_tool(CallToolRequestParams::new("status")).await.unwrap()
    }
}

pub(crate) fn object(value: Value) -> rmcp::model::JsonObject {
    match value {
        Value::Object(object) => object,
        other => panic!("not an object: {other}"),
    }
}

pub(crate) struct Call(tokio::task::JoinHandle<CallToolResult>);

impl Call {
    pub(crate) async fn result(self) -> ToolResult {
        ToolResult::of(self.0.await.unwrap())
    }
}

/// The parts of a tool result.
#[derive(Debug)]
pub(crate) struct ToolResult {
    pub(crate) is_error: bool,
    pub(crate) text: String,
    pub(crate) fields: Value,
}

impl ToolResult {
    pub(crate) fn of(result: CallToolResult) -> ToolResult {
        let text = result.content.first().unwrap().as_text().unwrap().text.clone();
        let fields = result.structured_content.unwrap_or_default();
        ToolResult { is_error: result.is_error.unwrap(), text, fields }
    }
}

/// A client that sends and receives raw lines.
pub(crate) struct Lines {
    child: Child,
    stdin: Option<ChildStdin>,
    lines: mpsc::Receiver<String>,
}

impl Lines {
    pub(crate) fn start(socket: &Path) -> Lines {
        Lines::launch(mcp(socket))
    }

    pub(crate) fn launch(mut command: Command) -> Lines {
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        let (sender, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let _closed = sender.send(line);
            }
        });
        let stdin = child.stdin.take();
        Lines { child, stdin, lines }
    }

    /// A client after the `initialize` handshake.
    pub(crate) fn initialized(socket: &Path) -> Lines {
        let mut client = Lines::start(socket);
        client.initialize("2025-06-18");
        client.send(&json!({"jsonrpc": "2.0", "method": "notifications/initialized"}));
        client
    }

    pub(crate) fn initialize(&mut self, version: &str) -> Value {
        self.send(&json!({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": {
            "protocolVersion": version, "capabilities": {}, "clientInfo": {"name": "lines", "version": "1"},
        }}));
        self.next()
    }

    pub(crate) fn send(&mut self, message: &Value) {
        self.send_raw(&format!("{message}\n"));
    }

    pub(crate) fn send_raw(&mut self, bytes: &str) {
        self.stdin.as_mut().unwrap().write_all(bytes.as_bytes()).unwrap();
    }

    pub(crate) fn call(&mut self, id: u64, tool: &str, arguments: &Value) {
        let params = json!({"name": tool, "arguments": arguments});
        self.send(&json!({"jsonrpc": "2.0", "id": id, "method": "tools/call", "params": params}));
    }

    pub(crate) fn next_line(&mut self) -> String {
        self.lines.recv_timeout(TIMEOUT).expect("no line in time")
    }

    pub(crate) fn next(&mut self) -> Value {
        serde_json::from_str(&self.next_line()).unwrap()
    }

    /// Closes the server's standard input and waits for its exit.
    pub(crate) fn close(mut self, timeout: Duration) -> ExitStatus {
        let pidfd = outpost_testkit::process(self.child.id().cast_signed()).unwrap();
        drop(self.stdin.take());
        assert!(wait_readable(&pidfd, timeout).unwrap(), "still running");
        self.child.wait().unwrap()
    }
}

impl Drop for Lines {
    fn drop(&mut self) {
        let _exited = self.child.kill();
        let _reaped = self.child.wait();
    }
}
