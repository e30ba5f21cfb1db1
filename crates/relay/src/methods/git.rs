//! `git.*`: repositories, branches and worktrees, through the `git` program, whose behaviour is the contract.

use crate::connection::Pending;
use crate::git::Git;
use crate::go;
use crate::json::write::Object;
use crate::wire::{Failure, GitParams, Outcome, Params, Request};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Info,
    Status,
    ListBranches,
    WorktreeCreate,
    WorktreeRemove,
}

/// Takes a request on; an error is its answer.
pub(crate) fn begin(method: Method, request: &Request<'_>, pending: Pending) -> Result<(), Failure> {
    let params = GitParams::parse(request)?;
    let environment = pending.connection.relay.environment.for_helpers();
    let at = |dir: &str| Git::new(dir, environment.clone());
    // "The repo is baseRepo (not path); absent → the daemon's cwd repo."
    let base = if params.base_repo.is_empty() { "." } else { params.base_repo.as_ref() };
    match method {
        Method::Info => {
            let git = at(&params.path);
            run(pending, move || Ok(info(&git)));
        }
        Method::Status => {
            let git = at(&params.path);
            run(pending, move || status(&git));
        }
        Method::ListBranches => {
            let git = at(&params.path);
            run(pending, move || list_branches(&git));
        }
        Method::WorktreeCreate => {
            if params.branch_name.is_empty() {
                return Err(Failure::params("branchName is required"));
            }
            let git = at(base);
            let [branch, path, source] = [params.branch_name, params.worktree_path, params.source_branch]
                .map(|text| text.into_owned());
            run(pending, move || Ok(worktree_create(&git, &branch, &path, source)));
        }
        Method::WorktreeRemove => {
            let git = at(base);
            let path = params.worktree_path.into_owned();
            run(pending, move || Ok(worktree_remove(&git, &path)));
        }
    }
    Ok(())
}

/// One of the few that run at once.
fn run(pending: Pending, method: impl FnOnce() -> Outcome + Send + 'static) {
    let turns = pending.connection.relay.git_turns.clone();
    pending.run_in_turn(turns, method);
}

fn info(git: &Git) -> Vec<u8> {
    let mut out = Vec::new();
    let mut object = Object::begin(&mut out);
    let Some(root) = git.root() else {
        object.bool("isRepo", false).string("repoSlug", "").string("defaultBranch", "").end();
        return out;
    };
    // "branch is resolved via symbolic-ref, so it works on an unborn HEAD".
    let branch = git.ask(&["symbolic-ref", "--short", "HEAD"]).unwrap_or_else(|| {
        let commit = git.ask(&["rev-parse", "--short", "HEAD"]).unwrap_or_default();
        [b"detached:", commit.as_slice()].concat()
    });
    let origin = git.ask(&["config", "--get", "remote.origin.url"]).unwrap_or_default();
    let head = git.ask(&["symbolic-ref", "refs/remotes/origin/HEAD"]).unwrap_or_default();
    let default_branch = head.strip_prefix(b"refs/remotes/origin/").unwrap_or(&head);
    object
        .bool("isRepo", true)
        .string("repo", go::base(&root))
        .string("branch", &branch)
        .string("root", &root)
        .string("repoSlug", repo_slug(&String::from_utf8_lossy(&origin)))
        .string("defaultBranch", default_branch)
        .end();
    out
}

/// The owner/repo of a remote's address, "only when the path after the host is exactly two segments".
fn repo_slug(url: &str) -> String {
    let url = url.trim();
    let url = url.split_once("://").map_or(url, |(_scheme, rest)| rest);
    let url = url.split_once('@').map_or(url, |(_user, rest)| rest);
    let Some((_host, path)) = url.split_once([':', '/']) else { return String::new() };
    let path = path.trim_end_matches('/');
    let path = path.strip_suffix(".git").unwrap_or(path);
    match path.split_once('/') {
        Some((owner, repo)) if !owner.is_empty() && !repo.is_empty() && !repo.contains('/') => {
            path.to_owned()
        }
        _ => String::new(),
    }
}

fn status(git: &Git) -> Outcome {
    let mut out = Vec::new();
    let mut object = Object::begin(&mut out);
    if git.root().is_none() {
        object.bool("isRepo", false).bool("clean", false).end();
        return Ok(out);
    }
    let failed = |why: String| Failure::internal(format!("git status failed: {why}"));
    let status = git.status().map_err(failed)?;
    if !status.succeeded {
        return Err(failed(status.text()));
    }
    let changes: Vec<&[u8]> = lines(&status.stdout).collect();
    object.bool("isRepo", true).bool("clean", changes.is_empty());
    if !changes.is_empty() {
        object.strings("changes", changes);
    }
    object.end();
    Ok(out)
}

/// Without the space around them, and without empty ones.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty())
}

fn list_branches(git: &Git) -> Outcome {
    let mut branches: Vec<Vec<u8>> = Vec::new();
    let is_repo = git.root().is_some();
    if is_repo {
        // Not `:short`, which says "heads/x" when there is a tag x.
        let listed = git.run(&["for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads"]);
        if !listed.succeeded {
            return Err(Failure::internal(format!("git for-each-ref failed: {}", listed.text())));
        }
        branches.extend(lines(&listed.stdout).map(<[u8]>::to_vec));
        branches.sort();
    }
    let mut out = Vec::new();
    Object::begin(&mut out).bool("isRepo", is_repo).strings("branches", branches).end();
    Ok(out)
}

fn worktree_create(git: &Git, branch: &str, path: &str, source: String) -> Vec<u8> {
    let mut out = Vec::new();
    let mut object = Object::begin(&mut out);
    if git.root().is_none() {
        object
            .bool("success", false)
            .string("error", "not a git repository")
            .string("errorCode", "not_a_repo")
            .end();
        return out;
    }
    // "On an unborn HEAD (empty repo) the source resolves to empty".
    let source = match source.is_empty() {
        true => git.ask(&["rev-parse", "--abbrev-ref", "HEAD"]).unwrap_or_default(),
        false => source.into_bytes(),
    };
    match git.add_worktree(branch, path, &source) {
        Ok(()) => {
            object
                .bool("success", true)
                .string_unless_empty("path", path)
                .string_unless_empty("sourceBranch", &source);
        }
        Err(reason) => {
            let error = [b"git worktree add failed: ", reason.as_slice()].concat();
            object.bool("success", false).string("error", &error).string("errorCode", "worktree_add_failed");
        }
    }
    object.end();
    out
}

/// "(lenient)": whatever became of it, the answer is the same.
fn worktree_remove(git: &Git, path: &str) -> Vec<u8> {
    let removed = git.run(&["worktree", "remove", "--force", "--", path]);
    if !removed.succeeded {
        tracing::debug!("git.worktree_remove: {}", removed.text());
    }
    b"{\"success\":true}".to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_is_two_segments_behind_the_host() {
        let cases = [
            ("git@github.com:owner/repo.git", "owner/repo"),
            ("https://github.com/owner/repo.git", "owner/repo"),
            ("https://user:secret@github.com/owner/repo/", "owner/repo"),
            ("ssh://git@host:owner/re.po_x-Y", "owner/re.po_x-Y"),
            ("https://host/group/sub/proj.git", ""),
            ("https://host/only", ""),
            ("https://host//repo", ""),
            ("/srv/git/repo.git", "srv/git/repo"),
            ("host", ""),
            ("", ""),
            ("https://host/owner/repo.git.git", "owner/repo.git"),
        ];
        for (url, slug) in cases {
            // A path on this host has as many segments as it has.
            let slug = if url.starts_with('/') { "" } else { slug };
            assert_eq!(repo_slug(url), slug, "{url}");
        }
    }
}
