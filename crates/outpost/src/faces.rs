//! The faces of a daemon that is no relay: which it has, in which order they begin, and what is left to do at the end.

use crate::announced::Announced;
use crate::approvals_desk::{self, ApprovalsDesk};
use crate::broker_face::{self, BrokerFace};
use crate::config::Config;
use crate::exec_face::ExecFace;
use crate::flags::Flags;
use crate::paths::Paths;
use crate::sessions_face::{self, SessionsFace};
use outpost_approvals::Approvals;
use outpost_engine::Engine;
use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::sync::Arc;

/// Faces that have begun.
pub(crate) struct Faces {
    pub(crate) approvals: Approvals,
    broker: Option<Arc<outpost_broker::Server>>,
    sessions: sessions_face::Begun,
    /// A socket outside our directories.
    shared: Option<PathBuf>,
}

impl Faces {
    /// Begins them with what the keeper holds.
    pub(crate) async fn begin(
        engine: &Engine,
        paths: &Paths,
        flags: &Flags,
        config: &Config,
        own: &mut HashMap<u8, OwnedFd>,
        announced: &mut Announced,
    ) -> Result<Faces, String> {
        let desk = ApprovalsDesk { engine, paths, config };
        let approvals = desk.open()?;
        let mut broker = None;
        // Alone, as the daemon that it stands in for.
        if !flags.sessions.codecast {
            let exec = ExecFace { engine, paths, websocket: config.exec.websocket };
            exec.begin(own, announced).await?;
            let face = BrokerFace { engine, paths, config };
            broker = Some(face.begin(&approvals, own, announced).await?);
        }
        let face = SessionsFace {
            engine,
            paths,
            approvals: approvals.clone(),
            config: &config.sessions,
            flags: &flags.sessions,
        };
        let sessions = face.begin(own, announced).await?;
        // Last of all: approvers shall not see a question vanish and come back.
        let shared = desk.serve(&approvals, own, announced).await?;
        Ok(Faces { approvals, broker, sessions, shared })
    }

    pub(crate) fn sessions(&self) -> Arc<outpost_sessions::Face> {
        self.sessions.face.clone()
    }

    /// What the operator has settled meanwhile holds for what begins from now on.
    pub(crate) fn configure(&self, paths: &Paths, config: &Config) -> Result<(), String> {
        self.approvals.configure(approvals_desk::settings(paths, config)?);
        if let Some(broker) = &self.broker {
            broker.configure(broker_face::settings(config));
        }
        self.sessions.face.configure(sessions_face::settings(paths, &config.sessions));
        Ok(())
    }

    /// The daemon ends. Returns what is to be removed.
    pub(crate) fn end(self, paths: &Paths) -> Vec<PathBuf> {
        self.sessions.face.end();
        let own = [paths.exec_socket(), paths.broker_socket(), paths.approvals_socket()];
        own.into_iter().chain(self.sessions.port_files).chain(self.shared).collect()
    }
}
