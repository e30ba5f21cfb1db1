//! Replays recordings of the original: requests with its replies, from `data/recorded.jsonl`.
//!
//! Each line has a `name`, its `steps`, and what was recorded: an answer for each step and the bytes of each command.
//! A step is a line to `send`, after which its reply is awaited, unless its reply comes `later`; `until` then waits for
//! output. To record anew: `OUTPOST_EXEC_PEER=… OUTPOST_EXEC_RECORD=1` and this test.

use crate::table::is_result;
use outpost_testkit::{AppServer, Options};
use serde_json::{Map, Value, json};
use std::path::Path;

const RECORDED: &str = include_str!("data/recorded.jsonl");

/// What a script brought: a line for each step, and what each command wrote.
fn play(record: &Value) -> (Vec<String>, Value) {
    let options = Options::default();
    let mut server =
        if record["raw"] == true { AppServer::launch(&options) } else { AppServer::start(&options) };
    let dir = server.dir().display().to_string();
    let steps = record["steps"].as_array().unwrap();
    let mut answers = vec![String::new(); steps.len()];
    let mut later = Vec::new();
    for (index, step) in steps.iter().enumerate() {
        let line = step["send"].as_str().unwrap().replace("$DIR", &dir);
        server.send(format!("{line}\n"));
        let message: Value = serde_json::from_str(&line).unwrap();
        let Some(id) = message.get("id").map(Value::to_string) else { continue };
        if step["later"] == true {
            later.push((index, id));
        } else {
            answers[index] = server.reply_to(&id);
        }
        if let Some(process) = step["until"][0].as_str() {
            server.wait_output(process, step["until"][1].as_str().unwrap());
        }
    }
    for (index, id) in later {
        answers[index] = server.reply_to(&id);
    }
    let mut output = Map::new();
    for process in record["processes"].as_array().into_iter().flatten().filter_map(Value::as_str) {
        let streams = ["stdout", "stderr"].map(|stream| {
            let caps =
                server.deltas(process).iter().filter(|delta| delta.stream == stream && delta.cap_reached);
            json!([server.text(process, stream).replace(&dir, "$DIR"), caps.count()])
        });
        output.insert(process.to_owned(), json!(streams));
    }
    (answers.into_iter().map(|line| normal(&line, &dir)).collect(), Value::Object(output))
}

/// A line without what differs from run to run, and without the list of methods that are not of this family.
fn normal(line: &str, dir: &str) -> String {
    let mut line = line.replace(dir, "$DIR");
    if let Some((begin, _)) = line.split_once(", expected one of `initialize`") {
        line = begin.to_owned();
    }
    if let Some((begin, rest)) = line.split_once(r#""userAgent":""#) {
        let (_, rest) = rest.split_once('"').unwrap();
        line = format!(r#"{begin}"userAgent":"…"{rest}"#);
    }
    line
}

/// Members may follow in a result of ours; everything else is the same byte for byte.
fn is_same(got: &str, recorded: &str) -> bool {
    match recorded.strip_suffix("}}") {
        Some(begin) if recorded.contains(r#""result":{"exitCode":"#) => is_result(got, begin),
        _ => got == recorded,
    }
}

#[test]
fn every_recorded_script_brings_the_recorded_answers() {
    let mut records: Vec<Value> = RECORDED.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let recording = AppServer::is_original() && std::env::var_os("OUTPOST_EXEC_RECORD").is_some();
    let mut wrong = String::new();
    for record in &mut records {
        let (answers, output) = play(record);
        if recording {
            record["answers"] = json!(answers);
            record["output"] = output;
            continue;
        }
        let recorded = record["answers"].as_array().unwrap().iter().map(|line| line.as_str().unwrap());
        for (got, recorded) in answers.iter().zip(recorded) {
            if !is_same(got, recorded) {
                wrong += &format!("\n{}\n  recorded {recorded}\n  got      {got}", record["name"]);
            }
        }
        if output != record["output"] {
            wrong += &format!("\n{}\n  recorded {}\n  got      {output}", record["name"], record["output"]);
        }
    }
    assert!(wrong.is_empty(), "{wrong}");
    if recording {
        let text: String = records.iter().map(|record| format!("{record}\n")).collect();
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/exec/data/recorded.jsonl");
        std::fs::write(file, text).unwrap();
    }
}
