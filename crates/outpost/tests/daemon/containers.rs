//! Sandboxes on hosts without namespaces: which policies work, and the cause and hint for those that do not.

use crate::support::outpost;
use outpost_testkit::{ANN, Daemon, binary_beside, require, root};
use serde_json::Value;
use std::os::unix::fs::chown;
use std::path::Path;
use std::process::{Command, Output, Stdio};
use tempfile::TempDir;

/// Creates `/dev` and `/run` as container engines do.
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

/// Masks a part of `/proc` first, so that the kernel refuses users another mount of proc.
const MASKED: &str = "mount --bind /dev/null /proc/keys || exit\n";

/// Forbids user namespaces. The setting belongs to the user namespace of the process that writes it.
const FORBIDDEN: &str = r#"
set -e
echo 0 > /proc/sys/user/max_user_namespaces
exec setpriv --bounding-set=-all --inh-caps=-all "$@"
"#;

/// Container options that every hint names.
const OPTIONS: [&str; 3] = ["--privileged", "seccomp=unconfined", "unmask=ALL"];

struct SandboxHost {
    daemon: Daemon,
    prefix: Vec<String>,
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

fn as_ann() -> Vec<String> {
    vec!["setpriv".into(), format!("--reuid={ANN}"), format!("--regid={ANN}"), "--clear-groups".into()]
}

/// A container of an ordinary user, with a seccomp filter of `oldkernel`.
fn container(filter: Option<&str>, masked: &str) -> Vec<String> {
    let mut prefix = words(&["unshare", "--mount", "sh", "-c", &format!("{masked}{CONTAINER}"), "sh"]);
    if let Some(filter) = filter {
        prefix.push(binary_beside(outpost(), "oldkernel").display().to_string());
        prefix.push(filter.to_owned());
    }
    prefix.extend(as_ann());
    prefix
}

impl SandboxHost {
    /// Starts a daemon behind this command prefix.
    fn start(prefix: Vec<String>) -> SandboxHost {
        let dir = TempDir::new().unwrap();
        chown(dir.path(), Some(ANN), Some(ANN)).unwrap();
        let mut serve = program(&prefix);
        serve.env("HOME", dir.path());
        SandboxHost { daemon: Daemon::start_by(serve, dir, &[]), prefix }
    }

    fn dir(&self) -> &Path {
        self.daemon.dir()
    }

    fn exec(&self, flags: &[&str], script: &str) -> (Option<i32>, String) {
        let mut exec = program(&as_ann());
        exec.args(["--state-dir", "state", "--runtime-dir", "run", "exec"]).args(flags);
        output_text(&exec.args(["--", "sh", "-c", script]).current_dir(self.dir()).output().unwrap())
    }

    /// The check of this name by `outpost doctor`, run in the daemon's environment.
    fn doctor(&self, name: &str) -> Value {
        let mut doctor = program(&self.prefix);
        doctor.args(["--state-dir", "state", "--runtime-dir", "run", "doctor", "--json"]);
        let output = doctor.current_dir(self.dir()).env("HOME", self.dir()).output().unwrap();
        let report: Value = serde_json::from_slice(&output.stdout).unwrap_or_else(|_| panic!("{output:?}"));
        let groups = report["groups"].as_array().unwrap().iter();
        let mut checks = groups.flat_map(|group| group["checks"].as_array().unwrap());
        checks.find(|check| check["name"] == name).unwrap().clone()
    }

    /// Asserts that a read-only command runs, writes nothing, and cannot read the daemon's files.
    fn assert_read_only_works(&self) {
        std::fs::write(self.dir().join("file"), "read").unwrap();
        std::fs::write(self.dir().join("state/planted"), "seen").unwrap();
        let script = "cat file; touch made; echo x > file; ls state run; cat state/planted; echo > /dev/null && echo null; \
            python3 -c 'import socket; socket.socket()' 2>&1 | tail -1";
        let (_, message) = self.exec(&["--sandbox", "read-only"], script);
        assert!(
            message.contains("read") && message.contains("null\n") && !message.contains("seen"),
            "{message}"
        );
        assert!(!self.dir().join("made").exists());
        assert_eq!(std::fs::read_to_string(self.dir().join("file")).unwrap(), "read", "{message}");
        // Six refusals: two writes, two directories, a file in one of them, and a socket.
        assert_eq!(
            message.matches("ermission denied").count() + message.matches("not permitted").count(),
            6,
            "{message}"
        );
        let line = self.doctor("namespaces");
        let effect = line["effect"].as_str().unwrap();
        assert!(effect.contains("except read-only ones without network"), "{line}");
        assert_eq!(self.doctor("landlock")["verdict"], "ok");
    }

    /// Asserts that the command is refused with this cause and these hints, and that doctor reports the same.
    fn assert_refused(&self, flags: &[&str], cause: &str, advice: &[&str]) {
        let (code, message) = self.exec(flags, "echo ran");
        assert!(code != Some(0) && !message.contains("ran"), "{message}");
        let line = self.doctor("namespaces");
        let (found, fix) = (line["found"].as_str().unwrap(), line["fix"].as_str().unwrap());
        for text in [&message, found] {
            assert!(text.contains(cause), "{cause}: {text}");
        }
        for advice in advice {
            assert!(message.contains(advice) && fix.contains(advice), "{advice}: {message}\n{fix}");
        }
    }
}

fn program(prefix: &[String]) -> Command {
    let (first, rest) = prefix.split_first().unwrap();
    let mut command = Command::new(first);
    command.args(rest).arg(outpost()).stdin(Stdio::null());
    command
}

fn output_text(output: &Output) -> (Option<i32>, String) {
    let text = [output.stdout.as_slice(), &output.stderr].concat();
    (output.status.code(), String::from_utf8_lossy(&text).into_owned())
}

const FILTERED: &str = "clone(CLONE_NEWUSER | CLONE_NEWNET): Operation not permitted";

#[test]
fn in_a_container_that_filters_calls_read_only_works_by_landlock_alone() {
    require!(root());
    let host = SandboxHost::start(container(Some("container"), ""));
    host.assert_read_only_works();
    host.assert_refused(&["--sandbox", "workspace-write"], FILTERED, &OPTIONS);
    host.assert_refused(&["--network", "--sandbox", "read-only"], FILTERED, &OPTIONS);
}

#[test]
fn in_a_container_with_a_masked_proc_read_only_works_by_landlock_alone() {
    require!(root());
    let host = SandboxHost::start(container(None, MASKED));
    host.assert_read_only_works();
    host.assert_refused(
        &["--sandbox", "workspace-write"],
        "Mount proc /proc: Operation not permitted",
        &OPTIONS,
    );
}

#[test]
fn in_a_container_without_landlock_every_sandbox_is_refused() {
    require!(root());
    let host = SandboxHost::start(container(Some("container-without-landlock"), ""));
    for sandbox in ["read-only", "workspace-write"] {
        host.assert_refused(&["--sandbox", sandbox], FILTERED, &OPTIONS);
    }
    let (_, message) = host.exec(&["--sandbox", "read-only"], "true");
    assert!(message.contains("there is no Landlock"), "{message}");
    let effect = host.doctor("namespaces")["effect"].as_str().unwrap().to_owned();
    assert!(
        effect.starts_with("every sandboxed command is refused") && effect.contains("no Landlock"),
        "{effect}"
    );
    let landlock = host.doctor("landlock");
    assert!(landlock["fix"].as_str().unwrap().contains("allows the landlock_ calls"), "{landlock}");
}

#[test]
fn the_setting_that_forbids_user_namespaces_is_named() {
    require!(root());
    let mut prefix = as_ann();
    prefix.extend(words(&["unshare", "--user", "--map-root-user", "sh", "-c", FORBIDDEN, "sh"]));
    let host = SandboxHost::start(prefix);
    host.assert_read_only_works();
    let cause = "clone(CLONE_NEWUSER | CLONE_NEWNET): No space left on device";
    host.assert_refused(
        &["--sandbox", "workspace-write"],
        cause,
        &["/proc/sys/user/max_user_namespaces is 0: sysctl -w user.max_user_namespaces=10000"],
    );
    let (_, message) = host.exec(&["--sandbox", "workspace-write"], "true");
    for right in ["apparmor_restrict_unprivileged_userns", "unprivileged_userns_clone"] {
        assert!(!message.contains(right), "this setting forbids nothing here: {message}");
    }
}
