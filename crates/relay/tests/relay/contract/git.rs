//! "git.*": info, status and list_branches.

use crate::contract::table::{Row, check, unprivileged};
use outpost_testkit::{Relay, require};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// Runs git without the host's configuration. Returns success and both output streams.
pub(crate) fn git(dir: &Path, arguments: &[&str]) -> (bool, String) {
    let script = format!("exec git {} 2>&1", "\"$@\"");
    let output = Command::new("/bin/sh")
        .args(["-c", &script, "git"])
        .args(["-c", "user.name=T", "-c", "user.email=t@example.org", "-c", "init.defaultBranch=main"])
        .args(arguments)
        .current_dir(dir)
        .env("HOME", "/nonexistent")
        .env("GIT_CONFIG_NOSYSTEM", "1")
        .env("LC_ALL", "C")
        .env("GIT_AUTHOR_DATE", "2001-02-03T04:05:06Z")
        .env("GIT_COMMITTER_DATE", "2001-02-03T04:05:06Z")
        .output()
        .unwrap();
    (output.status.success(), String::from_utf8(output.stdout).unwrap().trim_end_matches('\n').to_owned())
}

/// Runs git and asserts success.
pub(crate) fn must(dir: &Path, arguments: &[&str]) -> String {
    let (succeeded, printed) = git(dir, arguments);
    assert!(succeeded, "git {arguments:?}: {printed}");
    printed
}

/// Creates a repository with one commit on `main` that has `a.txt` and `sub/b.txt`.
pub(crate) fn repository(path: &Path) {
    fs::create_dir_all(path.join("sub")).unwrap();
    must(path, &["init", "-q", "-b", "main"]);
    fs::write(path.join("a.txt"), "a\n").unwrap();
    fs::write(path.join("sub/b.txt"), "b\n").unwrap();
    must(path, &["add", "."]);
    must(path, &["commit", "-q", "-m", "first"]);
}

/// Writes a script that creates `mark` when it runs.
pub(crate) fn trap(script: &Path, mark: &Path) {
    fs::write(script, format!("#!/bin/sh\ntouch '{}'\n", mark.display())).unwrap();
    fs::set_permissions(script, fs::Permissions::from_mode(0o755)).unwrap();
}

const NO_REPO: &str = r#"{"isRepo":false,"repoSlug":"","defaultBranch":""}"#;

/// "branch is resolved via symbolic-ref", "root is the absolute repo top-level".
#[test]
fn info_returns_branch_root_and_name() {
    let relay = Relay::start();
    let at = |name: &str| relay.path(name);
    repository(&at("repo"));
    repository(&at("ré <po>"));
    repository(&at("detached"));
    must(&at("detached"), &["checkout", "-q", "--detach"]);
    let commit = must(&at("detached"), &["rev-parse", "--short", "HEAD"]);
    repository(&at("slashed"));
    must(&at("slashed"), &["checkout", "-q", "-b", "feature/<x>"]);
    fs::create_dir(at("unborn")).unwrap();
    must(&at("unborn"), &["init", "-q", "-b", "trunk"]);
    must(&at("repo"), &["worktree", "add", "-q", "-b", "other", "../linked"]);
    must(relay.dir(), &["init", "-q", "--bare", "bare.git"]);
    fs::create_dir(at("plain")).unwrap();
    std::os::unix::fs::symlink("repo", at("by-link")).unwrap();
    let expected = |repo: &str, branch: &str| {
        format!(
            r#"{{"isRepo":true,"repo":"{repo}","branch":"{branch}","root":"$D/{repo}","repoSlug":"","defaultBranch":""}}"#
        )
    };
    let rows = [
        ("$D/repo", expected("repo", "main")),
        ("$D/repo/", expected("repo", "main")),
        ("$D/repo/sub", expected("repo", "main")),
        ("$D/repo/sub/..", expected("repo", "main")),
        ("$D/by-link", expected("repo", "main")),
        ("repo", expected("repo", "main")),
        ("./repo/sub", expected("repo", "main")),
        ("$D/ré <po>", expected(r"ré \u003cpo\u003e", "main")),
        ("$D/unborn", expected("unborn", "trunk")),
        ("$D/detached", expected("detached", &format!("detached:{commit}"))),
        ("$D/slashed", expected("slashed", r"feature/\u003cx\u003e")),
        ("$D/linked", expected("linked", "other")),
        // Outside of a work tree.
        ("$D/bare.git", NO_REPO.to_owned()),
        ("$D/repo/.git", NO_REPO.to_owned()),
        ("$D/plain", NO_REPO.to_owned()),
        ("$D/nope", NO_REPO.to_owned()),
        ("$D/repo/a.txt", NO_REPO.to_owned()),
        (r"$D/repo\u0000", NO_REPO.to_owned()),
        // The daemon's directory, which is not a repository here.
        ("", NO_REPO.to_owned()),
        (".", NO_REPO.to_owned()),
        ("--version", NO_REPO.to_owned()),
    ];
    let params: Vec<String> = rows.iter().map(|(path, _)| format!(r#"{{"path":"{path}"}}"#)).collect();
    let mut table: Vec<Row<'_>> = params
        .iter()
        .zip(&rows)
        .map(|(params, (_, expected))| ("git.info", params.as_str(), expected.as_str()))
        .collect();
    // Only the worktree methods use baseRepo.
    table.push(("git.info", r#"{"baseRepo":"$D/repo"}"#, NO_REPO));
    check(&mut relay.connect(), relay.dir(), &table);
}

/// "populated only when the path after the host is exactly two segments".
#[test]
fn info_returns_the_slug_of_the_origin() {
    let relay = Relay::start();
    let repo = relay.path("repo");
    repository(&repo);
    let cases = [
        ("git@github.com:owner/repo.git", "owner/repo"),
        ("git@github.com:owner/repo", "owner/repo"),
        ("github.com:owner/repo.git", "owner/repo"),
        ("https://github.com/owner/repo.git", "owner/repo"),
        ("https://github.com/owner/repo", "owner/repo"),
        ("https://github.com/owner/repo/", "owner/repo"),
        ("https://github.com/owner/repo.git/", "owner/repo"),
        ("https://github.com/owner/repo///", "owner/repo"),
        ("http://github.com/owner/repo", "owner/repo"),
        ("git://github.com/owner/repo.git", "owner/repo"),
        ("ssh://git@github.com/owner/repo.git", "owner/repo"),
        ("https://user@github.com/owner/repo.git", "owner/repo"),
        ("https://user:secret@github.com/owner/repo.git", "owner/repo"),
        ("https://gitlab.example.org/Own-er_1/Re.po-X_2.git", "Own-er_1/Re.po-X_2"),
        ("https://github.com/owner/repo.git.git", "owner/repo.git"),
        ("https://github.com/owner/.git", ""),
        // Three segments, one segment, none.
        ("https://gitlab.com/group/sub/proj.git", ""),
        ("git@gitlab.com:group/sub/proj.git", ""),
        ("https://github.com/repo.git", ""),
        ("https://github.com//repo.git", ""),
        ("https://github.com/owner//repo.git", ""),
        ("https://github.com/", ""),
        ("https://github.com", ""),
        ("host", ""),
        // The host ends at the colon, so the port counts as a segment.
        ("ssh://git@github.com:22/owner/repo.git", ""),
        ("https://github.com:443/owner/repo", ""),
        // A local path has no host. The text before the first slash counts as the host.
        ("/srv/repo", "srv/repo"),
        ("/srv/git/repo.git", ""),
        ("srv/git/repo.git", "git/repo"),
        ("../owner/repo.git", "owner/repo"),
        ("file:///srv/repo.git", "srv/repo"),
    ];
    let mut client = relay.connect();
    for (url, slug) in cases {
        must(&repo, &["config", "remote.origin.url", url]);
        let expected = format!(
            r#"{{"isRepo":true,"repo":"repo","branch":"main","root":"$D/repo","repoSlug":"{slug}","defaultBranch":""}}"#
        );
        check(&mut client, relay.dir(), &[("git.info", r#"{"path":"$D/repo"}"#, &expected)]);
    }
    // Only the remote named origin counts.
    must(&repo, &["config", "--remove-section", "remote.origin"]);
    must(&repo, &["remote", "add", "upstream", "git@github.com:owner/repo.git"]);
    let expected =
        r#"{"isRepo":true,"repo":"repo","branch":"main","root":"$D/repo","repoSlug":"","defaultBranch":""}"#;
    check(&mut client, relay.dir(), &[("git.info", r#"{"path":"$D/repo"}"#, expected)]);
}

/// "defaultBranch is what refs/remotes/origin/HEAD points to (e.g. main); empty when origin/HEAD is unset".
#[test]
fn info_returns_the_default_branch_of_the_origin() {
    let relay = Relay::start();
    repository(&relay.path("repo"));
    must(relay.dir(), &["clone", "-q", "repo", "clone"]);
    let mut client = relay.connect();
    let mut expect = |default: &str| {
        let slug = "";
        let expected = format!(
            r#"{{"isRepo":true,"repo":"clone","branch":"main","root":"$D/clone","repoSlug":"{slug}","defaultBranch":"{default}"}}"#
        );
        check(&mut client, relay.dir(), &[("git.info", r#"{"path":"$D/clone/sub"}"#, &expected)]);
    };
    must(&relay.path("clone"), &["config", "remote.origin.url", "host"]);
    expect("main");
    must(
        &relay.path("clone"),
        &["symbolic-ref", "refs/remotes/origin/HEAD", "refs/remotes/origin/release/1.x"],
    );
    expect("release/1.x");
    must(&relay.path("clone"), &["symbolic-ref", "refs/remotes/origin/HEAD", "refs/heads/main"]);
    expect("refs/heads/main");
    must(&relay.path("clone"), &["remote", "set-head", "origin", "-d"]);
    expect("");
}

/// "clean: {isRepo,clean} · dirty: {…,"clean":false,"changes":["M a.txt","?? new"]} (porcelain lines)".
#[test]
fn status_returns_the_changes() {
    let relay = Relay::start();
    let repo = relay.path("repo");
    repository(&repo);
    fs::create_dir(relay.path("unborn")).unwrap();
    must(&relay.path("unborn"), &["init", "-q"]);
    must(relay.dir(), &["init", "-q", "--bare", "bare.git"]);
    let mut client = relay.connect();
    let clean = r#"{"isRepo":true,"clean":true}"#;
    let no_repo = r#"{"isRepo":false,"clean":false}"#;
    check(
        &mut client,
        relay.dir(),
        &[
            ("git.status", r#"{"path":"$D/repo"}"#, clean),
            ("git.status", r#"{"path":"$D/repo/sub"}"#, clean),
            ("git.status", r#"{"path":"repo"}"#, clean),
            ("git.status", r#"{"path":"$D/unborn"}"#, clean),
            ("git.status", r#"{"path":"$D/bare.git"}"#, no_repo),
            ("git.status", r#"{"path":"$D/repo/.git"}"#, no_repo),
            ("git.status", r#"{"path":"$D"}"#, no_repo),
            ("git.status", r#"{"path":"$D/nope"}"#, no_repo),
            ("git.status", r#"{"path":""}"#, no_repo),
        ],
    );
    let mut expect = |changes: &str| {
        let expected = format!(r#"{{"isRepo":true,"clean":false,"changes":[{changes}]}}"#);
        check(&mut client, relay.dir(), &[("git.status", r#"{"path":"$D/repo"}"#, &expected)]);
        // Paths are relative to the top level, also for a request in a subdirectory.
        check(&mut client, relay.dir(), &[("git.status", r#"{"path":"$D/repo/sub"}"#, &expected)]);
    };
    let write = |name: &str, content: &str| fs::write(repo.join(name), content).unwrap();
    // Each line is trimmed.
    write("a.txt", "changed\n");
    expect(r#""M a.txt""#);
    write("new", "");
    expect(r#""M a.txt","?? new""#);
    must(&repo, &["add", "a.txt"]);
    expect(r#""M  a.txt","?? new""#);
    write("a.txt", "changed again\n");
    expect(r#""MM a.txt","?? new""#);
    must(&repo, &["add", "new"]);
    expect(r#""MM a.txt","A  new""#);
    fs::remove_file(repo.join("sub/b.txt")).unwrap();
    expect(r#""MM a.txt","A  new","D sub/b.txt""#);
    must(&repo, &["reset", "-q", "--hard"]);
    must(&repo, &["mv", "a.txt", "z.txt"]);
    expect(r#""R  a.txt -\u003e z.txt""#);
    must(&repo, &["reset", "-q", "--hard"]);
    // git quotes special characters and prints one line for an untracked directory.
    write("two words", "");
    write("<&>", "");
    write("é\"", "");
    write("ignored", "");
    write(".gitignore", "ignored\n");
    fs::create_dir(repo.join("dir")).unwrap();
    write("dir/1", "");
    write("dir/2", "");
    expect(r#""?? .gitignore","?? \u003c\u0026\u003e","?? dir/","?? \"two words\"","?? \"\\303\\251\\\"\"""#);
}

/// "{isRepo:true, branches:[…sorted…]}".
#[test]
fn branches_are_sorted_bytewise() {
    let relay = Relay::start();
    let repo = relay.path("repo");
    repository(&repo);
    fs::create_dir(relay.path("unborn")).unwrap();
    must(&relay.path("unborn"), &["init", "-q"]);
    must(relay.dir(), &["init", "-q", "--bare", "bare.git"]);
    let no_repo = r#"{"isRepo":false,"branches":[]}"#;
    let mut client = relay.connect();
    check(
        &mut client,
        relay.dir(),
        &[
            ("git.list_branches", r#"{"path":"$D/repo"}"#, r#"{"isRepo":true,"branches":["main"]}"#),
            ("git.list_branches", r#"{"path":"$D/unborn"}"#, r#"{"isRepo":true,"branches":[]}"#),
            ("git.list_branches", r#"{"path":"$D/bare.git"}"#, no_repo),
            ("git.list_branches", r#"{"path":"$D"}"#, no_repo),
            ("git.list_branches", r#"{"path":"$D/nope"}"#, no_repo),
            ("git.list_branches", r#"{"path":""}"#, no_repo),
        ],
    );
    for branch in ["zebra", "Alpha", "feature/x", "feature-y", "é", "a&b", "10", "9"] {
        must(&repo, &["branch", branch]);
    }
    must(&repo, &["checkout", "-q", "--detach"]);
    // Remote branches are not listed.
    must(&repo, &["update-ref", "refs/remotes/origin/theirs", "HEAD"]);
    let all = r#"{"isRepo":true,"branches":["10","9","Alpha","a\u0026b","feature-y","feature/x","main","zebra","é"]}"#;
    let rows = [
        ("git.list_branches", r#"{"path":"$D/repo"}"#, all),
        ("git.list_branches", r#"{"path":"$D/repo/sub"}"#, all),
    ];
    check(&mut client, relay.dir(), &rows);
    // A tag of the same name does not change the name to "heads/main". It does in the original.
    must(&repo, &["tag", "main"]);
    check(&mut client, relay.dir(), &rows);
}

/// git refuses a repository of another user (safe.directory). The reply is `isRepo:false`.
#[test]
fn a_repository_of_another_user_is_not_a_repository() {
    require!(outpost_testkit::root());
    let relay = unprivileged();
    repository(&relay.path("repo"));
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            ("git.info", r#"{"path":"$D/repo"}"#, NO_REPO),
            ("git.status", r#"{"path":"$D/repo"}"#, r#"{"isRepo":false,"clean":false}"#),
            ("git.list_branches", r#"{"path":"$D/repo"}"#, r#"{"isRepo":false,"branches":[]}"#),
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/repo","branchName":"w","worktreePath":"$D/w"}"#,
                r#"{"success":false,"error":"not a git repository","errorCode":"not_a_repo"}"#,
            ),
            ("git.worktree_remove", r#"{"baseRepo":"$D/repo","worktreePath":"$D/w"}"#, r#"{"success":true}"#),
        ],
    );
}

/// A repository is untrusted data: a query must not execute programs of its configuration.
#[test]
fn queries_execute_and_change_nothing_in_the_repository() {
    let relay = Relay::start();
    let (repo, mark) = (relay.path("repo"), relay.path("ran"));
    repository(&repo);
    trap(&relay.path("monitor"), &mark);
    let monitor = relay.path("monitor").display().to_string();
    for key in ["core.fsmonitor", "core.pager", "core.editor", "core.sshCommand", "diff.external"] {
        must(&repo, &["config", key, &monitor]);
    }
    let hooks = repo.join(".git/hooks");
    fs::create_dir_all(&hooks).unwrap();
    for hook in ["post-checkout", "post-index-change", "fsmonitor-watchman", "reference-transaction"] {
        trap(&hooks.join(hook), &mark);
    }
    // The index is stale. A plain `git status` would rewrite it.
    fs::write(repo.join("a.txt"), "a\n").unwrap();
    let index = fs::read(repo.join(".git/index")).unwrap();
    let mut client = relay.connect();
    check(
        &mut client,
        relay.dir(),
        &[
            ("git.status", r#"{"path":"$D/repo"}"#, r#"{"isRepo":true,"clean":true}"#),
            ("git.list_branches", r#"{"path":"$D/repo"}"#, r#"{"isRepo":true,"branches":["main"]}"#),
            (
                "git.info",
                r#"{"path":"$D/repo"}"#,
                r#"{"isRepo":true,"repo":"repo","branch":"main","root":"$D/repo","repoSlug":"","defaultBranch":""}"#,
            ),
        ],
    );
    assert!(!mark.exists(), "a program of the repository ran");
    assert_eq!(fs::read(repo.join(".git/index")).unwrap(), index);
}

/// `git status` passes a file with a changed mtime through the filter of its attributes. The configuration of the repository
/// and of each submodule defines the filter programs.
#[test]
fn status_runs_no_filter_of_the_repository_or_of_a_submodule() {
    let relay = Relay::start();
    let (repo, mark) = (relay.path("repo"), relay.path("ran"));
    repository(&repo);
    repository(&repo.join("nested"));
    must(&repo, &["add", "nested"]);
    must(&repo, &["commit", "-q", "-m", "nested"]);
    trap(&relay.path("filter"), &mark);
    let filter = relay.path("filter").display().to_string();
    let configure = |at: &Path, driver: &str, key: &str| {
        must(at, &["config", &format!("filter.{driver}.{key}"), &filter]);
        must(at, &["config", &format!("filter.{driver}.required"), "true"]);
        fs::write(at.join(".git/info/attributes"), format!("* filter={driver}\n")).unwrap();
    };
    let mut client = relay.connect();
    for (at, driver, key) in [
        ("repo", "evil", "clean"),
        ("repo", "evil", "process"),
        ("repo", "Dotted.Name", "clean"),
        ("repo/nested", "deep", "clean"),
        ("repo/nested", "deep", "process"),
    ] {
        let at = relay.path(at);
        configure(&at, driver, key);
        // Unchanged content with a new mtime, so that git reads the file.
        let other_time = fs::FileTimes::new().set_modified(std::time::UNIX_EPOCH);
        fs::File::options().write(true).open(at.join("a.txt")).unwrap().set_times(other_time).unwrap();
        check(
            &mut client,
            relay.dir(),
            &[("git.status", r#"{"path":"$D/repo"}"#, r#"{"isRepo":true,"clean":true}"#)],
        );
        assert!(!mark.exists(), "the {key} program of the filter {driver} ran");
    }
}

/// git's command line cannot override a key that contains '='. The request is refused.
#[test]
fn status_refuses_a_filter_that_it_cannot_disable() {
    let relay = Relay::start();
    let (repo, mark) = (relay.path("repo"), relay.path("ran"));
    repository(&repo);
    trap(&relay.path("filter"), &mark);
    let section = format!("[filter \"a=b\"]\n\tclean = {}\n", relay.path("filter").display());
    let config = repo.join(".git/config");
    fs::write(&config, fs::read_to_string(&config).unwrap() + &section).unwrap();
    fs::write(repo.join(".git/info/attributes"), "* filter=a=b\n").unwrap();
    fs::write(repo.join("a.txt"), "b\n").unwrap();
    let expected = "-32603 git status failed: the repository configures a filter whose name contains '='";
    check(&mut relay.connect(), relay.dir(), &[("git.status", r#"{"path":"$D/repo"}"#, expected)]);
    assert!(!mark.exists(), "the filter ran");
}

/// A partial clone fetches missing objects on demand, with a transport program of the repository's choice.
#[test]
fn status_fetches_nothing() {
    let relay = Relay::start();
    let (repo, mark) = (relay.path("repo"), relay.path("ran"));
    repository(&repo);
    trap(&relay.path("transport"), &mark);
    for (key, value) in [
        ("core.repositoryFormatVersion", "1".to_owned()),
        ("extensions.partialClone", "origin".into()),
        ("remote.origin.promisor", "true".into()),
        ("remote.origin.url", format!("ext::{}", relay.path("transport").display())),
        ("protocol.ext.allow", "always".into()),
    ] {
        must(&repo, &["config", key, &value]);
    }
    let tree = must(&repo, &["rev-parse", "HEAD:sub"]);
    fs::remove_file(repo.join(".git/objects").join(&tree[..2]).join(&tree[2..])).unwrap();
    fs::remove_file(repo.join(".git/index")).unwrap();
    let params = format!(r#"{{"path":"{}"}}"#, repo.display());
    let _whatever = relay.connect().call("git.status", &params);
    assert!(!mark.exists(), "a transport of the repository ran");
}
