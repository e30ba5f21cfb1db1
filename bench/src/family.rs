//! A server and everything it started: what they have used of processor and memory.

use crate::Result;
use crate::daemon::TICKS;
use outpost_sys::procfs;

/// Every process that has this in its environment.
pub(crate) struct Family {
    marker: String,
}

/// Of all processes together, in MB.
pub(crate) struct Memory {
    /// Pages that only this process has and that it has changed.
    pub(crate) private_dirty: f64,
    pub(crate) resident: f64,
    /// Shared pages are divided among the processes that share them.
    pub(crate) proportional: f64,
    /// Maximum resident size of each.
    pub(crate) peak: f64,
}

impl Family {
    pub(crate) fn new(name: &str, value: &str) -> Family {
        Family { marker: format!("{name}={value}") }
    }

    pub(crate) fn processes(&self) -> Vec<i32> {
        let all = procfs::all().into_iter().filter(|stat| !matches!(stat.state, b'Z' | b'X'));
        let marked = all.filter(|stat| procfs::has_environment(stat.pid, self.marker.as_bytes()));
        marked.map(|stat| stat.pid).collect()
    }

    /// CPU time of all of them and of their reaped children.
    pub(crate) fn cpu_s(&self) -> f64 {
        let ticks = self.processes().into_iter().filter_map(|pid| {
            let text = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
            // Behind the name: user and system time, then the same of children.
            let fields: Vec<&str> = text.rsplit_once(')')?.1.split_ascii_whitespace().collect();
            fields.get(11..15)?.iter().map(|field| field.parse::<u64>().ok()).sum::<Option<u64>>()
        });
        ticks.sum::<u64>() as f64 / TICKS
    }

    pub(crate) fn memory(&self) -> Result<Memory> {
        const KB: f64 = 1024.0;
        let mut memory = Memory { private_dirty: 0.0, resident: 0.0, proportional: 0.0, peak: 0.0 };
        for pid in self.processes() {
            let rollup = std::fs::read_to_string(format!("/proc/{pid}/smaps_rollup"))?;
            let status = std::fs::read_to_string(format!("/proc/{pid}/status"))?;
            memory.private_dirty += kb(&rollup, "Private_Dirty:")? / KB;
            memory.resident += kb(&rollup, "Rss:")? / KB;
            memory.proportional += kb(&rollup, "Pss:")? / KB;
            memory.peak += kb(&status, "VmHWM:")? / KB;
        }
        Ok(memory)
    }
}

fn kb(text: &str, name: &str) -> Result<f64> {
    let figure = text.lines().find_map(|line| line.strip_prefix(name));
    Ok(figure
        .ok_or_else(|| format!("the kernel reports no {name}"))?
        .trim()
        .trim_end_matches(" kB")
        .parse()?)
}
