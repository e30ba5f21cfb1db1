//! Split lists, eviction of idle connections, and disconnection after rejected statements.

use super::*;
use outpost_sys::connect::Trust;

fn question(id: usize, bytes: usize) -> Question {
    Question {
        id: id.to_string(),
        face: String::new(),
        digest: String::new(),
        title: "x".repeat(bytes),
        sections: Vec::new(),
        warnings: Vec::new(),
        privileged: false,
        rememberable: false,
        uid: None,
        asked_ms: 0,
        deadline_ms: 0,
    }
}

#[test]
fn many_questions_are_split_into_several_lines() {
    assert_eq!(split_by_size(Vec::new()), [Vec::new()]);
    let sizes = [1, 1, QUESTIONS_BYTES_MAX * 2, 1, QUESTIONS_BYTES_MAX / 2, QUESTIONS_BYTES_MAX / 2, 1];
    let all: Vec<Question> = sizes.iter().enumerate().map(|(id, bytes)| question(id, *bytes)).collect();
    let parts = split_by_size(all.clone());
    let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
    assert_eq!(counts, [2, 1, 2, 2]);
    assert_eq!(parts.concat(), all);
}

/// Serves an approver socket in a temporary directory.
async fn serve_fixture() -> (crate::kit::Fixture, std::path::PathBuf) {
    let fixture = crate::kit::Fixture::new().await;
    let socket = fixture.dir.path().join("s");
    tokio::spawn(serve(UnixListener::bind(&socket).unwrap(), fixture.approvals.clone()));
    (fixture, socket)
}

#[tokio::test]
async fn idle_connections_do_not_block_an_approver() {
    let (_site, socket) = serve_fixture().await;
    let mut pending = Vec::new();
    for _ in 0..3 * CONNECTIONS_PER_USER_MAX {
        pending.push(outpost_wire::connect(&socket, Trust::Own).unwrap());
    }
    let timeout = std::time::Duration::from_secs(20);
    let mut first = crate::Client::connect(&socket, Trust::Own).await.unwrap();
    let hello = tokio::time::timeout(timeout, first.hello("test"));
    hello.await.expect("the socket is blocked").unwrap();
    // Active connections are not evicted.
    let mut active = vec![first];
    for _ in 1..CONNECTIONS_PER_USER_MAX {
        let mut client = crate::Client::connect(&socket, Trust::Own).await.unwrap();
        client.hello("test").await.unwrap();
        active.push(client);
    }
    let refused = crate::Client::connect(&socket, Trust::Own).await.unwrap().hello("test").await.unwrap_err();
    assert!(refused.to_string().contains("too many connections of this user"), "{refused}");
    active.pop().unwrap().hello("test").await.unwrap();
}

#[tokio::test]
async fn a_connection_is_closed_after_rejected_statements() {
    let (fixture, socket) = serve_fixture().await;
    let mut client = crate::Client::connect(&socket, Trust::Own).await.unwrap();
    let wrong = Request::Decide { statement: "AAAA".into(), signature: "AAAA".into() };
    for _ in 0..REJECTED_STATEMENTS_MAX {
        assert!(matches!(client.ask(&wrong).await, Err(Error::Refused(_))));
    }
    assert!(matches!(client.ask(&wrong).await, Err(Error::Stopped)));
    assert_eq!(fixture.recorded("refused").len(), REJECTED_STATEMENTS_MAX);
}
