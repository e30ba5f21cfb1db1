//! The limits of an engine, and its counters.

use outpost_sys::spawn::ResourceLimit;
use std::path::PathBuf;
use std::time::Duration;

/// Limits and paths, each with a default.
#[derive(Clone, Debug)]
pub struct Config {
    /// The directory of the journals.
    pub state_dir: PathBuf,
    /// The size of a process's journal at which its oldest output is dropped.
    pub process_bytes_max: u64,
    /// The size of all journals together.
    pub host_bytes_max: u64,
    /// Maximum number of accepted bytes of stdin that one child has not read.
    pub stdin_waiting_max: u64,
    /// The retention time of ended processes.
    pub exited_kept: Duration,
    /// Maximum number of ended processes.
    pub exited_max: usize,
    /// Maximum number of running processes.
    pub processes_max: usize,
    /// The delay after which recorded output is synced to the disk; zero leaves that to the kernel.
    pub sync_interval: Duration,
    /// Maximum number of prepared slots.
    pub prepared_slots_max: usize,
    /// The default limits of children: those that this daemon had before it raised its own.
    pub limits: Vec<ResourceLimit>,
    pub oom_score: Option<i32>,
    /// Uses a cgroup per process where the host allows it.
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
            prepared_slots_max: 8,
            limits: Vec::new(),
            oom_score: None,
            cgroups: true,
        }
    }
}

/// Resources that the engine lacks and tries to get.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lacks {
    /// The reason why there is no keeper. Meanwhile this worker alone holds the pipes of its processes.
    pub keeper: Option<String>,
    /// Processes of earlier workers that could not be adopted yet.
    pub unadopted: usize,
}

/// Counters of the engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    pub running: usize,
    pub ended: usize,
    pub readers: usize,
    /// The size of all journals on disk.
    pub journal_bytes: u64,
    /// Output since this worker started.
    pub output_bytes_total: u64,
    /// Exits since this worker started.
    pub exits_total: u64,
    /// The longest turn of the reactor since this worker started. Output and starts of all processes wait for a turn.
    pub longest_turn: Duration,
}
