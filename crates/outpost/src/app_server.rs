//! `outpost app-server`: the exec face alone, on standard input and output, with processes that end with it.

use crate::paths::Paths;
use crate::place::Place;
use clap::Args;
use outpost_engine::Engine;
use outpost_exec::{Server, Settings};
use std::process::ExitCode;
use std::time::Duration;
use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::watch;

/// How long processes may take to end when the server does.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);

#[derive(Args, Clone, Debug)]
pub(crate) struct AppServer {
    /// Where to listen
    #[arg(long, value_name = "URL", default_value = "stdio://")]
    listen: String,
}

pub(crate) fn run(paths: &Paths, options: &AppServer) -> Result<ExitCode, String> {
    if options.listen != "stdio://" {
        return Err(format!(
            "app-server listens on stdio:// only, not on {}; `outpost serve` offers the same on a socket",
            options.listen
        ));
    }
    let settings = Settings::own(paths.state.clone(), paths.private())
        .map_err(|error| format!("the working directory: {error}"))?;
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| format!("cannot start the runtime: {error}"))?;
    runtime.block_on(serve(paths, settings));
    Ok(ExitCode::SUCCESS)
}

/// Ends when the client does.
async fn serve(paths: &Paths, settings: Settings) {
    let connection = match outpost_wire::standard() {
        Ok(connection) => connection,
        Err(error) => return tracing::error!(%error, "standard input or output cannot be used"),
    };
    let (begun, engine) = watch::channel(None);
    let server = Server::new(engine, settings);
    // Beside the handshake: that does not wait for it.
    let paths = paths.clone();
    let place = tokio::task::spawn_blocking(move || {
        let place = begin(&paths);
        match place {
            Ok((place, engine)) => {
                begun.send_replace(Some(engine));
                outpost_sys::memory::forget_program();
                Some(place)
            }
            Err(reason) => {
                tracing::error!("no command can be run: {reason}");
                None
            }
        }
    });
    tokio::select! {
        () = outpost_exec::serve(server.clone(), connection) => {}
        () = asked_to_end() => {}
    }
    if let Some(engine) = server.stop().await
        && let Err(error) = engine.shut_down(SHUTDOWN_PATIENCE).await
    {
        tracing::warn!(%error, "the processes could not be ended in order");
    }
    if let Ok(Some(place)) = place.await {
        place.erase();
    }
}

fn begin(paths: &Paths) -> Result<(Place, Engine), String> {
    let place = Place::make(&paths.state.join("app-server"))?;
    let engine = place.engine()?;
    Ok((place, engine))
}

async fn asked_to_end() {
    let (Ok(mut terminate), Ok(mut interrupt)) =
        (signal(SignalKind::terminate()), signal(SignalKind::interrupt()))
    else {
        return std::future::pending().await;
    };
    tokio::select! {
        _asked = terminate.recv() => {}
        _asked = interrupt.recv() => {}
    }
}
