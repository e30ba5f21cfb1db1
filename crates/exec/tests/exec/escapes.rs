//! Attempts to get out of the sandbox: each must fail, for its own reason, and leave the host as it was.
//!
//! Each row is one attempt: a Perl script that prints `done` on success and otherwise the name of the
//! error, run through the whole server, under each policy it names, as root and as an ordinary user. A *control* runs the
//! same script without a sandbox: it must get what the attempt does not, or a broken script would pass for a tight
//! sandbox. Where that would harm the host, the control runs in namespaces of its own, or uses arguments that reach the
//! call but nothing behind it; where neither is possible, the row gives the reason.

mod daemon;
mod devices;
mod environment;
mod files;
mod kernel;
mod kernel_files;
mod masks;
mod mounts;
mod network;
mod processes;
mod races;
mod scene;

use crate::sandbox::{for_each_user, policy, profile};
use scene::Scene;
use serde_json::{Value, json};

/// What an attempt is held by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Limits {
    ReadOnly,
    Workspace,
    /// The same with the network.
    Networked,
    /// Writes in the workspace but for `deny`, `deny.txt` and `*.key`.
    Denying,
    /// Sees nothing but the platform's files and the workspace.
    Minimal,
    /// Everything but the network.
    Everything,
    /// No sandbox.
    None,
}

use Limits::{Networked, ReadOnly, Workspace};

/// Whatever the policy.
pub(crate) const ANY: &[Limits] = &[ReadOnly, Workspace, Networked];

impl Limits {
    fn params(self, scene: &Scene) -> Value {
        let workspace = scene.workspace();
        let below = |name: &str| workspace.join(name).to_str().unwrap().to_owned();
        match self {
            ReadOnly => policy(json!({"type": "readOnly"})),
            Workspace => policy(json!({"type": "workspaceWrite"})),
            Networked => policy(json!({"type": "workspaceWrite", "networkAccess": true})),
            Limits::Denying => profile(&[
                ("read", ":root"),
                ("write", ":current_working_directory"),
                ("none", &below("deny")),
                ("none", &below("deny.txt")),
                ("none", &format!("*{}", below("**/*.key"))),
            ]),
            Limits::Minimal => profile(&[("read", ":minimal"), ("write", ":current_working_directory")]),
            Limits::Everything => profile(&[("write", ":root")]),
            Limits::None => policy(json!({"type": "dangerFullAccess"})),
        }
    }
}

/// How a row shows that its script is able to do what it tries.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Control {
    /// Output without a sandbox, for every user.
    Output(&'static str),
    /// Output without a sandbox for root; other users are refused anywhere.
    Root(&'static str),
    /// Output for root in namespaces of its own.
    Scratch(&'static str),
    /// Why there is none.
    Harmful(&'static str),
}

/// One attempt.
pub(crate) struct Attempt {
    name: &'static str,
    under: &'static [Limits],
    /// Output in the sandbox: `this or that` where kernels differ, `root|user` where users do.
    reason: &'static str,
    control: Control,
    perl: &'static str,
}

pub(crate) const fn attempt(
    name: &'static str,
    under: &'static [Limits],
    reason: &'static str,
    control: Control,
    perl: &'static str,
) -> Attempt {
    Attempt { name, under, reason, control, perl }
}

impl Attempt {
    /// Numbers of system calls are those of one architecture.
    fn is_for_this_machine(&self) -> bool {
        cfg!(target_arch = "x86_64") || !self.perl.contains("sys(")
    }

    fn reason_for(&self, root: bool) -> &'static str {
        match self.reason.split_once('|') {
            Some((for_root, for_user)) => {
                if root {
                    for_root
                } else {
                    for_user
                }
            }
            None => self.reason,
        }
    }

    fn check(&self, scene: &mut Scene, wrong: &mut String) {
        let expected = self.reason_for(scene.is_root());
        for limits in self.under {
            let outcome = scene.run(*limits, self.perl);
            if !is_one_of(&outcome, expected) {
                *wrong += &format!("\n{} under {limits:?}: {outcome:?}, not {expected:?}", self.name);
            }
            for harm in scene.harm() {
                *wrong += &format!("\n{} under {limits:?} did harm: {harm}", self.name);
            }
            scene.clean();
        }
    }

    fn check_control(&self, scene: &mut Scene, wrong: &mut String) {
        let (expected, outcome) = match self.control {
            Control::Output(expected) => (expected, scene.run(Limits::None, self.perl)),
            Control::Root(expected) if scene.is_root() => (expected, scene.run(Limits::None, self.perl)),
            Control::Scratch(expected) if scene.is_root() => (expected, scene.run_in_scratch(self.perl)),
            Control::Root(_) | Control::Scratch(_) => return,
            Control::Harmful(why) => return assert!(!why.is_empty()),
        };
        if !is_one_of(&outcome, expected) {
            *wrong += &format!("\n{} without a sandbox: {outcome:?}, not {expected:?}", self.name);
        }
        scene.repair();
    }
}

fn is_one_of(outcome: &str, expected: &str) -> bool {
    expected.split(" or ").any(|expected| outcome == expected)
}

/// Runs all attempts as every user and reports every deviation.
pub(crate) fn check(attempts: &[Attempt]) {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let (mut scene, mut control) = (Scene::start(&options), Scene::start(&options));
        let mut wrong = String::new();
        for attempt in attempts.iter().filter(|attempt| attempt.is_for_this_machine()) {
            attempt.check(&mut scene, &mut wrong);
            attempt.check_control(&mut control, &mut wrong);
        }
        assert!(wrong.is_empty(), "as user {:?}:{wrong}", options.uid);
    });
}
