//! Passes the time of the built commit to the compiler, for `-version`.

use std::process::Command;

fn main() {
    println!("cargo::rerun-if-changed=../../.git/HEAD");
    println!("cargo::rerun-if-changed=../../.git/logs/HEAD");
    let time = Command::new("git").args(["log", "-1", "--format=%cI"]).output().ok();
    let time = time
        .filter(|output| output.status.success())
        .and_then(|output| String::from_utf8(output.stdout).ok());
    println!("cargo::rustc-env=OUTPOST_BUILD_TIME={}", time.as_deref().map_or("unknown", str::trim));
}
