//! The attackers on the host, and the rights with which each runs an attempt.

use super::site::Site;
use crate::support::outpost;
use outpost_testkit::{ANN, BOB};
use std::process::Command;

const ATTACK: &str = include_str!("attack.py");

/// In the order of the columns in docs/security.md.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Attacker {
    /// An unconfined process of the daemon's user.
    SameUser,
    /// A process in a sandbox of outpost: workspace-write, with network.
    Confined,
    /// Root of a user and mount namespace of the daemon's user.
    ContainerRoot,
    OtherUser,
}

impl Attacker {
    /// Whether it can write files that the daemon reads.
    pub(crate) fn has_the_users_files(self) -> bool {
        matches!(self, Attacker::SameUser | Attacker::ContainerRoot)
    }

    fn command(self, site: &Site) -> Command {
        let mut command = site.as_uid(if self == Attacker::OtherUser { BOB } else { ANN });
        match self {
            Attacker::SameUser | Attacker::OtherUser => {}
            Attacker::Confined => {
                command.arg(outpost()).args(["--state-dir", "../state", "--runtime-dir", "../run", "exec"]);
                command.args(["--network", "--sandbox", "workspace-write", "--"]);
            }
            Attacker::ContainerRoot => {
                command.args(["unshare", "--user", "--map-root-user", "--mount"]);
            }
        }
        command
    }

    /// Runs an attempt and returns its output.
    pub(crate) fn attempt(self, site: &Site, step: &str) -> String {
        let mut command = self.command(site);
        command.args(["python3", "-c", ATTACK, step]).arg(site.known.to_string());
        command.env("HOME", site.dir().join("home"));
        // Other users cannot execute programs in the tester's home.
        command.env("PATH", "/usr/bin:/bin");
        let output = command.output().unwrap();
        // An attacker that cannot run would make every row hold.
        assert!(output.status.success(), "{self:?} {step}: {output:?}");
        String::from_utf8_lossy(&output.stdout).into_owned()
    }
}
