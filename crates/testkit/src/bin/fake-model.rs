//! The fake model by hand: prints `PORT n` and serves until its standard input ends. `GET /__requests` returns the received requests.

#![forbid(unsafe_code)]

use outpost_testkit::Model;
use std::io::Read;

fn main() -> std::io::Result<()> {
    let model = Model::start();
    println!("PORT {}", model.port());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    Ok(())
}
