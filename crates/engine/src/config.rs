//! What an engine is told, and what it tells, in numbers.

use outpost_sys::spawn::ResourceLimit;
use std::path::PathBuf;
use std::time::Duration;

/// Limits and places, each with a default.
#[derive(Clone, Debug)]
pub struct Config {
    /// Where journals are.
    pub state_dir: PathBuf,
    /// The most a process's journal takes on disk before its head is dropped.
    pub process_bytes_max: u64,
    /// The most all journals take.
    pub host_bytes_max: u64,
    /// The most input that may wait for one child.
    pub stdin_waiting_max: u64,
    /// How long ended processes can still be read.
    pub exited_kept: Duration,
    /// How many of them at most.
    pub exited_max: usize,
    /// The most processes that may live at once.
    pub processes_max: usize,
    /// How long after it was recorded output is synced to the disk; zero leaves it to the kernel.
    pub sync_interval: Duration,
    /// The most places that are made ahead for processes to come.
    pub spares_max: usize,
    /// What children get unless they are given others: the limits this daemon had before it raised its own.
    pub limits: Vec<ResourceLimit>,
    pub oom_score: Option<i32>,
    /// Use a cgroup per process where the host allows it.
    pub cgroups: bool,
}

impl Config {
    pub fn new(state_dir: impl Into<PathBuf>) -> Config {
        Config {
            state_dir: state_dir.into(),
            process_bytes_max: 256 * 1024 * 1024,
            host_bytes_max: 8 * 1024 * 1024 * 1024,
            stdin_waiting_max: 8 * 1024 * 1024,
            exited_kept: Duration::from_secs(24 * 3600),
            exited_max: 4096,
            processes_max: 8192,
            sync_interval: Duration::from_secs(5),
            spares_max: 8,
            limits: Vec::new(),
            oom_score: None,
            cgroups: true,
        }
    }
}

/// What the engine lacks now, and tries to get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// Why there is no keeper. Until there is one, this worker alone holds the pipes of its processes.
    pub keeper: Option<String>,
    /// Processes of earlier workers that could not be taken over yet.
    pub untaken: usize,
}

/// The engine in numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub running: usize,
    pub ended: usize,
    pub readers: usize,
    /// On disk, of all processes.
    pub journal_bytes: u64,
    /// Written by processes since this worker began.
    pub output_bytes_total: u64,
    /// Processes that have ended since.
    pub exits_total: u64,
    /// The longest turn of the reactor since this worker began. Output and starts of all processes wait for a turn.
    pub longest_turn: Duration,
}
