//! `outpost token`: who may reach the sessions face from elsewhere.

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
    /// Make a token and print it; it is not kept and cannot be shown again
    Create {
        /// A name to know it by
        label: String,
    },
    /// List the tokens by their names
    List,
    /// Make a token worthless, at once
    Revoke { label: String },
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
                return Err(format!("there is no token {label}; `outpost token list` shows them"));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}
