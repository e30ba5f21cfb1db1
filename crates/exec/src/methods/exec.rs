//! `command/exec`: validates the request in the contract's order, then runs it in a task of its own.

use super::quoted;
use crate::command::{CheckedExec, Command, Output, Start, size};
use crate::connection::Connection;
use crate::lookup;
use crate::policy;
use crate::server::NETWORK_DISABLED;
use crate::wire::{CommandExecParams, Failure, Id, OVERLOADED};
use outpost_engine::{Environment, Size, Stdio};
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;
use tracing::Instrument;

const OUTPUT_BYTES_CAP: usize = 1024 * 1024;
const TIMEOUT: Duration = Duration::from_secs(10);
const SIZE: Size = Size { rows: 24, cols: 80 };

pub(super) fn exec(connection: &Arc<Connection>, id: &Id, params: CommandExecParams) -> Result<(), Failure> {
    let asked = check(connection, &params)?;
    let named = params.process_id;
    if named.is_none() && (params.tty || params.stream_stdin || params.stream_stdout_stderr) {
        let text = "command/exec tty or streaming requires a client-supplied processId";
        return Err(Failure::invalid_request(text));
    }
    let (command, input) = Command::new(params.tty, params.tty || params.stream_stdin);
    let command = Arc::new(command);
    if let Some(name) = &named {
        let mut state = connection.state();
        if state.commands.contains_key(name) {
            let text = format!("duplicate active command/exec process id: {}", quoted(name));
            return Err(Failure::invalid_request(text));
        }
        state.commands.insert(name.clone(), command.clone());
    }
    if !connection.begin_command() {
        named.iter().for_each(|name| drop(connection.state().commands.remove(name)));
        return Err(Failure::new(OVERLOADED, "Server overloaded; retry later."));
    }
    let (connection, id) = (connection.clone(), id.clone());
    let span = tracing::info_span!("exec", request = %id.logged());
    let running = async move {
        let outcome = command.run(&connection, asked, named.as_deref(), input).await;
        if let Some(name) = &named {
            connection.state().commands.remove(name);
        }
        let _peer_gone = connection.reply(&id, &outcome).await;
        command.forget().await;
        connection.end_command();
    };
    tokio::spawn(running.instrument(span));
    Ok(())
}

/// "Validation, in this order (first hit wins)".
fn check(connection: &Connection, params: &CommandExecParams) -> Result<CheckedExec, Failure> {
    let server = &connection.server;
    let invalid = |text: &str| Err(Failure::invalid_params(text));
    if params.command.is_empty() {
        return Err(Failure::invalid_request("command must not be empty"));
    }
    if params.permission_profile.is_some() && params.sandbox_policy.is_some() {
        let text = "`permissionProfile` cannot be combined with `sandboxPolicy`";
        return Err(Failure::invalid_request(text));
    }
    if params.size.is_some() && !params.tty {
        return invalid("command/exec size requires tty: true");
    }
    if params.disable_output_cap && params.output_bytes_cap.is_some() {
        return invalid("command/exec cannot set both outputBytesCap and disableOutputCap");
    }
    if params.disable_timeout && params.timeout_ms.is_some() {
        return invalid("command/exec cannot set both timeoutMs and disableTimeout");
    }
    let timeout = match params.timeout_ms.map(|ms| (ms, u64::try_from(ms))) {
        Some((_, Ok(ms))) => Some(Duration::from_millis(ms)),
        Some((ms, Err(_))) => {
            let text = format!("command/exec timeoutMs must be non-negative, got {ms}");
            return Err(Failure::invalid_params(text));
        }
        None => (!params.disable_timeout).then_some(TIMEOUT),
    };
    let directory = lookup::directory(params.cwd.as_deref(), &server.directory, server.home().as_deref());
    let confinement = policy::asked(server, params, &directory)?;
    let terminal_size = params.size.map(size).transpose()?.unwrap_or(SIZE);
    let stdio = match params.tty {
        true => Stdio::Terminal(terminal_size),
        false => Stdio::Pipes { stdin: params.stream_stdin },
    };
    let cap = (!params.disable_output_cap).then(|| params.output_bytes_cap.unwrap_or(OUTPUT_BYTES_CAP));
    let streams = params.tty || params.stream_stdout_stderr;
    let wanted = streams.then(|| !connection.state().opted_out_of_deltas);
    let start = Start {
        arguments: params.command.clone(),
        environment: environment(connection, params, confinement.network_is_restricted),
        directory,
        stdio,
        confinement,
    };
    Ok(CheckedExec { start, output: Output::new(wanted, cap), timeout })
}

/// "merged over the server environment; null unsets; names are not validated".
fn environment(connection: &Connection, params: &CommandExecParams, no_network: bool) -> Environment {
    let Some(own) = params.env.as_ref().filter(|own| !own.is_empty()) else {
        return connection.server.environment(no_network).clone();
    };
    let own = own.iter().map(|(name, value)| (OsString::from(name), value.as_ref().map(OsString::from)));
    let (name, value) = NETWORK_DISABLED;
    let disabled = no_network.then(|| (OsString::from(name), Some(value.into())));
    let changed: BTreeMap<OsString, Option<OsString>> = own.chain(disabled).collect();
    let base = connection.server.environment(false);
    let kept = base.iter().filter(|(name, _)| !changed.contains_key(name)).cloned();
    kept.chain(changed.iter().filter_map(|(name, value)| Some((name.clone(), value.clone()?)))).collect()
}
