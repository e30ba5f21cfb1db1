//! Concurrent, late and invalid decisions, and decisions that cannot be written.

use super::*;
use crate::kit::{ALLOW, DENY, Fixture, question};
use crate::question::Decision;
use crate::signing::{KeyAction, Signer, Statement};
use outpost_sys::fault::{self, Fault};
use std::sync::mpsc;

const MINUTE: Duration = Duration::from_secs(60);

/// Blocks the ledger thread until the sender is dropped. Then arms a fault for the next job, if one is given. Returns when
/// the thread is blocked: a decision could be written before otherwise.
async fn block_ledger(fixture: &Fixture, then: Option<(u64, Fault)>) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel::<()>();
    let (blocked, blocks) = tokio::sync::oneshot::channel();
    let ledger = fixture.approvals.ledger().clone();
    tokio::spawn(async move {
        let job = move |_: &mut LedgerTx<'_>| {
            let _test_ended = blocked.send(());
            let _released = held.recv();
            if let Some((nth, fault)) = then {
                fault::arm(nth, fault);
            }
            Ok(())
        };
        // The fault may hit the sync of this job's own batch.
        let _failed_with_its_batch = ledger.transact(job).await;
    });
    blocks.await.unwrap();
    release
}

/// Waits until a decision about this question is being written.
async fn wait_until_settling(fixture: &Fixture, id: &str) {
    let settling = async {
        while fixture.queue().entries().get(id).unwrap().is_open() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), settling).await.expect("no decision is being written");
}

#[tokio::test]
async fn of_two_concurrent_decisions_one_wins() {
    let fixture = Fixture::new().await;
    let asked = question("q");
    let mut pending = fixture.ask(&asked, MINUTE).await;
    let (first, second) = tokio::join!(fixture.decide(&asked, ALLOW), fixture.decide(&asked, DENY));
    assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    assert_eq!(fixture.recorded("decided").len(), 1);
    let Some(Outcome::Decided { decision, .. }) = pending.outcome().await else { panic!("no outcome") };
    assert_eq!(decision.allow, first.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_being_written_wins_over_the_deadline() {
    let fixture = Fixture::new().await;
    let asked = question("q");
    let _pending = fixture.ask(&asked, MINUTE).await;
    let release = block_ledger(&fixture, None).await;
    let ends = async {
        wait_until_settling(&fixture, "q").await;
        let ending = fixture.queue().expire("q");
        drop(release);
        ending.await
    };
    let (decided, outcome) = tokio::join!(fixture.decide(&asked, ALLOW), ends);
    decided.unwrap();
    assert!(matches!(outcome, Outcome::Decided { .. }), "{outcome:?}");
}

/// A question can always be settled, whatever happens to the decision.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_cannot_be_written_leaves_the_question_open() {
    let fixture = Fixture::new().await;
    let asked = question("q");
    let _pending = fixture.ask(&asked, MINUTE).await;
    let mut failed = false;
    for nth in 1..12 {
        let release = block_ledger(&fixture, Some((nth, Fault::Errno(outpost_sys::Errno::NOSPC)))).await;
        let ends = async {
            wait_until_settling(&fixture, "q").await;
            let ending = tokio::time::timeout(Duration::from_secs(20), fixture.queue().expire("q"));
            drop(release);
            ending.await.expect("expire() hangs")
        };
        let (decided, outcome) = tokio::join!(fixture.decide(&asked, ALLOW), ends);
        assert_eq!(decided.is_ok(), matches!(outcome, Outcome::Decided { .. }), "{decided:?} {outcome:?}");
        failed |= decided.is_err_and(|error| error.to_string().contains("No space left"));
        let disarm = |_: &mut LedgerTx<'_>| {
            fault::disarm();
            Ok(())
        };
        fixture.approvals.ledger().transact(disarm).await.unwrap();
        let erase = |tx: &mut LedgerTx<'_>| {
            Queue::delete(tx, "q")?;
            tx.execute("delete receipts", "delete from receipts", ()).map(|_| ())
        };
        fixture.approvals.ledger().transact(erase).await.unwrap();
        let _pending = fixture.ask(&asked, MINUTE).await;
    }
    assert!(failed, "no fault was injected into a write");
    // The question can still be decided.
    fixture.decide(&asked, ALLOW).await.unwrap();
}

#[tokio::test]
async fn an_accepted_decision_is_fsynced() {
    let fixture = Fixture::new().await;
    let mut sync_failed = false;
    for nth in 1..12 {
        let asked = question(&format!("q{nth}"));
        let _pending = fixture.ask(&asked, MINUTE).await;
        // Reopening the chain after a failure also syncs it. Let that happen here, before the decision.
        let record = |tx: &mut LedgerTx<'_>| tx.record(Event::Ended, &json!({}));
        fixture.approvals.ledger().transact(record).await.unwrap();
        let arm = move |_: &mut LedgerTx<'_>| {
            fault::arm(nth, Fault::Errno(outpost_sys::Errno::IO));
            Ok(())
        };
        let release = block_ledger(&fixture, None).await;
        let (armed, decided) = tokio::join!(fixture.approvals.ledger().transact(arm), async {
            let decided = fixture.decide(&asked, ALLOW);
            drop(release);
            decided.await
        });
        let _either = armed;
        sync_failed |= decided.is_err_and(|error| error.to_string().contains("cannot sync"));
        let disarm = |_: &mut LedgerTx<'_>| {
            fault::disarm();
            Ok(())
        };
        fixture.approvals.ledger().transact(disarm).await.unwrap();
    }
    assert!(sync_failed, "a decision was accepted without an fsync");
}

#[tokio::test]
async fn a_decision_after_the_deadline_is_rejected() {
    let fixture = Fixture::new().await;
    let asked = question("q");
    let _pending = fixture.ask(&asked, Duration::ZERO).await;
    let error = fixture.decide(&asked, ALLOW).await.unwrap_err().to_string();
    assert!(error.contains("no question q is pending"), "{error}");
    assert!(fixture.recorded("decided").is_empty());
}

#[tokio::test]
async fn notes_are_limited_and_printable() {
    let fixture = Fixture::new().await;
    let asked = question("q");
    let _pending = fixture.ask(&asked, MINUTE).await;
    for note in ["\u{1b}[2J", "a\nb", "\u{202e}x", &"x".repeat(501)] {
        let error =
            fixture.decide(&asked, Decision { note: note.into(), ..DENY }).await.unwrap_err().to_string();
        assert!(error.contains("a note has at most"), "{note:?}: {error}");
    }
    fixture.decide(&asked, Decision { note: "x".repeat(500), ..DENY }).await.unwrap();
}

/// The verifier compares every field of a statement.
#[tokio::test]
async fn a_statement_with_any_wrong_field_is_rejected() {
    let fixture = Fixture::new().await;
    let asked = question("q");
    let _pending = fixture.ask(&asked, MINUTE).await;
    type Change = fn(&mut Statement);
    let changes: [(Change, &str); 7] = [
        (|statement| statement.host.push(0), "another host"),
        (|statement| statement.digest.push('0'), "does not match"),
        (|statement| statement.shown[0] ^= 1, "does not match"),
        (|statement| statement.head.seq += 1000, "does not have"),
        (|statement| statement.head.hash[0] ^= 1, "does not have"),
        (|statement| statement.expires_ms = statement.issued_ms, "has expired"),
        (|statement| statement.expires_ms += 1, "valid for too long"),
    ];
    for (change, why) in changes {
        let mut statement = fixture.statement(&asked, ALLOW);
        change(&mut statement);
        let error = fixture.submit(fixture.signed(&statement)).await.unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
    let mut unsigned = fixture.signed(&fixture.statement(&asked, ALLOW));
    unsigned.signature.clear();
    let error = fixture.submit(unsigned).await.unwrap_err().to_string();
    assert!(error.contains("needs an approver's signature") && error.contains("hint: "), "{error}");
    assert!(fixture.recorded("decided").is_empty());
    let receipt = fixture.decide(&asked, ALLOW).await.unwrap();
    assert!(!receipt.is_empty());
}

/// A stored outcome counts by its signature only.
#[tokio::test]
async fn a_stored_outcome_without_a_valid_signature_is_dropped() {
    let fixture = Fixture::new().await;
    let outcome = async || {
        let queue = fixture.queue().clone();
        let read = move |tx: &mut LedgerTx<'_>| queue.load(tx, "test");
        fixture.approvals.ledger().transact(read).await.unwrap().pop().unwrap().outcome
    };
    let asked = question("q");
    let _pending = fixture.ask(&asked, MINUTE).await;
    fixture
        .tamper("update questions set outcome = '{\"outcome\":\"decided\",\"allow\":true,\"by\":\"x\"}'")
        .await;
    assert_eq!(outcome().await, None);
    fixture.tamper("update questions set outcome = null").await;
    fixture.decide(&asked, DENY).await.unwrap();
    assert!(matches!(outcome().await, Some(Outcome::Decided { .. })));
    fixture
        .tamper("update questions set outcome = replace(outcome, '\"allow\":false', '\"allow\":true')")
        .await;
    assert_eq!(outcome().await, None, "it differs from the signed decision");
    fixture
        .tamper("update questions set outcome = replace(outcome, '\"allow\":true', '\"allow\":false')")
        .await;
    assert!(outcome().await.is_some());
    // Revoking a key also invalidates its earlier decisions.
    let second = Signer::random().unwrap();
    fixture.change(KeyAction::Enroll, &second, &fixture.key, |_| {}).await.unwrap();
    fixture.change(KeyAction::Revoke, &fixture.key, &second, |_| {}).await.unwrap();
    assert_eq!(outcome().await, None);
}
