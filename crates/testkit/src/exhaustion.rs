//! Resources of the host that the nemesis takes from a daemon for a moment: disk blocks, processes, descriptors, memory.

use crate::daemon::{Daemon, Half};
use crate::lack::Lack;
use crate::memory_cgroup::MemoryCgroup;
use crate::small_disk::SmallDisk;
use outpost_sys::signal::Signal;
use outpost_sys::{pidfd, procfs};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What can run out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Resource {
    Disk,
    Processes,
    Descriptors,
    /// Of the worker alone: the kernel kills it when it needs more. Its processes and the keeper are not limited, since the
    /// kernel may choose to kill those.
    Memory,
}

impl Resource {
    pub(crate) const ALL: [Resource; 4] =
        [Resource::Disk, Resource::Processes, Resource::Descriptors, Resource::Memory];
}

/// A daemon whose disk, processes, descriptors and memory can be limited.
pub(crate) struct Exhaustion {
    disk: SmallDisk,
    pids: PidsCgroup,
    memory: MemoryCgroup,
}

/// Room for the records of all clients of a run, many times over.
const DISK: &str = "size=256m";
const CONFIG: &str = "[processes]\njournal_bytes_max = 134217728\n";

/// Memory that a worker may take beyond what it has when the limit begins.
const WORKER_GROWTH_MAX: u64 = 256 << 10;

/// What a daemon has open at least; with fewer descriptors it could not even accept a connection.
const DESCRIPTORS_MIN: usize = 64;

impl Exhaustion {
    pub(crate) fn new() -> Result<Exhaustion, Lack> {
        let memory = MemoryCgroup::new("nemesis", WORKER_GROWTH_MAX)?;
        Ok(Exhaustion { disk: SmallDisk::mount(DISK)?, pids: PidsCgroup::new()?, memory })
    }

    /// Starts the daemon on the small disk and in the cgroup.
    pub(crate) fn start(&self, outpost: &Path) -> Daemon {
        let config = self.disk.path().join("outpost.toml");
        std::fs::write(&config, CONFIG).unwrap();
        let mut serve = Command::new("/bin/sh");
        serve.args(["-c", "echo $$ > \"$0\" && exec \"$@\""]).arg(self.pids.path.join("cgroup.procs"));
        serve.arg(outpost);
        Daemon::start_by_in(serve, self.disk.path(), &["--config", config.to_str().unwrap()])
    }

    pub(crate) fn take(&self, daemon: &Daemon, resource: Resource) {
        match resource {
            Resource::Disk => self.disk.fill(),
            Resource::Processes => self.pids.set_max(&self.pids.count()),
            Resource::Descriptors => {
                for pid in halves(daemon, Half::Worker) {
                    let open = std::fs::read_dir(format!("/proc/{pid}/fd")).map_or(0, Iterator::count);
                    limit_descriptors(pid, &format!("{}:", open.max(DESCRIPTORS_MIN)));
                }
            }
            Resource::Memory => halves(daemon, Half::Worker).into_iter().for_each(|pid| self.memory.add(pid)),
        }
    }

    pub(crate) fn give_back(&self, daemon: &Daemon, resource: Resource) {
        match resource {
            Resource::Disk => self.disk.empty(),
            Resource::Processes => self.pids.set_max("max"),
            Resource::Descriptors => {
                for pid in halves(daemon, Half::Worker) {
                    let limits = std::fs::read_to_string(format!("/proc/{pid}/limits")).unwrap_or_default();
                    let line = limits.lines().find(|line| line.starts_with("Max open files"));
                    if let Some(hard) = line.and_then(|line| line.split_ascii_whitespace().nth(4)) {
                        limit_descriptors(pid, &format!("{hard}:"));
                    }
                }
            }
            Resource::Memory => self.memory.release(),
        }
    }

    /// Kills one half without waiting for its successor, which may not come before the resource is back.
    pub(crate) fn strike(&self, daemon: &Daemon, half: Half) {
        for pid in halves(daemon, half) {
            let _gone = crate::process(pid).and_then(|pidfd| pidfd::signal(&pidfd, Signal::KILL));
        }
    }
}

/// The keeper or the worker, found without asking the daemon.
fn halves(daemon: &Daemon, half: Half) -> Vec<i32> {
    let word: &[u8] = match half {
        Half::Keeper => b"keeper",
        Half::Worker => b"worker",
    };
    let of_half = |pid: &i32| {
        let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        let is_ours = procfs::has_environment(*pid, daemon.marker().as_bytes());
        is_ours && line.split(|byte| *byte == 0).nth(1) == Some(word)
    };
    let all = procfs::all();
    let found: Vec<i32> = all.iter().map(|stat| stat.pid).filter(of_half).collect();
    // A child before its exec is a copy of the keeper, and below it.
    let is_copy = |stat: &procfs::Stat| found.contains(&stat.pid) && found.contains(&stat.parent);
    all.iter().filter(|stat| found.contains(&stat.pid) && !is_copy(stat)).map(|stat| stat.pid).collect()
}

/// A process that has ended meanwhile needs no limit.
fn limit_descriptors(pid: i32, limit: &str) {
    let _gone =
        Command::new("prlimit").args([format!("--pid={pid}"), format!("--nofile={limit}")]).output().unwrap();
}

/// A cgroup whose number of processes can be limited, in whichever hierarchy the host has that.
struct PidsCgroup {
    path: PathBuf,
}

impl PidsCgroup {
    fn new() -> Result<PidsCgroup, Lack> {
        let roots = ["/sys/fs/cgroup/pids", "/sys/fs/cgroup"];
        let name = format!("outpost-nemesis-{}", std::process::id());
        let made = roots.iter().map(|root| Path::new(root).join(&name)).find(|path| {
            std::fs::create_dir(path).is_ok() && {
                let limits = path.join("pids.max").exists();
                limits || std::fs::remove_dir(path).is_err()
            }
        });
        match made {
            Some(path) => Ok(PidsCgroup { path }),
            None => Err(Lack::of_host("no cgroup can be made here that limits processes")),
        }
    }

    fn count(&self) -> String {
        std::fs::read_to_string(self.path.join("pids.current")).unwrap().trim().to_owned()
    }

    fn set_max(&self, max: &str) {
        std::fs::write(self.path.join("pids.max"), max).unwrap();
    }
}

impl Drop for PidsCgroup {
    fn drop(&mut self) {
        self.set_max("max");
        let _in_use = std::fs::remove_dir(&self.path);
    }
}
