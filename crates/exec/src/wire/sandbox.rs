//! `sandboxPolicy` and `permissionProfile` as the schema has them.

use serde::de::Error;
use serde::{Deserialize, Deserializer};
use std::num::NonZeroUsize;
use std::path::{Component, Path, PathBuf};

/// "A path that is guaranteed to be absolute and normalized."
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AbsolutePath(pub(crate) PathBuf);

impl<'de> Deserialize<'de> for AbsolutePath {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<AbsolutePath, D::Error> {
        let path = PathBuf::deserialize(from)?;
        match path.is_absolute() {
            true => Ok(AbsolutePath(normalized(&path))),
            false => Err(D::Error::custom("AbsolutePathBuf deserialized without a base path")),
        }
    }
}

/// Removes `.` and `..` lexically; links are not followed.
pub(crate) fn normalized(path: &Path) -> PathBuf {
    let mut clean = PathBuf::new();
    for component in path.components() {
        match component {
            Component::CurDir => {}
            Component::ParentDir => {
                clean.pop();
            }
            other => clean.push(other),
        }
    }
    clean
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum SandboxPolicy {
    DangerFullAccess,
    ReadOnly {
        #[serde(default)]
        access: ReadOnlyAccess,
        #[serde(default)]
        network_access: bool,
    },
    ExternalSandbox {
        #[serde(default)]
        network_access: NetworkAccess,
    },
    WorkspaceWrite {
        #[serde(default)]
        writable_roots: Vec<AbsolutePath>,
        #[serde(default)]
        read_only_access: ReadOnlyAccess,
        #[serde(default)]
        network_access: bool,
        #[serde(default)]
        exclude_tmpdir_env_var: bool,
        #[serde(default)]
        exclude_slash_tmp: bool,
    },
}

#[derive(Clone, Debug, Default, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase", rename_all_fields = "camelCase")]
pub(crate) enum ReadOnlyAccess {
    Restricted {
        #[serde(default = "yes")]
        include_platform_defaults: bool,
        #[serde(default)]
        readable_roots: Vec<AbsolutePath>,
    },
    #[default]
    FullAccess,
}

fn yes() -> bool {
    true
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) enum NetworkAccess {
    #[default]
    Restricted,
    Enabled,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PermissionProfile {
    pub(crate) network: Option<PermissionProfileNetworkPermissions>,
    pub(crate) file_system: Option<PermissionProfileFileSystemPermissions>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PermissionProfileNetworkPermissions {
    pub(crate) enabled: Option<bool>,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
pub(crate) struct PermissionProfileFileSystemPermissions {
    pub(crate) entries: Vec<FileSystemSandboxEntry>,
    pub(crate) glob_scan_max_depth: Option<NonZeroUsize>,
}

#[derive(Clone, Debug, Deserialize)]
pub(crate) struct FileSystemSandboxEntry {
    pub(crate) path: FileSystemPath,
    pub(crate) access: FileSystemAccessMode,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(crate) enum FileSystemAccessMode {
    Read,
    Write,
    None,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub(crate) enum FileSystemPath {
    Path { path: AbsolutePath },
    GlobPattern { pattern: String },
    Special { value: FileSystemSpecialPath },
}

#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum FileSystemSpecialPath {
    Root,
    Minimal,
    CurrentWorkingDirectory,
    ProjectRoots {
        subpath: Option<PathBuf>,
    },
    Tmpdir,
    SlashTmp,
    Unknown {
        #[serde(rename = "path")]
        _path: String,
        #[serde(rename = "subpath")]
        _subpath: Option<PathBuf>,
    },
}
