//! `outpost token`: manages the tokens of remote clients of the sessions face.

use super::{Outcome, print};
use crate::paths::Paths;
use clap::{Args, Subcommand};
use outpost_sessions::Tokens;
use std::process::ExitCode;

#[derive(Args)]
pub(super) struct Token {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Create a token and print it once; only its hash is stored
    Create {
        /// Name of the token
        label: String,
    },
    /// List the names of the tokens
    List,
    /// Revoke a token immediately
    Revoke {
        /// Name of the token
        label: String,
    },
}

pub(super) fn run(paths: &Paths, options: Token) -> Outcome {
    let tokens = Tokens::at(paths.tokens());
    let text = |error: outpost_sessions::Error| error.to_string();
    match options.command {
        Command::Create { label } => {
            paths.create()?;
            print(&format!("{}\n", tokens.create(&label).map_err(text)?))?;
        }
        Command::List => {
            let mut table = vec![["LABEL", "CREATED"].map(str::to_owned)];
            let known = tokens.list().map_err(text)?;
            table.extend(known.into_iter().map(|token| [token.label, token.created]));
            super::print_table(&table);
        }
        Command::Revoke { label } => {
            if !tokens.revoke(&label).map_err(text)? {
                return Err(format!("no such token: {label}\nhint: `outpost token list` shows all tokens"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
