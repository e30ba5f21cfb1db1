//! A real guard in a directory that stands for `/`, and requests of several users.

use crate::broker_client::BrokerClient;
use crate::daemon::Daemon;
use crate::kernel;
use serde_json::{Value, json};
use std::ops::Deref;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// Users of no account on any host.
pub const ANN: u32 = 54_321;
pub const BOB: u32 = 54_322;

pub struct Guard {
    daemon: Option<Daemon>,
    binary: PathBuf,
    dir: TempDir,
}

impl Deref for Guard {
    type Target = Daemon;

    fn deref(&self) -> &Daemon {
        self.daemon.as_ref().expect("it serves")
    }
}

impl Guard {
    /// With these rules of root's.
    pub fn start(binary: &Path, rules: &str) -> Guard {
        let mut guard = Guard::prepare(binary, rules);
        guard.serve();
        guard
    }

    /// Installed, and not started yet.
    pub fn prepare(binary: &Path, rules: &str) -> Guard {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o755)).unwrap();
        let guard = Guard { daemon: None, binary: binary.to_owned(), dir };
        for path in ["etc/outpost", "var/lib/outpost-guard", "run"] {
            std::fs::create_dir_all(guard.root().join(path)).unwrap();
        }
        std::fs::write(guard.root().join("etc/outpost/rules.toml"), rules).unwrap();
        // `ann` is in a group of her own and in two others.
        let passwd = std::fs::read_to_string("/etc/passwd").unwrap();
        let group = std::fs::read_to_string("/etc/group").unwrap();
        let root = guard.root();
        let ann = format!("{passwd}\nann:x:{ANN}:{ANN}::/home/ann:/bin/sh\n");
        std::fs::write(root.join("passwd"), ann).unwrap();
        let groups =
            format!("{group}\nann:x:{ANN}:\nfirst:x:54401:bob,ann\nsecond:x:54402:ann\nthird:x:54403:bob\n");
        std::fs::write(root.join("group"), groups).unwrap();
        guard
    }

    /// In a view of the host where `ann` has an account.
    pub fn serve(&mut self) {
        const VIEW: &str =
            "mount --bind \"$1\" /etc/passwd && mount --bind \"$2\" /etc/group && shift 2 && exec \"$@\"";
        let mut command = kernel::command(None, Path::new("unshare"));
        command.args(["-m", "sh", "-c", VIEW, "sh", "passwd", "group"]).arg(&self.binary);
        command.args(["--guard", "--guard-root"]).arg(self.root());
        self.daemon = Some(Daemon::start_guard(command, self.root()));
    }

    /// Ends it. It is still installed.
    pub fn stop(&mut self) {
        self.daemon = None;
    }

    /// What stands for `/`.
    pub fn root(&self) -> &Path {
        self.dir.path()
    }

    pub fn broker(&self) -> PathBuf {
        self.root().join("run/outpost-guard/broker.sock")
    }

    pub fn approvals(&self) -> PathBuf {
        self.root().join("run/outpost-guard/approvals.sock")
    }

    /// A connection of this user over which a request was sent.
    pub fn send(&self, uid: u32, request: &Value) -> BrokerClient {
        let mut client = BrokerClient::connect_as(&self.broker(), uid);
        client.send(format!("{request}\n"));
        client
    }

    /// The answer to a request of this user.
    pub fn ask(&self, uid: u32, request: &Value) -> Value {
        serde_json::from_str(&self.send(uid, request).answer()).unwrap()
    }

    /// A program that runs as this user, in its group and no other.
    pub fn command_as(uid: u32, program: impl AsRef<std::ffi::OsStr>) -> Command {
        use std::os::unix::process::CommandExt;
        let mut command = Command::new(program);
        command.uid(uid).gid(uid).current_dir("/");
        command
    }
}

/// A request for one command.
pub fn broker_request(id: &str, privileged: bool, command: &[&str]) -> Value {
    json!({ "id": id, "time": crate::broker::stamp(0), "session": "test", "privileged": privileged, "pipeline": [command] })
}
