//! A user without an entry in `/etc/passwd`: the binary never calls the C library's name service.

use crate::support::{cli, outpost};
use outpost_testkit::{BrokerClient, Daemon, stamp};
use serde_json::json;
use std::os::unix::process::CommandExt;
use std::process::{Command, Output};

/// A uid that no host uses.
const NAMELESS: u32 = 912_345;

/// Functions of the C library that load modules of the host. In a statically linked program they crash if the host has
/// another C library or another version of it.
const NAME_SERVICE: [&str; 14] = [
    "getaddrinfo",
    "gethostbyname",
    "gethostbyname_r",
    "getgrgid",
    "getgrgid_r",
    "getgrnam",
    "getgrnam_r",
    "getgrouplist",
    "getnameinfo",
    "getpwnam",
    "getpwnam_r",
    "getpwuid",
    "getpwuid_r",
    "initgroups",
];

fn number<const N: usize>(bytes: &[u8], at: usize) -> usize {
    let mut whole = [0; 8];
    whole[..N].copy_from_slice(&bytes[at..at + N]);
    usize::try_from(u64::from_le_bytes(whole)).unwrap()
}

/// The names of all dynamic symbols of a program (64 bit, little endian).
fn dynamic_symbols(program: &[u8]) -> Vec<String> {
    const DYNAMIC_SYMBOLS: usize = 11;
    const SYMBOL_BYTES: usize = 24;
    assert_eq!(program[..6], *b"\x7fELF\x02\x01");
    let (table, entry) = (number::<8>(program, 0x28), number::<2>(program, 0x3a));
    let section = |at: usize| &program[table + at * entry..][..entry];
    let body = |section: &[u8]| &program[number::<8>(section, 0x18)..][..number::<8>(section, 0x20)];
    let sections = (0..number::<2>(program, 0x3c)).map(section);
    let symbols = sections.into_iter().find(|section| number::<4>(section, 4) == DYNAMIC_SYMBOLS);
    let symbols = symbols.expect("a program that is linked dynamically");
    let names = body(section(number::<4>(symbols, 0x28)));
    let name = |symbol: &[u8]| {
        let text = &names[number::<4>(symbol, 0)..];
        let end = text.iter().position(|byte| *byte == 0).unwrap();
        String::from_utf8_lossy(&text[..end]).into_owned()
    };
    body(symbols).chunks_exact(SYMBOL_BYTES).map(name).collect()
}

#[test]
fn the_binary_links_no_name_service_functions() {
    let symbols = dynamic_symbols(&std::fs::read(outpost()).unwrap());
    assert!(symbols.iter().any(|symbol| symbol == "malloc"), "{symbols:?}");
    let found: Vec<&String> =
        symbols.iter().filter(|symbol| NAME_SERVICE.contains(&symbol.as_str())).collect();
    assert!(found.is_empty(), "{found:?}");
}

fn nameless_daemon() -> Daemon {
    let dir = tempfile::tempdir().unwrap();
    std::os::unix::fs::chown(dir.path(), Some(NAMELESS), Some(NAMELESS)).unwrap();
    let mut serve = Command::new("setpriv");
    serve.args([&format!("--reuid={NAMELESS}"), &format!("--regid={NAMELESS}"), "--clear-groups"]);
    serve.arg(outpost()).env_remove("HOME").env_remove("USER");
    Daemon::start_by(serve, dir, &["--ask-timeout=1"])
}

/// Runs `outpost` for this daemon as the user without a name.
fn as_nameless(daemon: &Daemon, arguments: &[&str]) -> Output {
    let mut command = Command::new(outpost());
    let own = cli(daemon, arguments);
    command.args(own.get_args()).current_dir(daemon.dir()).env_remove("HOME").env_remove("USER");
    command.uid(NAMELESS).gid(NAMELESS).output().unwrap()
}

mod serial {
    use super::*;

    /// Only root can become another user.
    #[test]
    fn a_daemon_and_its_clients_need_no_name() {
        if outpost_sys::process::effective_uid() != 0 {
            return;
        }
        let daemon = nameless_daemon();
        let ran = as_nameless(&daemon, &["run", "--", "/usr/bin/id", "-u"]);
        assert_eq!(String::from_utf8_lossy(&ran.stdout).trim(), NAMELESS.to_string(), "{ran:?}");
        let doctor = as_nameless(&daemon, &["doctor"]);
        assert!(doctor.status.code().is_some(), "{doctor:?}");
        let shown = String::from_utf8_lossy(&doctor.stdout);
        assert!(shown.contains("kernel") && shown.contains("git"), "{doctor:?}");
        let worker = daemon.status().worker_pid;
        let mut broker = BrokerClient::connect_as(&daemon.dir().join("run/broker.sock"), NAMELESS);
        let request = json!({"id": "1", "time": stamp(0), "pipeline": [["/bin/true"]], "privileged": false});
        broker.send(format!("{request}\n"));
        let answer = String::from_utf8(broker.rest()).unwrap();
        assert!(answer.contains(r#""status":"timeout""#), "{answer}");
        assert_eq!(daemon.status().worker_pid, worker, "the worker lives: {}", daemon.log());
    }
}
