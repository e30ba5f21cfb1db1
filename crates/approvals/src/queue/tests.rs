//! Decisions that come at once, too late, wrong, or cannot be written down.

use super::*;
use crate::kit::{ALLOW, DENY, Site, question};
use crate::question::Decision;
use crate::signing::{KeyAction, Signer, Statement};
use outpost_sys::fault::{self, Fault};
use std::sync::mpsc;

const MINUTE: Duration = Duration::from_secs(60);

/// Holds the thread of the books until the sender is dropped; then arms a fault, if one is given, for what comes next.
fn hold(site: &Site, then: Option<(u64, Fault)>) -> mpsc::Sender<()> {
    let (release, held) = mpsc::channel::<()>();
    let ledger = site.approvals.ledger().clone();
    tokio::spawn(async move {
        let job = move |_: &mut Books<'_>| {
            let _released = held.recv();
            if let Some((nth, fault)) = then {
                fault::arm(nth, fault);
            }
            Ok(())
        };
        // The fault may hit the sync of the batch that this job is in.
        let _failed_with_its_batch = ledger.write(job).await;
    });
    release
}

/// Until the decision about this question is being written.
async fn settling(site: &Site, id: &str) {
    let settling = async {
        while site.queue().waiting().get(id).unwrap().is_open() {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(20), settling).await.expect("no decision is being written");
}

#[tokio::test]
async fn of_two_decisions_at_once_one_stands_and_the_other_is_refused() {
    let site = Site::new().await;
    let asked = question("q");
    let mut waits = site.ask(&asked, MINUTE).await;
    let (first, second) = tokio::join!(site.decide(&asked, ALLOW), site.decide(&asked, DENY));
    assert!(first.is_ok() != second.is_ok(), "{first:?} {second:?}");
    assert_eq!(site.recorded("decided").len(), 1);
    let Some(Outcome::Decided { decision, .. }) = waits.outcome().await else { panic!("no outcome") };
    assert_eq!(decision.allow, first.is_ok());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_is_being_written_is_not_overtaken_by_the_deadline() {
    let site = Site::new().await;
    let asked = question("q");
    let _waits = site.ask(&asked, MINUTE).await;
    let release = hold(&site, None);
    let ends = async {
        settling(&site, "q").await;
        let ending = site.queue().expire("q");
        drop(release);
        ending.await
    };
    let (decided, outcome) = tokio::join!(site.decide(&asked, ALLOW), ends);
    decided.unwrap();
    assert!(matches!(outcome, Outcome::Decided { .. }), "{outcome:?}");
}

/// The end of a question comes, whatever happens to the decision.
#[tokio::test(flavor = "multi_thread")]
async fn a_decision_that_cannot_be_written_hangs_nothing_and_leaves_the_question_open() {
    let site = Site::new().await;
    let asked = question("q");
    let _waits = site.ask(&asked, MINUTE).await;
    let mut failed = false;
    for nth in 1..12 {
        let release = hold(&site, Some((nth, Fault::Errno(outpost_sys::Errno::NOSPC))));
        let ends = async {
            settling(&site, "q").await;
            let ending = tokio::time::timeout(Duration::from_secs(20), site.queue().expire("q"));
            drop(release);
            ending.await.expect("the end of the question hangs")
        };
        let (decided, outcome) = tokio::join!(site.decide(&asked, ALLOW), ends);
        assert_eq!(decided.is_ok(), matches!(outcome, Outcome::Decided { .. }), "{decided:?} {outcome:?}");
        failed |= decided.is_err_and(|error| error.to_string().contains("No space left"));
        let disarm = |_: &mut Books<'_>| {
            fault::disarm();
            Ok(())
        };
        site.approvals.ledger().write(disarm).await.unwrap();
        let erase = |books: &mut Books<'_>| {
            Queue::erase(books, "q")?;
            books.execute("forget", "delete from receipts", ()).map(|_| ())
        };
        site.approvals.ledger().write(erase).await.unwrap();
        let _waits = site.ask(&asked, MINUTE).await;
    }
    assert!(failed, "no write was made to fail");
    // It can still be decided.
    site.decide(&asked, ALLOW).await.unwrap();
}

#[tokio::test]
async fn a_decision_has_reached_the_disk_when_it_stands() {
    let site = Site::new().await;
    let mut unsynced = false;
    for nth in 1..12 {
        let asked = question(&format!("q{nth}"));
        let _waits = site.ask(&asked, MINUTE).await;
        // After a failure the chain is opened anew, which syncs, too: here, and not with the decision.
        let record = |books: &mut Books<'_>| books.record(Event::Ended, &json!({}));
        site.approvals.ledger().write(record).await.unwrap();
        let arm = move |_: &mut Books<'_>| {
            fault::arm(nth, Fault::Errno(outpost_sys::Errno::IO));
            Ok(())
        };
        let release = hold(&site, None);
        let (armed, decided) = tokio::join!(site.approvals.ledger().write(arm), async {
            let decided = site.decide(&asked, ALLOW);
            drop(release);
            decided.await
        });
        let _either = armed;
        unsynced |= decided.is_err_and(|error| error.to_string().contains("cannot sync"));
        let disarm = |_: &mut Books<'_>| {
            fault::disarm();
            Ok(())
        };
        site.approvals.ledger().write(disarm).await.unwrap();
    }
    assert!(unsynced, "a decision stands without having been synced");
}

#[tokio::test]
async fn a_decision_after_the_deadline_does_not_count() {
    let site = Site::new().await;
    let asked = question("q");
    let _waits = site.ask(&asked, Duration::ZERO).await;
    let error = site.decide(&asked, ALLOW).await.unwrap_err().to_string();
    assert!(error.contains("no question q waits"), "{error}");
    assert!(site.recorded("decided").is_empty());
}

#[tokio::test]
async fn notes_have_no_control_characters_and_an_end() {
    let site = Site::new().await;
    let asked = question("q");
    let _waits = site.ask(&asked, MINUTE).await;
    for note in ["\u{1b}[2J", "a\nb", "\u{202e}x", &"x".repeat(501)] {
        let error =
            site.decide(&asked, Decision { note: note.into(), ..DENY }).await.unwrap_err().to_string();
        assert!(error.contains("a note has at most"), "{note:?}: {error}");
    }
    site.decide(&asked, Decision { note: "x".repeat(500), ..DENY }).await.unwrap();
}

/// Everything in a statement is compared with what is there.
#[tokio::test]
async fn a_statement_that_differs_in_anything_does_not_count() {
    let site = Site::new().await;
    let asked = question("q");
    let _waits = site.ask(&asked, MINUTE).await;
    type Change = fn(&mut Statement);
    let changes: [(Change, &str); 7] = [
        (|statement| statement.host.push(0), "another host"),
        (|statement| statement.digest.push('0'), "something else"),
        (|statement| statement.shown[0] ^= 1, "something else"),
        (|statement| statement.head.seq += 1000, "does not have"),
        (|statement| statement.head.hash[0] ^= 1, "does not have"),
        (|statement| statement.expires_ms = statement.issued_ms, "has expired"),
        (|statement| statement.expires_ms += 1, "valid for too long"),
    ];
    for (change, why) in changes {
        let mut statement = site.statement(&asked, ALLOW);
        change(&mut statement);
        let error = site.submit(site.signed(&statement)).await.unwrap_err().to_string();
        assert!(error.contains(why), "{why}: {error}");
    }
    let mut unsigned = site.signed(&site.statement(&asked, ALLOW));
    unsigned.signature.clear();
    let error = site.submit(unsigned).await.unwrap_err().to_string();
    assert!(error.contains("needs an approver's signature") && error.contains("hint: "), "{error}");
    assert!(site.recorded("decided").is_empty());
    let receipt = site.decide(&asked, ALLOW).await.unwrap();
    assert!(!receipt.is_empty());
}

/// What an earlier worker has left counts by its signature, not by standing in the database.
#[tokio::test]
async fn an_outcome_without_a_valid_signature_is_asked_about_again() {
    let site = Site::new().await;
    let outcome = async || {
        let queue = site.queue().clone();
        let read = move |books: &mut Books<'_>| queue.remembered(books, "test");
        site.approvals.ledger().write(read).await.unwrap().pop().unwrap().outcome
    };
    let asked = question("q");
    let _waits = site.ask(&asked, MINUTE).await;
    site.tamper("update questions set outcome = '{\"outcome\":\"decided\",\"allow\":true,\"by\":\"x\"}'")
        .await;
    assert_eq!(outcome().await, None);
    site.tamper("update questions set outcome = null").await;
    site.decide(&asked, DENY).await.unwrap();
    assert!(matches!(outcome().await, Some(Outcome::Decided { .. })));
    site.tamper("update questions set outcome = replace(outcome, '\"allow\":false', '\"allow\":true')").await;
    assert_eq!(outcome().await, None, "it is not what was signed");
    site.tamper("update questions set outcome = replace(outcome, '\"allow\":true', '\"allow\":false')").await;
    assert!(outcome().await.is_some());
    // A key that is revoked takes what it has decided along.
    let second = Signer::random().unwrap();
    site.change(KeyAction::Enroll, &second, &site.key, |_| {}).await.unwrap();
    site.change(KeyAction::Revoke, &site.key, &second, |_| {}).await.unwrap();
    assert_eq!(outcome().await, None);
}
