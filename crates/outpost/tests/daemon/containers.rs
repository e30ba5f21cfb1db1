//! Sandboxes where namespaces are forbidden: what runs, what is refused, and the cause and the advice that are given for it.

use crate::support::outpost;
use outpost_testkit::{ANN, Daemon, binary_beside, require, root};
use serde_json::Value;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// `/dev` and `/run` as container engines make them.
const CONTAINER: &str = r#"
set -e
mount -t tmpfs none /run
touch /run/.containerenv
mount -t tmpfs none /mnt
for node in null zero full random urandom tty; do touch /mnt/$node; mount --bind /dev/$node /mnt/$node; done
mkdir /mnt/pts
mount -t devpts -o newinstance,ptmxmode=0666 none /mnt/pts
ln -s pts/ptmx /mnt/ptmx
mount --rbind /mnt /dev
exec "$@"
"#;

/// Before it: a `/proc` that is masked in part, so that the kernel permits users no other one.
const MASKED: &str = "mount --bind /dev/null /proc/keys || exit\n";

/// A host whose administrator has forbidden user namespaces: the setting is one of the user namespace that reads it.
const FORBIDDEN: &str = r#"
set -e
echo 0 > /proc/sys/user/max_user_namespaces
exec setpriv --bounding-set=-all --inh-caps=-all "$@"
"#;

/// What all of them advise in a container.
const OPTIONS: [&str; 3] = ["--privileged", "seccomp=unconfined", "unmask=ALL"];

struct Confines {
    daemon: Daemon,
    before: Vec<String>,
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn as_ann() -> Vec<String> {
    vec!["setpriv".into(), format!("--reuid={ANN}"), format!("--regid={ANN}"), "--clear-groups".into()]
}

/// A container of an ordinary user, behind a filter of `oldkernel`.
fn container(filter: Option<&str>, masked: &str) -> Vec<String> {
    let mut before = words(&["unshare", "--mount", "sh", "-c", &format!("{masked}{CONTAINER}"), "sh"]);
    if let Some(filter) = filter {
        before.push(binary_beside(outpost(), "oldkernel").display().to_string());
        before.push(filter.to_owned());
    }
    before.extend(as_ann());
    before
}

impl Confines {
    /// A daemon, started by these words.
    fn start(before: Vec<String>) -> Confines {
        let dir = TempDir::new().unwrap();
        chown(dir.path(), Some(ANN), Some(ANN)).unwrap();
        let mut serve = program(&before);
        serve.env("HOME", dir.path());
        Confines { daemon: Daemon::start_by(serve, dir, &[]), before }
    }

    fn dir(&self) -> &Path {
        self.daemon.dir()
    }

    fn exec(&self, flags: &[&str], script: &str) -> (Option<i32>, String) {
        let mut exec = program(&as_ann());
        exec.args(["--state-dir", "state", "--runtime-dir", "run", "exec"]).args(flags);
        said(&exec.args(["--", "sh", "-c", script]).current_dir(self.dir()).output().unwrap())
    }

    /// The line of doctor, run where the daemon runs: what was found, what it means and what mends it.
    fn doctor(&self, name: &str) -> Value {
        let mut doctor = program(&self.before);
        doctor.args(["--state-dir", "state", "--runtime-dir", "run", "doctor", "--json"]);
        let output = doctor.current_dir(self.dir()).env("HOME", self.dir()).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let groups = report["groups"].as_array().unwrap().iter();
        let mut checks = groups.flat_map(|group| group["checks"].as_array().unwrap());
        checks.find(|check| check["name"] == name).unwrap().clone()
    }

    /// A read-only command runs; it changes nothing, and nothing of the daemon's own is open to it.
    fn assert_read_only_works(&self) {
        std::fs::write(self.dir().join("file"), "read").unwrap();
        std::fs::write(self.dir().join("state/planted"), "seen").unwrap();
        let script = "cat file; touch made; echo x > file; ls state run; cat state/planted; echo > /dev/null && echo null; \
            python3 -c 'import socket; socket.socket()' 2>&1 | tail -1";
        let (_, told) = self.exec(&["--sandbox", "read-only"], script);
        assert!(told.contains("read") && told.contains("null\n") && !told.contains("seen"), "{told}");
        assert!(!self.dir().join("made").exists());
        assert_eq!(std::fs::read_to_string(self.dir().join("file")).unwrap(), "read", "{told}");
        // Two writes, two directories, what is in one of them, and a socket.
        assert_eq!(
            told.matches("ermission denied").count() + told.matches("not permitted").count(),
            6,
            "{told}"
        );
        let line = self.doctor("namespaces");
        let means = line["means"].as_str().unwrap();
        assert!(means.contains("except read-only ones without network"), "{line}");
        assert_eq!(self.doctor("landlock")["verdict"], "ok");
    }

    /// Refused, with this cause and advice, of which doctor states the same.
    fn assert_refused(&self, flags: &[&str], cause: &str, advice: &[&str]) {
        let (code, told) = self.exec(flags, "echo ran");
        assert!(code != Some(0) && !told.contains("ran"), "{told}");
        let line = self.doctor("namespaces");
        let (found, mend) = (line["found"].as_str().unwrap(), line["mend"].as_str().unwrap());
        for text in [&told, found] {
            assert!(text.contains(cause), "{cause}: {text}");
        }
        for advice in advice {
            assert!(told.contains(advice) && mend.contains(advice), "{advice}: {told}\n{mend}");
        }
    }
}

fn program(before: &[String]) -> Command {
    let (first, rest) = before.split_first().unwrap();
    let mut command = Command::new(first);
    command.args(rest).arg(outpost()).stdin(Stdio::null());
    command
}

fn said(output: &Output) -> (Option<i32>, String) {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

const FILTERED: &str = "clone(CLONE_NEWUSER | CLONE_NEWNET): Operation not permitted";

#[test]
fn in_a_container_that_filters_calls_read_only_works_by_landlock_alone() {
    require!(root());
    let host = Confines::start(container(Some("container"), ""));
    host.assert_read_only_works();
    host.assert_refused(&["--sandbox", "workspace-write"], FILTERED, &OPTIONS);
    host.assert_refused(&["--network", "--sandbox", "read-only"], FILTERED, &OPTIONS);
}

#[test]
fn in_a_container_with_a_masked_proc_read_only_works_by_landlock_alone() {
    require!(root());
    let host = Confines::start(container(None, MASKED));
    host.assert_read_only_works();
    host.assert_refused(
        &["--sandbox", "workspace-write"],
        "New proc /proc: Operation not permitted",
        &OPTIONS,
    );
}

#[test]
fn in_a_container_without_landlock_every_sandbox_is_refused() {
    require!(root());
    let host = Confines::start(container(Some("container-without-landlock"), ""));
    for sandbox in ["read-only", "workspace-write"] {
        host.assert_refused(&["--sandbox", sandbox], FILTERED, &OPTIONS);
    }
    let (_, told) = host.exec(&["--sandbox", "read-only"], "true");
    assert!(told.contains("there is no Landlock"), "{told}");
    let means = host.doctor("namespaces")["means"].as_str().unwrap().to_owned();
    assert!(
        means.starts_with("every sandboxed command is refused") && means.contains("no Landlock"),
        "{means}"
    );
    let landlock = host.doctor("landlock");
    assert!(landlock["mend"].as_str().unwrap().contains("allows the landlock_ calls"), "{landlock}");
}

#[test]
fn on_a_host_that_forbids_user_namespaces_the_setting_that_does_is_named() {
    require!(root());
    let mut before = as_ann();
    before.extend(words(&["unshare", "--user", "--map-root-user", "sh", "-c", FORBIDDEN, "sh"]));
    let host = Confines::start(before);
    host.assert_read_only_works();
    let cause = "clone(CLONE_NEWUSER | CLONE_NEWNET): No space left on device";
    host.assert_refused(
        &["--sandbox", "workspace-write"],
        cause,
        &["/proc/sys/user/max_user_namespaces is 0: sysctl -w user.max_user_namespaces=10000"],
    );
    let (_, told) = host.exec(&["--sandbox", "workspace-write"], "true");
    for right in ["apparmor_restrict_unprivileged_userns", "unprivileged_userns_clone"] {
        assert!(!told.contains(right), "it forbids nothing here: {told}");
    }
}
