//! A real sshd with keys of its own, for this user on this host, ended with the test and with all that it started.

use crate::daemon::{TIMEOUT, kill_marked, pause};
use crate::lack::{Lack, installed};
use std::fs;
use std::net::TcpListener;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Instant;

const SSHD: &str = "/usr/sbin/sshd";

/// In the environment of everything that runs over it.
const MARK: &str = "OUTPOST_TEST_SSHD";

pub struct Sshd {
    daemon: Child,
    dir: PathBuf,
    address: String,
    port: u16,
    user: String,
}

/// Where it listens, and what its sessions find.
pub struct SshdOptions<'a> {
    /// Any port on loopback without one.
    pub address: Option<(&'a str, u16)>,
    /// What sshd is started by.
    pub by: &'a [&'a str],
    /// Variables of its sessions, before its own.
    pub environment: &'a [(&'a str, String)],
}

impl SshdOptions<'_> {
    pub const PLAIN: SshdOptions<'static> = SshdOptions { address: None, by: &[], environment: &[] };
}

fn make_key(path: &Path) {
    let made = Command::new("ssh-keygen").args(["-q", "-t", "ed25519", "-N", "", "-f"]).arg(path).output();
    let made = made.unwrap();
    assert!(made.status.success(), "{made:?}");
}

impl Sshd {
    /// With its files in `dir`.
    pub fn start(dir: &Path, options: &SshdOptions<'_>) -> Result<Sshd, Lack> {
        installed(SSHD)?;
        for key in ["host_key", "key"] {
            make_key(&dir.join(key));
        }
        if outpost_sys::process::effective_uid() == 0 {
            // Where sshd as root locks itself up; systemd would have made it.
            let _there_already = fs::DirBuilder::new().mode(0o755).create("/run/sshd");
        }
        let user = Command::new("id").arg("-un").output().unwrap();
        let user = String::from_utf8(user.stdout).unwrap().trim().to_owned();
        let (address, port) = options.address.unwrap_or_else(|| {
            ("127.0.0.1", TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port())
        });
        let own = options.environment.iter().map(|(name, value)| format!(" {name}={value}"));
        let config = format!(
            "ListenAddress {address}:{port}\nHostKey {0}/host_key\nAuthorizedKeysFile {0}/key.pub\nPidFile none\n\
             StrictModes no\nUsePAM no\nPasswordAuthentication no\nKbdInteractiveAuthentication no\n\
             PermitRootLogin prohibit-password\nPermitUserEnvironment no\nMaxStartups 100\nSetEnv {MARK}={0}{1}\n",
            dir.display(),
            own.collect::<String>()
        );
        fs::write(dir.join("sshd_config"), config).unwrap();
        let log = fs::File::create(dir.join("sshd.log")).unwrap();
        let mut command = match options.by {
            [] => Command::new(SSHD),
            [program, arguments @ ..] => {
                let mut command = Command::new(program);
                command.args(arguments).arg(SSHD);
                command
            }
        };
        command.args(["-D", "-e", "-f"]).arg(dir.join("sshd_config"));
        let daemon = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(log).spawn().unwrap();
        let sshd = Sshd { daemon, dir: dir.to_owned(), address: address.into(), port, user };
        let begun = Instant::now();
        while !sshd.log().contains("Server listening on") {
            assert!(begun.elapsed() < TIMEOUT, "sshd does not listen: {}", sshd.log());
            pause();
        }
        Ok(sshd)
    }

    pub fn log(&self) -> String {
        fs::read_to_string(self.dir.join("sshd.log")).unwrap_or_default()
    }

    pub fn port(&self) -> u16 {
        self.port
    }

    /// As ssh takes it.
    pub fn destination(&self) -> String {
        format!("{}@{}", self.user, self.address)
    }

    /// What ssh needs, each for a `-o`: nothing but the keys that were made for this.
    pub fn client_options(&self) -> Vec<String> {
        let dir = self.dir.display();
        let fixed = [
            "IdentitiesOnly=yes",
            "IdentityAgent=none",
            "BatchMode=yes",
            "StrictHostKeyChecking=accept-new",
            "LogLevel=ERROR",
        ];
        let files = [format!("IdentityFile={dir}/key"), format!("UserKnownHostsFile={dir}/known_hosts")];
        fixed.map(str::to_owned).into_iter().chain(files).collect()
    }

    /// ssh to it, with a command to be added.
    pub fn ssh(&self) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(["-F", "none", "-T", "-p", &self.port.to_string(), "-o", "ControlPath=none"]);
        for option in self.client_options() {
            ssh.arg("-o").arg(option);
        }
        ssh.arg(self.destination());
        ssh
    }
}

impl Drop for Sshd {
    fn drop(&mut self) {
        let _ended_already = self.daemon.kill();
        let _reaped = self.daemon.wait();
        kill_marked(&format!("{MARK}={}", self.dir.display()));
    }
}
