//! The short form of the nemesis, in every test run: at least 200 killed workers and 20 killed keepers.

use outpost_testkit::{Plan, binary_beside, require, run};
use std::path::PathBuf;
use std::time::Duration;

#[test]
fn nemesis_two_hundred_killed_workers_and_twenty_killed_keepers_lose_nothing() {
    let producer = PathBuf::from(env!("CARGO_BIN_EXE_producer"));
    let report = require!(run(&Plan {
        outpost: binary_beside(&producer, "outpost"),
        producer,
        kernel: None,
        seed: 20_261_115,
        clients: 6,
        worker_kills: 200,
        keeper_kills: 20,
        upgrades: 0,
        exhaustions: 0,
        duration: Duration::ZERO,
    }));
    println!("{report:?}");
    assert!(report.worker_kills >= 200 && report.keeper_kills >= 20);
    assert!(
        report.processes >= 20 && report.attaches > report.processes,
        "the clients were at work meanwhile: {report:?}"
    );
}

/// At any moment fifty processes run and fifty clients read them.
#[test]
fn nemesis_ten_upgrades_under_load_lose_nothing() {
    let producer = PathBuf::from(env!("CARGO_BIN_EXE_producer"));
    let report = require!(run(&Plan {
        outpost: binary_beside(&producer, "outpost"),
        producer,
        kernel: None,
        seed: 20_261_116,
        clients: 50,
        worker_kills: 0,
        keeper_kills: 0,
        upgrades: 10,
        exhaustions: 0,
        duration: Duration::ZERO,
    }));
    println!("{report:?}");
    assert!(report.upgrades == 10 && report.processes >= 50, "{report:?}");
}

/// Disk, processes, descriptors and memory run out while workers and keepers are killed, binaries replaced, trees killed.
#[test]
fn nemesis_exhausted_resources_cost_time_and_nothing_else() {
    let producer = PathBuf::from(env!("CARGO_BIN_EXE_producer"));
    let report = require!(run(&Plan {
        outpost: binary_beside(&producer, "outpost"),
        producer,
        kernel: None,
        seed: 20_261_118,
        clients: 6,
        worker_kills: 30,
        keeper_kills: 6,
        upgrades: 3,
        exhaustions: 30,
        duration: Duration::ZERO,
    }));
    println!("{report:?}");
    assert!(report.exhaustions >= 30 && report.processes >= 20, "{report:?}");
}
