//! Grants: counted, ended, and worth what was signed.

use super::*;
use crate::kit::{MATTER, Site, question, remembered};
use crate::signing::{KeyAction, Signer};

async fn taken(site: &Site) -> bool {
    let (trust, digest) = (site.approvals.trust().clone(), question("").digest);
    let take = move |books: &mut Books<'_>| take(books, &trust, &digest, MATTER);
    site.approvals.ledger().write(take).await.unwrap().is_some()
}

/// Books with one grant.
async fn granted(remember: Remember) -> Site {
    let site = Site::new().await;
    let asked = question("q");
    let _waits = site.ask(&asked, Duration::from_secs(60)).await;
    site.decide(&asked, remembered(remember)).await.unwrap();
    site
}

#[tokio::test]
async fn a_grant_holds_as_often_as_was_signed() {
    let site = granted(Remember::Times(2)).await;
    assert!(taken(&site).await && taken(&site).await);
    assert!(!taken(&site).await, "it was for two times");
}

#[tokio::test]
async fn a_grant_that_has_ended_does_not_hold() {
    let site = granted(Remember::Minutes(5)).await;
    assert!(taken(&site).await && taken(&site).await);
    site.tamper("update signed_grants set until_boot_ns = 1").await;
    assert!(!taken(&site).await, "its time has passed");
    let site = granted(Remember::Times(2)).await;
    site.tamper("update signed_grants set boot_id = 'another'").await;
    assert!(!taken(&site).await, "the machine was started since");
}

#[tokio::test]
async fn a_row_grants_no_more_than_was_signed() {
    for sql in [
        "update signed_grants set times_left = 3",
        "update signed_grants set proof = '{}'",
        "update signed_grants set id = '00000000-0000-4000-8000-000000000000'",
        "update signed_grants set times_left = null, until_boot_ns = 9000000000000000000",
        "update signed_grants set digest = replace(digest, 'ab', 'cd'), times_left = 1",
        "update signed_grants set uid = 1001",
        "update signed_grants set proof = replace(proof, '\"signature\":\"U', '\"signature\":\"V')",
    ] {
        let site = granted(Remember::Times(2)).await;
        site.tamper(sql).await;
        assert!(!taken(&site).await, "{sql}");
    }
    // A row that stands for another digest is none for it, either.
    let site = granted(Remember::Times(2)).await;
    let other = Question { digest: "cd".repeat(32), ..question("r") };
    site.tamper("update signed_grants set digest = replace(digest, 'ab', 'cd')").await;
    let trust = site.approvals.trust().clone();
    let take = move |books: &mut Books<'_>| take(books, &trust, &other.digest, MATTER);
    assert!(site.approvals.ledger().write(take).await.unwrap().is_none());
}

#[tokio::test]
async fn a_grant_ends_with_the_key_that_signed_it() {
    let site = granted(Remember::Times(9)).await;
    let second = Signer::random().unwrap();
    site.change(KeyAction::Enroll, &second, &site.key, |_| {}).await.unwrap();
    assert!(taken(&site).await);
    let past = |change: &mut crate::signing::KeyChange| change.not_after_ms = 1;
    site.change(KeyAction::Expire, &site.key, &second, past).await.unwrap();
    assert!(!taken(&site).await);
    let listed = list(site.approvals.ledger(), site.approvals.trust(), |_| true).await.unwrap();
    assert!(listed.is_empty(), "what does not hold is not listed");
}
