//! The methods of the contract: their names, the parser of a name, and one file per namespace.

pub(crate) mod files;
pub(crate) mod git;
pub(crate) mod process;
pub(crate) mod server;

/// Defines the enums of all methods and the tables of their names from one list, so that none can lack a name. Each
/// namespace's file matches its enum without a wildcard, so a method without an implementation does not compile.
macro_rules! methods {
    ($($namespace:ident($methods:ident) = $prefix:literal {
        $($method:ident = $name:literal,)+
    })+) => {
        /// A method of the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Method {
            $($namespace($methods),)+
        }

        $(
            #[derive(Clone, Copy, Debug, PartialEq, Eq)]
            pub(crate) enum $methods {
                $($method,)+
            }
        )+

        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Namespace {
            $($namespace,)+
        }

        impl Method {
            /// Every method by its name. "server.capabilities self-describes the set. Order as returned".
            pub(crate) const ALL: &[(&str, Method)] = &[
                $($(($name, Method::$namespace($methods::$method)),)+)+
            ];
        }

        impl Namespace {
            /// Every namespace by its name, in the order of the enum.
            pub(crate) const ALL: [(&str, Namespace); [$($prefix),+].len()] = [
                $(($prefix, Namespace::$namespace),)+
            ];
        }
    };
}

methods! {
    Server(ServerMethod) = "server" {
        Ping = "server.ping",
        Version = "server.version",
        Capabilities = "server.capabilities",
        Shutdown = "server.shutdown",
    }
    Files(FilesMethod) = "files" {
        List = "files.list",
        Validate = "files.validate",
        Stat = "files.stat",
        Read = "files.read",
        ExtractTar = "files.extract_tar",
    }
    Git(GitMethod) = "git" {
        Info = "git.info",
        Status = "git.status",
        ListBranches = "git.list_branches",
        WorktreeCreate = "git.worktree_create",
        WorktreeRemove = "git.worktree_remove",
    }
    Process(ProcessMethod) = "process" {
        Spawn = "process.spawn",
        Stdin = "process.stdin",
        Kill = "process.kill",
        KillAndWait = "process.killAndWait",
        Reattach = "process.reattach",
    }
}

impl Method {
    /// Parses a method name. The error is the message of the reply.
    pub(crate) fn parse(name: &str) -> Result<Method, String> {
        if let Some((_, method)) = Method::ALL.iter().find(|(known, _)| *known == name) {
            return Ok(*method);
        }
        Err(match name.split_once('.') {
            None => format!("Invalid method format: {name}"),
            Some((namespace, _)) if Namespace::ALL.iter().any(|(known, _)| *known == namespace) => {
                format!("Unknown method: {name}")
            }
            Some((namespace, _)) => format!("Unknown namespace: {namespace}"),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_methods_correspond_one_to_one() {
        assert_eq!(Method::ALL.len(), 19, "\"Methods (19)\"");
        for (at, (name, method)) in Method::ALL.iter().enumerate() {
            assert_eq!(Method::parse(name), Ok(*method), "{name}");
            assert!(Method::ALL[..at].iter().all(|(other, of)| other != name && of != method), "{name}");
            let (prefix, _) = name.split_once('.').unwrap();
            let (_, namespace) = Namespace::ALL.iter().find(|(known, _)| *known == prefix).unwrap();
            let expected = match method {
                Method::Server(_) => Namespace::Server,
                Method::Files(_) => Namespace::Files,
                Method::Git(_) => Namespace::Git,
                Method::Process(_) => Namespace::Process,
            };
            assert_eq!(*namespace, expected, "{name}");
        }
        assert_eq!(Method::parse("git.worktree"), Err("Unknown method: git.worktree".into()));
        assert_eq!(Method::parse("shell.run"), Err("Unknown namespace: shell".into()));
        assert_eq!(Method::parse("ping"), Err("Invalid method format: ping".into()));
    }
}
