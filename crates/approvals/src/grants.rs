//! Grants: an approver's answer that holds for later questions of exactly the same digest.

use crate::approvers::Matter;
use crate::audit::Event;
use crate::ledger::{Books, Ledger};
use crate::moment::Moment;
use crate::question::{Question, Remember};
use crate::signing::{Proof, Statement};
use crate::trust::Trust;
use crate::wire::Grant;
use crate::{Error, Result};
use serde_json::json;
use std::sync::Arc;
use std::time::Duration;

/// Grants of before they were signed count no more.
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
    matter: Matter,
    proof: String,
}

/// A grant that counts, with what makes it count.
pub struct Taken {
    pub id: String,
    pub by: String,
    pub proof: Proof,
}

impl Row {
    /// None when it has ended. Those for a number of times end with the machine, too: nobody remembers them longer.
    fn valid(mut self, now: &Moment) -> Option<Row> {
        if self.boot_id != now.boot_id || self.grant.times_left == Some(0) {
            return None;
        }
        if let Some(until) = self.until_boot_ns {
            let until = Moment { boot_id: self.boot_id.clone(), boot_ns: until.cast_unsigned() };
            let left = until.left(now);
            if left.is_zero() {
                return None;
            }
            self.grant.seconds_left = Some(left.as_secs().max(1));
        }
        Some(self)
    }

    /// What an approver has signed, if the row grants no more than that.
    fn proven(&self, trust: &Trust) -> std::result::Result<(Proof, String), String> {
        let proof: Proof = serde_json::from_str(&self.proof).map_err(|_| "it has no signature".to_owned())?;
        let verified = trust.check_grant(&self.grant.digest, &self.matter, &proof)?;
        if verified.statement.id() != self.grant.id {
            return Err("its signature is of another grant".into());
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
            false => Err("it grants more than was signed".into()),
        }
    }
}

/// Stores the grant of a statement. One statement is one grant, whatever else happens.
pub(crate) fn add(
    books: &mut Books<'_>,
    question: &Question,
    statement: &Statement,
    proof: &Proof,
    by: &str,
) -> Result<()> {
    let now = Moment::now();
    let (times, until) = match statement.decision.remember {
        None => return Ok(()),
        Some(Remember::Times(times)) => (Some(times), None),
        Some(Remember::Minutes(minutes)) => {
            let until = now.clone().after(Duration::from_secs(u64::from(minutes) * 60));
            (None, Some(until.boot_ns.cast_signed()))
        }
    };
    let matter = Matter::of(question);
    let proof = serde_json::to_string(proof).map_err(|error| Error::Refused(error.to_string()))?;
    let values = (
        statement.id(),
        &question.digest,
        &question.title,
        by,
        times,
        now.boot_id,
        until,
        matter.uid,
        matter.privileged,
        proof,
    );
    let sql = "insert into signed_grants (id, digest, title, by, times_left, boot_id, until_boot_ns, uid, privileged, proof)
        values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)";
    books.execute("add a grant", sql, values).map(|_| ())
}

fn read(books: &mut Books<'_>, digest: Option<&str>) -> Result<Vec<Row>> {
    let sql = "select id, digest, title, by, times_left, boot_id, until_boot_ns, uid, privileged, proof from signed_grants
        where ?1 is null or digest = ?1 order by rowid";
    let rows = books.rows("read grants", sql, (digest,), |row| {
        let grant = Grant {
            id: row.get(0)?,
            digest: row.get(1)?,
            title: row.get(2)?,
            by: row.get(3)?,
            times_left: row.get(4)?,
            seconds_left: None,
        };
        let matter = Matter { uid: row.get(7)?, privileged: row.get(8)? };
        Ok(Row { grant, boot_id: row.get(5)?, until_boot_ns: row.get(6)?, matter, proof: row.get(9)? })
    })?;
    let now = Moment::now();
    Ok(rows.into_iter().filter_map(|row| row.valid(&now)).collect())
}

/// Takes one use of a grant for this digest, if there is one that its approver has signed and may still sign.
pub fn take(books: &mut Books<'_>, trust: &Trust, digest: &str, matter: Matter) -> Result<Option<Taken>> {
    for row in read(books, Some(digest))?.into_iter().filter(|row| row.matter == matter) {
        let (proof, signer) = match row.proven(trust) {
            Ok(proven) => proven,
            Err(why) => {
                tracing::warn!(grant = row.grant.id, why, "a stored grant does not count");
                continue;
            }
        };
        if row.grant.times_left.is_some() {
            let sql = "update signed_grants set times_left = times_left - 1 where id = ?";
            books.execute("use a grant", sql, (&row.grant.id,))?;
        }
        return Ok(Some(Taken { id: row.grant.id, by: signer, proof }));
    }
    Ok(None)
}

/// Every grant that still holds and that `sees` admits by its user. Those that have ended are swept out.
pub async fn list(
    ledger: &Ledger,
    trust: &Arc<Trust>,
    sees: impl Fn(u32) -> bool + Send + 'static,
) -> Result<Vec<Grant>> {
    let trust = trust.clone();
    ledger
        .write(move |books| {
            let valid = read(books, None)?.into_iter();
            let valid = valid.filter(|row| sees(row.matter.uid) && row.proven(&trust).is_ok());
            let valid = valid.map(|row| row.grant).collect();
            let now = Moment::now();
            let sql = "delete from signed_grants where boot_id <> ? or times_left = 0 or until_boot_ns <= ?";
            books.execute("sweep grants", sql, (&now.boot_id, now.boot_ns.cast_signed()))?;
            Ok(valid)
        })
        .await
}

/// Takes a grant back, which needs no signature: nothing runs by it.
pub async fn revoke(
    ledger: &Ledger,
    id: &str,
    by: &str,
    sees: impl Fn(u32) -> bool + Send + 'static,
) -> Result<()> {
    let (id, by) = (id.to_owned(), by.to_owned());
    ledger
        .write(move |books| {
            let sql = "select uid from signed_grants where id = ?";
            let of = books.rows("find a grant", sql, (&id,), |row| row.get::<_, u32>(0))?;
            if !of.first().is_some_and(|uid| sees(*uid)) {
                let shown = crate::display::claim(&id, 64);
                return Err(Error::Refused(format!(
                    "there is no grant {shown}; `outpost approvals grants` lists them"
                )));
            }
            books.execute("revoke a grant", "delete from signed_grants where id = ?", (&id,))?;
            books.record(Event::Decided, &json!({ "grant": id, "revoked": true, "by": by }))?;
            books.must_last();
            Ok(())
        })
        .await
}

#[cfg(test)]
mod tests;
