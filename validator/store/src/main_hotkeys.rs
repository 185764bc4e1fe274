//! The main hotkeys that miners named, by cycle.

use muster_chain::Epoch;
use muster_protocol::Timestamp;
use muster_scoring::NamedMain;

use super::{Result, Store, query_error};
use muster_store::columns::{parse_column, to_signed};

impl Store {
    /// Stores what miners answered in a cycle. A miner's first answer in a cycle counts.
    ///
    /// # Errors
    /// The database fails.
    pub async fn put_main_hotkeys(&self, cycle: Epoch, named: &[NamedMain], now: Timestamp) -> Result<()> {
        if named.is_empty() {
            return Ok(());
        }
        self.write("write main hotkeys", |draft| {
            for answer in named {
                draft.script.add(
                    "INSERT INTO main_hotkeys (chain, cycle, miner, main, answered_at) \
                     VALUES ($1, $2, $3, $4, $5) ON CONFLICT DO NOTHING",
                    [
                        draft.chain.genesis.clone().into(),
                        to_signed(cycle.0).into(),
                        answer.miner.to_string().into(),
                        answer.main.to_string().into(),
                        now.micros().into(),
                    ],
                );
            }
        })
        .await
    }

    /// The answers in a cycle, by miner.
    ///
    /// # Errors
    /// The database fails.
    pub async fn main_hotkeys_of(&self, cycle: Epoch) -> Result<Vec<NamedMain>> {
        let rows = sqlx::query(
            "SELECT miner, main FROM main_hotkeys WHERE chain = $1 AND cycle = $2 ORDER BY miner",
        )
        .bind(self.chain().genesis)
        .bind(to_signed(cycle.0))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("read main hotkeys"))?;
        let named = |row| {
            Ok(NamedMain {
                miner: parse_column(row, "miner")?,
                main: parse_column(row, "main")?,
            })
        };
        rows.iter().map(named).collect()
    }
}
