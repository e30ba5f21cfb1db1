//! The daemon after a restart of the host: how `ps` and `logs` report processes that the restart ended.

use crate::support::{cli, daemon, outpost, read, sh, stdout_and_code};
use outpost_sys::{epoll, pidfd, signal::Signal};
use outpost_testkit::Daemon;
use std::fs;
use std::time::Duration;

#[test]
fn ps_and_logs_report_a_host_restart() {
    let daemon = daemon();
    let cut = sh(&daemon, "cut", "echo cut; exec sleep 1000").process;
    let nameless = sh(&daemon, "nameless", "echo nameless; exec sleep 1000").process;
    assert_eq!(read(&daemon, &cut, 4).0, b"cut\n");
    assert_eq!(read(&daemon, &nameless, 9).0, b"nameless\n");
    let (keeper, worker) = (daemon.keeper(), daemon.worker());
    for half in [&worker, &keeper] {
        pidfd::signal(half, Signal::STOP).unwrap();
    }
    for half in [&keeper, &worker] {
        pidfd::signal(half, Signal::KILL).unwrap();
        assert!(epoll::wait_readable(half, Duration::from_secs(10)).unwrap());
    }
    let record = |process: &str| daemon.dir().join("state/processes").join(process);
    let description = fs::read_to_string(record(&cut).join("process.json")).unwrap();
    let boot = outpost_sys::procfs::boot_id();
    assert!(description.contains(&boot));
    fs::write(record(&cut).join("process.json"), description.replace(&boot, "another")).unwrap();
    fs::write(record(&nameless).join("process.json"), [0; 300]).unwrap();
    fs::write(record(&nameless).join("index"), b"").unwrap();
    let mut tail = fs::read(record(&cut).join("out.0")).unwrap();
    tail.resize(4096, 0);
    fs::write(record(&cut).join("out.0"), tail).unwrap();

    let again = Daemon::start_in(outpost(), daemon.dir());
    let (listed, _) = stdout_and_code(&again, &["ps"]);
    let line = |id: &str| listed.lines().find(|line| line.starts_with(id)).unwrap_or_default().to_owned();
    assert!(line("cut").contains("exited ? (host restarted)"), "{listed}");
    assert!(line(&nameless).contains("exited ? (record damaged)"), "{listed}");
    assert!(line(&nameless).contains("(unknown command)"), "{listed}");
    for (process, output, because) in
        [("cut", "cut\n", "host restarted"), (nameless.as_str(), "nameless\n", "record damaged")]
    {
        let logs = cli(&again, &["logs", process]).output().unwrap();
        assert_eq!(String::from_utf8_lossy(&logs.stdout), output);
        let message = String::from_utf8_lossy(&logs.stderr).into_owned();
        assert!(message.contains(because) && message.contains("may be missing"), "{message}");
    }
}
