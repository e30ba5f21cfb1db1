//! /proc: parents, start times, CPU time, memory and environment of processes.

use std::collections::HashSet;
use std::fs;
use std::io::Read;
use std::os::fd::{AsFd, AsRawFd};
use std::time::Duration;

/// Fields of /proc/PID/stat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: i32,
    pub state: u8,
    pub parent: i32,
    pub group: i32,
    pub session: i32,
    /// CPU time used, in clock ticks.
    pub cpu_ticks: u64,
    /// CPU time of its reaped children.
    pub waited_ticks: u64,
    /// Start time in clock ticks after boot. Together with the pid it identifies a process of this boot.
    pub start_ticks: u64,
    pub rss_pages: u64,
    /// The wait(2) status. Set for zombies only, and only visible to a process that may trace it.
    pub exit_code: i32,
}

impl Stat {
    /// Whether the process is not a zombie.
    pub fn is_alive(&self) -> bool {
        !matches!(self.state, b'Z' | b'X')
    }
}

/// Reads /proc/PID/stat; `None` when there is no such process.
pub fn stat(pid: i32) -> Option<Stat> {
    // One read suffices for one short line; fstat and a read of the EOF would be two more calls.
    let mut text = [0; 1024];
    let len = fs::File::open(format!("/proc/{pid}/stat")).ok()?.read(&mut text).ok()?;
    parse_stat(pid, text.get(..len)?)
}

fn parse_stat(pid: i32, text: &[u8]) -> Option<Stat> {
    // The command name may contain spaces and parentheses. The fields follow its last `)`.
    let end = text.iter().rposition(|&byte| byte == b')')?;
    let rest = std::str::from_utf8(text.get(end + 1..)?).ok()?;
    let fields: Vec<&str> = rest.split_ascii_whitespace().collect();
    let number = |field: usize| fields.get(field - 3).and_then(|text| text.parse::<i64>().ok());
    let unsigned = |field: usize| number(field).and_then(|value| u64::try_from(value).ok()).unwrap_or(0);
    let id = |field: usize| number(field).and_then(|value| i32::try_from(value).ok());
    Some(Stat {
        pid,
        state: *fields.first()?.as_bytes().first()?,
        parent: id(4)?,
        group: id(5)?,
        session: id(6)?,
        cpu_ticks: unsigned(14) + unsigned(15),
        waited_ticks: unsigned(16) + unsigned(17),
        start_ticks: unsigned(22),
        rss_pages: unsigned(24),
        exit_code: id(52).unwrap_or(0),
    })
}

/// All visible processes.
pub fn all() -> Vec<Stat> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    entries.flatten().filter_map(|entry| entry.file_name().to_str()?.parse().ok()).filter_map(stat).collect()
}

/// The live processes among `all` that descend from one of `roots`, without the roots. For display only: a
/// pid that was recycled while `all` was read may assign a process to the wrong root (see
/// [`crate::identity::descendants`]).
pub fn descendants(all: &[Stat], roots: &[i32]) -> Vec<Stat> {
    let mut family: HashSet<i32> = roots.iter().copied().collect();
    loop {
        let before = family.len();
        let children: Vec<i32> =
            all.iter().filter(|stat| family.contains(&stat.parent)).map(|stat| stat.pid).collect();
        family.extend(children);
        if family.len() == before {
            break;
        }
    }
    all.iter()
        .filter(|stat| family.contains(&stat.pid) && !roots.contains(&stat.pid))
        .filter(|stat| stat.is_alive())
        .copied()
        .collect()
}

/// Whether the initial environment of a process contains exactly this `NAME=value`.
pub fn has_environment(pid: i32, marker: &[u8]) -> bool {
    let Ok(environment) = fs::read(format!("/proc/{pid}/environ")) else { return false };
    environment.split(|&byte| byte == 0).any(|entry| entry == marker)
}

/// In how many nested pid namespaces a process is, counted from the namespace of /proc; `None` when there is
/// no such process.
pub fn pid_namespaces(pid: i32) -> Option<usize> {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    let numbers = status.lines().find_map(|line| line.strip_prefix("NSpid:"))?;
    Some(numbers.split_ascii_whitespace().count())
}

/// The time since the start of a process.
pub fn age(pid: i32) -> Option<Duration> {
    let started = stat(pid)?.start_ticks as f64 / rustix::param::clock_ticks_per_second() as f64;
    let uptime = std::fs::read_to_string("/proc/uptime").ok()?;
    let uptime: f64 = uptime.split(' ').next()?.parse().ok()?;
    Some(Duration::from_secs_f64((uptime - started).max(0.0)))
}

/// The id of this boot. Another id means that all recorded processes are gone.
pub fn boot_id() -> String {
    fs::read_to_string("/proc/sys/kernel/random/boot_id")
        .map(|text| text.trim().to_owned())
        .unwrap_or_default()
}

/// Clock ticks per second.
pub fn ticks_per_second() -> u64 {
    rustix::param::clock_ticks_per_second().max(1)
}

/// The pid behind a pidfd; `None` once the process has been reaped.
pub fn pid_of(pidfd: impl AsFd) -> Option<i32> {
    let about = fs::read_to_string(format!("/proc/self/fdinfo/{}", pidfd.as_fd().as_raw_fd())).ok()?;
    let pid = about.lines().find_map(|line| line.strip_prefix("Pid:"))?;
    pid.trim().parse().ok().filter(|pid| *pid > 0)
}

/// The size of a memory page in bytes.
pub fn page_size() -> u64 {
    rustix::param::page_size() as u64
}

/// Private dirty memory of a process in bytes, also what is swapped out. Clean pages are not counted: the kernel can take
/// them back at any time.
pub fn private_dirty_memory(pid: i32) -> Option<u64> {
    let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).ok()?;
    let kilobytes: u64 = rollup
        .lines()
        .filter(|line| line.starts_with("Private_Dirty:") || line.starts_with("Swap:"))
        .filter_map(|line| line.split_ascii_whitespace().nth(1)?.parse::<u64>().ok())
        .sum();
    Some(kilobytes * 1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_command_name_with_parentheses_and_spaces_does_not_shift_the_fields() {
        let mut text =
            b"42 (a) b (c)) S 7 42 42 0 -1 4194560 1 2 3 4 11 22 4 5 20 0 1 0 555 1000 33".to_vec();
        text.extend_from_slice(b" 0".repeat(27).as_slice());
        text.extend_from_slice(b" 256\n");
        let stat = parse_stat(42, &text).unwrap();
        assert_eq!((stat.state, stat.parent, stat.group, stat.session), (b'S', 7, 42, 42));
        assert_eq!(stat.waited_ticks, 9);
        assert_eq!((stat.cpu_ticks, stat.start_ticks, stat.rss_pages, stat.exit_code), (33, 555, 33, 256));
    }

    #[test]
    fn garbage_is_no_process() {
        for text in [&b""[..], b")", b"1 (x)", b"1 (x) R", b"\xff\xfe) \xff"] {
            assert_eq!(parse_stat(1, text), None);
        }
    }

    #[test]
    fn this_process_is_found() {
        let me = i32::try_from(std::process::id()).unwrap();
        assert!(all().iter().any(|stat| stat.pid == me));
        assert!(private_dirty_memory(me).unwrap() > 0);
    }
}
