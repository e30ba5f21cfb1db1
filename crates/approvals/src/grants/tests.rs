//! Grants are counted, expire, and never exceed the signed statement.

use super::*;
use crate::kit::{Fixture, REQUEST, question, remembered};
use crate::signing::{KeyAction, Signer};

async fn consume_one(fixture: &Fixture) -> bool {
    let (verifier, digest) = (fixture.approvals.verifier().clone(), question("").digest);
    let take = move |tx: &mut LedgerTx<'_>| consume(tx, &verifier, &digest, REQUEST);
    fixture.approvals.ledger().transact(take).await.unwrap().is_some()
}

/// Creates a ledger with one grant.
async fn fixture_with_grant(remember: Remember) -> Fixture {
    let fixture = Fixture::new().await;
    let asked = question("q");
    let _pending = fixture.ask(&asked, Duration::from_secs(60)).await;
    fixture.decide(&asked, remembered(remember)).await.unwrap();
    fixture
}

#[tokio::test]
async fn a_grant_allows_the_signed_number_of_uses() {
    let fixture = fixture_with_grant(Remember::Times(2)).await;
    assert!(consume_one(&fixture).await && consume_one(&fixture).await);
    assert!(!consume_one(&fixture).await, "the grant allows two uses");
}

#[tokio::test]
async fn an_expired_grant_is_rejected() {
    let fixture = fixture_with_grant(Remember::Minutes(5)).await;
    assert!(consume_one(&fixture).await && consume_one(&fixture).await);
    fixture.tamper("update signed_grants set until_boot_ns = 1").await;
    assert!(!consume_one(&fixture).await, "the grant has expired");
    let fixture = fixture_with_grant(Remember::Times(2)).await;
    fixture.tamper("update signed_grants set boot_id = 'another'").await;
    assert!(!consume_one(&fixture).await, "the host was rebooted");
}

#[tokio::test]
async fn a_tampered_row_is_rejected() {
    for sql in [
        "update signed_grants set times_left = 3",
        "update signed_grants set proof = '{}'",
        "update signed_grants set id = '00000000-0000-4000-8000-000000000000'",
        "update signed_grants set times_left = null, until_boot_ns = 9000000000000000000",
        "update signed_grants set digest = replace(digest, 'ab', 'cd'), times_left = 1",
        "update signed_grants set uid = 1001",
        "update signed_grants set proof = replace(proof, '\"signature\":\"U', '\"signature\":\"V')",
    ] {
        let fixture = fixture_with_grant(Remember::Times(2)).await;
        fixture.tamper(sql).await;
        assert!(!consume_one(&fixture).await, "{sql}");
    }
    // A row that was moved to another digest does not grant it.
    let fixture = fixture_with_grant(Remember::Times(2)).await;
    let other = Question { digest: "cd".repeat(32), ..question("r") };
    fixture.tamper("update signed_grants set digest = replace(digest, 'ab', 'cd')").await;
    let verifier = fixture.approvals.verifier().clone();
    let take = move |tx: &mut LedgerTx<'_>| consume(tx, &verifier, &other.digest, REQUEST);
    assert!(fixture.approvals.ledger().transact(take).await.unwrap().is_none());
}

#[tokio::test]
async fn a_grant_ends_with_its_key() {
    let fixture = fixture_with_grant(Remember::Times(9)).await;
    let second = Signer::random().unwrap();
    fixture.change(KeyAction::Enroll, &second, &fixture.key, |_| {}).await.unwrap();
    assert!(consume_one(&fixture).await);
    let past = |change: &mut crate::signing::KeyChange| change.not_after_ms = 1;
    fixture.change(KeyAction::Expire, &fixture.key, &second, past).await.unwrap();
    assert!(!consume_one(&fixture).await);
    let listed = list(fixture.approvals.ledger(), fixture.approvals.verifier(), |_| true).await.unwrap();
    assert!(listed.is_empty(), "invalid grants are not listed");
}
