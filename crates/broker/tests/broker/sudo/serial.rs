//! What sudo is asked, what it answers, and what becomes of passwords. One at a time: users are the whole host's.

use super::{PASSWORD, User, sudo};
use crate::gate::{GateOptions, line, send_as};
use crate::kit::{binary, decoded, script, with};
use outpost_testkit::{Broker, BrokerOptions, require, stamp};
use serde_json::{Value, json};
use std::path::Path;
use std::process::Child;

fn root(id: &str, pipeline: Value) -> Value {
    json!({"id": id, "time": stamp(0), "pipeline": pipeline})
}

#[track_caller]
fn stdout(answer: &Value) -> String {
    assert_eq!(answer["status"], "ok", "{answer}");
    String::from_utf8(decoded(&answer["stdout"])).unwrap()
}

/// The message of an error.
#[track_caller]
fn told(answer: &Value) -> &str {
    assert_eq!(answer["status"], "error", "{answer}");
    answer["message"].as_str().unwrap()
}

fn answer(sent: Child) -> Value {
    serde_json::from_slice(&sent.wait_with_output().unwrap().stdout).unwrap()
}

const SECURE_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[test]
fn what_sudoers_allows_runs_as_root_in_roots_environment() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let user = User::new("ALL=(root) NOPASSWD: ALL");
    let mut gate = user.gate("");
    let (sent, question) = gate.ask(&root("id", json!([["id", "-u"]])));
    assert_eq!(line(&question, "Runs", "as"), "root (uid 0)");
    gate.approver().allow(&question);
    assert_eq!(stdout(&sent.answer()), "0\n");
    let env = json!({"env": {"LANG": "C.UTF-8", "LC_ALL": "C", "TERM": "xterm", "TZ": "UTC"}});
    let text = stdout(&gate.run(&with(root("env", json!([["env"]])), env)));
    for expected in ["HOME=/root", "USER=root", "LOGNAME=root", SECURE_PATH, "LC_ALL=C", "TZ=UTC"] {
        assert!(text.lines().any(|line| line == expected), "{expected} is missing: {text}");
    }
    let home = user.home().to_str().unwrap();
    assert!(!text.contains(home) && !text.contains("OUTPOST") && !text.contains("ASKPASS"), "{text}");
    let pipeline = json!([["id", "-u"], ["sh", "-c", "cat; id -u; exit 3"], ["sh", "-c", "cat; id -un"]]);
    let all = gate.run(&root("all", pipeline));
    assert_eq!(stdout(&all), "0\n0\nroot\n");
    assert_eq!(all["stages"][1]["exit_code"], 3, "{all}");
    // Files of root's are for others to read; it runs where it was said; nothing of ours is open.
    let look = "umask; pwd; ls /proc/self/fd | wc -l";
    let asked = with(root("where", json!([["sh", "-c", look]])), json!({"cwd": "/usr"}));
    assert_eq!(stdout(&gate.run(&asked)), "0022\n/usr\n4\n");
}

#[test]
fn sudo_is_told_our_options_then_two_dashes_then_an_absolute_path_and_no_variable() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let user = User::new("ALL=(root) NOPASSWD: ALL");
    let mut gate = user.gate("");
    let print = "tr '\\0' '\\n' </proc/$PPID/cmdline; echo; printenv DEBIAN_FRONTEND";
    let more = json!({"env": {"DEBIAN_FRONTEND": "noninteractive", "LANG": "C.UTF-8"}});
    let text = stdout(&gate.run(&with(root("a", json!([["sh", "-c", print, "-u", "A=b", "--"]])), more)));
    let expected = format!(
        "sudo\n-n\n-k\n-H\n--preserve-env=DEBIAN_FRONTEND\n--\n/usr/bin/sh\n-c\n{print}\n-u\nA=b\n--\n\nnoninteractive\n"
    );
    assert_eq!(text, expected);
    for (id, argv) in [
        ("option", json!(["-u", "nobody", "id"])),
        ("long", json!(["--user=nobody", "id"])),
        ("variable", json!(["LD_PRELOAD=/tmp/x", "id"])),
        ("edit", json!(["-e", "/etc/shadow"])),
    ] {
        gate.refused(&root(id, json!([argv])));
    }
    for (name, value) in [
        ("LD_PRELOAD", "/tmp/x"),
        ("PATH", "/tmp"),
        ("HOME", "/tmp"),
        ("TZ", "/etc/shadow"),
        ("LANG", "../x"),
    ] {
        let request = with(root(name, json!([["id"]])), json!({"env": {name: value}}));
        assert!(gate.refused(&request).starts_with("environment variable not allowed: "));
    }
    // What only the user can change is not run as root, whatever sudo would say.
    let own = user.home().join("tool");
    script(&own, "id -u");
    std::os::unix::fs::chown(&own, Some(user.uid), None).unwrap();
    let refused = gate.refused(&root("own", json!([[own]])));
    assert!(refused.contains("others than root can change"), "{refused}");
}

#[test]
fn a_sudo_of_somebody_elses_is_never_run() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let user = User::new("ALL=(root) NOPASSWD: ALL");
    let ran = user.home().join("ran");
    for name in ["sudo", "sudo-rs", "doas", "id"] {
        script(&user.home().join(name), &format!("touch {}", ran.display()));
    }
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", user.home().display());
    let env = vec![("PATH", path.into()), ("SUDO", user.home().join("sudo").into())];
    let mut gate = user.gate_with("", GateOptions { env, ..GateOptions::default() });
    assert_eq!(
        stdout(&gate.run(&with(root("a", json!([["id", "-u"]])), json!({"cwd": user.home()})))),
        "0\n"
    );
    assert!(!ran.exists());
}

#[test]
fn a_password_is_asked_for_once_and_leaves_no_credentials() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let askpass = user.askpass(&format!("echo {PASSWORD}"));
    let mut gate = user.gate(&askpass.config());
    assert_eq!(stdout(&gate.run(&root("one", json!([["id", "-u"]])))), "0\n");
    assert_eq!(askpass.asked(), ["Password for sudo, to run id -u:"]);
    let stage = json!(["sh", "-c", "cat; id -u"]);
    assert_eq!(stdout(&gate.run(&root("three", json!([stage, stage, stage])))), "0\n0\n0\n");
    assert_eq!(askpass.asked().len(), 2, "{:?}", askpass.asked());
    // A command that is longer than an argument may be is asked about, too.
    let long = json!([["sh", "-c", "id -u", "x".repeat(100_000), "y".repeat(100_000)]]);
    assert_eq!(stdout(&gate.run(&root("long", long))), "0\n");
    assert_eq!(askpass.asked().len(), 3, "{:.900?}", askpass.asked());
    // Nobody else has got anything by it: not the agent, not a command of the agent's that needed no rights.
    let own = user.run(&["sudo", "-n", "id", "-u"]);
    assert!(!own.status.success() && own.stdout.is_empty(), "{own:?}");
    let mut command = root("child", json!([["sudo", "-n", "id", "-u"]]));
    command["privileged"] = json!(false);
    let child = gate.run(&command);
    assert_eq!((child["stages"][0]["exit_code"].as_i64(), stdout(&child).as_str()), (Some(1), ""), "{child}");
    // Nor from the socket that sudo's own helper asks on.
    let helper = user.run(&["bash", "-c", &as_helper(&gate.daemon().dir().join("run"))]);
    assert!(!helper.status.success() && helper.stdout.is_empty(), "{helper:?}");
    assert_eq!(askpass.asked().len(), 3, "{:.900?}", askpass.asked());
    let (log, audit) = (gate.daemon().log(), String::from_utf8(gate.audit()).unwrap());
    assert!(!log.contains(PASSWORD) && !audit.contains(PASSWORD), "the password was written down");
}

/// A script that becomes the helper of a daemon, as sudo would run it.
fn as_helper(run: &Path) -> String {
    let socket = run.join("askpass.sock");
    let binary = binary();
    format!("OUTPOST_ASKPASS_SOCKET={} exec -a /proc/1/exe {} Password:", socket.display(), binary.display())
}

/// Who runs as the daemon's user can write the daemon's directories. A program there that sudo ran as its helper could run
/// the real helper, with another standard output than sudo's.
#[test]
fn a_password_goes_to_no_program_by_a_name_that_the_user_can_write() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let askpass = user.askpass(&format!("echo {PASSWORD}"));
    let mut gate = user.gate(&askpass.config());
    let run = gate.daemon().dir().join("run");
    let stolen = user.home().join("stolen");
    // The name by which earlier versions told sudo of the helper.
    let name = run.join("outpost-askpass");
    let _not_there = std::fs::remove_file(&name);
    let thief = format!(
        "exec >{}\nexec bash -c 'exec -a {} {} Password:'",
        stolen.display(),
        name.display(),
        binary().display()
    );
    script(&name, &thief);
    gate.run(&root("one", json!([["id", "-u"]])));
    let stolen = std::fs::read_to_string(stolen).unwrap_or_default();
    assert!(!stolen.contains(PASSWORD), "a program of the user's got the password");
    assert_eq!(stdout(&gate.run(&root("two", json!([["id", "-u"]])))), "0\n");
}

/// The command is a child of sudo as its helper is. Other than the helper, it does not execute our binary.
#[test]
fn a_command_that_sudo_runs_gets_no_password() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let askpass = user.askpass(&format!("echo {PASSWORD}"));
    let mut gate = user.gate(&askpass.config());
    let socket = gate.daemon().dir().join("run/askpass.sock");
    let asks = format!(
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect({:?}); print(s.recv(99))",
        socket.display().to_string()
    );
    assert_eq!(stdout(&gate.run(&root("asks", json!([["python3", "-c", asks]])))), "b''\n");
    assert_eq!(askpass.asked().len(), 1, "the human was asked for a command that is no helper");
    let log = gate.daemon().log();
    assert!(log.contains("executes another file than the daemon"), "{log}");
}

#[test]
fn what_sudo_refuses_is_told_in_words() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let user = User::new("ALL=(root) /usr/bin/id, NOPASSWD: /usr/bin/printenv");
    let mut gate = user.gate("");
    let none = gate.run(&root("no way to ask", json!([["id"]])));
    assert!(told(&none).contains("there is no way to ask for one; set an askpass program"), "{none}");
    let asked =
        with(root("env", json!([["printenv"]])), json!({"env": {"DEBIAN_FRONTEND": "noninteractive"}}));
    let env = gate.run(&asked);
    assert!(told(&env).contains("do not allow this environment to this user; see SETENV"), "{env}");
    assert!(stdout(&gate.run(&root("listed", json!([["printenv", "USER"]])))).contains("root"));
    drop(gate);
    let askpass = user.askpass(&format!("echo {PASSWORD}"));
    let mut gate = user.gate(&askpass.config());
    let rule = gate.run(&root("rule", json!([["true"]])));
    assert!(told(&rule).contains("sudo's rules do not allow this command to this user"), "{rule}");
    drop(gate);
    let askpass = user.askpass("exit 1");
    let mut gate = user.gate(&askpass.config());
    let got_none = gate.run(&root("none", json!([["id"]])));
    assert_eq!(told(&got_none), "sudo wants a password and got none");
    drop(gate);
    let stranger = User::new("");
    let askpass = stranger.askpass(&format!("echo {PASSWORD}"));
    let mut gate = stranger.gate(&askpass.config());
    let unknown = gate.run(&root("unknown", json!([["id"]])));
    assert_eq!(told(&unknown), "this user is not in the sudoers file");
}

#[test]
fn a_wrong_password_is_told_as_one() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let askpass = user.askpass("echo wrong");
    let mut gate = user.gate(&askpass.config());
    let wrong = gate.run(&root("wrong", json!([["id"]])));
    assert_eq!(told(&wrong), "sudo was given a wrong password");
    assert_eq!(askpass.asked().len(), 3);
    assert!(!wrong.to_string().contains("uid=0"), "{wrong}");
    // Whoever mistypes once has not lost.
    let other = user.askpass(&format!(
        "[ $(wc -l <{}/asked) -lt 5 ] && echo wrong || echo {PASSWORD}",
        user.home().display()
    ));
    assert_eq!(stdout(&gate.run(&root("right", json!([["id", "-u"]])))), "0\n");
    assert_eq!(other.asked().len(), 5);
}

#[test]
fn a_host_without_a_sudo_that_works_is_told_as_one() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let user = User::new("ALL=(root) NOPASSWD: ALL");
    let weak = user.home().join("weak");
    script(&weak, "id -u");
    let cases = [
        // A directory of links to everything but sudo, in a mount namespace of the daemon's own.
        (
            "mount --bind /usr/bin /mnt\nmount -t tmpfs -o mode=755 none /usr/bin\n/mnt/ln -s /mnt/* /usr/bin/\n/mnt/rm /usr/bin/sudo".to_owned(),
            "there is no sudo on this host; install sudo, or run the daemon as root",
        ),
        (format!("mount --bind {} /usr/bin/sudo", weak.display()), "is not setuid root"),
        ("mount --bind /dev/null /usr/bin/sudo".to_owned(), "/usr/bin/sudo"),
    ];
    for (before, expected) in cases {
        let mut gate =
            user.gate_with("", GateOptions { before: Some(before.clone()), ..GateOptions::default() });
        let answer = gate.run(&root("a", json!([["id", "-u"]])));
        assert!(told(&answer).contains(expected), "{before}: {answer}");
    }
    assert!(
        std::path::Path::new("/usr/bin/sudo").metadata().unwrap().len() > 0,
        "the host has its own still"
    );
}

/// Ends a process of root's that a daemon could not, also when the test fails.
struct Ended(std::path::PathBuf);

impl Drop for Ended {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(&self.0).ok().and_then(|text| text.trim().parse().ok());
        if let Some(process) = pid.and_then(|pid: i32| outpost_testkit::process(pid).ok()) {
            let _gone = outpost_sys::pidfd::signal(&process, outpost_sys::signal::Signal::KILL);
        }
    }
}

/// A command of root's that notes its pid and never ends: what is answered, and whether it still runs then.
fn too_long(ignores: &str) -> (Value, bool) {
    let user = User::new("ALL=(root) NOPASSWD: ALL");
    let flags = vec!["--run-timeout=1".to_owned()];
    let mut gate = user.gate_with("", GateOptions { flags, ..GateOptions::default() });
    let pid = gate.path("pid");
    let _ended = Ended(pid.clone());
    let slow = format!("{ignores}echo $$ >\"$0\"; echo begun; exec sleep 600");
    let answer = gate.run(&root("slow", json!([["sh", "-c", slow, pid]])));
    let number = std::fs::read_to_string(&pid).unwrap();
    let stat = outpost_sys::procfs::stat(number.trim().parse().unwrap());
    (answer, stat.is_some_and(|stat| !matches!(stat.state, b'Z' | b'X')))
}

#[test]
fn a_command_of_roots_that_takes_too_long_is_ended_by_its_sudo() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let (answer, runs) = too_long("");
    assert_eq!(told(&answer), "command timed out after 1s");
    assert_eq!(
        (answer["timed_out"].as_bool(), decoded(&answer["stdout"])),
        (Some(true), b"begun\n".to_vec())
    );
    assert!(!runs, "it is said to have ended, and runs: {answer}");
}

#[test]
fn a_command_of_roots_that_does_not_want_to_end_is_told_as_running() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let (answer, runs) = too_long("trap '' TERM HUP INT; ");
    let message = told(&answer);
    assert!(message.starts_with("command timed out after 1s"), "{answer}");
    assert_eq!(runs, message.contains("could not be ended, since it runs with more rights"), "{answer}");
    assert_eq!(decoded(&answer["stdout"]), b"begun\n", "{answer}");
}

/// A drop-in of this user's, and a request that its terminal has approved.
fn approved(user: &User, options: BrokerOptions, request: &Value) -> (Broker, Child) {
    let mut broker = Broker::start(&options.uid(user.uid));
    let sent = send_as(user.uid, &broker.socket(), &request.to_string());
    broker.approve();
    (broker, sent)
}

#[test]
fn a_password_is_typed_on_the_drop_ins_terminal_once_and_is_not_seen() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let stage = json!(["sh", "-c", "cat; id -u"]);
    let (mut broker, sent) =
        approved(&user, BrokerOptions::default(), &root("a", json!([stage, stage, stage])));
    broker.wait_screen("Password for sudo");
    // With a mistake that is taken back, and more behind the end: that is for nobody.
    broker.key(format!("x\x7f{PASSWORD}\r").as_bytes());
    assert_eq!(stdout(&answer(sent)), "0\n0\n0\n");
    let screen = broker.screen();
    assert_eq!(screen.matches("Password for sudo").count(), 1, "{screen}");
    assert!(!screen.contains(PASSWORD) && !screen.contains("h0rse"), "{screen}");
    // The next one is asked again.
    broker.skip_screen();
    let sent = send_as(user.uid, &broker.socket(), &root("b", json!([["id", "-u"]])).to_string());
    broker.approve();
    broker.wait_screen("Password for sudo");
    broker.key(b"\x04");
    let refused = answer(sent);
    assert_eq!(told(&refused), "sudo wants a password and got none");
    let own = user.run(&["sudo", "-n", "true"]);
    assert!(!own.status.success(), "{own:?}");
}

/// What was typed of a secret is neither shown nor left for whoever reads next, when nobody waits for it any more.
#[test]
fn sudo_rs_ghsa_q428_typed_secret_echoed_at_the_timeout() {
    outpost_testkit::require!(crate::kit::no_original());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let options = BrokerOptions::default().env("SUDO_PROXY_EXEC_TIMEOUT_SECS", "2");
    let (mut broker, sent) = approved(&user, options, &root("a", json!([["id", "-u"]])));
    broker.wait_screen("Password for sudo");
    broker.key(PASSWORD.as_bytes());
    // Nobody presses Enter; the time of the command runs out.
    let late = answer(sent);
    assert!(told(&late).starts_with("command timed out after 2s"), "{late}");
    // The terminal is free for the next question, and asks it.
    broker.skip_screen();
    let ran = broker.path("ran");
    let mut plain = root("b", json!([["touch", ran]]));
    plain["privileged"] = json!(false);
    let sent = send_as(user.uid, &broker.socket(), &plain.to_string());
    broker.wait_prompt();
    broker.deny();
    assert_eq!(answer(sent)["status"], "denied");
    assert!(!ran.exists());
    let screen = broker.screen();
    assert!(!screen.contains(PASSWORD) && !screen.contains("c0rr3") && !screen.contains("h0rse"), "{screen}");
}
