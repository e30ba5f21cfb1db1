//! The row about terminals: a command can neither type into nor write to the approver's terminal.

use crate::kit::{decoded, denied, plain, privilege, same, with};
use outpost_testkit::{Broker, BrokerOptions, require};
use serde_json::{Value, json};

/// Any uid except root's.
const OTHER_UID: u32 = 65_534;

/// Tries every path to a terminal: the controlling one, and the daemon's by name and by descriptor.
const ATTACK: &str = r#"
    use strict;
    my ($daemon, $tiocsti, $tiocsctty) = ($ARGV[0], 0x5412, 0x540E);
    my $report = open(my $tty, '+<', '/dev/tty') ? 'a terminal' : 'no terminal';
    my %names = map { $_ => 1 } grep { m{^/dev/pts/} } map { readlink } glob("/proc/$daemon/fd/*");
    for my $name ((map { "/proc/$daemon/fd/$_" } 0..2), keys %names, '/proc/self/fd/0', '/proc/self/fd/1', '/proc/self/fd/2') {
        open(my $pts, '+<', $name) or next;
        ioctl($pts, $tiocsctty, 0) and $report .= ", took $name";
        for my $key ('y', 'Y', "\n") {
            my $byte = $key;
            ioctl($pts, $tiocsti, $byte) and $report .= ", typed at $name";
        }
    }
    my @stat = split ' ', (split /\) /, do { local (@ARGV, $/) = '/proc/self/stat'; <> })[-1];
    print "$report, tty $stat[4]";
"#;

/// Commands run in their own session without a terminal, so they cannot type an approval.
#[test]
fn sudo_cve_2005_4890_and_tiocsti() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(privilege());
    let mut broker = Broker::start(&BrokerOptions::default().uid(OTHER_UID));
    let pid = broker.pid().to_string();
    // A user normally owns the terminal.
    let pts = std::fs::read_link(format!("/proc/{pid}/fd/0")).unwrap();
    std::os::unix::fs::chown(&pts, Some(OTHER_UID), None).unwrap();
    let file = broker.path("ran");
    let request = plain("attack", json!([["perl", "-e", ATTACK, pid], ["perl", "-e", ATTACK, pid]]));
    let socket = broker.socket();
    let answer = std::thread::spawn(move || {
        let sent = crate::fixture::send_as(OTHER_UID, &socket, &request.to_string());
        String::from_utf8(sent.wait_with_output().unwrap().stdout).unwrap()
    });
    broker.approve();
    let answer: Value = serde_json::from_str(&answer.join().unwrap()).unwrap();
    assert_eq!(answer["status"], "ok", "{answer}");
    assert_eq!(decoded(&answer["stdout"]), b"no terminal, tty 0");
    // A running command tries to type the key for another pending request.
    let fifo = broker.path("go");
    assert!(std::process::Command::new("mkfifo").args(["-m", "666"]).arg(&fifo).status().unwrap().success());
    let waits = "open(my $go, '<', $ARGV[1]); <$go>;";
    let slow = plain("slow", json!([["perl", "-e", format!("{waits}{ATTACK}"), pid, fifo]]));
    let slow = crate::fixture::send_as(OTHER_UID, &broker.socket(), &slow.to_string());
    broker.approve();
    let victim = plain("victim", json!([["touch", file]]));
    let victim = crate::fixture::send_as(OTHER_UID, &broker.socket(), &victim.to_string());
    broker.wait_prompt();
    std::fs::write(&fifo, "go\n").unwrap();
    let answer: Value = serde_json::from_slice(&slow.wait_with_output().unwrap().stdout).unwrap();
    assert_eq!(decoded(&answer["stdout"]), b"no terminal, tty 0", "{answer}");
    broker.deny();
    same(String::from_utf8(victim.wait_with_output().unwrap().stdout).unwrap().trim_end(), &denied("victim"));
    assert!(!file.exists());
}

/// A root command may open any terminal by its name, but it inherits none.
#[test]
fn sudo_cve_2005_4890_a_privileged_command_has_no_terminal_either() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(privilege());
    let mut broker = crate::kit::broker();
    let argv = json!([
        "sh",
        "-c",
        "exec 2>/dev/null; (: </dev/tty) && echo terminal; tty; cut -d' ' -f7 /proc/$$/stat"
    ]);
    let mut client = broker.send(&with(plain("a", json!([argv])), json!({"privileged": true})));
    broker.approve();
    let answer: Value = serde_json::from_str(&client.answer()).unwrap();
    let text = String::from_utf8(decoded(&answer["stdout"])).unwrap();
    assert!(!text.contains("terminal\n") && text.ends_with("\n0\n") && !text.contains("/dev/"), "{text}");
}
