//! A fake model API that follows directives in prompts, for agent CLIs that must not leave the host.
//!
//! It speaks Anthropic's Messages, OpenAI's Responses and Chat Completions, and Gemini's, each whole and streamed. The last
//! prompt may hold directives ([`Model`] lists them); without one it is echoed in several deltas, and the result of a tool is
//! answered with `Tool returned: <result>. Done.`.

mod anthropic;
mod chat;
mod conversation;
mod directive;
mod gemini;
mod plan;
mod responses;
mod serve;
mod shape;
#[cfg(test)]
mod tests;

use crate::daemon::TIMEOUT;
use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::net::{SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Instant, SystemTime, UNIX_EPOCH};
use tokio::sync::oneshot;

/// One request as it came.
#[derive(Clone, Debug, Serialize)]
pub struct Received {
    pub method: String,
    /// With its query.
    pub path: String,
    pub headers: Vec<(String, String)>,
    /// Null where it was no JSON.
    pub body: Value,
}

impl Received {
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.iter().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

/// A fake model on a port of loopback, with a thread of its own; gone when dropped.
///
/// Directives: `[[sh: CMD]]`, `[[write: PATH | TEXT]]` and `[[call: TOOL {json}]]` call tools, all of a prompt in one answer.
/// `[[text: T]]`, `[[history]]`, `[[slow: N SECS]]` and `[[think]]` shape the text. `[[hang: SECS]]`, `[[status: CODE]]`,
/// `[[flaky: CODE K]]`, `[[cut]]` and `[[sseerror]]` are failures. A model with `no-such` in its name does not exist, and
/// a key with `bad` in it is wrong.
pub struct Model {
    address: SocketAddr,
    shared: Arc<Shared>,
    stop: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

struct Shared {
    received: Mutex<Vec<Received>>,
    news: Condvar,
    tries: Mutex<HashMap<String, u32>>,
    /// A session outlives a model, and no id may come twice in it.
    ids: AtomicU64,
}

impl Shared {
    fn remember(&self, request: Received) {
        self.received.lock().unwrap_or_else(PoisonError::into_inner).push(request);
        self.news.notify_all();
    }

    /// For `GET /__requests`.
    fn received_as_json(&self) -> Value {
        json!(*self.received.lock().unwrap_or_else(PoisonError::into_inner))
    }

    fn next_id(&self) -> String {
        format!("{:x}", self.ids.fetch_add(1, Ordering::Relaxed))
    }
}

impl Model {
    pub fn start() -> Model {
        let listener = TcpListener::bind(("127.0.0.1", 0)).unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap();
        let clock = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_nanos() as u64;
        let shared = Arc::new(Shared {
            received: Mutex::default(),
            news: Condvar::new(),
            tries: Mutex::default(),
            ids: AtomicU64::new(clock),
        });
        let (stop, stopped) = oneshot::channel();
        let thread = std::thread::spawn({
            let shared = shared.clone();
            move || serve::run(listener, &shared, stopped)
        });
        Model { address, shared, stop: Some(stop), thread: Some(thread) }
    }

    pub fn port(&self) -> u16 {
        self.address.port()
    }

    /// Without a path: what Anthropic's and Gemini's clients are given. OpenAI's get `/v1` behind it.
    pub fn url(&self) -> String {
        format!("http://{}", self.address)
    }

    /// Everything that came so far.
    pub fn requests(&self) -> Vec<Received> {
        self.shared.received.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits for a request, which may have come already.
    pub fn wait_request(&self, wanted: impl Fn(&Received) -> bool) -> Received {
        let begun = Instant::now();
        let mut received = self.shared.received.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            if let Some(found) = received.iter().find(|request| wanted(request)) {
                return found.clone();
            }
            let timeout = TIMEOUT.saturating_sub(begun.elapsed());
            assert!(!timeout.is_zero(), "no such request came, but {received:?}");
            received =
                self.shared.news.wait_timeout(received, timeout).unwrap_or_else(PoisonError::into_inner).0;
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        self.stop.take();
        if let Some(thread) = self.thread.take() {
            let _panicked = thread.join();
        }
    }
}
