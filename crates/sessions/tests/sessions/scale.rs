//! Many sessions and many streams.

use crate::kit::{Host, delta_numbers, kinds, terminal_event};
use serde_json::json;

#[test]
fn five_thousand_sessions_are_counted_listed_and_survive() {
    let host = Host::start();
    let client = host.client();
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| (0..625).for_each(|_| drop(host.create())));
        }
    });
    let health = client.result("health.check", json!({}));
    assert_eq!((&health["sessions"], &health["sessionsByStatus"]), (&json!(5000), &json!({ "idle": 5000 })));
    // The size of the response does not depend on the number of sessions.
    let text = health.to_string();
    assert!(text.len() < 2000, "{text}");
    let listed = client.result("session.list", json!({}));
    assert_eq!(listed["sessions"].as_array().unwrap().len(), 5000);
    assert_eq!(client.result("monitor.sessions", json!({}))["totalSessions"], 5000);
    let id = listed["sessions"][4999]["sessionId"].as_str().unwrap().to_owned();
    let mut running = host.run(&id, &["init", "wait @go", "result"]);
    running.event();
    let health = client.result("health.check", json!({}));
    assert_eq!(health["sessionsByStatus"], json!({ "idle": 4999, "busy": 1 }));
    host.touch("go");
    running.rest();
    let (code, text) = client.error("session.create", json!({ "path": "/absent" }));
    assert_eq!(code, -32000, "{text}");
}

#[test]
fn the_operator_limits_the_number_of_sessions() {
    let host = Host::start_with("[sessions]\nsessions_max = 2\n", &[]);
    let (id, _) = (host.create(), host.create());
    let params = json!({ "path": host.path("project") });
    let (code, text) = host.client().error("session.create", params);
    assert!(code == -32000 && text.contains("Too many sessions"), "{text}");
    host.client().result("session.destroy", json!({ "sessionId": id }));
    host.create();
}

#[test]
fn concurrent_streams_are_all_complete() {
    let host = Host::start();
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let id = host.create();
                let all = host.run(&id, &["init", "count 1 3000", "result"]).rest();
                assert_eq!(terminal_event(&all, 1)["type"], "result");
                assert_eq!(delta_numbers(&all), (1..=3000).collect::<Vec<u64>>());
            });
        }
    });
}

#[test]
fn a_cli_that_hangs_in_version_delays_no_other_session() {
    let host = Host::start_with("", &[("FAKE_AGENT_MUTE", "1")]);
    let id = host.create_with(json!({ "cli_type": "codex" }));
    let mut stream = host.run(&id, &["exit 3"]);
    let other = host.create();
    assert_eq!(kinds(&host.run(&other, &["result"]).rest()), ["result"]);
    assert_eq!(host.client().result("health.check", json!({}))["ok"], true);
    // Without a version, the daemon uses the non-interactive interface.
    assert_eq!(terminal_event(&stream.rest(), 1)["exitCode"], 3);
}
