//! The lease by which one of several processes on one store in PostgreSQL leads.
//!
//! A process begins as a [`Standby`]: its connections only read, and it migrates nothing. It looks at the lease until
//! that has run out, was released, or was never taken. Then [`Standby::lead`] takes it: the epoch of the store rises,
//! so no write of the process before is made any more, and the lease is ours for [`LEASE`] by the database's clock. The
//! leader renews it by a write of its own epoch ([`Store::renew_lease`]).
//!
//! Times of leases are the database's alone, so no two clocks are compared: how long a lease lasts is worked out where
//! it is read.

use std::time::Duration;

use muster_protocol::Timestamp;
use muster_store::columns::read_column;
use muster_store::{
    StoreError, begin, migrate, newest_known, newest_migration, open, open_reader, read_only,
};
use sqlx::AnyPool;
use tokio::time::{Instant, timeout};

use super::{MIGRATIONS, Result, Store, query_error};

/// How long a lease lasts from its last renewal.
pub const LEASE: Duration = Duration::from_secs(6);

/// The database's time in microseconds, in SQL of PostgreSQL; `now()` would be the time at which a transaction began.
macro_rules! database_now {
    () => {
        "CAST(EXTRACT(EPOCH FROM clock_timestamp()) * 1000000 AS BIGINT)"
    };
}

/// The end of a lease that is taken or renewed now: [`LEASE`] later.
macro_rules! lease_end {
    () => {
        concat!("(", database_now!(), " + 6000000)")
    };
}

/// A process that does not lead: it reads the store and writes nothing.
#[derive(Debug)]
pub struct Standby {
    url: String,
    reader: AnyPool,
    holder: String,
}

/// The lease as a standby read it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseView {
    /// The holder, if there is one.
    pub state: LeaseState,
    /// The database's time of the reading.
    pub now: Timestamp,
}

/// The process that may lead, by the store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LeaseState {
    /// The store has no lease yet: it is empty, or of a release without leases. A process that leads it renews none.
    Unknown,
    /// No process holds the lease.
    Free,
    /// A process holds the lease.
    Held {
        /// The name of the process.
        holder: String,
        /// How long the lease lasts without a renewal.
        left: Duration,
    },
}

impl LeaseView {
    /// The name of the process that leads; `None` while none does.
    pub fn holder(&self) -> Option<&str> {
        match &self.state {
            LeaseState::Held { holder, .. } => Some(holder),
            LeaseState::Free | LeaseState::Unknown => None,
        }
    }
}

impl Standby {
    /// Opens the store at `url`, in PostgreSQL, for a process that others know by the name `holder`. Changes nothing.
    ///
    /// # Errors
    /// The database does not answer, or its store is of a newer version.
    pub async fn open(url: &str, holder: String) -> Result<Self> {
        let reader = open_reader(url).await?;
        newest_migration(&reader, &MIGRATIONS).await?;
        Ok(Self {
            url: url.to_owned(),
            reader,
            holder,
        })
    }

    /// The name by which others know this process.
    pub fn holder(&self) -> &str {
        &self.holder
    }

    /// Reads who holds the lease.
    ///
    /// # Errors
    /// The database does not answer, or its store is of a newer version.
    pub async fn look(&self) -> Result<LeaseView> {
        const OPERATION: &str = "read who leads";
        let known = newest_migration(&self.reader, &MIGRATIONS).await?;
        if known.is_none_or(|known| known < LEASES_SINCE) {
            let now = sqlx::query_scalar(concat!("SELECT ", database_now!()))
                .fetch_one(&self.reader)
                .await
                .map_err(query_error(OPERATION))?;
            return Ok(LeaseView {
                state: LeaseState::Unknown,
                now: Timestamp::from_micros(now),
            });
        }
        let row = sqlx::query(concat!(
            "SELECT one.now AS now, owner.holder AS holder, owner.until AS until FROM (SELECT ",
            database_now!(),
            " AS now) AS one LEFT JOIN owner ON owner.one = 1"
        ))
        .fetch_one(&self.reader)
        .await
        .map_err(query_error(OPERATION))?;
        let now: i64 = read_column(&row, "now")?;
        let holder: Option<String> = read_column(&row, "holder")?;
        let until: Option<i64> = read_column(&row, "until")?;
        let left = until.map(|until| until.saturating_sub(now));
        let state = match (holder, left.and_then(|left| u64::try_from(left).ok())) {
            (Some(holder), Some(left)) if left > 0 => LeaseState::Held {
                holder,
                left: Duration::from_micros(left),
            },
            _ => LeaseState::Free,
        };
        Ok(LeaseView {
            state,
            now: Timestamp::from_micros(now),
        })
    }

    /// Takes the lease if no other process holds it, brings the schema up to date and opens the store for writing.
    /// Returns the store with the time from which the lease counts: that before the lease was last asked for. `None` if
    /// another process was first.
    ///
    /// A store without a lease is migrated first, as it was before there were leases; processes that start together
    /// migrate one after another. A store with one is migrated by the process that has the lease alone, which renews
    /// it meanwhile.
    ///
    /// # Errors
    /// The database does not answer, or its schema cannot be brought up to date.
    pub async fn lead(&self) -> Result<Option<(Store, Instant)>> {
        let owner = open(&self.url).await?;
        let known = newest_migration(&self.reader, &MIGRATIONS).await?;
        if known.is_none_or(|known| known < LEASES_SINCE) {
            migrate(&owner, &MIGRATIONS).await?;
        }
        let mut since = Instant::now();
        let taken = timeout(TAKING, take_lease(&owner, &self.holder)).await;
        let taken = taken.map_err(|_| StoreError::no_answer("take the lease on the store"))??;
        let Some(epoch) = taken else {
            owner.close().await;
            return Ok(None);
        };
        let opening = async {
            // Migrations take a lock that a frozen process of any role in this database may hold.
            match newest_migration(&owner, &MIGRATIONS).await? {
                Some(newest) if newest == newest_known(&MIGRATIONS) => {}
                _ => migrate(&owner, &MIGRATIONS).await?,
            }
            let pool = read_only(&owner)?;
            Store::of_epoch(&owner, pool, epoch).await
        };
        let renewing = async {
            loop {
                tokio::time::sleep(LEASE / 3).await;
                let asked = Instant::now();
                if let Err(error) = extend(&owner, epoch).await {
                    return error;
                }
                since = asked;
            }
        };
        let store = tokio::select! {
            opened = opening => opened?,
            error = renewing => return Err(error),
        };
        Ok(Some((store, since)))
    }

    /// Closes the connections.
    pub async fn close(&self) {
        self.reader.close().await;
    }
}

impl Store {
    /// Renews the lease of this process.
    ///
    /// # Errors
    /// [`StoreError::Superseded`] once another process leads; the database does not answer.
    pub async fn renew_lease(&self) -> Result<()> {
        self.write("renew the lease on the store", |draft| {
            draft.script.add(
                concat!("UPDATE owner SET until = ", lease_end!(), " WHERE one = 1"),
                [],
            );
        })
        .await
    }

    /// Gives the lease up, so that a standby leads at once.
    ///
    /// # Errors
    /// The database does not answer, or another process leads.
    pub async fn release_lease(&self) -> Result<()> {
        self.write("release the lease on the store", |draft| {
            draft
                .script
                .add("UPDATE owner SET until = NULL, holder = NULL WHERE one = 1", []);
        })
        .await
    }

    /// Whether this process is still the one that may write. Reads only.
    ///
    /// # Errors
    /// The database does not answer.
    pub async fn leads(&self) -> Result<bool> {
        let epoch: i64 = sqlx::query_scalar("SELECT epoch FROM owner WHERE one = 1")
            .fetch_one(&self.pool)
            .await
            .map_err(query_error("read who leads"))?;
        Ok(epoch == self.epoch)
    }
}

/// Longest wait for the row of the lease: longer than the server lets a transaction of a client that is gone hold it.
const TAKING: Duration = Duration::from_secs(20);
/// The first migration with a lease.
const LEASES_SINCE: i64 = 44;

/// Takes the lease if it is free, and raises the epoch. Waits for a transaction of the process before, which holds the
/// row, until its client or the server ends it.
async fn take_lease(owner: &AnyPool, holder: &str) -> Result<Option<i64>> {
    const OPERATION: &str = "take the lease on the store";
    let mut tx = begin(owner).await?;
    let row = sqlx::query(concat!(
        "INSERT INTO owner (one, epoch, holder, until) VALUES (1, 1, $1, ",
        lease_end!(),
        ") ON CONFLICT (one) DO UPDATE SET epoch = owner.epoch + 1, holder = excluded.holder, until = ",
        lease_end!(),
        " WHERE owner.until IS NULL OR owner.until <= ",
        database_now!(),
        " RETURNING epoch"
    ))
    .bind(holder.to_owned())
    .fetch_optional(&mut *tx)
    .await
    .map_err(query_error(OPERATION))?;
    let epoch = row.map(|row| read_column(&row, "epoch")).transpose()?;
    tx.commit().await.map_err(query_error(OPERATION))?;
    Ok(epoch)
}

/// Extends the lease while the schema is brought up to date, before there is a writer.
async fn extend(owner: &AnyPool, epoch: i64) -> Result<()> {
    let extended = sqlx::query(concat!(
        "UPDATE owner SET until = ",
        lease_end!(),
        " WHERE one = 1 AND epoch = $1"
    ))
    .bind(epoch)
    .execute(owner)
    .await
    .map_err(query_error("renew the lease on the store"))?;
    if extended.rows_affected() == 0 {
        return Err(StoreError::Superseded);
    }
    Ok(())
}
