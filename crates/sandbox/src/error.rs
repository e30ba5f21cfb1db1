//! Errors: why a command cannot be sandboxed as requested, and what to do about it.

use outpost_sys::spawn::Failure;
use std::path::PathBuf;

#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A path that is not absolute, or is empty.
    #[error("cannot use the path {path:?} in a sandbox: it must be absolute")]
    Relative { path: PathBuf },
    /// A pattern in an entry that grants access.
    #[error("cannot allow access by the pattern {pattern:?}: patterns can only deny; name the path instead")]
    GlobAccess { pattern: String },
    /// A subpath that leads out of its root.
    #[error("cannot use the subpath {}: it leads out of its root", path.display())]
    Outside { path: PathBuf },
    #[error("cannot read the pattern {pattern:?}: {reason}")]
    GlobSyntax { pattern: String, reason: String },
    /// More matches or names than the limit.
    #[error(
        "cannot enforce the pattern {pattern:?}: more than {limit} {of}; begin it with a deeper directory or set globScanMaxDepth"
    )]
    GlobTooWide { pattern: String, limit: usize, of: &'static str },
    /// A pattern that could match a file created later in a writable directory.
    #[error(
        "cannot enforce the pattern {pattern:?} for what appears later below {}, which is writable; name the path or make it read-only",
        writable.display()
    )]
    GlobUnenforceable { pattern: String, writable: PathBuf },
    /// A symbolic link that the command could replace is on the path to a protected file.
    #[error(
        "cannot protect {}: the command could replace the symbolic link {} on the way to it; name the real path, or make the link's directory read-only",
        path.display(),
        link.display()
    )]
    WritableLink { path: PathBuf, link: PathBuf },
    /// A symbolic link that a command could have created or replaced leads to a path that is granted.
    #[error(
        "cannot open {}: a command could replace the symbolic link {} on the way to it, to open any file; name the real path, or make the link's directory read-only",
        path.display(),
        link.display()
    )]
    PlantedLink { path: PathBuf, link: PathBuf },
    #[error("cannot resolve {}: too many symbolic links", path.display())]
    LinkLoop { path: PathBuf },
    /// A path that is the same for every command.
    #[error(
        "cannot change the access to {}: a confined command always has its own /proc and /dev, and never writes to proc, sysfs and the like, wherever they are mounted",
        path.display()
    )]
    Reserved { path: PathBuf },
    #[error("cannot inspect {}: {reason}; it could not be protected", path.display())]
    Inspect { path: PathBuf, reason: String },
    /// The placeholder of a missing name cannot be created or locked.
    #[error(
        "cannot prevent the command from creating {}: {reason}; create it, or make its directory read-only",
        path.display()
    )]
    Placeholder { path: PathBuf, reason: String },
    #[error("cannot confine with more than {limit} {what}")]
    TooMany { what: &'static str, limit: usize },
    /// The host's features cannot be probed now: a resource has run out. A retry may succeed.
    #[error(
        "cannot probe the host's sandbox features: {reason}; free descriptors, memory or processes and try again"
    )]
    Unknown { reason: String },
    /// The host cannot enforce the plan.
    #[error("this host cannot {needs}: {missing}")]
    Host { needs: String, missing: String },
}

/// The text for a failed start. `describe` is the failed operation of the sandbox program.
pub(crate) fn explain(failure: Failure, describe: Option<String>) -> String {
    match describe {
        Some(operation) => format!("{operation}: {}", failure.errno),
        None => format!("{:?}: {}", failure.step, failure.errno),
    }
}
