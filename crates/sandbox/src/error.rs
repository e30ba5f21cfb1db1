//! Errors: why a command cannot be sandboxed as requested, and what to do about it.

use outpost_sys::spawn::Failure;
use std::path::PathBuf;

#[derive(Debug)]
pub enum Error {
    /// A path that is not absolute, or is empty.
    Relative {
        path: PathBuf,
    },
    /// A pattern in an entry that grants access.
    GlobAccess {
        pattern: String,
    },
    /// A subpath that leads out of its root.
    Outside {
        path: PathBuf,
    },
    GlobSyntax {
        pattern: String,
        reason: String,
    },
    /// More matches or names than the limit.
    GlobTooWide {
        pattern: String,
        limit: usize,
        of: &'static str,
    },
    /// A pattern that could match a file created later in a writable directory.
    GlobUnenforceable {
        pattern: String,
        writable: PathBuf,
    },
    /// A symbolic link that the command could replace is on the path to a protected file.
    WritableLink {
        path: PathBuf,
        link: PathBuf,
    },
    /// A symbolic link that a command could have created or replaced leads to a path that is granted.
    PlantedLink {
        path: PathBuf,
        link: PathBuf,
    },
    LinkLoop {
        path: PathBuf,
    },
    /// A path that is the same for every command.
    Reserved {
        path: PathBuf,
    },
    Inspect {
        path: PathBuf,
        reason: String,
    },
    /// The placeholder of a missing name cannot be created or locked.
    Placeholder {
        path: PathBuf,
        reason: String,
    },
    TooMany {
        what: &'static str,
        limit: usize,
    },
    /// The host's features cannot be probed now: a resource has run out. A retry may succeed.
    Unknown {
        reason: String,
    },
    /// The host cannot enforce the plan.
    Host {
        needs: String,
        missing: String,
    },
}

impl std::fmt::Display for Error {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        use Error::*;
        match self {
            Relative { path } => write!(f, "cannot use the path {path:?} in a sandbox: it must be absolute"),
            GlobAccess { pattern } => write!(
                f,
                "cannot allow access by the pattern {pattern:?}: patterns can only deny; name the path instead"
            ),
            Outside { path } => {
                write!(f, "cannot use the subpath {}: it leads out of its root", path.display())
            }
            GlobSyntax { pattern, reason } => write!(f, "cannot read the pattern {pattern:?}: {reason}"),
            GlobTooWide { pattern, limit, of } => write!(
                f,
                "cannot enforce the pattern {pattern:?}: more than {limit} {of}; begin it with a deeper directory or set globScanMaxDepth"
            ),
            GlobUnenforceable { pattern, writable } => write!(
                f,
                "cannot enforce the pattern {pattern:?} for what appears later below {}, which is writable; name the path or make it read-only",
                writable.display()
            ),
            WritableLink { path, link } => write!(
                f,
                "cannot protect {}: the command could replace the symbolic link {} on the way to it; name the real path, or make the link's directory read-only",
                path.display(),
                link.display()
            ),
            PlantedLink { path, link } => write!(
                f,
                "cannot open {}: a command could replace the symbolic link {} on the way to it, and have anything opened; name the real path, or make the link's directory read-only",
                path.display(),
                link.display()
            ),
            LinkLoop { path } => write!(f, "cannot resolve {}: too many symbolic links", path.display()),
            Reserved { path } => write!(
                f,
                "cannot change the access to {}: a confined command always has its own /proc and /dev, and never writes to proc, sysfs and the like, wherever they are mounted",
                path.display()
            ),
            Inspect { path, reason } => {
                write!(f, "cannot look at {}: {reason}; it could not be protected", path.display())
            }
            Placeholder { path, reason } => write!(
                f,
                "cannot keep {} from being made by the command: {reason}; create it, or make its directory read-only",
                path.display()
            ),
            TooMany { what, limit } => write!(f, "cannot confine with more than {limit} {what}"),
            Unknown { reason } => write!(
                f,
                "cannot find out now what this host can enforce: {reason}; free descriptors, memory or processes and try again"
            ),
            Host { needs, missing } => write!(f, "this host cannot {needs}: {missing}"),
        }
    }
}

impl std::error::Error for Error {}

/// The text for a failed start. `describe` is the failed operation of the sandbox program.
pub(crate) fn explain(failure: Failure, describe: Option<String>) -> String {
    match describe {
        Some(operation) => format!("{operation}: {}", failure.errno),
        None => format!("{:?}: {}", failure.step, failure.errno),
    }
}
