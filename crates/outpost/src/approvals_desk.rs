//! The books and the queue of what waits for a human, which faces share, and the sockets of those who decide.

use crate::announced::Announced;
use crate::config::{self, Config};
use crate::failure::Failure;
use crate::paths::Paths;
use crate::roles;
use crate::socket::{self, listening};
use outpost_approvals::rules::Sources;
use outpost_approvals::{Approvals, Settings};
use outpost_engine::Engine;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// The longest path that a socket can be bound by as it is.
const SOCKET_BYTES_MAX: usize = 107;

pub(crate) struct ApprovalsDesk<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    pub(crate) config: &'a Config,
}

impl ApprovalsDesk<'_> {
    /// Opens the books. Nobody can decide yet: faces first ask again what they have asked before.
    pub(crate) fn open(&self) -> Result<Approvals, Failure> {
        let settings = settings(self.paths, self.config)?;
        let schemas = [outpost_broker::SCHEMA, outpost_sessions::SCHEMA];
        Ok(Approvals::open(settings, &schemas)?)
    }

    /// Lets approvers in. Returns the socket outside our directories, to be removed at the end.
    pub(crate) async fn serve(
        &self,
        approvals: &Approvals,
        own: &mut HashMap<u8, OwnedFd>,
        announced: &mut Announced,
    ) -> Result<Option<PathBuf>, Failure> {
        let path = self.paths.approvals_socket();
        let (approver, is_new) =
            socket::held(self.engine, own, roles::APPROVALS_SOCKET, || socket::bind_face(self.paths, &path))
                .await?;
        let approver = listening(approver)?;
        let shared = self.shared(own).await?;
        announced.add(is_new, "approve", path.display(), "outpost approve");
        tokio::spawn(outpost_approvals::serve(approver, approvals.clone()));
        own.remove(&roles::APPROVALS_SOCKET);
        own.remove(&roles::SHARED_APPROVALS_SOCKET);
        let Some((shared, path, is_new)) = shared else { return Ok(None) };
        if let Some(path) = &path {
            let hint = format!("outpost approve --socket {}", path.display());
            announced.add(is_new, "approve", path.display(), &hint);
        }
        tokio::spawn(outpost_approvals::serve(shared, approvals.clone()));
        Ok(path)
    }

    /// The socket that approvers of other users reach, its path, and whether it is new.
    async fn shared(
        &self,
        own: &mut HashMap<u8, OwnedFd>,
    ) -> Result<Option<(UnixListener, Option<PathBuf>, bool)>, Failure> {
        let role = roles::SHARED_APPROVALS_SOCKET;
        // The guard's own socket is open to all.
        let socket = self.config.approvals.socket.as_deref().filter(|_| !self.paths.is_guard);
        if socket.is_none() && !own.contains_key(&role) {
            return Ok(None);
        }
        let bind = || {
            let socket = socket.unwrap_or(Path::new(""));
            bind_shared(socket)
                .map_err(|failure| failure.within(format_args!("[approvals] socket {}", socket.display())))
        };
        let (listener, is_new) = socket::held(self.engine, own, role, bind).await?;
        let path = listener.local_addr().ok().and_then(|address| Some(address.as_pathname()?.to_owned()));
        Ok(Some((listening(listener)?, path, is_new)))
    }
}

/// What the operator has settled about approvals.
pub(crate) fn settings(paths: &Paths, config: &Config) -> Result<Settings, String> {
    let config = &config.approvals;
    Ok(Settings {
        dir: paths.approvals(),
        rules: match paths.is_guard {
            true => Sources::new(paths.guard.rules(), &paths.guard.etc()),
            false => config::rules(config.rules.clone()),
        },
        viewers: viewers(config.approvers.as_deref().unwrap_or_default())?,
        etc: paths.guard.etc(),
        is_guard: paths.is_guard,
        hook: config.notify.clone(),
    })
}

/// Every user can connect; what each sees depends on its uid, and what decides is a signature.
fn bind_shared(socket: &Path) -> Result<StdListener, Failure> {
    const STICKY: u32 = 0o1000;
    // One that is longer would be bound by another name, which says nothing when it is to be removed.
    if !socket.is_absolute() || socket.as_os_str().len() > SOCKET_BYTES_MAX {
        return Err(format!("not an absolute path of at most {SOCKET_BYTES_MAX} bytes").into());
    }
    let dir = socket.parent().unwrap_or(socket);
    let of = std::fs::metadata(dir).map_err(|error| Failure::io("its directory", &error))?;
    let owned = [0, outpost_sys::limits::effective_uid()].contains(&of.uid());
    if !owned || (of.mode() & 0o022 != 0 && of.mode() & STICKY == 0) {
        return Err("others could put a socket of theirs in its place; choose a directory that only this user or root \
                    can change"
            .to_owned()
            .into());
    }
    let listener = crate::socket::bind_if_free(socket)?;
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o666))?;
    Ok(listener)
}

/// Users that see every question, by name, looked up once: numbers in another form of writing are no names.
fn viewers(names: &[String]) -> Result<Vec<u32>, String> {
    let find = |name: &String| match outpost_sys::user::by_name(name) {
        Ok(Some(user)) => Ok(user.uid),
        Ok(None) => Err(format!("approvers: this host has no user {name:?}")),
        Err(errno) => Err(format!("approvers: {name:?}: {errno}")),
    };
    names.iter().map(find).collect()
}
