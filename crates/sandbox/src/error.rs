//! Why a command cannot be confined as asked: what was asked, and what can be done about it.

use outpost_sys::spawn::Failure;
use std::path::PathBuf;

#[derive(Debug)]
pub enum Error {
    /// A path that is not absolute, or is empty.
    Relative {
        path: PathBuf,
    },
    /// Only denials can be patterns.
    GlobAccess {
        pattern: String,
    },
    /// A subpath that leads out of the directory it is said to be in.
    Outside {
        path: PathBuf,
    },
    GlobSyntax {
        pattern: String,
        reason: String,
    },
    /// More than can be masked or looked through.
    GlobTooWide {
        pattern: String,
        limit: usize,
        of: &'static str,
    },
    /// A glob that could match later in a directory that can be written to.
    GlobLate {
        pattern: String,
        writable: PathBuf,
    },
    /// A link that the command could replace lies on the way to a path that is to be protected.
    WritableLink {
        path: PathBuf,
        link: PathBuf,
    },
    /// A link that a command could have made or replaced leads to what is to be opened.
    PlantedLink {
        path: PathBuf,
        link: PathBuf,
    },
    LinkLoop {
        path: PathBuf,
    },
    /// What is always the same for each command.
    Reserved {
        path: PathBuf,
    },
    Look {
        path: PathBuf,
        reason: String,
    },
    /// A missing name cannot be held against the command.
    Lease {
        path: PathBuf,
        reason: String,
    },
    TooMany {
        what: &'static str,
        limit: usize,
    },
    /// What the host can enforce cannot be found out now: a probe ran out of something that may be there again soon.
    Unknown {
        reason: String,
    },
    /// The host cannot enforce what the plan needs.
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
            GlobLate { pattern, writable } => write!(
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
            Look { path, reason } => {
                write!(f, "cannot look at {}: {reason}; it could not be protected", path.display())
            }
            Lease { path, reason } => write!(
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

/// A start's failure in words; `describe` says what the operation of the confinement was.
pub(crate) fn explain(failure: Failure, describe: Option<String>) -> String {
    match describe {
        Some(operation) => format!("{operation}: {}", failure.errno),
        None => format!("{:?}: {}", failure.step, failure.errno),
    }
}
