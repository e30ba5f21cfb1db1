//! What attempts aim at: files, a process and sockets of the host, and a look at whether any of it was harmed.

use super::Limits;
use crate::sandbox::Host;
use crate::table::with;
use outpost_testkit::Options;
use serde_json::{Value, json};
use std::net::{TcpListener, UdpSocket};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::{SocketAddr, UnixDatagram, UnixListener};
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};

/// What every script begins with: names for what it aims at, and for errors.
const PRELUDE: &str = r#"
    $| = 1;
    ($ws, $out, $pid, $state, $tcp, $tcp6, $udp, $abstract) =
        @ENV{qw(AIM_WS AIM_OUT AIM_PID AIM_STATE AIM_TCP AIM_TCP6 AIM_UDP AIM_ABSTRACT)};
    # Calls take texts as addresses.
    $pid += 0;
    sub name { for (sort keys %!) { return $_ if $!{$_} } "no error" }
    # A number is an error.
    sub report { $! = $_[1] if @_ > 1; print $_[0] ? "done" : name(); exit 0 }
    # A system call by its number: true unless it failed.
    sub sys {
        my ($n, @a) = @_; my $r = syscall($n, @a); my $error = $!;
        Internals::SvREADONLY($_[$_ + 1]) or $_[$_ + 1] = $a[$_] for 0 .. $#a;
        $! = $error; $r == -1 ? 0 : $r || "0 but true"
    }
    sub opened { my ($path, $flags, $mode) = @_; my $file; sysopen($file, $path, $flags, $mode // 0644) ? $file : 0 }
    # The first process of a sandbox; without one, a process of the host.
    sub first { -d "/proc/$pid" ? $pid : 1 }
    # Guards attempts that would harm the host if they succeeded.
    sub inside { -d "/proc/$pid" and die "not confined" }
    sub put { my $file = opened($_[0], 02001 | 0100) or return 0; syswrite($file, $_[1] // "x\n") }
"#;

const INTACT: &str = "intact\n";
const CONFIG: &str = "[core]\n";

pub(crate) struct Scene {
    pub(crate) host: Host,
    uid: Option<u32>,
    victim: Child,
    tcp: TcpListener,
    tcp6: Option<TcpListener>,
    udp: UdpSocket,
    stream: UnixListener,
    abstract_stream: UnixListener,
    datagram: UnixDatagram,
    hostname: Vec<u8>,
    core_pattern: Vec<u8>,
}

fn read(path: &str) -> Vec<u8> {
    std::fs::read(path).unwrap_or_default()
}

impl Scene {
    pub(crate) fn start(options: &Options) -> Scene {
        let host = Host::start(options);
        let outside = host.dir("outside");
        let abstract_name = host.server.dir().to_str().unwrap().to_owned();
        let abstract_address = SocketAddr::from_abstract_name(abstract_name).unwrap();
        let scene = Scene {
            uid: options.uid,
            victim: victim(options.uid),
            tcp: TcpListener::bind("127.0.0.1:0").unwrap(),
            tcp6: TcpListener::bind("[::1]:0").ok(),
            udp: UdpSocket::bind("127.0.0.1:0").unwrap(),
            stream: UnixListener::bind(outside.join("docker.sock")).unwrap(),
            abstract_stream: UnixListener::bind_addr(&abstract_address).unwrap(),
            datagram: UnixDatagram::bind(outside.join("log.sock")).unwrap(),
            hostname: read("/proc/sys/kernel/hostname"),
            core_pattern: read("/proc/sys/kernel/core_pattern"),
            host,
        };
        scene.tcp.set_nonblocking(true).unwrap();
        scene.tcp6.iter().for_each(|tcp| tcp.set_nonblocking(true).unwrap());
        scene.udp.set_nonblocking(true).unwrap();
        scene.stream.set_nonblocking(true).unwrap();
        scene.abstract_stream.set_nonblocking(true).unwrap();
        scene.datagram.set_nonblocking(true).unwrap();
        for socket in ["docker.sock", "log.sock"] {
            let open = std::fs::Permissions::from_mode(0o777);
            std::fs::set_permissions(outside.join(socket), open).unwrap();
        }
        scene.create_files();
        scene
    }

    fn create_files(&self) {
        self.host.file("outside/victim", INTACT);
        self.host.dir("outside/inner");
        self.host.file("cwd/.git/config", CONFIG);
        self.host.file("cwd/.git/hooks/keep", "");
        self.host.file("cwd/file", "mine\n");
        self.host.file("cwd/deny/secret", "secret\n");
        self.host.file("cwd/deny.txt", "secret\n");
        self.host.file("cwd/some.key", "secret\n");
    }

    pub(crate) fn is_root(&self) -> bool {
        self.uid.is_none() && outpost_sys::process::effective_uid() == 0
    }

    pub(crate) fn workspace(&self) -> PathBuf {
        self.host.server.cwd()
    }

    pub(crate) fn outside(&self) -> PathBuf {
        self.host.path("outside")
    }

    /// Output of a script, or the error of its start.
    pub(crate) fn run(&mut self, limits: Limits, perl: &str) -> String {
        let params = with(self.params(perl, &[]), limits.params(self));
        self.report(&params)
    }

    /// The same in namespaces of its own, where root cannot harm the host.
    pub(crate) fn run_in_scratch(&mut self, perl: &str) -> String {
        let scratch = ["unshare", "--mount", "--uts", "--ipc", "--net", "--pid", "--fork", "--mount-proc"];
        let params = with(self.params(perl, &scratch), Limits::None.params(self));
        self.report(&params)
    }

    pub(crate) fn params(&self, perl: &str, before: &[&str]) -> Value {
        let script = format!("{PRELUDE}{perl}");
        let command: Vec<&str> = before.iter().copied().chain(["/usr/bin/perl", "-e", &script]).collect();
        let port = |address: std::io::Result<std::net::SocketAddr>| address.unwrap().port().to_string();
        let tcp6 = self.tcp6.as_ref().map(|tcp| port(tcp.local_addr()));
        let env = json!({
            "AIM_WS": self.workspace(),
            "AIM_OUT": self.outside(),
            "AIM_PID": self.victim.id().to_string(),
            "AIM_STATE": self.host.path("state"),
            "AIM_TCP": port(self.tcp.local_addr()),
            "AIM_TCP6": tcp6.unwrap_or_default(),
            "AIM_UDP": port(self.udp.local_addr()),
            "AIM_ABSTRACT": self.host.server.dir(),
        });
        json!({"command": command, "env": env})
    }

    pub(crate) fn report(&mut self, params: &Value) -> String {
        let id = self.host.server.request("command/exec", params);
        self.report_of(id)
    }

    pub(crate) fn report_of(&mut self, id: u64) -> String {
        let reply: Value = serde_json::from_str(&self.host.server.reply(id)).unwrap();
        match reply.get("result") {
            Some(result) => {
                let said = ["stdout", "stderr"].map(|stream| result[stream].as_str().unwrap()).concat();
                if said.is_empty() { format!("nothing: {result}") } else { said }
            }
            None => format!("error: {}", reply["error"]["message"].as_str().unwrap_or_default()),
        }
    }

    /// What is not as it was.
    pub(crate) fn harm(&mut self) -> Vec<String> {
        let mut harm = Vec::new();
        let mut check = |what: &str, is_well: bool| {
            if !is_well {
                harm.push(what.to_owned());
            }
        };
        let outside = self.outside();
        let text = |path: PathBuf| std::fs::read_to_string(path).unwrap_or_default();
        check("the file outside has changed", text(outside.join("victim")) == INTACT);
        let found = std::fs::symlink_metadata(outside.join("victim"));
        let found = found.map(|found| (found.mode() & 0o7777, found.nlink())).unwrap_or_default();
        check(&format!("the file outside is now {found:?}"), found == (0o644, 1));
        let names = names(&outside);
        check(&format!("outside there is {names}"), names == "docker.sock inner log.sock victim");
        check("something is in the inner directory", self::names(&outside.join("inner")).is_empty());
        let git = self.workspace().join(".git");
        check("the repository has changed", text(git.join("config")) == CONFIG);
        check("the repository has new names", self::names(&git) == "config hooks");
        check("there is a new hook", self::names(&git.join("hooks")) == "keep");
        check("there is something in .codex", self::names(&self.workspace().join(".codex")).is_empty());
        let stat = read(&format!("/proc/{}/stat", self.victim.id()));
        let nice = String::from_utf8_lossy(&stat).split(' ').nth(18).map(str::to_owned);
        check(&format!("the process outside has niceness {nice:?}"), nice.as_deref() == Some("0"));
        check("the process outside has ended", self.victim.try_wait().unwrap().is_none());
        check("the host has another name", read("/proc/sys/kernel/hostname") == self.hostname);
        check("cores of the host go elsewhere", read("/proc/sys/kernel/core_pattern") == self.core_pattern);
        let null = std::fs::metadata("/dev/null").unwrap().mode();
        check(&format!("/dev/null is {null:o}"), null == 0o20666);
        let contacted = self.contacted_sockets();
        check(&format!("something reached {contacted:?}"), contacted.is_empty());
        harm
    }

    /// The sockets outside that a command has reached.
    pub(crate) fn contacted_sockets(&self) -> Vec<&'static str> {
        let mut bytes = [0; 64];
        let sockets = [
            ("TCP", self.tcp.accept().is_ok()),
            ("TCP over IPv6", self.tcp6.as_ref().is_some_and(|tcp| tcp.accept().is_ok())),
            ("UDP", self.udp.recv(&mut bytes).is_ok()),
            ("a stream socket", self.stream.accept().is_ok()),
            ("an abstract socket", self.abstract_stream.accept().is_ok()),
            ("a datagram socket", self.datagram.recv(&mut bytes).is_ok()),
        ];
        sockets.into_iter().filter(|(_, contacted)| *contacted).map(|(socket, _)| socket).collect()
    }

    /// Takes away what an attempt left where it was allowed to.
    pub(crate) fn clean(&mut self) {
        for entry in std::fs::read_dir(self.workspace()).unwrap().flatten() {
            let name = entry.file_name();
            let keep = [".git", ".codex", ".agents", "file", "deny", "deny.txt", "some.key"];
            if !keep.iter().any(|keep| name == *keep) {
                let path = entry.path();
                let removed = match entry.file_type().unwrap().is_dir() {
                    true => std::fs::remove_dir_all(path),
                    false => std::fs::remove_file(path),
                };
                removed.unwrap();
            }
        }
    }

    /// Makes everything as it was, after a control has had its way.
    pub(crate) fn repair(&mut self) {
        for name in ["victim", "inner"] {
            let path = self.outside().join(name);
            let _missing = std::fs::remove_file(&path);
            let _missing = std::fs::remove_dir_all(&path);
        }
        for entry in std::fs::read_dir(self.outside()).unwrap().flatten() {
            if entry.path().extension().is_none_or(|extension| extension != "sock") {
                let _left = std::fs::remove_file(entry.path());
            }
        }
        for entry in std::fs::read_dir(self.workspace()).unwrap().flatten() {
            let _directory = std::fs::remove_file(entry.path());
            let _gone = std::fs::remove_dir_all(entry.path());
        }
        self.create_files();
        self.end_victim();
        self.victim = victim(self.uid);
        while !self.contacted_sockets().is_empty() {
            outpost_testkit::pause();
        }
    }

    pub(crate) fn end_victim(&mut self) {
        let _ended = self.victim.kill();
        let _reaped = self.victim.wait();
    }
}

impl Drop for Scene {
    fn drop(&mut self) {
        self.end_victim();
    }
}

/// A process of the same user that waits for ever.
fn victim(uid: Option<u32>) -> Child {
    let mut command = Command::new("/bin/cat");
    command.stdin(Stdio::piped()).stdout(Stdio::null()).env("SECRET", "of the victim");
    if let Some(uid) = uid {
        command.uid(uid).gid(uid);
    }
    command.spawn().unwrap()
}

fn names(directory: &std::path::Path) -> String {
    let entries = std::fs::read_dir(directory).into_iter().flatten().flatten();
    let mut names: Vec<String> =
        entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect();
    names.sort();
    names.join(" ")
}
