//! The book of the collateral account, and the operator's slashes. All of it belongs to one chain.

use std::collections::BTreeMap;

use muster_chain::BlockNumber;
use muster_protocol::{Digest, Hotkey, MinerKey, Rao, Timestamp};
use muster_store::columns::{
    parse_column, read_column, time_column, time_column_option, to_signed, to_unsigned,
};
use sqlx::any::AnyRow;

use super::{Result, Store, corrupt, query_error};

/// How far the book of the collateral account reaches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredBook {
    /// The last block whose transfers are booked.
    pub booked: BlockNumber,
    /// The last block that may hold a transfer of ours whose end is not known; 0 for none.
    pub transfer_until: BlockNumber,
    /// The slashed money that has left the account.
    pub slashes_paid: Rao,
}

/// The transfers between a coldkey and the collateral account.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoredBalance {
    /// Transferred to the collateral account, in rao.
    pub deposited: Rao,
    /// Transferred back, in rao.
    pub returned: Rao,
}

/// The transfers of a run of blocks, summed up.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BookedTransfers {
    /// The change of each coldkey's balance.
    pub accounts: BTreeMap<Hotkey, StoredBalance>,
    /// Slashed money that left the account.
    pub slashes_paid: Rao,
}

/// How far a slash has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SlashState {
    /// It is to be carried out, and may have been.
    Planned,
    /// The amount is taken.
    Done,
    /// It did not happen, and this plan never will.
    Failed,
}

impl SlashState {
    /// The word in the store and for people.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Planned => "planned",
            Self::Done => "done",
            Self::Failed => "failed",
        }
    }

    fn parse(text: &str) -> Result<Self> {
        match text {
            "planned" => Ok(Self::Planned),
            "done" => Ok(Self::Done),
            "failed" => Ok(Self::Failed),
            other => Err(corrupt("state", &other)),
        }
    }
}

/// An operator's slash of one miner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoredSlash {
    /// SHA-256 of the evidence file.
    pub evidence: Digest,
    /// The miner that is slashed.
    pub miner: MinerKey,
    /// The kind of the source: `evm` or `ledger`.
    pub source: String,
    /// The account that is slashed, as the source writes it.
    pub account: String,
    /// The amount, in rao.
    pub amount: Rao,
    /// MD5 of the evidence file in hexadecimal.
    pub md5: String,
    /// Where others find the evidence; empty if nowhere.
    pub url: String,
    /// The means to carry it out once, in the source's own form.
    pub plan: String,
    /// How far it has come.
    pub state: SlashState,
    /// The transaction or the block, or the reason of a failure; empty while it is planned.
    pub reference: String,
    /// When it was planned.
    pub created_at: Timestamp,
    /// When its end was known.
    pub ended_at: Option<Timestamp>,
}

impl Store {
    /// How far the book reaches; `None` if no block of this chain is booked.
    ///
    /// # Errors
    /// The database fails.
    pub async fn collateral_book(&self) -> Result<Option<StoredBook>> {
        let row = sqlx::query(
            "SELECT booked, transfer_until, slashes_paid FROM collateral_books WHERE genesis = $1",
        )
        .bind(self.chain().genesis)
        .fetch_optional(&self.pool)
        .await
        .map_err(query_error("read the book of the collateral account"))?;
        row.map(|row| {
            Ok(StoredBook {
                booked: BlockNumber(number(&row, "booked")?),
                transfer_until: BlockNumber(number(&row, "transfer_until")?),
                slashes_paid: Rao(number(&row, "slashes_paid")?),
            })
        })
        .transpose()
    }

    /// Books the transfers of the blocks after `after` through `through`, all or none of them. Changes nothing and
    /// returns `false` if the book does not end with `after`; `None` stands for a book without a block.
    ///
    /// # Errors
    /// The database fails.
    pub async fn book_collateral(
        &self,
        after: Option<BlockNumber>,
        through: BlockNumber,
        transfers: &BookedTransfers,
    ) -> Result<bool> {
        self.write_whole("book transfers of the collateral account", |draft| {
            let genesis = draft.chain.genesis.clone();
            let paid = to_signed(transfers.slashes_paid.0);
            match after {
                None => draft.script.add(
                    "INSERT INTO collateral_books (genesis, booked, transfer_until, slashes_paid) \
                     VALUES ($1, $2, 0, $3) ON CONFLICT DO NOTHING",
                    [genesis.as_str().into(), to_signed(through.0).into(), paid.into()],
                ),
                Some(after) => draft.script.add(
                    "UPDATE collateral_books SET booked = $3, slashes_paid = slashes_paid + $4 \
                     WHERE genesis = $1 AND booked = $2",
                    [
                        genesis.as_str().into(),
                        to_signed(after.0).into(),
                        to_signed(through.0).into(),
                        paid.into(),
                    ],
                ),
            }
            for (coldkey, change) in &transfers.accounts {
                draft.script.add(
                    "INSERT INTO collateral_accounts (genesis, coldkey, deposited, returned) \
                     VALUES ($1, $2, $3, $4) ON CONFLICT (genesis, coldkey) DO UPDATE SET \
                     deposited = collateral_accounts.deposited + excluded.deposited, \
                     returned = collateral_accounts.returned + excluded.returned",
                    [
                        genesis.as_str().into(),
                        coldkey.to_string().into(),
                        to_signed(change.deposited.0).into(),
                        to_signed(change.returned.0).into(),
                    ],
                );
            }
        })
        .await
    }

    /// Notes the last block that may hold a transfer of ours whose end is not known; 0 clears it.
    ///
    /// # Errors
    /// The database fails.
    pub async fn note_collateral_transfer(&self, until: BlockNumber) -> Result<()> {
        self.write("note a transfer of the collateral account", |draft| {
            draft.script.add(
                "UPDATE collateral_books SET transfer_until = $2 WHERE genesis = $1",
                [draft.chain.genesis.as_str().into(), to_signed(until.0).into()],
            );
        })
        .await
    }

    /// The balance of each coldkey that ever had a transfer.
    ///
    /// # Errors
    /// The database fails.
    pub async fn collateral_balances(&self) -> Result<BTreeMap<Hotkey, StoredBalance>> {
        let rows =
            sqlx::query("SELECT coldkey, deposited, returned FROM collateral_accounts WHERE genesis = $1")
                .bind(self.chain().genesis)
                .fetch_all(&self.pool)
                .await
                .map_err(query_error("read the balances of the collateral account"))?;
        rows.iter()
            .map(|row| {
                let balance = StoredBalance {
                    deposited: Rao(number(row, "deposited")?),
                    returned: Rao(number(row, "returned")?),
                };
                Ok((parse_column(row, "coldkey")?, balance))
            })
            .collect()
    }

    /// The sum of this source's slashes for each account, failed ones left out.
    ///
    /// # Errors
    /// The database fails.
    pub async fn slashed_amounts(&self, source: &str) -> Result<BTreeMap<String, Rao>> {
        let rows = sqlx::query(
            "SELECT account, CAST(SUM(amount) AS BIGINT) AS amount FROM collateral_slashes \
             WHERE genesis = $1 AND source = $2 AND state <> 'failed' GROUP BY account",
        )
        .bind(self.chain().genesis)
        .bind(source.to_owned())
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("add up the slashes"))?;
        rows.iter()
            .map(|row| Ok((read_column(row, "account")?, Rao(number(row, "amount")?))))
            .collect()
    }

    /// The slash of a miner by this evidence, if there is one on this chain.
    ///
    /// # Errors
    /// The database fails.
    pub async fn slash_of(&self, evidence: Digest, miner: MinerKey) -> Result<Option<StoredSlash>> {
        let row = sqlx::query(
            "SELECT * FROM collateral_slashes WHERE genesis = $1 AND evidence = $2 AND miner = $3",
        )
        .bind(self.chain().genesis)
        .bind(evidence.to_string())
        .bind(miner.to_string())
        .fetch_optional(&self.pool)
        .await
        .map_err(query_error("read a slash"))?;
        row.as_ref().map(read_slash).transpose()
    }

    /// The newest slashes on this chain, the newest first.
    ///
    /// # Errors
    /// The database fails.
    pub async fn slashes(&self, limit: u32) -> Result<Vec<StoredSlash>> {
        let rows = sqlx::query(
            "SELECT * FROM collateral_slashes WHERE genesis = $1 ORDER BY created_at DESC, evidence LIMIT $2",
        )
        .bind(self.chain().genesis)
        .bind(i64::from(limit))
        .fetch_all(&self.pool)
        .await
        .map_err(query_error("list slashes"))?;
        rows.iter().map(read_slash).collect()
    }

    /// Stores a slash before it is carried out. Changes nothing and returns `false` if the miner has one by the same
    /// evidence that did not fail.
    ///
    /// # Errors
    /// The database fails.
    pub async fn plan_slash(&self, slash: &StoredSlash) -> Result<bool> {
        self.write_whole("store a slash", |draft| {
            draft.script.add(
                "INSERT INTO collateral_slashes (genesis, evidence, miner, source, account, amount, md5, url, plan, \
                 state, reference, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, 'planned', '', $10) \
                 ON CONFLICT (genesis, evidence, miner) DO UPDATE SET source = excluded.source, \
                 account = excluded.account, amount = excluded.amount, md5 = excluded.md5, url = excluded.url, \
                 plan = excluded.plan, state = excluded.state, reference = excluded.reference, \
                 created_at = excluded.created_at, ended_at = NULL WHERE collateral_slashes.state = 'failed'",
                [
                    draft.chain.genesis.as_str().into(),
                    slash.evidence.to_string().into(),
                    slash.miner.to_string().into(),
                    slash.source.as_str().into(),
                    slash.account.as_str().into(),
                    to_signed(slash.amount.0).into(),
                    slash.md5.as_str().into(),
                    slash.url.as_str().into(),
                    slash.plan.as_str().into(),
                    slash.created_at.micros().into(),
                ],
            );
        })
        .await
    }

    /// Notes how a planned slash ended.
    ///
    /// # Errors
    /// The database fails.
    pub async fn end_slash(
        &self,
        evidence: Digest,
        miner: MinerKey,
        state: SlashState,
        reference: &str,
        now: Timestamp,
    ) -> Result<()> {
        self.write("note the end of a slash", |draft| {
            draft.script.add(
                "UPDATE collateral_slashes SET state = $4, reference = $5, ended_at = $6 \
                 WHERE genesis = $1 AND evidence = $2 AND miner = $3 AND state = 'planned'",
                [
                    draft.chain.genesis.as_str().into(),
                    evidence.to_string().into(),
                    miner.to_string().into(),
                    state.as_str().into(),
                    reference.into(),
                    now.micros().into(),
                ],
            );
        })
        .await
    }
}

fn read_slash(row: &AnyRow) -> Result<StoredSlash> {
    let state: String = read_column(row, "state")?;
    Ok(StoredSlash {
        evidence: parse_column(row, "evidence")?,
        miner: parse_column(row, "miner")?,
        source: read_column(row, "source")?,
        account: read_column(row, "account")?,
        amount: Rao(number(row, "amount")?),
        md5: read_column(row, "md5")?,
        url: read_column(row, "url")?,
        plan: read_column(row, "plan")?,
        state: SlashState::parse(&state)?,
        reference: read_column(row, "reference")?,
        created_at: time_column(row, "created_at")?,
        ended_at: time_column_option(row, "ended_at")?,
    })
}

fn number(row: &AnyRow, name: &'static str) -> Result<u64> {
    read_column(row, name).map(to_unsigned)
}
