//! The nemesis: clients at work while worker and keeper are killed and stopped at random; then the bookkeeping is checked.

use crate::actor::{Actor, Tally};
use crate::daemon::{Daemon, Half};
use crate::exhaustion::{Exhaustion, Resource};
use crate::lack::Lack;
use crate::noise::Noise;
use outpost_sys::signal::Signal;
use outpost_sys::{kernel, pidfd, procfs};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// What a run does. The same seed makes the same decisions; when they fall is up to the machine.
#[derive(Clone, Debug)]
pub struct Plan {
    pub outpost: PathBuf,
    pub producer: PathBuf,
    /// As on an older kernel: 6.8, 6.1 or 5.10.
    pub kernel: Option<&'static str>,
    pub seed: u64,
    pub clients: u64,
    /// Until at least this many were killed …
    pub worker_kills: u64,
    pub keeper_kills: u64,
    /// … both were replaced by another binary so often …
    pub upgrades: u64,
    /// … resources were taken away so often …
    pub exhaustions: u64,
    /// … and this much time has passed.
    pub duration: Duration,
}

/// What a run saw.
#[derive(Clone, Copy, Debug, Default)]
pub struct Report {
    pub worker_kills: u64,
    pub keeper_kills: u64,
    pub upgrades: u64,
    pub stops: u64,
    pub exhaustions: u64,
    /// Starts and inputs that were refused for lack of a resource, and repeated.
    pub refusals: u64,
    pub processes: u64,
    pub bytes: u64,
    pub attaches: u64,
    pub worker_memory: u64,
}

/// A worker that has done all this may not have grown beyond this.
const WORKER_MEMORY_MAX: u64 = 64 * 1024 * 1024;

/// Runs the plan; panics where the daemon violates a guarantee.
pub fn run(plan: &Plan) -> Result<Report, Lack> {
    let marker = format!("OUTPOST_NEMESIS={}-{}", std::process::id(), plan.seed);
    let limits = (plan.exhaustions > 0).then(Exhaustion::new).transpose()?;
    let daemon = match &limits {
        Some(limits) => limits.start(&plan.outpost),
        None => Daemon::start_on(plan.kernel, &plan.outpost),
    };
    let over = AtomicBool::new(false);
    let mut report = Report::default();
    std::thread::scope(|scope| {
        let clients: Vec<_> = (0..plan.clients)
            .map(|number| {
                let (daemon, marker, over) = (&daemon, marker.as_str(), &over);
                scope.spawn(move || client(daemon, plan, marker, number, over))
            })
            .collect();
        let client_gave_up = || clients.iter().any(std::thread::ScopedJoinHandle::is_finished);
        attack(&daemon, plan, limits.as_ref(), &mut report, client_gave_up);
        over.store(true, Ordering::Relaxed);
        for client in clients {
            match client.join() {
                Ok(tally) => {
                    report.processes += tally.processes;
                    report.bytes += tally.bytes;
                    report.attaches += tally.attaches;
                    report.refusals += tally.refusals;
                }
                Err(panic) => {
                    eprintln!("seed {}; the daemon's log:\n{}", plan.seed, daemon.log());
                    std::panic::resume_unwind(panic);
                }
            }
        }
    });
    check_the_end(&daemon, &marker);
    report.worker_memory =
        procfs::private_dirty_memory(daemon.status().worker_pid.cast_signed()).unwrap_or(0);
    assert!(report.worker_memory <= WORKER_MEMORY_MAX, "the worker has {} bytes", report.worker_memory);
    Ok(report)
}

fn client(daemon: &Daemon, plan: &Plan, marker: &str, number: u64, over: &AtomicBool) -> Tally {
    let mut actor = Actor {
        daemon,
        producer: &plan.producer,
        noise: Noise::new(plan.seed.wrapping_add(number * 7919 + 1)),
        marker,
        name: format!("client{number}"),
        refusals_allowed: plan.exhaustions > 0,
        refusals: 0,
        exits_can_be_lost: !kernel_remembers_exits(plan.kernel),
    };
    let mut total = Tally::default();
    let mut round = 0;
    while !over.load(Ordering::Relaxed) || round == 0 {
        let tally = actor.one_process(round);
        total.processes += tally.processes;
        total.bytes += tally.bytes;
        total.attaches += tally.attaches;
        total.refusals += tally.refusals;
        round += 1;
    }
    total
}

/// Linux 6.15 and later report the exit status to the holder of a pidfd.
fn kernel_remembers_exits(older: Option<&str>) -> bool {
    let release = crate::kernel::version(older).unwrap_or_else(kernel::release);
    kernel::version_in(&release) >= (6, 15)
}

fn attack(
    daemon: &Daemon,
    plan: &Plan,
    limits: Option<&Exhaustion>,
    report: &mut Report,
    mut client_gave_up: impl FnMut() -> bool,
) {
    let mut noise = Noise::new(plan.seed);
    // Not on the daemon's disk, which may be a small one.
    let elsewhere = tempfile::tempdir().unwrap();
    let copy = elsewhere.path().join("another-outpost");
    if plan.upgrades > 0 {
        std::fs::copy(&plan.outpost, &copy).unwrap();
    }
    let begun = Instant::now();
    let keeper_share = plan.worker_kills.max(1) / plan.keeper_kills.max(1);
    while report.worker_kills < plan.worker_kills
        || report.keeper_kills < plan.keeper_kills
        || report.upgrades < plan.upgrades
        || report.exhaustions < plan.exhaustions
        || begun.elapsed() < plan.duration
    {
        if client_gave_up() {
            return;
        }
        // Sometimes at once, sometimes after the clients have got somewhere.
        std::thread::park_timeout(Duration::from_micros(noise.below(30_000)));
        if let Some(limits) = limits.filter(|_| noise.below(4) == 0) {
            exhaust(daemon, limits, &mut noise, report);
            continue;
        }
        match noise.below(keeper_share + 2) {
            0 if plan.keeper_kills > 0 => {
                daemon.kill(Half::Keeper);
                report.keeper_kills += 1;
            }
            1 => {
                stop_for_a_moment(daemon, &mut noise);
                report.stops += 1;
            }
            2 if report.upgrades < plan.upgrades => {
                daemon.upgrade(if report.upgrades.is_multiple_of(2) { &copy } else { &plan.outpost });
                report.upgrades += 1;
            }
            _ if plan.worker_kills > 0 => {
                daemon.kill(Half::Worker);
                report.worker_kills += 1;
            }
            _ => {}
        }
    }
}

/// Takes a resource away for a moment, mostly with a kill in between. Afterwards the daemon must answer by itself.
fn exhaust(daemon: &Daemon, limits: &Exhaustion, noise: &mut Noise, report: &mut Report) {
    let before = daemon.status();
    let resource = Resource::ALL[noise.below(Resource::ALL.len() as u64) as usize];
    limits.take(daemon, resource);
    std::thread::park_timeout(Duration::from_millis(noise.below(150)));
    let struck = [Some(Half::Keeper), Some(Half::Worker), Some(Half::Worker), None][noise.below(4) as usize];
    // The kernel kills the worker itself; with the keeper at the same moment, everything would be lost.
    let struck = struck.filter(|_| resource != Resource::Memory);
    match struck {
        Some(Half::Keeper) => report.keeper_kills += 1,
        Some(Half::Worker) => report.worker_kills += 1,
        None => {}
    }
    struck.into_iter().for_each(|which| limits.strike(daemon, which));
    std::thread::park_timeout(Duration::from_millis(noise.below(300)));
    limits.give_back(daemon, resource);
    // The half that was killed is back without intervention. Before, killing the other one would lose everything.
    daemon.await_successor(struck, &before);
    report.exhaustions += 1;
}

/// A stopped worker must not lose anything either.
fn stop_for_a_moment(daemon: &Daemon, noise: &mut Noise) {
    let worker = daemon.worker();
    pidfd::signal(&worker, Signal::STOP).unwrap();
    std::thread::park_timeout(Duration::from_micros(noise.below(20_000)));
    pidfd::signal(&worker, Signal::CONT).unwrap();
}

/// Every process has ended, the table knows it, and nothing that carries our marker lives.
fn check_the_end(daemon: &Daemon, marker: &str) {
    let list = daemon.list();
    let alive: Vec<_> = list.iter().filter(|process| process.exit.is_none()).collect();
    assert!(alive.is_empty(), "the table has processes that should have ended: {alive:?}");
    let leftovers: Vec<_> = procfs::all()
        .into_iter()
        .filter(|stat| {
            !matches!(stat.state, b'Z' | b'X') && procfs::has_environment(stat.pid, marker.as_bytes())
        })
        .collect();
    assert!(leftovers.is_empty(), "processes that the table does not know: {leftovers:?}");
}
