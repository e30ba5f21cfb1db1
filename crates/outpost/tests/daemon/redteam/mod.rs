//! Attacks on a host in personal mode, with and without root's policy, and in guard mode. The outcomes must be those of
//! the tables in docs/security.md.

mod attackers;
mod remote;
mod site;

use crate::support::until;
use attackers::Attacker;
use outpost_testkit::{Lack, available, require, root};
use site::Site;
use std::path::Path;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    Personal,
    /// Personal mode on a host with `/etc/outpost`.
    Policy,
    Guard,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Outcome {
    Held,
    Open,
}

/// How an attempt shows its success.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Sign {
    /// The command of the pending question runs, or the same command in a new request.
    Runs,
    /// The attacker prints it.
    Reports,
}

/// The attackers for which an attempt is an attack. Some attempts need no more than the user's own rights.
#[derive(Clone, Copy, PartialEq, Eq)]
enum By {
    All,
    Confined,
    Other,
}

struct Attempt {
    /// The row in docs/security.md.
    name: &'static str,
    /// Functions of attack.py, or requests of the site, each in a process of its own.
    steps: &'static [&'static str],
    sign: Sign,
    by: By,
}

const fn attempt(name: &'static str, steps: &'static [&'static str], sign: Sign, by: By) -> Attempt {
    Attempt { name, steps, sign, by }
}

const ATTEMPTS: [Attempt; 20] = [
    attempt("decides without a signature, or with the old secret", &["unsigned"], Sign::Runs, By::All),
    attempt("signs with a key that is not enrolled", &["unenrolled_key"], Sign::Runs, By::All),
    attempt("replays the approver's decision about another question", &["replay"], Sign::Runs, By::All),
    attempt("submits the approver's decision for another host", &["elsewhere"], Sign::Runs, By::All),
    attempt("submits the approver's decision after it has expired", &["late"], Sign::Runs, By::All),
    attempt("enrolls a key without the signature of an enrolled key", &["enrollment"], Sign::Runs, By::All),
    attempt("edits the outcome of a question in the database", &["edit_outcome"], Sign::Runs, By::All),
    attempt("inserts a grant into the database", &["insert_grant"], Sign::Runs, By::All),
    attempt(
        "removes the list of approvers and enrolls its own key",
        &["remove_approvers", "enrollment"],
        Sign::Runs,
        By::All,
    ),
    attempt(
        "writes a list of approvers with its own key into the state directory",
        &["plant_approvers", "unenrolled_key"],
        Sign::Runs,
        By::All,
    ),
    attempt("adds an allow rule to `rules.toml`", &["allow_rule"], Sign::Runs, By::All),
    attempt("names other rules in the configuration and reloads", &["other_rules"], Sign::Runs, By::All),
    attempt("mounts its own rules over `rules.toml`", &["mount_rules"], Sign::Runs, By::All),
    attempt("puts its own listener in the place of a socket", &["replace_sockets"], Sign::Reports, By::All),
    attempt("signals the deciding daemon", &["signals"], Sign::Reports, By::All),
    attempt(
        "reads the memory of the deciding daemon, or traces it",
        &["memory", "trace"],
        Sign::Reports,
        By::All,
    ),
    attempt("reads the records of the deciding daemon", &["records"], Sign::Reports, By::All),
    attempt(
        "reads a token, connects to a Unix socket, or writes settings of an agent",
        &["tokens", "sockets", "settings"],
        Sign::Reports,
        By::Confined,
    ),
    attempt(
        "starts an unconfined session, or reads metrics, at a loopback port",
        &["session"],
        Sign::Reports,
        By::Confined,
    ),
    attempt("reads the questions of the user", &["questions"], Sign::Reports, By::Other),
];

impl Attempt {
    fn is_attack_of(&self, attacker: Attacker) -> bool {
        match self.by {
            By::All => true,
            By::Confined => matches!(attacker, Attacker::Confined | Attacker::OtherUser),
            By::Other => attacker == Attacker::OtherUser,
        }
    }

    fn run(&self, site: &mut Site, attacker: Attacker) -> Outcome {
        let mut reports = String::new();
        for step in self.steps {
            let worker = site.decider().status().worker_pid;
            let report = attacker.attempt(site, step);
            if report.contains("KILLED") {
                until("the next worker serves", || site.decider().status().worker_pid != worker);
            }
            reports.push_str(&report);
        }
        eprintln!("{}: {reports}", self.name);
        let is_open = match self.sign {
            Sign::Runs => site.has_run(),
            Sign::Reports => reports.contains("OPEN"),
        };
        if is_open { Outcome::Open } else { Outcome::Held }
    }
}

/// The rows of the table below this heading of docs/security.md.
fn table(heading: &str) -> Vec<Vec<String>> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/security.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, section) = page.split_once(&format!("\n## {heading}\n")).unwrap();
    let section = section.split("\n## ").next().unwrap();
    let cells = |line: &str| line.trim_matches('|').split('|').map(|cell| cell.trim().to_owned()).collect();
    section.lines().filter(|line| line.starts_with("| ")).skip(2).map(cells).collect()
}

/// The outcome that a cell documents; none if the attempt is no attack.
fn promised(cell: &str) -> Option<Outcome> {
    match cell {
        "holds" => Some(Outcome::Held),
        "**open**" => Some(Outcome::Open),
        "–" => None,
        _ => panic!("neither holds nor open: {cell}"),
    }
}

/// The outcome that the row documents for this attacker in this mode; none if the attempt is no attack.
fn documented(row: &[String], mode: Mode, attacker: Attacker) -> Option<Outcome> {
    let by_attacker = promised(&row[1 + attacker as usize]);
    match mode {
        Mode::Personal => by_attacker,
        Mode::Policy if row[5] == "as left" => by_attacker,
        Mode::Policy => by_attacker.and(promised(&row[5])),
        Mode::Guard => by_attacker.and(promised(&row[6])),
    }
}

/// Checks that the host permits tracing between processes of one user. Otherwise memory is safe in personal mode too.
fn no_yama() -> Result<(), Lack> {
    match std::fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope") {
        Ok(scope) if scope.trim() != "0" => Err(Lack::of_host("Yama restricts tracing here")),
        _ => Ok(()),
    }
}

/// Runs every attempt of this attacker and compares the outcomes with the documentation.
fn assault(mode: Mode, attacker: Attacker) -> Result<(), Lack> {
    root()?;
    if mode == Mode::Personal && Path::new("/etc/outpost").exists() {
        return Err(Lack::of_host("root has made /etc/outpost on this host"));
    }
    if mode == Mode::Policy && Path::new("/var/lib/outpost-guard").exists() {
        return Err(Lack::of_host("this host has a guard"));
    }
    let rows = table("What holds and what is open");
    let names: Vec<&str> = rows.iter().map(|row| row[0].as_str()).collect();
    assert_eq!(names, ATTEMPTS.each_ref().map(|attempt| attempt.name), "the rows are the attempts");
    let mut site = None;
    let mut wrong = Vec::new();
    for (attempt, row) in ATTEMPTS.iter().zip(&rows) {
        let documented = documented(row, mode, attacker);
        assert_eq!(documented.is_some(), attempt.is_attack_of(attacker), "{}", attempt.name);
        if documented.is_none() {
            continue;
        }
        if attempt.steps.contains(&"memory") && mode != Mode::Guard && available!(no_yama()).is_none() {
            continue;
        }
        let outcome = attempt.run(site.get_or_insert_with(|| Site::start(mode)), attacker);
        if Some(outcome) != documented {
            wrong.push(format!("{}: {outcome:?}, documented: {documented:?}", attempt.name));
        }
        // The changes of one attempt must not help the next one.
        if outcome == Outcome::Open || (mode != Mode::Guard && attacker.has_the_users_files()) {
            site = None;
        }
    }
    assert!(wrong.is_empty(), "{mode:?}, {attacker:?}:\n{}", wrong.join("\n"));
    Ok(())
}

#[test]
fn personal_mode_against_an_unconfined_process_of_the_user() {
    require!(assault(Mode::Personal, Attacker::SameUser));
}

#[test]
fn personal_mode_against_a_sandboxed_process() {
    require!(assault(Mode::Personal, Attacker::Confined));
}

#[test]
fn personal_mode_against_root_in_a_container() {
    require!(assault(Mode::Personal, Attacker::ContainerRoot));
}

#[test]
fn personal_mode_against_another_user() {
    require!(assault(Mode::Personal, Attacker::OtherUser));
}

#[test]
fn personal_mode_with_roots_policy_against_an_unconfined_process_of_the_user() {
    require!(assault(Mode::Policy, Attacker::SameUser));
}

#[test]
fn personal_mode_with_roots_policy_against_a_sandboxed_process() {
    require!(assault(Mode::Policy, Attacker::Confined));
}

#[test]
fn personal_mode_with_roots_policy_against_root_in_a_container() {
    require!(assault(Mode::Policy, Attacker::ContainerRoot));
}

#[test]
fn personal_mode_with_roots_policy_against_another_user() {
    require!(assault(Mode::Policy, Attacker::OtherUser));
}

#[test]
fn guard_mode_against_an_unconfined_process_of_the_user() {
    require!(assault(Mode::Guard, Attacker::SameUser));
}

#[test]
fn guard_mode_against_a_sandboxed_process() {
    require!(assault(Mode::Guard, Attacker::Confined));
}

#[test]
fn guard_mode_against_root_in_a_container() {
    require!(assault(Mode::Guard, Attacker::ContainerRoot));
}

#[test]
fn guard_mode_against_another_user() {
    require!(assault(Mode::Guard, Attacker::OtherUser));
}
