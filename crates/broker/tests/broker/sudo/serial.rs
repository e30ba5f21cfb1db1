//! sudo's arguments, its refusals and its passwords. Serial: the user database is shared by the whole host.

use super::{PASSWORD, User, sudo};
use crate::fixture::{FixtureOptions, line, send_as};
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

/// The message of an error response.
#[track_caller]
fn error_message(answer: &Value) -> &str {
    assert_eq!(answer["status"], "error", "{answer}");
    answer["message"].as_str().unwrap()
}

fn answer(sent: Child) -> Value {
    serde_json::from_slice(&sent.wait_with_output().unwrap().stdout).unwrap()
}

const SECURE_PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

#[test]
fn an_allowed_command_runs_as_root_in_roots_environment() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let user = User::new("ALL=(root) NOPASSWD: ALL");
    let mut fixture = user.fixture("");
    let (sent, question) = fixture.ask(&root("id", json!([["id", "-u"]])));
    assert_eq!(line(&question, "Runs", "as"), "root (uid 0)");
    fixture.approver().allow(&question);
    assert_eq!(stdout(&sent.answer()), "0\n");
    let env = json!({"env": {"LANG": "C.UTF-8", "LC_ALL": "C", "TERM": "xterm", "TZ": "UTC"}});
    let text = stdout(&fixture.run(&with(root("env", json!([["env"]])), env)));
    for expected in ["HOME=/root", "USER=root", "LOGNAME=root", SECURE_PATH, "LC_ALL=C", "TZ=UTC"] {
        assert!(text.lines().any(|line| line == expected), "{expected} is missing: {text}");
    }
    let home = user.home().to_str().unwrap();
    assert!(!text.contains(home) && !text.contains("OUTPOST") && !text.contains("ASKPASS"), "{text}");
    let pipeline = json!([["id", "-u"], ["sh", "-c", "cat; id -u; exit 3"], ["sh", "-c", "cat; id -un"]]);
    let all = fixture.run(&root("all", pipeline));
    assert_eq!(stdout(&all), "0\n0\nroot\n");
    assert_eq!(all["stages"][1]["exit_code"], 3, "{all}");
    // The umask is root's, the directory is the requested one, and no descriptor of the daemon is inherited.
    let look = "umask; pwd; ls /proc/self/fd | wc -l";
    let asked = with(root("where", json!([["sh", "-c", look]])), json!({"cwd": "/usr"}));
    assert_eq!(stdout(&fixture.run(&asked)), "0022\n/usr\n4\n");
}

#[test]
fn sudo_gets_the_brokers_options_a_double_dash_and_an_absolute_path() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let user = User::new("ALL=(root) NOPASSWD: ALL");
    let mut fixture = user.fixture("");
    let print = "tr '\\0' '\\n' </proc/$PPID/cmdline; echo; printenv DEBIAN_FRONTEND";
    let more = json!({"env": {"DEBIAN_FRONTEND": "noninteractive", "LANG": "C.UTF-8"}});
    let text = stdout(&fixture.run(&with(root("a", json!([["sh", "-c", print, "-u", "A=b", "--"]])), more)));
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
        fixture.refused(&root(id, json!([argv])));
    }
    for (name, value) in [
        ("LD_PRELOAD", "/tmp/x"),
        ("PATH", "/tmp"),
        ("HOME", "/tmp"),
        ("TZ", "/etc/shadow"),
        ("LANG", "../x"),
    ] {
        let request = with(root(name, json!([["id"]])), json!({"env": {name: value}}));
        assert!(fixture.refused(&request).starts_with("environment variable not allowed: "));
    }
    // A program that the user can change is not run as root, even if sudoers allows it.
    let own = user.home().join("tool");
    script(&own, "id -u");
    std::os::unix::fs::chown(&own, Some(user.uid), None).unwrap();
    let refused = fixture.refused(&root("own", json!([[own]])));
    assert!(refused.contains("others than root can change"), "{refused}");
}

#[test]
fn only_the_systems_sudo_is_executed() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let user = User::new("ALL=(root) NOPASSWD: ALL");
    let ran = user.home().join("ran");
    for name in ["sudo", "sudo-rs", "doas", "id"] {
        script(&user.home().join(name), &format!("touch {}", ran.display()));
    }
    let path = format!("{}:/usr/sbin:/usr/bin:/sbin:/bin", user.home().display());
    let env = vec![("PATH", path.into()), ("SUDO", user.home().join("sudo").into())];
    let mut fixture = user.fixture_with("", FixtureOptions { env, ..FixtureOptions::default() });
    assert_eq!(
        stdout(&fixture.run(&with(root("a", json!([["id", "-u"]])), json!({"cwd": user.home()})))),
        "0\n"
    );
    assert!(!ran.exists());
}

#[test]
fn a_password_is_asked_for_once_and_leaves_no_credentials() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let askpass = user.askpass(&format!("echo {PASSWORD}"));
    let mut fixture = user.fixture(&askpass.config());
    assert_eq!(stdout(&fixture.run(&root("one", json!([["id", "-u"]])))), "0\n");
    assert_eq!(askpass.asked(), ["Password for sudo, to run id -u:"]);
    let stage = json!(["sh", "-c", "cat; id -u"]);
    assert_eq!(stdout(&fixture.run(&root("three", json!([stage, stage, stage])))), "0\n0\n0\n");
    assert_eq!(askpass.asked().len(), 2, "{:?}", askpass.asked());
    // The prompt of a command beyond the kernel's argument limit is cut.
    let long = json!([["sh", "-c", "id -u", "x".repeat(100_000), "y".repeat(100_000)]]);
    assert_eq!(stdout(&fixture.run(&root("long", long))), "0\n");
    assert_eq!(askpass.asked().len(), 3, "{:.900?}", askpass.asked());
    // No credentials are cached for the agent or for its unprivileged commands.
    let own = user.run(&["sudo", "-n", "id", "-u"]);
    assert!(!own.status.success() && own.stdout.is_empty(), "{own:?}");
    let mut command = root("child", json!([["sudo", "-n", "id", "-u"]]));
    command["privileged"] = json!(false);
    let child = fixture.run(&command);
    assert_eq!((child["stages"][0]["exit_code"].as_i64(), stdout(&child).as_str()), (Some(1), ""), "{child}");
    // The askpass socket gives the password to no other process.
    let helper = user.run(&["bash", "-c", &exec_askpass(&fixture.daemon().dir().join("run"))]);
    assert!(!helper.status.success() && helper.stdout.is_empty(), "{helper:?}");
    assert_eq!(askpass.asked().len(), 3, "{:.900?}", askpass.asked());
    let (log, audit) = (fixture.daemon().log(), String::from_utf8(fixture.audit()).unwrap());
    assert!(
        !log.contains(PASSWORD) && !audit.contains(PASSWORD),
        "the password is in the log or in the audit chain"
    );
}

/// A script that executes the askpass program as sudo would.
fn exec_askpass(run: &Path) -> String {
    let socket = run.join("askpass.sock");
    let binary = binary();
    format!("OUTPOST_ASKPASS_SOCKET={} exec -a /proc/1/exe {} Password:", socket.display(), binary.display())
}

/// Processes of the daemon's user can write the daemon's directories. If sudo executed an askpass program there, that
/// program could run the real one and capture its standard output.
#[test]
fn the_askpass_program_has_no_path_that_the_user_can_write() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let askpass = user.askpass(&format!("echo {PASSWORD}"));
    let mut fixture = user.fixture(&askpass.config());
    let run = fixture.daemon().dir().join("run");
    let stolen = user.home().join("stolen");
    // The path of the askpass program in earlier versions.
    let name = run.join("outpost-askpass");
    let _missing = std::fs::remove_file(&name);
    let thief = format!(
        "exec >{}\nexec bash -c 'exec -a {} {} Password:'",
        stolen.display(),
        name.display(),
        binary().display()
    );
    script(&name, &thief);
    fixture.run(&root("one", json!([["id", "-u"]])));
    let stolen = std::fs::read_to_string(stolen).unwrap_or_default();
    assert!(!stolen.contains(PASSWORD), "the user's program got the password");
    assert_eq!(stdout(&fixture.run(&root("two", json!([["id", "-u"]])))), "0\n");
}

/// The command is a child of sudo, as the askpass program is, but it does not execute the daemon's binary.
#[test]
fn a_command_that_sudo_runs_gets_no_password() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let askpass = user.askpass(&format!("echo {PASSWORD}"));
    let mut fixture = user.fixture(&askpass.config());
    let socket = fixture.daemon().dir().join("run/askpass.sock");
    let script = format!(
        "import socket; s = socket.socket(socket.AF_UNIX); s.connect({:?}); print(s.recv(99))",
        socket.display().to_string()
    );
    assert_eq!(stdout(&fixture.run(&root("asks", json!([["python3", "-c", script]])))), "b''\n");
    assert_eq!(askpass.asked().len(), 1, "the command caused a prompt");
    let log = fixture.daemon().log();
    assert!(log.contains("executes another file than the daemon"), "{log}");
}

#[test]
fn refusals_of_sudo_have_clear_messages() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let user = User::new("ALL=(root) /usr/bin/id, NOPASSWD: /usr/bin/printenv");
    let mut fixture = user.fixture("");
    let none = fixture.run(&root("no way to ask", json!([["id"]])));
    assert!(
        error_message(&none).contains("there is no way to ask for one; set an askpass program"),
        "{none}"
    );
    let asked =
        with(root("env", json!([["printenv"]])), json!({"env": {"DEBIAN_FRONTEND": "noninteractive"}}));
    let env = fixture.run(&asked);
    assert!(error_message(&env).contains("do not allow this environment to this user; see SETENV"), "{env}");
    assert!(stdout(&fixture.run(&root("listed", json!([["printenv", "USER"]])))).contains("root"));
    drop(fixture);
    let askpass = user.askpass(&format!("echo {PASSWORD}"));
    let mut fixture = user.fixture(&askpass.config());
    let rule = fixture.run(&root("rule", json!([["true"]])));
    assert!(error_message(&rule).contains("sudo's rules do not allow this command to this user"), "{rule}");
    drop(fixture);
    let askpass = user.askpass("exit 1");
    let mut fixture = user.fixture(&askpass.config());
    let got_none = fixture.run(&root("none", json!([["id"]])));
    assert_eq!(error_message(&got_none), "sudo wants a password and got none");
    drop(fixture);
    let unlisted = User::new("");
    let askpass = unlisted.askpass(&format!("echo {PASSWORD}"));
    let mut fixture = unlisted.fixture(&askpass.config());
    let unknown = fixture.run(&root("unknown", json!([["id"]])));
    assert_eq!(error_message(&unknown), "this user is not in the sudoers file");
}

#[test]
fn a_wrong_password_has_its_own_message() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let askpass = user.askpass("echo wrong");
    let mut fixture = user.fixture(&askpass.config());
    let wrong = fixture.run(&root("wrong", json!([["id"]])));
    assert_eq!(error_message(&wrong), "sudo was given a wrong password");
    assert_eq!(askpass.asked().len(), 3);
    assert!(!wrong.to_string().contains("uid=0"), "{wrong}");
    // A correct password in a later attempt succeeds.
    let other = user.askpass(&format!(
        "[ $(wc -l <{}/asked) -lt 5 ] && echo wrong || echo {PASSWORD}",
        user.home().display()
    ));
    assert_eq!(stdout(&fixture.run(&root("right", json!([["id", "-u"]])))), "0\n");
    assert_eq!(other.asked().len(), 5);
}

#[test]
fn a_missing_or_unusable_sudo_has_its_own_message() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let user = User::new("ALL=(root) NOPASSWD: ALL");
    let weak = user.home().join("weak");
    script(&weak, "id -u");
    let cases = [
        // In the daemon's own mount namespace, `/usr/bin` has links to all programs except sudo.
        (
            "mount --bind /usr/bin /mnt\nmount -t tmpfs -o mode=755 none /usr/bin\n/mnt/ln -s /mnt/* /usr/bin/\n/mnt/rm /usr/bin/sudo".to_owned(),
            "there is no sudo on this host; install sudo, or run the daemon as root",
        ),
        (format!("mount --bind {} /usr/bin/sudo", weak.display()), "is not setuid root"),
        ("mount --bind /dev/null /usr/bin/sudo".to_owned(), "/usr/bin/sudo"),
    ];
    for (before, expected) in cases {
        let mut fixture = user
            .fixture_with("", FixtureOptions { before: Some(before.clone()), ..FixtureOptions::default() });
        let answer = fixture.run(&root("a", json!([["id", "-u"]])));
        assert!(error_message(&answer).contains(expected), "{before}: {answer}");
    }
    assert!(
        std::path::Path::new("/usr/bin/sudo").metadata().unwrap().len() > 0,
        "the host's own sudo was changed"
    );
}

/// Kills a surviving process of root on drop. Holds the path of its pid file.
struct KillOnDrop(std::path::PathBuf);

impl Drop for KillOnDrop {
    fn drop(&mut self) {
        let pid = std::fs::read_to_string(&self.0).ok().and_then(|text| text.trim().parse().ok());
        if let Some(process) = pid.and_then(|pid: i32| outpost_testkit::process(pid).ok()) {
            let _exited = outpost_sys::pidfd::signal(&process, outpost_sys::signal::Signal::KILL);
        }
    }
}

/// Runs a root command beyond the run timeout. Returns the response, and whether the command is still running.
fn run_too_long(trap: &str) -> (Value, bool) {
    let user = User::new("ALL=(root) NOPASSWD: ALL");
    let flags = vec!["--run-timeout=1".to_owned()];
    let mut fixture = user.fixture_with("", FixtureOptions { flags, ..FixtureOptions::default() });
    let pid = fixture.path("pid");
    let _killer = KillOnDrop(pid.clone());
    let slow = format!("{trap}echo $$ >\"$0\"; echo begun; exec sleep 600");
    let answer = fixture.run(&root("slow", json!([["sh", "-c", slow, pid]])));
    let number = std::fs::read_to_string(&pid).unwrap();
    let stat = outpost_sys::procfs::stat(number.trim().parse().unwrap());
    (answer, stat.is_some_and(|stat| !matches!(stat.state, b'Z' | b'X')))
}

#[test]
fn a_root_command_beyond_the_run_timeout_is_terminated_by_its_sudo() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let (answer, runs) = run_too_long("");
    assert_eq!(error_message(&answer), "command timed out after 1s");
    assert_eq!(
        (answer["timed_out"].as_bool(), decoded(&answer["stdout"])),
        (Some(true), b"begun\n".to_vec())
    );
    assert!(!runs, "the command still runs: {answer}");
}

#[test]
fn a_root_command_that_ignores_signals_is_reported_as_running() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let (answer, runs) = run_too_long("trap '' TERM HUP INT; ");
    let message = error_message(&answer);
    assert!(message.starts_with("command timed out after 1s"), "{answer}");
    assert_eq!(runs, message.contains("could not be ended, since it runs with more rights"), "{answer}");
    assert_eq!(decoded(&answer["stdout"]), b"begun\n", "{answer}");
}

/// A drop-in of this user, and a request approved on its terminal.
fn approved(user: &User, options: BrokerOptions, request: &Value) -> (Broker, Child) {
    let mut broker = Broker::start(&options.uid(user.uid));
    let sent = send_as(user.uid, &broker.socket(), &request.to_string());
    broker.approve();
    (broker, sent)
}

#[test]
fn a_password_is_typed_once_on_the_drop_ins_terminal_without_echo() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let stage = json!(["sh", "-c", "cat; id -u"]);
    let (mut broker, sent) =
        approved(&user, BrokerOptions::default(), &root("a", json!([stage, stage, stage])));
    broker.wait_screen("Password for sudo");
    // The input has a typing error and a backspace.
    broker.key(format!("x\x7f{PASSWORD}\r").as_bytes());
    assert_eq!(stdout(&answer(sent)), "0\n0\n0\n");
    let screen = broker.screen();
    assert_eq!(screen.matches("Password for sudo").count(), 1, "{screen}");
    assert!(!screen.contains(PASSWORD) && !screen.contains("h0rse"), "{screen}");
    // The next request causes a new password prompt.
    broker.skip_screen();
    let sent = send_as(user.uid, &broker.socket(), &root("b", json!([["id", "-u"]])).to_string());
    broker.approve();
    broker.wait_screen("Password for sudo");
    broker.key(b"\x04");
    let refused = answer(sent);
    assert_eq!(error_message(&refused), "sudo wants a password and got none");
    let own = user.run(&["sudo", "-n", "true"]);
    assert!(!own.status.success(), "{own:?}");
}

/// After the timeout, a partially typed secret is neither echoed nor left in the terminal's input.
#[test]
fn sudo_rs_ghsa_q428_typed_secret_echoed_at_the_timeout() {
    outpost_testkit::require!(crate::kit::extension_tests());
    require!(sudo());
    let user = User::new("ALL=(root) ALL");
    let options = BrokerOptions::default().env("SUDO_PROXY_EXEC_TIMEOUT_SECS", "2");
    let (mut broker, sent) = approved(&user, options, &root("a", json!([["id", "-u"]])));
    broker.wait_screen("Password for sudo");
    broker.key(PASSWORD.as_bytes());
    // Enter is not pressed, and the run timeout expires.
    let late = answer(sent);
    assert!(error_message(&late).starts_with("command timed out after 2s"), "{late}");
    // The terminal shows the next prompt.
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
