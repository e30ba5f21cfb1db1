//! Grants: decisions that hold for further questions with the same digest.

use crate::approvers::RequestAttributes;
use crate::question::{Question, Remember};
use crate::signing::{Proof, Statement};
use crate::verifier::{DecisionError, Verifier};
use crate::wire::Grant;
use crate::{Error, Result};
use outpost_ledger::BootInstant;
use outpost_ledger::audit::Event;
use outpost_ledger::{Ledger, LedgerTx};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Drops the table of unsigned grants of an earlier version.
pub(crate) const SCHEMA: &str = "
    drop table if exists grants;
    create table if not exists signed_grants (
        id text primary key,
        digest text not null,
        title text not null,
        by text not null,
        times_left integer,
        boot_id text not null,
        until_boot_ns integer,
        uid integer not null,
        privileged integer not null,
        proof text not null
    ) strict;
    create index if not exists signed_grants_by_digest on signed_grants (digest);
";

struct Row {
    grant: Grant,
    boot_id: String,
    until_boot_ns: Option<i64>,
    request: RequestAttributes,
    proof: String,
}

/// A verified grant, with its proof.
pub struct ConsumedGrant {
    pub id: String,
    pub by: String,
    pub proof: Proof,
}

/// Why a stored grant does not count.
#[derive(Debug, thiserror::Error)]
enum RowError {
    #[error("it has no signature")]
    Unsigned,
    #[error("its signature belongs to another grant")]
    OtherGrant,
    #[error("it exceeds the signed grant")]
    Exceeds,
    #[error(transparent)]
    Decision(#[from] DecisionError),
}

impl Row {
    /// Returns `None` if the grant has ended. A grant for a number of uses also ends with a reboot.
    fn if_valid(mut self, now: &BootInstant) -> Option<Row> {
        if self.boot_id != now.boot_id || self.grant.times_left == Some(0) {
            return None;
        }
        if let Some(until) = self.until_boot_ns {
            let until = BootInstant { boot_id: self.boot_id.clone(), boot_ns: until.cast_unsigned() };
            let left = until.left(now);
            if left.is_zero() {
                return None;
            }
            self.grant.seconds_left = Some(left.as_secs().max(1));
        }
        Some(self)
    }

    /// Verifies the signature, and that the row grants no more than the signed statement.
    fn verify(&self, verifier: &Verifier) -> std::result::Result<(Proof, String), RowError> {
        let proof: Proof = serde_json::from_str(&self.proof).map_err(|_| RowError::Unsigned)?;
        let verified = verifier.check_grant(&self.grant.digest, &self.request, &proof)?;
        if verified.statement.id() != self.grant.id {
            return Err(RowError::OtherGrant);
        }
        let within = match verified.statement.decision.remember {
            Some(Remember::Times(times)) => {
                self.until_boot_ns.is_none() && self.grant.times_left.is_some_and(|left| left <= times)
            }
            Some(Remember::Minutes(minutes)) => {
                self.until_boot_ns.is_some()
                    && self.grant.seconds_left.is_some_and(|left| left <= u64::from(minutes) * 60)
            }
            None => false,
        };
        match within {
            true => Ok((proof, verified.signer)),
            false => Err(RowError::Exceeds),
        }
    }
}

/// Stores the grant of a statement. The statement's hash is the primary key, so a statement grants once.
pub(crate) fn add(
    tx: &mut LedgerTx<'_>,
    question: &Question,
    statement: &Statement,
    proof: &Proof,
    by: &str,
) -> Result<()> {
    let now = BootInstant::now();
    let (times, until) = match statement.decision.remember {
        None => return Ok(()),
        Some(Remember::Times(times)) => (Some(times), None),
        Some(Remember::Minutes(minutes)) => {
            let until = now.clone().after(Duration::from_secs(u64::from(minutes) * 60));
            (None, Some(until.boot_ns.cast_signed()))
        }
    };
    let request = RequestAttributes::of(question);
    let proof = serde_json::to_string(proof).map_err(|error| Error::Refused(error.to_string()))?;
    let values = (
        statement.id(),
        &question.digest,
        &question.title,
        by,
        times,
        now.boot_id,
        until,
        request.uid,
        request.privileged,
        proof,
    );
    let sql = "insert into signed_grants (id, digest, title, by, times_left, boot_id, until_boot_ns, uid, privileged, proof)
        values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    tx.execute("add a grant", sql, values).map(|_| ())
}

fn read(tx: &mut LedgerTx<'_>, digest: Option<&str>) -> Result<Vec<Row>> {
    let sql = "select id, digest, title, by, times_left, boot_id, until_boot_ns, uid, privileged, proof from signed_grants
        where ?1 is null or digest = ?1 order by rowid";
    let rows = tx.rows("read grants", sql, (digest,), |row| {
        let grant = Grant {
            id: row.get(0)?,
            digest: row.get(1)?,
            title: row.get(2)?,
            by: row.get(3)?,
            times_left: row.get(4)?,
            seconds_left: None,
        };
        let request = RequestAttributes { uid: row.get(7)?, privileged: row.get(8)? };
        Ok(Row { grant, boot_id: row.get(5)?, until_boot_ns: row.get(6)?, request, proof: row.get(9)? })
    })?;
    let now = BootInstant::now();
    Ok(rows.into_iter().filter_map(|row| row.if_valid(&now)).collect())
}

/// Uses a grant for this digest once, if there is one with a valid signature.
pub fn consume(
    tx: &mut LedgerTx<'_>,
    verifier: &Verifier,
    digest: &str,
    request: RequestAttributes,
) -> Result<Option<ConsumedGrant>> {
    for row in read(tx, Some(digest))?.into_iter().filter(|row| row.request == request) {
        let (proof, signer) = match row.verify(verifier) {
            Ok(verified) => verified,
            Err(why) => {
                tracing::warn!(grant = row.grant.id, %why, "a stored grant is not valid");
                continue;
            }
        };
        if row.grant.times_left.is_some() {
            let sql = "update signed_grants set times_left = times_left - 1 where id = ?";
            tx.execute("use a grant", sql, (&row.grant.id,))?;
        }
        return Ok(Some(ConsumedGrant { id: row.grant.id, by: signer, proof }));
    }
    Ok(None)
}

/// Lists the valid grants of the users that `is_visible` accepts. Deletes grants that have ended.
pub async fn list(
    ledger: &Ledger,
    verifier: &Arc<Verifier>,
    is_visible: impl Fn(u32) -> bool + Send + 'static,
) -> Result<Vec<Grant>> {
    let verifier = verifier.clone();
    ledger
        .transact(move |tx| {
            let valid = read(tx, None)?.into_iter();
            let valid = valid.filter(|row| is_visible(row.request.uid) && row.verify(&verifier).is_ok());
            let valid = valid.map(|row| row.grant).collect();
            let now = BootInstant::now();
            let sql = "delete from signed_grants where boot_id <> ? or times_left = 0 or until_boot_ns <= ?";
            tx.execute("delete expired grants", sql, (&now.boot_id, now.boot_ns.cast_signed()))?;
            Ok(valid)
        })
        .await
}

/// Revokes a grant. This needs no signature, because it only restricts.
pub async fn revoke(
    ledger: &Ledger,
    id: &str,
    by: &str,
    is_visible: impl Fn(u32) -> bool + Send + 'static,
) -> Result<()> {
    let (id, by) = (id.to_owned(), by.to_owned());
    ledger
        .transact(move |tx| {
            let sql = "select uid from signed_grants where id = ?";
            let owner = tx.rows("find a grant", sql, (&id,), |row| row.get::<_, u32>(0))?;
            if !owner.first().is_some_and(|uid| is_visible(*uid)) {
                let shown = crate::display::escape_untrusted(&id, 64);
                return Err(Error::Refused(format!(
                    "there is no grant {shown}; `outpost approvals grants` lists them"
                )));
            }
            tx.execute("revoke a grant", "delete from signed_grants where id = ?", (&id,))?;
            tx.record(Event::Decided, &json!({ "grant": id, "revoked": true, "by": by }))?;
            tx.require_fsync();
            Ok(())
        })
        .await
}

#[cfg(test)]
mod tests;
