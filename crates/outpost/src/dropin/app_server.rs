//! `outpost app-server`: the exec face alone, on standard input and output. Its processes end with it.

use super::run_dir::RunDir;
use crate::daemon::private_paths;
use outpost_cli::AppServer;
use outpost_cli::paths::Paths;
use outpost_engine::Engine;
use outpost_exec::{Server, Settings};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How long processes may take to exit at the shutdown.
const SHUTDOWN_TIMEOUT: Duration = Duration::from_secs(5);

pub(crate) fn run(paths: &Paths, options: &AppServer) -> Result<ExitCode, String> {
    if options.listen != "stdio://" {
        return Err(format!(
            "app-server listens on stdio:// only, not on {}; `outpost serve` offers the same on a socket",
            options.listen
        ));
    }
    let settings = Settings::own(paths.state.clone(), private_paths::private(paths))
        .map_err(|error| format!("the working directory: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(serve(paths, settings));
    Ok(ExitCode::SUCCESS)
}

/// Serves until EOF on standard input or a signal.
async fn serve(paths: &Paths, settings: Settings) {
    let connection = match outpost_wire::stdio() {
        Ok(connection) => connection,
        Err(error) => return tracing::error!(%error, "cannot use standard input or output"),
    };
    let (engine_started, engine) = watch::channel(None);
    let server = Server::new(engine, settings);
    // Start the engine in parallel, since the handshake does not need it.
    let paths = paths.clone();
    let run_dir = tokio::task::spawn_blocking(move || {
        let run_dir = start_engine(&paths);
        match run_dir {
            Ok((run_dir, engine)) => {
                engine_started.send_replace(Some(engine));
                Some(run_dir)
            }
            Err(reason) => {
                tracing::error!("no command can be run: {reason}");
                None
            }
        }
    });
    tokio::select! {
        () = outpost_exec::serve(server.clone(), connection) => {}
        () = termination_signal() => {}
    }
    if let Some(engine) = server.stop().await
        && let Err(error) = engine.shut_down(SHUTDOWN_TIMEOUT).await
    {
        tracing::warn!(%error, "cannot stop all processes");
    }
    if let Ok(Some(run_dir)) = run_dir.await {
        run_dir.remove();
    }
}

fn start_engine(paths: &Paths) -> Result<(RunDir, Engine), String> {
    let run_dir = RunDir::create(&paths.state.join("app-server"))?;
    let engine = run_dir.start_engine()?;
    Ok((run_dir, engine))
}

async fn termination_signal() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _received = terminate.recv() => {}
        _received = interrupt.recv() => {}
    }
}
