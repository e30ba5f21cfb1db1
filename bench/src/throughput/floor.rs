//! The floor: what a straightforward pump does, without a journal and without anything to lose.

use crate::Result;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use outpost_sys::procfs;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::AsFd;
use std::process::{Command, Stdio};

/// Written at a time by the producer.
const BLOCK_BYTES: usize = 64 * 1024;
/// Read at a time by the floor: a frame.
const FRAME_BYTES: usize = 32 * 1024;
/// Prime, so that a piece that is lost or doubled shows wherever it is.
const PATTERN_BYTES: usize = 716_801;

/// Writes so many bytes to standard output, past the buffer that the standard library has for lines.
pub(crate) fn produce(bytes: u64) -> Result<()> {
    let mut out = File::from(std::io::stdout().as_fd().try_clone_to_owned()?);
    let block: Vec<u8> = (0..=255).cycle().take(BLOCK_BYTES).collect();
    let mut left = bytes;
    while left > 0 {
        let len = left.min(block.len() as u64) as usize;
        out.write_all(&block[..len])?;
        left -= len as u64;
    }
    Ok(())
}

/// The block that is sent again and again to a child that checks it: its length fits no buffer anywhere.
pub(crate) fn pattern() -> Vec<u8> {
    (0..PATTERN_BYTES as u64).map(|at| (at.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 56) as u8).collect()
}

/// Reads standard input to so many bytes; whether they are the pattern, from its beginning.
pub(crate) fn consume(bytes: usize) -> Result<bool> {
    let mut input = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let pattern = pattern();
    let mut buffer = vec![0; 1024 * 1024];
    let mut seen = 0;
    while seen < bytes {
        let read = input.read(&mut buffer)?;
        let mut rest = buffer.get(..read).filter(|rest| !rest.is_empty()).ok_or("the input ended early")?;
        while !rest.is_empty() {
            let expected = pattern.get(seen % PATTERN_BYTES..).unwrap_or_default();
            let len = rest.len().min(expected.len());
            if rest.get(..len) != expected.get(..len) {
                return Ok(false);
            }
            rest = rest.get(len..).unwrap_or_default();
            seen += len;
        }
    }
    Ok(true)
}

/// Pipe, plain base64, one line, one write to the socket that is standard input: frame after frame. Prints the CPU ticks
/// it took.
pub(crate) fn run(bytes: u64) -> Result<()> {
    let mut socket = File::from(std::io::stdin().as_fd().try_clone_to_owned()?);
    let mut producer = Command::new(std::env::current_exe()?)
        .arg("produce")
        .arg(bytes.to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .spawn()?;
    let mut pipe = producer.stdout.take().ok_or("the producer has no output")?;
    let mut buffer = vec![0; FRAME_BYTES];
    let mut line = Vec::new();
    for seq in 1_u64.. {
        let read = pipe.read(&mut buffer)?;
        if read == 0 {
            break;
        }
        let data = STANDARD.encode(&buffer[..read]);
        line.clear();
        writeln!(line, "{{\"seq\":{seq},\"stream\":\"stdout\",\"data\":\"{data}\"}}")?;
        socket.write_all(&line)?;
    }
    producer.wait()?;
    let own = procfs::stat(i32::try_from(std::process::id())?).ok_or("/proc cannot be read")?;
    println!("{}", own.cpu_ticks);
    Ok(())
}
