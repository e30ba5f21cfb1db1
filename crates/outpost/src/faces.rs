//! The faces of a daemon that is no relay: which it has, in which order they begin, and what is left to do at the end.

use crate::approvals_desk::ApprovalsDesk;
use crate::broker_face::BrokerFace;
use crate::exec_face::ExecFace;
use crate::paths::Paths;
use crate::sessions_face::{self, SessionsFace};
use crate::worker::Given;
use outpost_approvals::Approvals;
use outpost_engine::Engine;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;

/// Faces that have begun.
pub(crate) struct Faces {
    pub(crate) approvals: Approvals,
    sessions: sessions_face::Begun,
    /// A socket outside our directories.
    shared: Option<PathBuf>,
}

impl Faces {
    /// Begins them with what the keeper holds. What is new is added to `announced`.
    pub(crate) async fn begin(
        engine: &Engine,
        paths: &Paths,
        given: &Given,
        own: &mut HashMap<u8, OwnedFd>,
        announced: &mut Vec<String>,
    ) -> Result<Faces, String> {
        let config = given.broker.load()?;
        let desk = ApprovalsDesk { engine, paths, config: &config };
        let approvals = desk.open(&given.broker)?;
        // Alone, as the daemon that it stands in for.
        if !given.sessions.codecast {
            let exec = ExecFace { engine, paths, websocket: given.exec_websocket };
            announced.extend(exec.begin(own).await?);
            let broker = BrokerFace { engine, paths, flags: &given.broker, config: &config };
            broker.begin(&approvals, own, announced).await?;
        }
        let face = SessionsFace {
            engine,
            paths,
            approvals: approvals.clone(),
            config: &config.sessions,
            flags: &given.sessions,
        };
        let sessions = face.begin(own, announced).await?;
        // Last of all: approvers shall not see a question vanish and come back.
        let shared = desk.serve(&approvals, own, announced).await?;
        Ok(Faces { approvals, sessions, shared })
    }

    /// The daemon ends. Returns what is to be removed.
    pub(crate) fn end(self, paths: &Paths) -> Vec<PathBuf> {
        self.sessions.face.end();
        let own = [paths.exec_socket(), paths.broker_socket(), paths.approvals_socket()];
        own.into_iter().chain(self.sessions.port_files).chain(self.shared).collect()
    }
}
