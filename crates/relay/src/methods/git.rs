//! `git.*`: repositories, branches and worktrees. Runs the `git` program, because its output is part of the contract.

use super::GitMethod;
use crate::connection::PendingRequest;
use crate::git::Git;
use crate::go_compat;
use crate::go_json::write::Object;
use crate::wire::{Failure, GitParams, Outcome, Params, Request};

/// Starts a method. An error is the immediate reply; otherwise the method replies through `pending`.
pub(crate) fn begin(
    method: GitMethod,
    request: &Request<'_>,
    pending: PendingRequest,
) -> Result<(), Failure> {
    let params = GitParams::parse(request)?;
    let environment = pending.connection.relay.environment.for_commands();
    let at = |dir: &str| Git::new(dir, environment.clone());
    // "The repo is baseRepo (not path); absent → the daemon's cwd repo."
    let base = if params.base_repo.is_empty() { "." } else { params.base_repo.as_ref() };
    match method {
        GitMethod::Info => {
            let git = at(&params.path);
            run(pending, move || Ok(info(&git)));
        }
        GitMethod::Status => {
            let git = at(&params.path);
            run(pending, move || status(&git));
        }
        GitMethod::ListBranches => {
            let git = at(&params.path);
            run(pending, move || list_branches(&git));
        }
        GitMethod::WorktreeCreate => {
            if params.branch_name.is_empty() {
                return Err(Failure::invalid_params("branchName is required"));
            }
            let git = at(base);
            let [branch, path, source] = [params.branch_name, params.worktree_path, params.source_branch]
                .map(|text| text.into_owned());
            run(pending, move || Ok(worktree_create(&git, &branch, &path, source)));
        }
        GitMethod::WorktreeRemove => {
            let git = at(base);
            let path = params.worktree_path.into_owned();
            run(pending, move || Ok(worktree_remove(&git, &path)));
        }
    }
    Ok(())
}

fn run(pending: PendingRequest, method: impl FnOnce() -> Outcome + Send + 'static) {
    let permits = pending.connection.relay.git_permits.clone();
    pending.run_blocking(permits, method);
}

fn info(git: &Git) -> Vec<u8> {
    let mut out = Vec::new();
    let mut object = Object::begin(&mut out);
    let Some(root) = git.root() else {
        object.bool("isRepo", false).string("repoSlug", "").string("defaultBranch", "").end();
        return out;
    };
    // "branch is resolved via symbolic-ref, so it works on an unborn HEAD".
    let branch = git.query(&["symbolic-ref", "--short", "HEAD"]).unwrap_or_else(|| {
        let commit = git.query(&["rev-parse", "--short", "HEAD"]).unwrap_or_default();
        [b"detached:", commit.as_slice()].concat()
    });
    let origin = git.query(&["config", "--get", "remote.origin.url"]).unwrap_or_default();
    let head = git.query(&["symbolic-ref", "refs/remotes/origin/HEAD"]).unwrap_or_default();
    let default_branch = head.strip_prefix(b"refs/remotes/origin/").unwrap_or(&head);
    object
        .bool("isRepo", true)
        .string("repo", go_compat::base(&root))
        .string("branch", &branch)
        .string("root", &root)
        .string("repoSlug", repo_slug(&String::from_utf8_lossy(&origin)))
        .string("defaultBranch", default_branch)
        .end();
    out
}

/// The owner/repo part of a remote URL, "only when the path after the host is exactly two segments".
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
    let failed = |reason: String| Failure::internal(format!("git status failed: {reason}"));
    let status = git.status().map_err(|error| failed(error.to_string()))?;
    if !status.succeeded {
        return Err(failed(status.error_text()));
    }
    let changes: Vec<&[u8]> = lines(&status.stdout).collect();
    object.bool("isRepo", true).bool("clean", changes.is_empty());
    if !changes.is_empty() {
        object.strings("changes", changes);
    }
    object.end();
    Ok(out)
}

/// The non-empty lines, trimmed.
fn lines(text: &[u8]) -> impl Iterator<Item = &[u8]> {
    text.split(|byte| *byte == b'\n').map(<[u8]>::trim_ascii).filter(|line| !line.is_empty())
}

fn list_branches(git: &Git) -> Outcome {
    let mut branches: Vec<Vec<u8>> = Vec::new();
    let is_repo = git.root().is_some();
    if is_repo {
        // `:short` would print "heads/x" if a tag x exists.
        let listed = git.run(&["for-each-ref", "--format=%(refname:lstrip=2)", "refs/heads"]);
        if !listed.succeeded {
            return Err(Failure::internal(format!("git for-each-ref failed: {}", listed.error_text())));
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
        true => git.query(&["rev-parse", "--abbrev-ref", "HEAD"]).unwrap_or_default(),
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

/// "(lenient)": the reply is the same if git fails.
fn worktree_remove(git: &Git, path: &str) -> Vec<u8> {
    let removed = git.run(&["worktree", "remove", "--force", "--", path]);
    if !removed.succeeded {
        tracing::debug!("git.worktree_remove: {}", removed.error_text());
    }
    b"{\"success\":true}".to_vec()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_slug_is_exactly_two_segments_after_the_host() {
        let cases = [
            ("git@github.com:owner/repo.git", "owner/repo"),
            ("https://github.com/owner/repo.git", "owner/repo"),
            ("https://user:secret@github.com/owner/repo/", "owner/repo"),
            ("ssh://git@host:owner/re.po_x-Y", "owner/re.po_x-Y"),
            ("https://host/group/sub/proj.git", ""),
            ("https://host/only", ""),
            ("https://host//repo", ""),
            // A local path has no host, so all its segments count.
            ("/srv/git/repo.git", ""),
            ("host", ""),
            ("", ""),
            ("https://host/owner/repo.git.git", "owner/repo.git"),
        ];
        for (url, slug) in cases {
            assert_eq!(repo_slug(url), slug, "{url}");
        }
    }
}
