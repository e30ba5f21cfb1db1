//! The methods of the contract: their names in one table, one file for each namespace.

pub(crate) mod files;
pub(crate) mod git;
pub(crate) mod process;
pub(crate) mod server;

/// A method by its namespace. Each namespace matches its own methods exhaustively.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Method {
    Server(server::Method),
    Files(files::Method),
    Git(git::Method),
    Process(process::Method),
}

/// Every method by its name. "server.capabilities self-describes the set. Order as returned".
pub(crate) const ALL: [(&str, Method); 19] = [
    ("server.ping", Method::Server(server::Method::Ping)),
    ("server.version", Method::Server(server::Method::Version)),
    ("server.capabilities", Method::Server(server::Method::Capabilities)),
    ("server.shutdown", Method::Server(server::Method::Shutdown)),
    ("files.list", Method::Files(files::Method::List)),
    ("files.validate", Method::Files(files::Method::Validate)),
    ("files.stat", Method::Files(files::Method::Stat)),
    ("files.read", Method::Files(files::Method::Read)),
    ("files.extract_tar", Method::Files(files::Method::ExtractTar)),
    ("git.info", Method::Git(git::Method::Info)),
    ("git.status", Method::Git(git::Method::Status)),
    ("git.list_branches", Method::Git(git::Method::ListBranches)),
    ("git.worktree_create", Method::Git(git::Method::WorktreeCreate)),
    ("git.worktree_remove", Method::Git(git::Method::WorktreeRemove)),
    ("process.spawn", Method::Process(process::Method::Spawn)),
    ("process.stdin", Method::Process(process::Method::Stdin)),
    ("process.kill", Method::Process(process::Method::Kill)),
    ("process.killAndWait", Method::Process(process::Method::KillAndWait)),
    ("process.reattach", Method::Process(process::Method::Reattach)),
];

impl Method {
    /// The method of a name, or the text that refuses the name.
    pub(crate) fn parse(name: &str) -> Result<Method, String> {
        if let Some((_, method)) = ALL.iter().find(|(known, _)| *known == name) {
            return Ok(*method);
        }
        Err(match name.split_once('.') {
            None => format!("Invalid method format: {name}"),
            Some(("server" | "files" | "git" | "process", _)) => format!("Unknown method: {name}"),
            Some((namespace, _)) => format!("Unknown namespace: {namespace}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_method_has_one_name_and_each_name_one_method() {
        for (at, (name, method)) in ALL.iter().enumerate() {
            assert_eq!(Method::parse(name), Ok(*method), "{name}");
            assert!(ALL[..at].iter().all(|(other, of)| other != name && of != method), "{name}");
        }
        assert_eq!(Method::parse("git.worktree"), Err("Unknown method: git.worktree".into()));
        assert_eq!(Method::parse("shell.run"), Err("Unknown namespace: shell".into()));
        assert_eq!(Method::parse("ping"), Err("Invalid method format: ping".into()));
    }
}
