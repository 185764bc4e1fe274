//! Messages between the facilitators on one PostgreSQL database, by `NOTIFY` and `LISTEN`.
//!
//! A SQLite database belongs to one process, so it has no messages.

use muster_store::{During as _, StoreError};
use sqlx::postgres::PgListener;

use super::Store;

/// The longest message in bytes. PostgreSQL accepts less than 8000.
const MAX_MESSAGE: usize = 7_900;

/// The connection that receives messages of the other facilitators.
pub struct ReplicaListener {
    listener: PgListener,
}

/// A message, or a loss of messages.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ReplicaMessage {
    /// A message, possibly of this facilitator itself.
    Message(String),
    /// The connection was lost and made again, so messages may have been missed.
    Gap,
}

// === impl Store ===

impl Store {
    /// Whether other facilitators may share this store.
    pub fn is_shared(&self) -> bool {
        self.channel.is_some()
    }

    /// Sends lines to every other facilitator, as many in one message as fit.
    ///
    /// # Errors
    /// See [`StoreError`].
    pub async fn send_to_replicas(&self, lines: &[String]) -> Result<(), StoreError> {
        let Some(channel) = &self.channel else {
            return Ok(());
        };
        let mut message = self.replica.to_string();
        let mut messages = Vec::new();
        for line in lines {
            if message.len() + line.len() >= MAX_MESSAGE {
                messages.push(std::mem::replace(&mut message, self.replica.to_string()));
            }
            message.push('\n');
            message.push_str(line);
        }
        messages.push(message);
        for message in messages {
            sqlx::query("SELECT pg_notify($1, $2)")
                .bind(channel.as_ref())
                .bind(message)
                .execute(&self.pool)
                .await
                .during("send notices to the other facilitators")?;
        }
        Ok(())
    }

    /// Starts to listen to the other facilitators; `None` with SQLite, where there are none.
    ///
    /// # Errors
    /// The server cannot be reached.
    pub async fn listen_to_replicas(&self) -> Result<Option<ReplicaListener>, StoreError> {
        let Some(channel) = &self.channel else {
            return Ok(None);
        };
        let mut listener = PgListener::connect(&self.url)
            .await
            .during("listen to the other facilitators")?;
        listener
            .listen(channel)
            .await
            .during("listen to the other facilitators")?;
        Ok(Some(ReplicaListener { listener }))
    }

    /// The lines of another facilitator's message; none if this facilitator sent it.
    pub fn lines_of_others<'a>(&self, message: &'a str) -> impl Iterator<Item = &'a str> {
        let mut lines = message.lines();
        let own = lines.next() == Some(&*self.replica);
        lines.filter(move |_| !own)
    }
}

/// The name of the channel, with the schema's name in it, because a channel belongs to the whole database.
pub(super) async fn channel(pool: &sqlx::AnyPool) -> Result<String, StoreError> {
    let (schema,): (String,) = sqlx::query_as("SELECT CAST(current_schema() AS TEXT)")
        .fetch_one(pool)
        .await
        .during("read the schema's name")?;
    Ok(format!("muster_facilitator_{schema}").chars().take(63).collect())
}

// === impl ReplicaListener ===

impl ReplicaListener {
    /// Waits for the next message.
    ///
    /// # Errors
    /// The connection was lost, and the server cannot be reached again.
    pub async fn receive(&mut self) -> Result<ReplicaMessage, StoreError> {
        let heard = self
            .listener
            .try_recv()
            .await
            .during("listen to the other facilitators")?;
        Ok(heard.map_or(ReplicaMessage::Gap, |notice| {
            ReplicaMessage::Message(notice.payload().to_owned())
        }))
    }
}

impl std::fmt::Debug for ReplicaListener {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("ReplicaListener")
    }
}
