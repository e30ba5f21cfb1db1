//! Commands whose output is buffered: what they are given, and what is told of their end.

mod ending;
mod environment;
mod output;
