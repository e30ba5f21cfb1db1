//! Grants: an approver's answer that holds for later questions of exactly the same digest.

use crate::audit::Event;
use crate::ledger::{Books, Ledger};
use crate::moment::Moment;
use crate::question::{Question, Remember};
use crate::wire::Grant;
use crate::{Error, Result};
use serde_json::json;
use std::time::Duration;

pub(crate) const SCHEMA: &str = "
    create table if not exists grants (
        id text primary key,
        digest text not null,
        title text not null,
        by text not null,
        times_left integer,
        boot_id text not null,
        until_boot_ns integer
    ) strict;
    create index if not exists grants_by_digest on grants (digest);
";

struct Row {
    grant: Grant,
    boot_id: String,
    until_boot_ns: Option<i64>,
}

impl Row {
    /// None when it has ended. Those for a number of times end with the machine, too: nobody remembers them longer.
    fn valid(mut self, now: &Moment) -> Option<Grant> {
        if self.boot_id != now.boot_id || self.grant.times_left == Some(0) {
            return None;
        }
        if let Some(until) = self.until_boot_ns {
            let until = Moment { boot_id: self.boot_id, boot_ns: until.cast_unsigned() };
            let left = until.left(now);
            if left.is_zero() {
                return None;
            }
            self.grant.seconds_left = Some(left.as_secs().max(1));
        }
        Some(self.grant)
    }
}

pub(crate) fn add(books: &mut Books<'_>, question: &Question, remember: Remember, by: &str) -> Result<()> {
    let now = Moment::now();
    let (times, until) = match remember {
        Remember::Times(times) => (Some(times), None),
        Remember::Minutes(minutes) => {
            let until = now.clone().after(Duration::from_secs(u64::from(minutes) * 60));
            (None, Some(until.boot_ns.cast_signed()))
        }
    };
    let id = uuid::Uuid::new_v4().to_string();
    let values = (id, &question.digest, &question.title, by, times, now.boot_id, until);
    let sql = "insert into grants (id, digest, title, by, times_left, boot_id, until_boot_ns)
        values (?, ?, ?, ?, ?, ?, ?)";
    books.execute("add a grant", sql, values).map(|_| ())
}

fn read(books: &mut Books<'_>, digest: Option<&str>) -> Result<Vec<Grant>> {
    let sql = "select id, digest, title, by, times_left, boot_id, until_boot_ns from grants
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
        Ok(Row { grant, boot_id: row.get(5)?, until_boot_ns: row.get(6)? })
    })?;
    let now = Moment::now();
    Ok(rows.into_iter().filter_map(|row| row.valid(&now)).collect())
}

/// Takes one use of a grant for this digest, if there is one: its id and who gave it.
pub fn take(books: &mut Books<'_>, digest: &str) -> Result<Option<(String, String)>> {
    let Some(grant) = read(books, Some(digest))?.into_iter().next() else { return Ok(None) };
    if grant.times_left.is_some() {
        let sql = "update grants set times_left = times_left - 1 where id = ?";
        books.execute("use a grant", sql, (&grant.id,))?;
    }
    Ok(Some((grant.id, grant.by)))
}

/// Every grant that still holds. Others are swept out.
pub async fn list(ledger: &Ledger) -> Result<Vec<Grant>> {
    ledger
        .write(|books| {
            let valid = read(books, None)?;
            let now = Moment::now();
            let sql = "delete from grants where boot_id <> ? or times_left = 0 or until_boot_ns <= ?";
            books.execute("sweep grants", sql, (&now.boot_id, now.boot_ns.cast_signed()))?;
            Ok(valid)
        })
        .await
}

pub async fn revoke(ledger: &Ledger, id: &str, by: &str) -> Result<()> {
    let (id, by) = (id.to_owned(), by.to_owned());
    ledger
        .write(move |books| {
            let revoked = books.execute("revoke a grant", "delete from grants where id = ?", (&id,))?;
            if revoked == 0 {
                let shown = crate::display::claim(&id, 64);
                return Err(Error::Refused(format!(
                    "there is no grant {shown}; `outpost approvals grants` lists them"
                )));
            }
            books.record(Event::Decided, &json!({ "grant": id, "revoked": true, "by": by }))?;
            books.must_last();
            Ok(())
        })
        .await
}
