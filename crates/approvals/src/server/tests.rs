//! Lists in parts, silent connections, and connections whose statements do not count.

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
fn questions_that_do_not_fit_into_a_line_are_told_in_several() {
    assert_eq!(in_parts(Vec::new()), [Vec::new()]);
    let sizes = [1, 1, QUESTIONS_BYTES_MAX * 2, 1, QUESTIONS_BYTES_MAX / 2, QUESTIONS_BYTES_MAX / 2, 1];
    let all: Vec<Question> = sizes.iter().enumerate().map(|(id, bytes)| question(id, *bytes)).collect();
    let parts = in_parts(all.clone());
    let counts: Vec<usize> = parts.iter().map(Vec::len).collect();
    assert_eq!(counts, [2, 1, 2, 2]);
    assert_eq!(parts.concat(), all);
}

/// A daemon's approver socket in a directory.
async fn serving() -> (crate::kit::Site, std::path::PathBuf) {
    let site = crate::kit::Site::new().await;
    let socket = site.dir.path().join("s");
    tokio::spawn(serve(UnixListener::bind(&socket).unwrap(), site.approvals.clone()));
    (site, socket)
}

#[tokio::test]
async fn silent_connections_do_not_keep_an_approver_out() {
    let (_site, socket) = serving().await;
    let mut silent = Vec::new();
    for _ in 0..3 * CONNECTIONS_PER_USER_MAX {
        silent.push(outpost_wire::connect(&socket, Trust::Own).unwrap());
    }
    let patience = std::time::Duration::from_secs(20);
    let mut first = crate::Client::connect(&socket, Trust::Own).await.unwrap();
    let hello = tokio::time::timeout(patience, first.hello("test"));
    hello.await.expect("the socket is blocked").unwrap();
    // Those in use are not ended for it.
    let mut used = vec![first];
    for _ in 1..CONNECTIONS_PER_USER_MAX {
        let mut client = crate::Client::connect(&socket, Trust::Own).await.unwrap();
        client.hello("test").await.unwrap();
        used.push(client);
    }
    let refused = crate::Client::connect(&socket, Trust::Own).await.unwrap().hello("test").await.unwrap_err();
    assert!(refused.to_string().contains("too many connections of this user"), "{refused}");
    used.pop().unwrap().hello("test").await.unwrap();
}

#[tokio::test]
async fn a_connection_whose_statements_do_not_count_is_ended() {
    let (site, socket) = serving().await;
    let mut client = crate::Client::connect(&socket, Trust::Own).await.unwrap();
    let wrong = Request::Decide { statement: "AAAA".into(), signature: "AAAA".into() };
    for _ in 0..REFUSED_MAX {
        assert!(matches!(client.ask(&wrong).await, Err(Error::Refused(_))));
    }
    assert!(matches!(client.ask(&wrong).await, Err(Error::Stopped)));
    assert_eq!(site.recorded("refused").len(), REFUSED_MAX);
}
