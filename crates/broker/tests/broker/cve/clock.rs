//! The row about the clock: grants and replays are judged by one that nobody can set.

use super::sudo::stdout;
use crate::gate::{Gate, GateOptions};
use crate::kit::plain;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Moves the time of day, of one process and its children, by the seconds in a file.
const SHIFT: &str = r#"
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>
#include <stdlib.h>
#include <time.h>
int clock_gettime(clockid_t clock, struct timespec *now) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int result = real(clock, now);
    const char *path = getenv("SHIFT_FILE");
    if (result == 0 && clock == CLOCK_REALTIME && path) {
        char text[32] = {0};
        int file = open(path, O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            if (read(file, text, sizeof text - 1) > 0) now->tv_sec += atoll(text);
            close(file);
        }
    }
    return result;
}
"#;

fn shifter(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("shift.c"), dir.join("shift.so"));
    std::fs::write(&source, SHIFT).unwrap();
    let made =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status();
    assert!(made.unwrap().success());
    library
}

/// A request that is of now by the daemon's clock.
fn at(id: &str, shift: i64, argv: Value) -> Value {
    let mut request = plain(id, json!([argv]));
    request["time"] = json!(outpost_testkit::stamp(shift));
    request
}

/// A clock that is set, back to the epoch or far ahead, revives no grant, ends none, and makes no request new.
#[test]
fn sudo_cve_2013_1775_clock_set_to_the_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let shift = dir.path().join("shift");
    std::fs::write(&shift, "0").unwrap();
    let env = vec![("LD_PRELOAD", shifter(dir.path()).into()), ("SHIFT_FILE", shift.clone().into())];
    let mut gate = Gate::with(GateOptions { env, ..GateOptions::default() });
    let set = |seconds: i64| {
        // At once, since it is read at any time.
        std::fs::write(dir.path().join("new"), seconds.to_string()).unwrap();
        std::fs::rename(dir.path().join("new"), &shift).unwrap();
    };
    let (sent, question) = gate.ask(&at("first", 0, json!(["printf", "x"])));
    gate.approver().allow_often(&question, 2);
    assert_eq!(stdout(&sent.answer()), "x");
    let (sent, question) = gate.ask(&at("timed", 0, json!(["printf", "y"])));
    let told = gate.approver().decide(&question, json!({"allow": true, "remember": {"minutes": 5}}));
    assert_eq!(told["is"], "decided", "{told}");
    sent.answer();
    let left = |gate: &mut Gate| {
        let grants = gate.approver().tell(&json!({"do": "grants"}))["grants"].clone();
        grants.as_array().unwrap().iter().find_map(|grant| grant["seconds_left"].as_u64())
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let epoch = -i64::try_from(now.as_secs()).unwrap() + 100;
    for (number, shifted) in [epoch, 3_600, 10 * 365 * 86_400, -3_600, 0].into_iter().enumerate() {
        set(shifted);
        // The daemon's clock really is there: what is of now by ours is not by its.
        let ours = gate.send(&at(&format!("ours {number}"), 0, json!(["printf", "y"]))).answer();
        assert_eq!(ours["status"] == "error", shifted != 0, "{ours}");
        let seconds = left(&mut gate).unwrap();
        assert!((200..=300).contains(&seconds), "{seconds} s are left with a clock off by {shifted}");
        // A request that was used stays used, whatever time it says it is of.
        for id in ["first", "timed"] {
            let told = gate.refused(&at(id, shifted, json!(["printf", "y"])));
            assert_eq!(told, format!("duplicate request id: {id}"));
        }
        let id = format!("again {number}");
        assert_eq!(gate.unasked(&at(&id, shifted, json!(["printf", "y"])))["decision"], "grant");
    }
    // What was used up is used up.
    for id in ["second", "third"] {
        assert_eq!(gate.unasked(&at(id, 0, json!(["printf", "x"])))["decision"], "grant");
    }
    set(-86_400);
    gate.asks(&at("fourth", -86_400, json!(["printf", "x"])));
    // Nor does another worker forget.
    gate.daemon().kill(outpost_testkit::Which::Worker);
    let mut gate = gate.again();
    assert_eq!(gate.refused(&at("first", -86_400, json!(["printf", "x"]))), "duplicate request id: first");
    gate.asks(&at("fifth", -86_400, json!(["printf", "x"])));
}
