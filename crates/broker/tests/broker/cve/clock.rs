//! The row about the clock: grants and replay protection use the boot clock, which cannot be set.

use super::sudo::stdout;
use crate::fixture::{Fixture, FixtureOptions};
use crate::kit::plain;
use serde_json::{Value, json};
use std::path::{Path, PathBuf};
use std::process::Command;

/// An LD_PRELOAD library that shifts CLOCK_REALTIME by the seconds in a file.
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

fn build_shift_library(dir: &Path) -> PathBuf {
    let (source, library) = (dir.join("shift.c"), dir.join("shift.so"));
    std::fs::write(&source, SHIFT).unwrap();
    let built =
        Command::new("cc").args(["-shared", "-fPIC", "-o"]).args([&library, &source]).arg("-ldl").status();
    assert!(built.unwrap().success());
    library
}

/// A request that is fresh by the daemon's shifted clock.
fn at(id: &str, shift: i64, argv: Value) -> Value {
    let mut request = plain(id, json!([argv]));
    request["time"] = json!(outpost_testkit::stamp(shift));
    request
}

/// Setting the clock, back to the epoch or far ahead, neither revives nor ends a grant, and allows no replay.
#[test]
fn sudo_cve_2013_1775_clock_set_to_the_epoch() {
    let dir = tempfile::tempdir().unwrap();
    let shift = dir.path().join("shift");
    std::fs::write(&shift, "0").unwrap();
    let env =
        vec![("LD_PRELOAD", build_shift_library(dir.path()).into()), ("SHIFT_FILE", shift.clone().into())];
    let mut fixture = Fixture::with(FixtureOptions { env, ..FixtureOptions::default() });
    let set = |seconds: i64| {
        // Atomically: the daemon may read the file at any time.
        std::fs::write(dir.path().join("new"), seconds.to_string()).unwrap();
        std::fs::rename(dir.path().join("new"), &shift).unwrap();
    };
    let (sent, question) = fixture.ask(&at("first", 0, json!(["printf", "x"])));
    fixture.approver().allow_times(&question, 2);
    assert_eq!(stdout(&sent.answer()), "x");
    let (sent, question) = fixture.ask(&at("timed", 0, json!(["printf", "y"])));
    let reply = fixture.approver().decide(&question, json!({"allow": true, "remember": {"minutes": 5}}));
    assert_eq!(reply["is"], "decided", "{reply}");
    sent.answer();
    let seconds_left = |fixture: &mut Fixture| {
        let grants = fixture.approver().request(&json!({"do": "grants"}))["grants"].clone();
        grants.as_array().unwrap().iter().find_map(|grant| grant["seconds_left"].as_u64())
    };
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap();
    let epoch = -i64::try_from(now.as_secs()).unwrap() + 100;
    for (number, shifted) in [epoch, 3_600, 10 * 365 * 86_400, -3_600, 0].into_iter().enumerate() {
        set(shifted);
        // Verify the shift: a request that is fresh by the real clock is refused.
        let unshifted = fixture.send(&at(&format!("unshifted {number}"), 0, json!(["printf", "y"]))).answer();
        assert_eq!(unshifted["status"] == "error", shifted != 0, "{unshifted}");
        let seconds = seconds_left(&mut fixture).unwrap();
        assert!((200..=300).contains(&seconds), "{seconds} s left with a clock shift of {shifted}");
        // A used id stays used, whatever the request's time is.
        for id in ["first", "timed"] {
            let reply = fixture.refused(&at(id, shifted, json!(["printf", "y"])));
            assert_eq!(reply, format!("duplicate request id: {id}"));
        }
        let id = format!("again {number}");
        assert_eq!(fixture.answer_unasked(&at(&id, shifted, json!(["printf", "y"])))["decision"], "grant");
    }
    // The grant for a number of uses is used up.
    for id in ["second", "third"] {
        assert_eq!(fixture.answer_unasked(&at(id, 0, json!(["printf", "x"])))["decision"], "grant");
    }
    set(-86_400);
    fixture.ask_and_withdraw(&at("fourth", -86_400, json!(["printf", "x"])));
    // The next worker has the same state.
    fixture.daemon().kill(outpost_testkit::Half::Worker);
    let mut fixture = fixture.reconnect_approver();
    assert_eq!(fixture.refused(&at("first", -86_400, json!(["printf", "x"]))), "duplicate request id: first");
    fixture.ask_and_withdraw(&at("fifth", -86_400, json!(["printf", "x"])));
}
