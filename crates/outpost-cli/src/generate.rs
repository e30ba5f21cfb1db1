//! `outpost completions` and `outpost man`: generated from the definitions of the commands.

use super::{Cli, Outcome, print};
use clap::{Args, CommandFactory};
use clap_complete::Shell;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

#[derive(Args)]
pub(super) struct Completions {
    /// bash, zsh, fish, elvish or powershell
    shell: Shell,
}

#[derive(Args)]
pub(super) struct Man {
    /// Directory for the pages `outpost.1`, `outpost-run.1` and so on
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

pub(super) fn completions(options: &Completions) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(options.shell, &mut Cli::command(), "outpost", &mut script);
    print(&String::from_utf8_lossy(&script))
}

pub(super) fn man(options: &Man) -> Outcome {
    let fail = |path: &Path, error: std::io::Error| format!("{}: {error}", path.display());
    std::fs::create_dir_all(&options.dir).map_err(|error| fail(&options.dir, error))?;
    clap_mangen::generate_to(Cli::command(), &options.dir).map_err(|error| fail(&options.dir, error))?;
    Ok(ExitCode::SUCCESS)
}
