//! How long a confined `/bin/true` takes, beside one that is not. For people: `make bench` is what counts.

use crate::kit::{Place, end, host, launch_plain};
use outpost_sandbox::{Confinement, Policy, plan};
use outpost_sys::spawn::Standing;
use std::os::fd::OwnedFd;
use std::time::Instant;

const ROUNDS: usize = 300;

fn median_us(mut once: impl FnMut()) -> u128 {
    let mut took: Vec<u128> = (0..ROUNDS)
        .map(|_| {
            let start = Instant::now();
            once();
            start.elapsed().as_micros()
        })
        .collect();
    took.sort_unstable();
    took[ROUNDS / 2]
}

#[test]
#[ignore = "prints figures, checks nothing"]
fn figures() {
    let place = Place::new();
    let null: OwnedFd = std::fs::File::options().read(true).write(true).open("/dev/null").unwrap().into();
    let confined = |policy: &Policy| {
        let plan = plan(policy, &place.context()).unwrap();
        let confinement = Confinement::build(&plan, host()).unwrap();
        let stdio = [&null, &null, &null];
        let started = crate::kit::launch(&confinement, &place.ws(), &["/bin/true"], Standing::Session, stdio);
        end(&started.unwrap());
    };
    for _ in 0..2 {
        let plain = || {
            end(&launch_plain(&null));
        };
        println!("plain           {} us", median_us(plain));
        println!("readOnly        {} us", median_us(|| confined(&place.read_only())));
        println!("workspaceWrite  {} us", median_us(|| confined(&place.workspace_write())));
    }
}
