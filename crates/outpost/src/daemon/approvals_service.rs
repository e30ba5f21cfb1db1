//! The approvals database and queue, which the faces share, and the sockets for approvers.

use super::fd_roles;
use super::listeners::Listeners;
use super::socket;
use crate::failure::Failure;
use outpost_approvals::Approvals;
use outpost_cli::config::Config;
use outpost_cli::paths::Paths;
use outpost_engine::Engine;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixListener as StdListener;
use std::path::{Path, PathBuf};
use tokio::net::UnixListener;

/// The longest path in `sockaddr_un`.
const SOCKET_BYTES_MAX: usize = 107;

pub(crate) struct ApprovalsService<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) paths: &'a Paths,
    pub(crate) config: &'a Config,
}

impl ApprovalsService<'_> {
    /// Opens the database. Approvers connect later, after the faces have restored their questions.
    pub(crate) async fn open(&self) -> Result<Approvals, Failure> {
        let settings = self.config.approvals.settings(self.paths)?;
        let schemas = [outpost_broker::SCHEMA, outpost_sessions::SCHEMA];
        // Database and chain are files: the control socket answers meanwhile.
        let opened = tokio::task::spawn_blocking(move || Approvals::open(settings, &schemas)).await;
        Ok(opened.map_err(|error| format!("the thread that opens the database: {error}"))??)
    }

    /// Serves approvers. Returns the socket outside the runtime directory, which the shutdown removes.
    pub(crate) async fn serve(
        &self,
        approvals: &Approvals,
        inherited: &mut HashMap<u8, OwnedFd>,
        listeners: &mut Listeners,
    ) -> Result<Option<PathBuf>, Failure> {
        let path = self.paths.approvals_socket();
        let (approver, is_new) = socket::acquire(self.engine, inherited, fd_roles::APPROVALS_SOCKET, || {
            socket::bind_face(self.paths, &path)
        })
        .await?;
        let shared = self.shared(inherited).await?;
        listeners.add(is_new, "approve", path.display(), "outpost approve");
        tokio::spawn(outpost_approvals::serve(approver, approvals.clone()));
        inherited.remove(&fd_roles::APPROVALS_SOCKET);
        inherited.remove(&fd_roles::SHARED_APPROVALS_SOCKET);
        let Some((shared, path, is_new)) = shared else { return Ok(None) };
        if let Some(path) = &path {
            let hint = format!("outpost approve --socket {}", path.display());
            listeners.add(is_new, "approve", path.display(), &hint);
        }
        tokio::spawn(outpost_approvals::serve(shared, approvals.clone()));
        Ok(path)
    }

    /// The socket for approvers that are other users, its path, and whether it is new.
    async fn shared(
        &self,
        inherited: &mut HashMap<u8, OwnedFd>,
    ) -> Result<Option<(UnixListener, Option<PathBuf>, bool)>, Failure> {
        let role = fd_roles::SHARED_APPROVALS_SOCKET;
        // The guard's own socket has mode 0666 already.
        let socket = self.config.approvals.socket.as_deref().filter(|_| !self.paths.is_guard);
        if socket.is_none() && !inherited.contains_key(&role) {
            return Ok(None);
        }
        let bind = || {
            let socket = socket.unwrap_or(Path::new(""));
            bind_shared(socket)
                .map_err(|failure| failure.within(format_args!("[approvals] socket {}", socket.display())))
        };
        let (listener, is_new) = socket::acquire(self.engine, inherited, role, bind).await?;
        let path = listener.local_addr().ok().and_then(|address| Some(address.as_pathname()?.to_owned()));
        Ok(Some((listener, path, is_new)))
    }
}

/// Binds a socket with mode 0666. The uid of a client limits what it sees, and only a signature decides.
fn bind_shared(socket: &Path) -> Result<StdListener, Failure> {
    const STICKY: u32 = 0o1000;
    // A longer path would be bound through /proc/self/fd, and its name could not be removed later.
    if !socket.is_absolute() || socket.as_os_str().len() > SOCKET_BYTES_MAX {
        return Err(format!("not an absolute path of at most {SOCKET_BYTES_MAX} bytes").into());
    }
    let dir = socket.parent().unwrap_or(socket);
    let found = std::fs::metadata(dir).map_err(|error| Failure::io("its directory", &error))?;
    let owned = [0, outpost_sys::process::effective_uid()].contains(&found.uid());
    if !owned || (found.mode() & 0o022 != 0 && found.mode() & STICKY == 0) {
        return Err("other users could replace this socket\n\
                    hint: choose a directory that only this user or root can write"
            .to_owned()
            .into());
    }
    let listener = socket::bind_if_free(socket)?;
    std::fs::set_permissions(socket, PermissionsExt::from_mode(0o666))?;
    Ok(listener)
}
