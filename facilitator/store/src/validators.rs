//! The validators' last frames, their gateways, and the replica that holds each validator: the facilitator process
//! whose connection holds the validator's jobs.
//!
//! Within one process [`muster_facilitator_core::connections`] decides which connection holds the jobs. Between
//! processes the row in `validators` decides by the same rules: a proven connection takes over at once, a claimed one
//! only from a replica that is gone or silent.

use std::time::Duration;

use muster_facilitator_core::connections::{SILENT_AFTER, Trust};
use muster_protocol::wire::encode;
use muster_protocol::wire::muster::{CapacityNotice, GatewayNotice};
use muster_protocol::{FeatureSet, Timestamp, ValidatorKey};
use muster_store::{During as _, StoreError};

use super::Store;

/// The interval at which a facilitator records that it is alive.
pub const REPLICA_BEAT: Duration = Duration::from_secs(4);

/// The time without such a record after which a facilitator counts as dead and holds no validator.
const REPLICA_LOST: Duration = Duration::from_secs(15);

/// The record of a validator that has connected before.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ValidatorRecord {
    /// The time of its last heartbeat.
    pub seen: Timestamp,
    /// The trust in the connection that the heartbeat came over.
    pub trust: Trust,
    /// The time at which it last proved its key, if it ever did.
    pub proven: Option<Timestamp>,
    /// The features that it showed on its last connection.
    pub features: FeatureSet,
}

/// A validator that announced a gateway.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GatewayRecord {
    /// The validator that runs the gateway.
    pub validator: ValidatorKey,
    /// The time of the validator's last heartbeat.
    pub seen: Timestamp,
    /// The time of the announcement. It grows with every one.
    pub announced_at: Timestamp,
}

/// The offers of a validator's miners, as it reported them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AnnouncedCapacity {
    /// The validator that reported them.
    pub validator: ValidatorKey,
    /// When the message came.
    pub told_at: Timestamp,
    /// The offers, class by class, and the limits of a job.
    pub notice: CapacityNotice,
}

// === impl Store ===

impl Store {
    /// Records a heartbeat and claims the validator for this facilitator. Returns `false` if another one holds it.
    ///
    /// `first` marks the first heartbeat over a connection. A proven connection takes the validator over at that
    /// moment from any other facilitator, because the validator itself has moved here.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn claim_validator(
        &self,
        validator: ValidatorKey,
        trust: Trust,
        first: bool,
        now: Timestamp,
    ) -> Result<bool, StoreError> {
        let statement = "INSERT INTO validators (hotkey, seen_at, replica, trust, proven_at) VALUES ($1, $2, $3, $4, $5) \
             ON CONFLICT (hotkey) DO UPDATE SET seen_at = excluded.seen_at, replica = excluded.replica, trust = excluded.trust, \
             proven_at = CASE WHEN excluded.proven_at > 0 THEN excluded.proven_at ELSE validators.proven_at END \
             WHERE validators.replica IN ('', excluded.replica) OR validators.seen_at < $6 \
             OR validators.trust < excluded.trust OR (excluded.trust = 1 AND CAST($7 AS BIGINT) = 1) \
             OR NOT EXISTS (SELECT 1 FROM replicas WHERE replicas.id = validators.replica AND replicas.beat_at > $8)";
        let proven = match trust {
            Trust::Claimed => 0,
            Trust::Proven => now.micros(),
        };
        let done = sqlx::query(statement)
            .bind(validator.to_string())
            .bind(now.micros())
            .bind(self.replica.as_ref())
            .bind(code(trust))
            .bind(proven)
            .bind(before(now, SILENT_AFTER))
            .bind(i64::from(first))
            .bind(before(now, REPLICA_LOST))
            .execute(&self.pool)
            .await
            .during("record a heartbeat")?;
        Ok(done.rows_affected() > 0)
    }

    /// Whether another facilitator holds the validator.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn is_held_elsewhere(&self, validator: ValidatorKey) -> Result<bool, StoreError> {
        let row: Option<(String,)> = sqlx::query_as("SELECT replica FROM validators WHERE hotkey = $1")
            .bind(validator.to_string())
            .fetch_optional(&self.pool)
            .await
            .during("look for the holder of a validator")?;
        Ok(row.is_some_and(|(replica,)| !replica.is_empty() && replica != *self.replica))
    }

    /// Releases the validator, after its last connection to this facilitator has ended.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn release(&self, validator: ValidatorKey) -> Result<(), StoreError> {
        sqlx::query("UPDATE validators SET replica = '' WHERE hotkey = $1 AND replica = $2")
            .bind(validator.to_string())
            .bind(self.replica.as_ref())
            .execute(&self.pool)
            .await
            .during("release a validator")?;
        Ok(())
    }

    /// The record of a validator; `None` if it has never connected.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn validator(&self, validator: ValidatorKey) -> Result<Option<ValidatorRecord>, StoreError> {
        let row: Option<(i64, i64, i64, String)> =
            sqlx::query_as("SELECT seen_at, trust, proven_at, features FROM validators WHERE hotkey = $1")
                .bind(validator.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("read the record of a validator")?;
        Ok(row.map(|(seen, trust, proven, features)| ValidatorRecord {
            seen: Timestamp::from_micros(seen),
            trust: if trust == code(Trust::Proven) {
                Trust::Proven
            } else {
                Trust::Claimed
            },
            proven: (proven > 0).then(|| Timestamp::from_micros(proven)),
            features: FeatureSet::parse(features.as_bytes()),
        }))
    }

    /// Stores the features that a validator showed when it connected.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn record_features(
        &self,
        validator: ValidatorKey,
        features: FeatureSet,
    ) -> Result<(), StoreError> {
        sqlx::query("UPDATE validators SET features = $1 WHERE hotkey = $2")
            .bind(features.to_string())
            .bind(validator.to_string())
            .execute(&self.pool)
            .await
            .during("record the features of a validator")?;
        Ok(())
    }

    /// Stores the gateway that a validator announces; `None` if it has none.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn announce_gateway(
        &self,
        validator: ValidatorKey,
        notice: Option<&GatewayNotice>,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        let statement = "UPDATE validators SET gateway = $1, \
             gateway_at = CASE WHEN gateway_at >= $2 THEN gateway_at + 1 ELSE $2 END WHERE hotkey = $3";
        sqlx::query(statement)
            .bind(notice.map(encode).unwrap_or_default())
            .bind(now.micros())
            .bind(validator.to_string())
            .execute(&self.pool)
            .await
            .during("store a gateway")?;
        Ok(())
    }

    /// The validators that announced a gateway. The announcements are not read.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn gateways(&self) -> Result<Vec<GatewayRecord>, StoreError> {
        let rows: Vec<(String, i64, i64)> = sqlx::query_as(
            "SELECT hotkey, seen_at, gateway_at FROM validators WHERE gateway <> '' ORDER BY hotkey",
        )
        .fetch_all(&self.pool)
        .await
        .during("list gateways")?;
        let read = |(hotkey, seen, announced_at): (String, i64, i64)| {
            Ok(GatewayRecord {
                validator: hotkey
                    .parse()
                    .map_err(|error| StoreError::corrupt("hotkey", error))?,
                seen: Timestamp::from_micros(seen),
                announced_at: Timestamp::from_micros(announced_at),
            })
        };
        rows.into_iter().map(read).collect()
    }

    /// The newest announcement of a validator's gateway, with its time. `None` if there is none, or if only another
    /// version of this program can read it: the validator announces it again.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn gateway_notice(
        &self,
        validator: ValidatorKey,
    ) -> Result<Option<(Timestamp, GatewayNotice)>, StoreError> {
        let row: Option<(i64, String)> =
            sqlx::query_as("SELECT gateway_at, gateway FROM validators WHERE hotkey = $1 AND gateway <> ''")
                .bind(validator.to_string())
                .fetch_optional(&self.pool)
                .await
                .during("read a gateway")?;
        Ok(row.and_then(|(announced_at, text)| {
            let notice = serde_json::from_str(&text)
                .inspect_err(|error| {
                    tracing::debug!(%validator, %error, "the stored gateway of a validator cannot be read");
                })
                .ok()?;
            Some((Timestamp::from_micros(announced_at), notice))
        }))
    }

    /// Stores what a validator's miners offer.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn record_capacity(
        &self,
        validator: ValidatorKey,
        notice: &CapacityNotice,
        now: Timestamp,
    ) -> Result<(), StoreError> {
        sqlx::query("UPDATE validators SET capacity = $1, capacity_at = $2 WHERE hotkey = $3")
            .bind(encode(notice))
            .bind(now.micros())
            .bind(validator.to_string())
            .execute(&self.pool)
            .await
            .during("store a validator's capacity")?;
        Ok(())
    }

    /// The offers of validators' miners that were reported after `since`, by the validators' addresses. A text that
    /// only another version of this program can read is left out: the validator sends it again.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn capacities(&self, since: Timestamp) -> Result<Vec<AnnouncedCapacity>, StoreError> {
        let rows: Vec<(String, i64, String)> = sqlx::query_as(
            "SELECT hotkey, capacity_at, capacity FROM validators \
             WHERE capacity <> '' AND capacity_at > $1 ORDER BY hotkey",
        )
        .bind(since.micros())
        .fetch_all(&self.pool)
        .await
        .during("list the capacities of validators")?;
        let mut found = Vec::new();
        for (hotkey, told_at, notice) in rows {
            let validator = hotkey
                .parse()
                .map_err(|error| StoreError::corrupt("hotkey", error))?;
            let Ok(notice) = serde_json::from_str(&notice) else {
                tracing::debug!(%validator, "the stored capacity of a validator cannot be read");
                continue;
            };
            found.push(AnnouncedCapacity {
                validator,
                told_at: Timestamp::from_micros(told_at),
                notice,
            });
        }
        Ok(found)
    }

    /// Records that this facilitator is alive, and deletes the records of those that were not for a day.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn record_alive(&self, now: Timestamp) -> Result<(), StoreError> {
        let statement = "INSERT INTO replicas (id, beat_at) VALUES ($1, $2) \
                         ON CONFLICT (id) DO UPDATE SET beat_at = excluded.beat_at";
        sqlx::query(statement)
            .bind(self.replica.as_ref())
            .bind(now.micros())
            .execute(&self.pool)
            .await
            .during("record that this facilitator is alive")?;
        sqlx::query("DELETE FROM replicas WHERE beat_at < $1")
            .bind(before(now, Duration::from_secs(24 * 3600)))
            .execute(&self.pool)
            .await
            .during("delete the records of facilitators that are gone")?;
        Ok(())
    }

    /// Releases every validator of this facilitator, because it stops.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn release_all(&self) -> Result<(), StoreError> {
        for statement in [
            "UPDATE validators SET replica = '' WHERE replica = $1",
            "DELETE FROM replicas WHERE id = $1",
        ] {
            sqlx::query(statement)
                .bind(self.replica.as_ref())
                .execute(&self.pool)
                .await
                .during("release the validators")?;
        }
        Ok(())
    }
}

fn code(trust: Trust) -> i64 {
    match trust {
        Trust::Claimed => 0,
        Trust::Proven => 1,
    }
}

fn before(now: Timestamp, span: Duration) -> i64 {
    now.micros()
        .saturating_sub(i64::try_from(span.as_micros()).unwrap_or(i64::MAX))
}
