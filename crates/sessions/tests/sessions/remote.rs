//! Remote clients: HTTPS with a known certificate and a token. The daemon runs in its own network namespace.

use crate::kit::{Host, outpost};
use outpost_testkit::{Half, Lack, require};
use serde_json::{Value, json};
use std::process::{Command, Output, Stdio};

/// An address of TEST-NET-1, on the loopback interface of the daemon's namespace.
const ADDRESS: &str = "192.0.2.1";

struct RemoteHost {
    host: Host,
}

impl RemoteHost {
    fn start() -> Result<RemoteHost, Lack> {
        outpost_testkit::root()?;
        let mut serve = Command::new("unshare");
        let own = format!("ip link set lo up && ip address add {ADDRESS}/32 dev lo && exec \"$0\" \"$@\"");
        serve.args(["--net", "sh", "-c", &own]).arg(outpost());
        let listen = format!("--sessions-listen={ADDRESS}:0");
        Ok(RemoteHost { host: Host::start_by(serve, &[&listen]) })
    }

    /// Sends a request from inside the namespace, trusting `tls-cert.pem`.
    fn curl(&self, scheme: &str, token: Option<&str>, more: &[&str]) -> Output {
        let port = std::fs::read_to_string(self.host.path("run/sessions.port")).unwrap();
        let network = format!("--net=/proc/{}/ns/net", self.host.daemon().status().worker_pid);
        let mut curl = Command::new("nsenter");
        curl.args([&network, "curl", "--silent", "--show-error", "--max-time", "60", "--cacert"]);
        curl.arg(self.host.path("state/tls-cert.pem"));
        // In a file, because arguments are visible in the list of processes.
        if let Some(token) = token {
            let file = self.host.path("header");
            std::fs::write(&file, format!("authorization: Bearer {token}\n")).unwrap();
            curl.arg("--header").arg(format!("@{}", file.display()));
        }
        curl.args(["--write-out", "\n%{http_code}"]).args(more);
        curl.arg(format!("{scheme}://{ADDRESS}:{}/rpc", port.trim()));
        curl.stdin(Stdio::null()).output().unwrap()
    }

    /// The status and the body of the response.
    fn call(&self, token: Option<&str>, request: &Value) -> (String, String) {
        let body = request.to_string();
        let done =
            self.curl("https", token, &["--header", "content-type: application/json", "--data", &body]);
        assert!(done.status.success(), "{done:?}");
        let text = String::from_utf8(done.stdout).unwrap();
        let (answer, status) = text.rsplit_once('\n').unwrap();
        (status.to_owned(), answer.to_owned())
    }

    fn token(&self, arguments: &[&str]) -> String {
        let done = self.host.outpost(&[&["token"], arguments].concat());
        assert!(done.status.success(), "{done:?}");
        String::from_utf8(done.stdout).unwrap().trim().to_owned()
    }
}

fn health() -> Value {
    json!({ "method": "health.check" })
}

#[test]
fn a_token_is_valid_until_it_is_revoked() {
    let remote = require!(RemoteHost::start());
    assert_eq!(remote.call(None, &health()).0, "401");
    assert_eq!(remote.call(Some("guess"), &health()).0, "401");
    let token = remote.token(&["create", "laptop"]);
    let (status, answer) = remote.call(Some(&token), &health());
    assert!(status == "200" && answer.contains("\"ok\":true"), "{status} {answer}");
    assert!(remote.token(&["list"]).contains("laptop"));
    // The next worker has the same port, certificate and tokens.
    remote.host.daemon().kill(Half::Worker);
    assert_eq!(remote.call(Some(&token), &health()).0, "200");
    remote.token(&["revoke", "laptop"]);
    assert_eq!(remote.call(Some(&token), &health()).0, "401");
    let log = std::fs::read_to_string(remote.host.path("log")).unwrap();
    assert!(!log.contains(&token), "the log contains a token");
}

#[test]
fn turns_are_streamed_over_tls_and_plain_http_is_refused() {
    let remote = require!(RemoteHost::start());
    let token = remote.token(&["create", "laptop"]);
    let create = json!({ "method": "session.create", "params": { "path": remote.host.path("project") } });
    let (_, answer) = remote.call(Some(&token), &create);
    let answer: Value = serde_json::from_str(&answer).unwrap();
    let script = remote.host.script(&["init", "count 1 3", "result"]);
    let params = json!({ "sessionId": answer["result"]["sessionId"], "message": script });
    let (status, events) = remote.call(Some(&token), &json!({ "method": "session.send", "params": params }));
    assert!(status == "200" && events.ends_with("data: [DONE]\n\n"), "{events}");
    assert_eq!(events.matches("\"type\":\"partial\"").count(), 3, "{events}");
    let open = remote.curl("http", Some(&token), &[]);
    assert!(!open.status.success(), "{open:?}");
}
