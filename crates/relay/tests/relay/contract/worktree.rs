//! "git.worktree_create" and "git.worktree_remove".

use crate::contract::git::{git, must, repository, trap};
use crate::contract::table::{answer, check};
use outpost_testkit::Relay;
use std::fs;
use std::path::Path;

fn branches(repo: &Path) -> String {
    must(repo, &["for-each-ref", "--format=%(refname)", "refs/heads"])
}

/// The expected reply if git refuses. Runs git for its message, which depends on its version.
fn refusal(repo: &Path, branch: &str, path: &str, source: &str) -> String {
    let mut arguments = vec!["worktree", "add", "-b", branch, "--", path];
    arguments.extend(Some(source).filter(|source| !source.is_empty()));
    let before = branches(repo);
    let (succeeded, printed) = git(repo, &arguments);
    assert!(!succeeded, "{arguments:?}");
    // git itself leaves the new branch behind.
    if branches(repo) != before {
        must(repo, &["branch", "-D", branch]);
    }
    let text = serde_json::to_string(&format!("git worktree add failed: {printed}")).unwrap();
    let text = text.replace('<', r"\u003c").replace('>', r"\u003e").replace('&', r"\u0026");
    format!(r#"{{"success":false,"error":{text},"errorCode":"worktree_add_failed"}}"#)
}

#[test]
fn a_worktree_is_created_with_a_new_branch() {
    let relay = Relay::start();
    let repo = relay.path("repo");
    repository(&repo);
    must(&repo, &["checkout", "-q", "-b", "dev"]);
    fs::write(repo.join("dev.txt"), "").unwrap();
    must(&repo, &["add", "."]);
    must(&repo, &["commit", "-q", "-m", "dev"]);
    must(&repo, &["tag", "v1", "main"]);
    fs::create_dir(relay.path("empty")).unwrap();
    let commit = must(&repo, &["rev-parse", "main"]);
    let by_commit = format!(
        r#"{{"baseRepo":"$D/repo","branchName":"w6","worktreePath":"$D/w6","sourceBranch":"{commit}"}}"#
    );
    let by_commit_told = format!(r#"{{"success":true,"path":"$D/w6","sourceBranch":"{commit}"}}"#);
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/repo","branchName":"w1","worktreePath":"$D/w1","sourceBranch":"main"}"#,
                r#"{"success":true,"path":"$D/w1","sourceBranch":"main"}"#,
            ),
            // "When sourceBranch is omitted it defaults to the repo's current branch (and is echoed back)."
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/repo","branchName":"feature/w2","worktreePath":"$D/deep/er/w2"}"#,
                r#"{"success":true,"path":"$D/deep/er/w2","sourceBranch":"dev"}"#,
            ),
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/repo/sub","branchName":"w3","worktreePath":"$D/w3","sourceBranch":""}"#,
                r#"{"success":true,"path":"$D/w3","sourceBranch":"dev"}"#,
            ),
            // The reply has the path of the request. It is relative to the repository.
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/repo","branchName":"w4","worktreePath":"../w4/","sourceBranch":null}"#,
                r#"{"success":true,"path":"../w4/","sourceBranch":"dev"}"#,
            ),
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/repo","branchName":"w5","worktreePath":"$D/empty","sourceBranch":"v1"}"#,
                r#"{"success":true,"path":"$D/empty","sourceBranch":"v1"}"#,
            ),
            ("git.worktree_create", &by_commit, &by_commit_told),
            // baseRepo can be a worktree. `path` is ignored.
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/w1","path":"$D/nope","branchName":"w7","worktreePath":"$D/w7"}"#,
                r#"{"success":true,"path":"$D/w7","sourceBranch":"w1"}"#,
            ),
        ],
    );
    for (path, branch, has_dev) in [
        ("w1", "w1", false),
        ("deep/er/w2", "feature/w2", true),
        ("w3", "w3", true),
        ("w4", "w4", true),
        ("empty", "w5", false),
        ("w6", "w6", false),
        ("w7", "w7", false),
    ] {
        let path = relay.path(path);
        assert_eq!(must(&path, &["symbolic-ref", "--short", "HEAD"]), branch);
        assert!(path.join("a.txt").exists(), "{branch}");
        assert_eq!(path.join("dev.txt").exists(), has_dev, "{branch}");
    }
}

/// "On an unborn HEAD the source resolves to empty, the add infers an orphan branch and still succeeds".
#[test]
fn an_unborn_or_detached_head_works() {
    let relay = Relay::start();
    fs::create_dir(relay.path("unborn")).unwrap();
    must(&relay.path("unborn"), &["init", "-q"]);
    repository(&relay.path("detached"));
    must(&relay.path("detached"), &["checkout", "-q", "--detach"]);
    // Before 2.42 git refuses a worktree of a repository without a commit.
    let probe = ["worktree", "add", "-q", "-b", "probe", "../probe"];
    let (infers_orphan, _) = git(&relay.path("unborn"), &probe);
    let refusal = "git worktree add failed: Preparing worktree (new branch 'w')\\nfatal: not a valid object name: 'HEAD'";
    let expected = match infers_orphan {
        true => r#"{"success":true,"path":"$D/orphan"}"#.to_owned(),
        false => format!(r#"{{"success":false,"error":"{refusal}","errorCode":"worktree_add_failed"}}"#),
    };
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/unborn","branchName":"w","worktreePath":"$D/orphan"}"#,
                &expected,
            ),
            // git prints the literal HEAD for a detached HEAD.
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/detached","branchName":"w","worktreePath":"$D/of-detached"}"#,
                r#"{"success":true,"path":"$D/of-detached","sourceBranch":"HEAD"}"#,
            ),
        ],
    );
    if infers_orphan {
        assert_eq!(must(&relay.path("orphan"), &["symbolic-ref", "--short", "HEAD"]), "w");
    }
    assert!(relay.path("of-detached/a.txt").exists());
}

/// "not a git repository" is "checked before the add, so git's raw error isn't leaked".
#[test]
fn outside_of_a_repository_no_worktree_is_created() {
    let relay = Relay::start();
    must(relay.dir(), &["init", "-q", "--bare", "bare.git"]);
    let expected = r#"{"success":false,"error":"not a git repository","errorCode":"not_a_repo"}"#;
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            ("git.worktree_create", r#"{"baseRepo":"$D","branchName":"w","worktreePath":"$D/w"}"#, expected),
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/nope","branchName":"w","worktreePath":"$D/w"}"#,
                expected,
            ),
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/bare.git","branchName":"w","worktreePath":"$D/w"}"#,
                expected,
            ),
            ("git.worktree_create", r#"{"baseRepo":"$D/nope","branchName":"w"}"#, expected),
            // The daemon's directory is not a repository here.
            ("git.worktree_create", r#"{"branchName":"w","worktreePath":"$D/w"}"#, expected),
            ("git.worktree_create", r#"{"path":"$D/repo","branchName":"w","worktreePath":"$D/w"}"#, expected),
            // branchName is checked first.
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/nope","worktreePath":"$D/w"}"#,
                "-32602 branchName is required",
            ),
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/nope","branchName":""}"#,
                "-32602 branchName is required",
            ),
        ],
    );
    assert!(!relay.path("w").exists());
}

/// "absent → the daemon's cwd repo".
#[test]
fn the_default_repository_is_the_daemons_directory() {
    let relay = Relay::prepare();
    repository(relay.dir());
    let relay = relay.started();
    let name = relay.dir().file_name().unwrap().to_str().unwrap();
    let info = format!(
        r#"{{"isRepo":true,"repo":"{name}","branch":"main","root":"$D","repoSlug":"","defaultBranch":""}}"#
    );
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            (
                "git.worktree_create",
                r#"{"branchName":"w","worktreePath":"$D/w"}"#,
                r#"{"success":true,"path":"$D/w","sourceBranch":"main"}"#,
            ),
            (
                "git.worktree_create",
                r#"{"baseRepo":"","branchName":"w2","worktreePath":"w2"}"#,
                r#"{"success":true,"path":"w2","sourceBranch":"main"}"#,
            ),
            ("git.worktree_remove", r#"{"worktreePath":"$D/w"}"#, r#"{"success":true}"#),
            // An absent path means the same directory in the other methods.
            ("git.info", "{}", &info),
            ("git.info", r#"{"path":""}"#, &info),
            ("git.list_branches", "{}", r#"{"isRepo":true,"branches":["main","w","w2"]}"#),
        ],
    );
    assert!(!relay.path("w").exists() && relay.path("w2/a.txt").exists());
}

/// "Other failure → git worktree add failed: …". Unlike in the original, a failure leaves no branch behind.
#[test]
fn a_failure_returns_gits_message_and_leaves_no_branch() {
    let relay = Relay::start();
    let repo = relay.path("repo");
    repository(&repo);
    must(&repo, &["branch", "taken"]);
    must(&repo, &["worktree", "add", "-q", "-b", "out", "../out"]);
    fs::create_dir(relay.path("full")).unwrap();
    fs::write(relay.path("full/x"), "").unwrap();
    fs::write(relay.path("file"), "").unwrap();
    let before = branches(&repo);
    let mut client = relay.connect();
    let in_dir = |name: &str| relay.path(name).display().to_string();
    let cases = [
        ("taken", in_dir("new"), "main"),
        ("main", in_dir("new"), ""),
        ("w", in_dir("full"), "main"),
        ("w", in_dir("file"), "main"),
        ("w", in_dir("file/below"), "main"),
        ("w", in_dir("out"), "main"),
        ("w", in_dir("repo"), "main"),
        ("w", in_dir("new"), "nope"),
        ("w", in_dir("new"), "a..b"),
        ("w", String::new(), "main"),
        ("bad name", in_dir("new"), "main"),
        ("bad..name", in_dir("new"), "main"),
        ("w", in_dir("new"), "-"),
    ];
    for (branch, path, source) in cases {
        // An empty source means the current branch.
        let expected = refusal(&repo, branch, &path, if source.is_empty() { "main" } else { source });
        let params = serde_json::json!({
            "baseRepo": repo, "branchName": branch, "worktreePath": path, "sourceBranch": source,
        });
        check(&mut client, relay.dir(), &[("git.worktree_create", &params.to_string(), &expected)]);
        assert_eq!(branches(&repo), before, "{params}");
        assert!(!relay.path("new").exists(), "{params}");
    }
    assert_eq!(must(&repo, &["worktree", "list", "--porcelain"]).matches("worktree ").count(), 2);
}

/// In the original such a name is an option of `git worktree add` or of the `git branch` that it runs: `-D` deletes the
/// source.
#[test]
fn a_branch_that_begins_with_a_hyphen_is_refused() {
    let relay = Relay::start();
    let repo = relay.path("repo");
    repository(&repo);
    must(&repo, &["checkout", "-q", "-b", "dev"]);
    let before = branches(&repo);
    let mut client = relay.connect();
    for branch in ["-D", "-d", "-m", "-b", "--detach", "--delete", "-"] {
        let params = serde_json::json!({
            "baseRepo": repo, "branchName": branch, "worktreePath": relay.path("new"), "sourceBranch": "main",
        });
        let expected = format!(
            r#"{{"success":false,"error":"git worktree add failed: fatal: '{branch}' is not a valid branch name","errorCode":"worktree_add_failed"}}"#
        );
        check(&mut client, relay.dir(), &[("git.worktree_create", &params.to_string(), &expected)]);
        assert_eq!(branches(&repo), before, "{branch}");
        assert!(!relay.path("new").exists(), "{branch}");
    }
}

/// git before 2.40 passes the source to `git branch` as an option: `-D` deletes an existing branch of the new name. A lone
/// hyphen means the previously checked out branch.
#[test]
fn a_source_that_begins_with_a_hyphen_is_refused() {
    let relay = Relay::start();
    let repo = relay.path("repo");
    repository(&repo);
    must(&repo, &["branch", "dev"]);
    let before = branches(&repo);
    let mut client = relay.connect();
    for source in ["-D", "-d", "-m", "--force", "--detach", "--"] {
        let params = serde_json::json!({
            "baseRepo": repo, "branchName": "dev", "worktreePath": relay.path("new"), "sourceBranch": source,
        });
        let expected = format!(
            r#"{{"success":false,"error":"git worktree add failed: fatal: invalid reference: {source}","errorCode":"worktree_add_failed"}}"#
        );
        check(&mut client, relay.dir(), &[("git.worktree_create", &params.to_string(), &expected)]);
        assert_eq!(branches(&repo), before, "{source}");
        assert!(!relay.path("new").exists(), "{source}");
    }
    must(&repo, &["checkout", "-q", "dev"]);
    let params = serde_json::json!({
        "baseRepo": repo, "branchName": "w", "worktreePath": relay.path("new"), "sourceBranch": "-",
    });
    let expected = r#"{"success":true,"path":"$D/new","sourceBranch":"-"}"#;
    check(&mut client, relay.dir(), &[("git.worktree_create", &params.to_string(), expected)]);
}

/// In the original such a path is an option of git.
#[test]
fn a_path_that_begins_with_a_hyphen_is_a_path() {
    let relay = Relay::start();
    let repo = relay.path("repo");
    repository(&repo);
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            (
                "git.worktree_create",
                r#"{"baseRepo":"$D/repo","branchName":"w","worktreePath":"--force","sourceBranch":"main"}"#,
                r#"{"success":true,"path":"--force","sourceBranch":"main"}"#,
            ),
            (
                "git.worktree_remove",
                r#"{"baseRepo":"$D/repo","worktreePath":"--help"}"#,
                r#"{"success":true}"#,
            ),
        ],
    );
    assert!(repo.join("--force/a.txt").exists());
    check(
        &mut relay.connect(),
        relay.dir(),
        &[(
            "git.worktree_remove",
            r#"{"baseRepo":"$D/repo","worktreePath":"--force"}"#,
            r#"{"success":true}"#,
        )],
    );
    assert!(!repo.join("--force").exists());
}

/// "{baseRepo,worktreePath} → {success:true} (lenient)".
#[test]
fn remove_always_succeeds_and_removes_only_worktrees() {
    let relay = Relay::start();
    let repo = relay.path("repo");
    repository(&repo);
    for name in ["clean", "dirty", "stays"] {
        must(&repo, &["worktree", "add", "-q", "-b", name, &format!("../{name}")]);
    }
    fs::write(relay.path("dirty/a.txt"), "changed").unwrap();
    fs::write(relay.path("dirty/new"), "").unwrap();
    fs::create_dir(relay.path("plain")).unwrap();
    fs::write(relay.path("plain/x"), "").unwrap();
    let success = r#"{"success":true}"#;
    check(
        &mut relay.connect(),
        relay.dir(),
        &[
            ("git.worktree_remove", r#"{"baseRepo":"$D/repo","worktreePath":"$D/clean"}"#, success),
            ("git.worktree_remove", r#"{"baseRepo":"$D/repo","worktreePath":"$D/dirty"}"#, success),
            ("git.worktree_remove", r#"{"baseRepo":"$D/repo","worktreePath":"$D/clean"}"#, success),
            ("git.worktree_remove", r#"{"baseRepo":"$D/repo","worktreePath":"$D/plain"}"#, success),
            ("git.worktree_remove", r#"{"baseRepo":"$D/repo","worktreePath":"$D/repo"}"#, success),
            ("git.worktree_remove", r#"{"baseRepo":"$D/repo","worktreePath":"$D/nope"}"#, success),
            ("git.worktree_remove", r#"{"baseRepo":"$D/repo","worktreePath":""}"#, success),
            ("git.worktree_remove", r#"{"baseRepo":"$D/repo"}"#, success),
            ("git.worktree_remove", r#"{"baseRepo":"$D/nope","worktreePath":"$D/stays"}"#, success),
            ("git.worktree_remove", r#"{"worktreePath":"$D/stays"}"#, success),
            ("git.worktree_remove", r#"{"path":"$D/repo","worktreePath":"$D/stays"}"#, success),
        ],
    );
    for (name, exists) in
        [("clean", false), ("dirty", false), ("plain/x", true), ("repo/a.txt", true), ("stays/a.txt", true)]
    {
        assert_eq!(relay.path(name).exists(), exists, "{name}");
    }
    // Branches are not deleted.
    assert_eq!(branches(&repo), "refs/heads/clean\nrefs/heads/dirty\nrefs/heads/main\nrefs/heads/stays");
}

#[test]
fn creating_a_worktree_runs_no_hook_of_the_repository() {
    let relay = Relay::start();
    let (repo, mark) = (relay.path("repo"), relay.path("ran"));
    repository(&repo);
    fs::create_dir_all(repo.join(".git/hooks")).unwrap();
    fs::create_dir(repo.join("own-hooks")).unwrap();
    for hook in ["post-checkout", "reference-transaction", "post-index-change"] {
        trap(&repo.join(".git/hooks").join(hook), &mark);
        trap(&repo.join("own-hooks").join(hook), &mark);
    }
    let mut client = relay.connect();
    for (name, hooks) in [("w1", None), ("w2", Some("own-hooks"))] {
        if let Some(hooks) = hooks {
            must(&repo, &["config", "core.hooksPath", hooks]);
            trap(&relay.path("monitor"), &mark);
            must(&repo, &["config", "core.fsmonitor", relay.path("monitor").to_str().unwrap()]);
            let _ours = fs::remove_file(&mark);
        }
        let params = format!(
            r#"{{"baseRepo":"{}","branchName":"{name}","worktreePath":"../{name}"}}"#,
            repo.display()
        );
        let expected = format!(r#"{{"success":true,"path":"../{name}","sourceBranch":"main"}}"#);
        assert_eq!(client.call("git.worktree_create", &params), answer(&expected));
        assert!(relay.path(name).join("a.txt").exists());
        assert!(!mark.exists(), "a hook ran for {name}");
        let params = format!(r#"{{"baseRepo":"{}","worktreePath":"../{name}"}}"#, repo.display());
        assert_eq!(client.call("git.worktree_remove", &params), answer(r#"{"success":true}"#));
        assert!(!mark.exists(), "a hook ran for {name}");
    }
}
