//! Commands with buffered output: environment, output and exit.

mod ending;
mod environment;
mod output;
