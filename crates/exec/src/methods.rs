//! Dispatch: one file per method. "params are parsed before" any other check.

mod exec;
mod initialize;
mod names;
mod resize;
mod terminate;
mod write;

use crate::command::Command;
use crate::connection::Connection;
use crate::wire::{
    CommandExecParams, CommandExecResizeParams, CommandExecTerminateParams, CommandExecWriteParams, Failure,
    Id, Incoming, InitializeParams, append_reply,
};
use outpost_wire::Closed;
use serde::de::DeserializeOwned;
use serde_json::Value;
use std::sync::Arc;

pub(crate) async fn call(
    connection: &Arc<Connection>,
    id: Id,
    method: &str,
    params: Option<Value>,
) -> Result<(), Closed> {
    match method {
        "initialize" => {
            let outcome = parse(params).and_then(|params| initialize::initialize(connection, &params));
            connection.reply(&id, &outcome).await
        }
        "command/exec" => {
            match begin(connection, params).and_then(|params| exec::exec(connection, &id, params)) {
                Ok(()) => Ok(()),
                Err(failure) => connection.reply::<()>(&id, &Err(failure)).await,
            }
        }
        "command/exec/write" => {
            let outcome = begin(connection, params).and_then(|params| write::write(connection, params));
            connection.reply(&id, &outcome).await
        }
        "command/exec/resize" => match begin(connection, params) {
            Ok(params) => resize::resize(connection, id, &params).await,
            Err(failure) => connection.reply::<()>(&id, &Err(failure)).await,
        },
        "command/exec/terminate" => match begin(connection, params) {
            Ok(params) => terminate::terminate(connection, &id, &params).await,
            Err(failure) => connection.reply::<()>(&id, &Err(failure)).await,
        },
        _ => {
            let refused = Failure::invalid_request(names::refusal(method));
            connection.reply::<()>(&id, &Err(refused)).await
        }
    }
}

/// Parses a line with the parameters of every method; returns the error reply of the first that fails.
pub(crate) fn read(line: &[u8]) -> Option<Vec<u8>> {
    let (id, failure) = match Incoming::parse(line) {
        Incoming::Request { id, params, .. } => {
            let failures = [
                parse::<InitializeParams>(params.clone()).err(),
                parse::<CommandExecParams>(params.clone()).err(),
                parse::<CommandExecWriteParams>(params.clone()).err(),
                parse::<CommandExecResizeParams>(params.clone()).err(),
                parse::<CommandExecTerminateParams>(params).err(),
            ];
            (id, failures.into_iter().flatten().next()?)
        }
        Incoming::Notification | Incoming::Reply => return None,
        Incoming::Bad(id, failure) => (id, failure),
    };
    let mut reply = Vec::new();
    append_reply::<()>(&mut reply, &id, &Err(failure));
    Some(reply)
}

fn parse<T: DeserializeOwned>(params: Option<Value>) -> Result<T, Failure> {
    let invalid = |text: String| Failure::invalid_request(format!("Invalid request: {text}"));
    let params =
        params.filter(|params| !params.is_null()).ok_or_else(|| invalid("missing field `params`".into()))?;
    serde_json::from_value(params).map_err(|error| invalid(error.to_string()))
}

/// Parameters of a method that requires `initialize` first.
fn begin<T: DeserializeOwned>(connection: &Connection, params: Option<Value>) -> Result<T, Failure> {
    let params = parse(params)?;
    match connection.state().initialized {
        true => Ok(params),
        false => Err(Failure::invalid_request("Not initialized")),
    }
}

/// "Only client-supplied ids of the same connection resolve."
fn command(connection: &Connection, process_id: &str) -> Result<Arc<Command>, Failure> {
    let found = connection.state().commands.get(process_id).cloned();
    found.ok_or_else(|| {
        Failure::invalid_request(format!("no active command/exec for process id {}", quoted(process_id)))
    })
}

fn ended(process_id: &str) -> Failure {
    Failure::invalid_request(format!("command/exec {} is no longer running", quoted(process_id)))
}

/// The text as a JSON string.
fn quoted(text: &str) -> String {
    Value::from(text).to_string()
}
