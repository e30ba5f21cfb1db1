//! Writes letters that its seed determines to stdout and stderr, in pieces of random sizes at a random pace, and exits
//! with the code it was given: `producer SEED STDOUT_BYTES STDERR_BYTES CODE`.

#![forbid(unsafe_code)]

use outpost_testkit::Noise;
use std::io::Write;
use std::process::ExitCode;
use std::time::Duration;

fn main() -> ExitCode {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|argument| argument.parse().ok()).collect();
    let [seed, stdout_bytes, stderr_bytes, code] = numbers[..] else { return ExitCode::from(255) };
    let (mut out, mut err) = ((Noise::new(seed), stdout_bytes), (Noise::new(seed + 1), stderr_bytes));
    let mut pace = Noise::new(seed + 2);
    while out.1 + err.1 > 0 {
        let (stream, noise, left): (&mut dyn Write, _, _) = match pace.below(out.1 + err.1) < out.1 {
            true => (&mut std::io::stdout(), &mut out.0, &mut out.1),
            false => (&mut std::io::stderr(), &mut err.0, &mut err.1),
        };
        let size = match pace.below(4) {
            0 => 1 + pace.below(80),
            1 => 1 + pace.below(4096),
            _ => 1 + pace.below(100_000),
        };
        let piece = noise.letters(size.min(*left) as usize);
        if stream.write_all(&piece).and_then(|()| stream.flush()).is_err() {
            return ExitCode::from(254);
        }
        *left -= piece.len() as u64;
        if pace.below(3) == 0 {
            std::thread::sleep(Duration::from_micros(pace.below(10_000)));
        }
    }
    ExitCode::from(code as u8)
}
