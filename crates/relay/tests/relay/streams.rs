//! Streams over worker crashes and over the journal cap.

use outpost_testkit::{Half, Relay, RelayClient};

/// Reads the frames of a process up to its exit. Appends their sequence numbers and decoded data.
fn read_to_exit(client: &mut RelayClient, seqs: &mut Vec<u64>, bytes: &mut Vec<u8>) -> Option<i64> {
    loop {
        let line = client.try_line()?;
        let frame: serde_json::Value = serde_json::from_str(&line).unwrap();
        if frame.get("type").is_none() {
            continue;
        }
        seqs.push(frame["seq"].as_u64().unwrap());
        if frame["stream"] == "exit" {
            return frame["exitCode"].as_i64();
        }
        let data = frame["data"].as_str().unwrap();
        bytes.extend(outpost_wire::base64::decode(data.as_bytes()).unwrap());
    }
}

#[test]
fn three_clients_read_identical_bytes_over_killed_workers() {
    let relay = Relay::start();
    let script = "i=0; while [ $i -lt 20000 ]; do echo line $i of some output; i=$((i+1)); done";
    let params = format!(r#"{{"id":"p","command":"/bin/sh","args":["-c","{script}"]}}"#);
    relay.connect().call("process.spawn", &params);
    let expected: String = (0..20000).map(|i| format!("line {i} of some output\n")).collect();
    let readers: Vec<_> = (0..3)
        .map(|_| {
            let socket = relay.socket();
            std::thread::spawn(move || {
                let (mut seqs, mut bytes, mut reconnects) = (Vec::new(), Vec::new(), 0);
                loop {
                    let mut client = RelayClient::connect(&socket);
                    let from = seqs.last().copied().unwrap_or(0);
                    // The worker may be killed between the accept and the request.
                    let params = format!(r#"{{"id":"p","fromSeq":{from}}}"#);
                    if client.try_request("process.reattach", &params).is_ok()
                        && let Some(code) = read_to_exit(&mut client, &mut seqs, &mut bytes)
                    {
                        return (code, seqs, bytes, reconnects);
                    }
                    reconnects += 1;
                }
            })
        })
        .collect();
    for _ in 0..5 {
        relay.kill(Half::Worker);
    }
    for reader in readers {
        let (code, seqs, bytes, _) = reader.join().unwrap();
        assert_eq!(code, 0);
        assert!(seqs.iter().copied().eq(1..=seqs.len() as u64), "a sequence number is missing or duplicate");
        assert!(bytes == expected.as_bytes(), "{} bytes instead of {}", bytes.len(), expected.len());
    }
}

#[test]
fn first_seq_rises_when_the_journal_cap_is_reached() {
    const BYTES: u64 = 64 * 1024 * 1024;
    let relay = Relay::prepare();
    relay.serve(&["-journal-bytes", "16777216"]);
    let mut client = relay.connect();
    // No client follows the process: the engine would hold back output for a reader that keeps up.
    let params = format!(r#"{{"id":"p","command":"/bin/sh","args":["-c","head -c {BYTES} /dev/zero"]}}"#);
    client.call("process.spawn", &params);
    drop(client);
    let ended = |relay: &Relay| relay.status().is_some_and(|status| status.running == 0);
    let begun = std::time::Instant::now();
    while !ended(&relay) {
        assert!(begun.elapsed() < std::time::Duration::from_secs(60), "the process does not exit");
        outpost_testkit::pause();
    }
    let mut client = relay.connect();
    let (reply, frames) = client.call_with_frames("process.reattach", r#"{"id":"p","fromSeq":0}"#);
    let reply: serde_json::Value = serde_json::from_str(&format!("{{{reply}}}")).unwrap();
    let first_seq = reply["result"]["firstSeq"].as_u64().unwrap();
    let last_seq = reply["result"]["lastSeq"].as_u64().unwrap();
    assert!(first_seq > 1, "nothing was dropped: {reply}");
    let seqs = frames.iter().map(|frame| {
        let frame: serde_json::Value = serde_json::from_str(frame).unwrap();
        frame["seq"].as_u64().unwrap()
    });
    assert!(seqs.eq(first_seq..=last_seq), "the frames differ from firstSeq..=lastSeq");
    let journal = std::fs::read_dir(relay.path("state/relay")).unwrap().flatten().next().unwrap().path();
    let kept: u64 = disk_usage(&journal);
    assert!(kept < BYTES / 2, "{kept} bytes are on disk");
}

/// Total size of the files in a tree.
fn disk_usage(dir: &std::path::Path) -> u64 {
    let entries = std::fs::read_dir(dir).unwrap().flatten();
    entries
        .map(|entry| match entry.metadata() {
            Ok(found) if found.is_dir() => disk_usage(&entry.path()),
            Ok(found) => found.len(),
            Err(_) => 0,
        })
        .sum()
}
