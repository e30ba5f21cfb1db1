//! The reactor while another thread erases many records.

use crate::support::{Host, within};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// The records that the retention drops, and the files of each. They occupy the eraser for a while.
const RECORDS: usize = 300;
const FILES: usize = 60;

/// Much longer than a turn on a busy host, and much shorter than the erasure.
const TURN_MAX: Duration = Duration::from_millis(500);

/// Keeps every processor busy until dropped.
struct Busy(Arc<AtomicBool>);

impl Busy {
    fn new() -> Busy {
        let over = Arc::new(AtomicBool::new(false));
        for _ in 0..std::thread::available_parallelism().unwrap().get() {
            let over = over.clone();
            std::thread::spawn(move || {
                while !over.load(Ordering::Relaxed) {
                    std::hint::spin_loop();
                }
            });
        }
        Busy(over)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn output_and_starts_go_on_while_many_records_are_erased() {
    let host = Host::new();
    for number in 0..RECORDS {
        let process = host.sh(&format!("old{number}"), "echo old").await;
        within("its end", process.finished()).await.unwrap();
    }
    let records: Vec<_> = std::fs::read_dir(host.dir().join("processes")).unwrap().flatten().collect();
    for record in &records {
        // Prepared slots are among them, and may go at any time.
        let mut ballast = (0..FILES).map(|file| record.path().join(format!("ballast{file}")));
        let _removed = ballast.try_for_each(|file| std::fs::write(file, ""));
    }
    let before = host.engine.counts().longest_turn;
    assert!(before < TURN_MAX, "{before:?} before anything was erased");
    let busy = Busy::new();
    host.engine.configure(|config| config.exited_max = 0);
    let mut longest_start = Duration::ZERO;
    for number in 0..40 {
        let begun = Instant::now();
        let process = host.sh(&format!("new{number}"), "echo new").await;
        longest_start = longest_start.max(begun.elapsed());
        // Retention may drop its record as soon as it has ended.
        let mut subscription = process.subscribe(0);
        let mut batch = outpost_engine::Batch::default();
        let _dropped = within("its output", subscription.next(&mut batch)).await;
    }
    drop(busy);
    let turn = host.engine.counts().longest_turn;
    assert!(turn < TURN_MAX, "one turn of the reactor took {turn:?}");
    assert!(longest_start < 3 * TURN_MAX, "one start took {longest_start:?}");
    // The records are erased in the end.
    within("the erasure", async {
        while host.engine.list().await.iter().any(|process| process.key().id.starts_with("old")) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    })
    .await;
    host.close().await;
}
