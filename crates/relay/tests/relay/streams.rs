//! Processes that are followed, left and found again.

use outpost_testkit::{Relay, RelayClient, Which};

/// Reads frames of a process until its exit; returns their sequence numbers and, decoded, what it wrote.
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
fn three_clients_whose_worker_is_killed_end_with_identical_bytes() {
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
                    client.request("process.reattach", &format!(r#"{{"id":"p","fromSeq":{from}}}"#));
                    if let Some(code) = read_to_exit(&mut client, &mut seqs, &mut bytes) {
                        return (code, seqs, bytes, reconnects);
                    }
                    reconnects += 1;
                }
            })
        })
        .collect();
    for _ in 0..5 {
        relay.kill(Which::Worker);
    }
    for reader in readers {
        let (code, seqs, bytes, _) = reader.join().unwrap();
        assert_eq!(code, 0);
        assert!(seqs.iter().copied().eq(1..=seqs.len() as u64), "a number is missing or doubled");
        assert!(bytes == expected.as_bytes(), "{} bytes instead of {}", bytes.len(), expected.len());
    }
}
