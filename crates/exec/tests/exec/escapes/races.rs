//! Races: a command changes names while the daemon looks at them for another command.

use super::Limits;
use super::Limits::Workspace;
use super::scene::Scene;
use crate::sandbox::{for_each_user, policy};
use crate::table::with;
use serde_json::json;

/// As many commands as are started during a race.
const STARTS: usize = 25;

/// Starts a command that races until its input ends. It prints a line when the race has started.
fn race(scene: &mut Scene, limits: Limits, perl: &str) -> u64 {
    let script = format!(
        r#"my $over = 0; my $rounds = 0; my $ready = ""; vec($ready, 0, 1) = 1;
           sub over {{ $rounds++; print "racing\n" if $rounds == 10; my $r = $ready; select($r, undef, undef, 0) > 0 }}
           {perl}; print "raced $rounds\n""#
    );
    let params = with(scene.params(&script, &[]), limits.params(scene));
    let streams =
        json!({"processId": "race", "streamStdin": true, "streamStdoutStderr": true, "disableTimeout": true});
    let id = scene.host.server.request("command/exec", &with(params, streams));
    scene.host.server.wait_output("race", "racing");
    id
}

fn end_race(scene: &mut Scene, id: u64) {
    scene.host.server.call("command/exec/write", &json!({"processId": "race", "closeStdin": true}));
    scene.report_of(id);
    assert!(
        scene.host.server.text("race", "stdout").contains("raced"),
        "{}",
        scene.host.server.text("race", "stderr")
    );
}

/// A writable root is a directory at one moment and a link to somewhere else at the next.
#[test]
fn a_root_that_is_swapped_for_a_link_never_opens_what_the_link_leads_to() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        scene.host.dir("cwd/sub");
        let swap = r#"
            symlink($out, "$ws/link") or die;
            until (over()) { rename("$ws/sub", "$ws/real"); rename("$ws/link", "$ws/sub");
                rename("$ws/sub", "$ws/link"); rename("$ws/real", "$ws/sub") }"#;
        let id = race(&mut scene, Workspace, swap);
        let limits =
            policy(json!({"type": "workspaceWrite", "writableRoots": [scene.workspace().join("sub")]}));
        let write = scene.params(r#"report(put("$out/victim") || put("$out/inner/new"))"#, &[]);
        for _ in 0..STARTS {
            let outcome = scene.report(&with(write.clone(), limits.clone()));
            assert!(
                outcome == "EROFS" || outcome.starts_with("error: exec failed: "),
                "{outcome}, user {:?}",
                options.uid
            );
            assert_eq!(scene.harm(), Vec::<String>::new());
        }
        end_race(&mut scene, id);
    });
}

/// A repository is a directory at one moment and a link at the next.
#[test]
fn a_repository_that_is_swapped_for_a_link_is_never_written() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        scene.host.file("cwd/sub/.git/config", "[core]\n");
        let swap = r#"
            symlink("/var/empty", "$ws/sub/link") or die;
            until (over()) { sys(316, -100, "$ws/sub/link", -100, "$ws/sub/.git", 2);
                sys(316, -100, "$ws/sub/link", -100, "$ws/sub/.git", 2) }"#;
        let id = race(&mut scene, Workspace, swap);
        let limits = crate::sandbox::profile(&[("read", ":root"), ("write", ":current_working_directory")]);
        let params = with(scene.params(r#"put(".git/config", "evil"); print "tried""#, &[]), limits);
        let params = with(params, json!({"cwd": scene.workspace().join("sub")}));
        let (mut ran, mut refused) = (0, 0);
        for _ in 0..STARTS {
            let outcome = scene.report(&params);
            match outcome.strip_prefix("error: exec failed: ") {
                Some(_) => refused += 1,
                None => {
                    assert_eq!(outcome, "tried");
                    ran += 1;
                }
            }
        }
        end_race(&mut scene, id);
        let sub = scene.workspace().join("sub");
        let config = [sub.join(".git/config"), sub.join("link/config")];
        let config = config.iter().find_map(|path| std::fs::read_to_string(path).ok());
        assert_eq!(
            config.as_deref(),
            Some("[core]\n"),
            "{ran} ran, {refused} refused, user {:?}",
            options.uid
        );
    });
}

/// The directory that stands for a missing name comes and goes while another command tries to take its place.
#[test]
fn a_held_name_is_not_taken_while_commands_come_and_go() {
    outpost_testkit::require!(crate::table::skip_on_original());
    for_each_user(|options| {
        let mut scene = Scene::start(&options);
        let take = r#"
            mkdir "$ws/evil" or die;
            until (over()) { mkdir "$ws/.codex" and die "made"; rmdir "$ws/.codex" and die "removed";
                rename("$ws/.codex", "$ws/x") and die "moved"; rename("$ws/evil", "$ws/.codex") and die "replaced";
                symlink($out, "$ws/.codex") and die "linked"; put("$ws/.codex/config.toml") and die "written" }"#;
        let id = race(&mut scene, Workspace, take);
        let params = with(scene.params(r#"report(put("$ws/.codex/x"))"#, &[]), Workspace.params(&scene));
        let ids: Vec<u64> = (0..STARTS).map(|_| scene.host.server.request("command/exec", &params)).collect();
        for id in ids {
            assert_eq!(scene.report_of(id), "EROFS", "user {:?}", options.uid);
        }
        end_race(&mut scene, id);
        assert_eq!(scene.harm(), Vec::<String>::new());
        let held = scene.workspace().join(".codex");
        crate::process::until("the held name goes", || !held.exists());
        assert_eq!(scene.run(Limits::None, r#"report(mkdir "$ws/.codex")"#), "done");
    });
}
