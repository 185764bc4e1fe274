//! The operator's slashes: each is stored before it is carried out, and a repeated order carries the stored one on.

use muster_chain::Metagraph;
use muster_collateral::{CollateralError, SlashEnd, SlashOrder, SlashPlan};
use muster_process::error::Causes;
use muster_protocol::Rao;
use muster_store::StoreError;
use muster_validator_store::{SlashState, StoredSlash};
use serde::Serialize;

use crate::collateral::CollateralView;
use crate::collateral::page::SlashRequest;
use crate::collateral::watched::{WatchedSource, miner_accounts};

/// The effect of a slash, before or after it.
#[derive(Debug, Serialize)]
#[serde(tag = "slash", rename_all = "snake_case")]
pub(crate) enum SlashAnswer {
    /// Nothing has happened; this is what would.
    Preview {
        /// One sentence for the operator.
        summary: String,
    },
    /// A slash of this miner by this evidence is under way, and is carried on.
    UnderWay {
        /// The amount of the order that is carried on, in rao.
        amount: Rao,
    },
    /// The amount is taken, by this order or an earlier one.
    Done {
        /// The amount that was taken, in rao.
        amount: Rao,
        /// The transaction, or the block of the transfer.
        reference: String,
        /// Whether an earlier order did it.
        earlier: bool,
    },
}

/// Why a slash did not happen, or is not known to have happened.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SlashRefusal {
    /// This validator has no source of collateral.
    #[error("this validator asks for no collateral: set collateral.source in its configuration")]
    NoSource,
    /// The chain has not answered yet.
    #[error("the chain has not answered since the validator started, so its miners are not known")]
    NoMetagraph,
    /// An earlier order by the same evidence differs.
    #[error(
        "a slash of {planned} of this miner by this evidence is under way, with the source {kind}; an order of another \
         amount or source needs other evidence"
    )]
    Differs {
        /// The earlier order's amount.
        planned: Rao,
        /// The earlier order's source.
        kind: String,
    },
    /// The slash was tried and failed for good.
    #[error("the slash failed: {0}")]
    Failed(String),
    /// The source refuses it, or its end is not known.
    #[error("{0}")]
    Source(String),
    /// The store fails.
    #[error("the validator's store fails")]
    Store(#[from] StoreError),
}

impl From<CollateralError> for SlashRefusal {
    fn from(error: CollateralError) -> Self {
        Self::Source(Causes(&error).to_string())
    }
}

impl CollateralView {
    /// Carries the operator's order out, or reports its effect if only that is asked for. `metagraph` is the subnet as
    /// it was last read.
    ///
    /// # Errors
    /// The order is refused, or its end is not known: the same order again carries it on.
    pub(crate) async fn slash(
        &self,
        request: &SlashRequest,
        metagraph: Option<&Metagraph>,
    ) -> Result<SlashAnswer, SlashRefusal> {
        let watched = self.watched.as_ref().ok_or(SlashRefusal::NoSource)?;
        let _turn = watched.slashing.lock().await;
        if request.preview {
            self.preview(watched, &request.order, metagraph).await
        } else {
            self.carry_out(watched, &request.order, metagraph).await
        }
    }

    /// Reports the order's effect. Changes nothing.
    async fn preview(
        &self,
        watched: &WatchedSource,
        order: &SlashOrder,
        metagraph: Option<&Metagraph>,
    ) -> Result<SlashAnswer, SlashRefusal> {
        if let Some(earlier) = self.earlier(watched, order).await? {
            return Ok(match earlier.state {
                SlashState::Done => SlashAnswer::Done {
                    amount: earlier.amount,
                    reference: earlier.reference,
                    earlier: true,
                },
                SlashState::Planned | SlashState::Failed => SlashAnswer::UnderWay {
                    amount: earlier.amount,
                },
            });
        }
        let plan = plan(watched, order, metagraph).await?;
        Ok(SlashAnswer::Preview {
            summary: plan.summary,
        })
    }

    /// Carries the order out, or an earlier one like it on.
    async fn carry_out(
        &self,
        watched: &WatchedSource,
        order: &SlashOrder,
        metagraph: Option<&Metagraph>,
    ) -> Result<SlashAnswer, SlashRefusal> {
        let plan = match self.earlier(watched, order).await? {
            Some(earlier) if earlier.state == SlashState::Done => {
                return Ok(SlashAnswer::Done {
                    amount: earlier.amount,
                    reference: earlier.reference,
                    earlier: true,
                });
            }
            Some(earlier) => {
                serde_json::from_str(&earlier.plan).map_err(|_| CollateralError::Stored("plan"))?
            }
            None => {
                let plan = plan(watched, order, metagraph).await?;
                self.store_plan(watched, order, &plan).await?;
                plan
            }
        };
        let end = watched.source.carry_out(&plan).await?;
        watched.read_soon();
        let (ended, reference) = match &end {
            SlashEnd::Done { reference } => (SlashState::Done, reference),
            SlashEnd::Failed { reason } => (SlashState::Failed, reason),
        };
        let (evidence, now) = (order.evidence.sha256, self.clock.now());
        self.store
            .end_slash(evidence, order.miner, ended, reference, now)
            .await?;
        match end {
            SlashEnd::Done { reference } => {
                tracing::warn!(miner = %order.miner, amount = %order.amount, evidence = %evidence, reference, "a miner was slashed");
                Ok(SlashAnswer::Done {
                    amount: order.amount,
                    reference,
                    earlier: false,
                })
            }
            SlashEnd::Failed { reason } => Err(SlashRefusal::Failed(reason)),
        }
    }

    /// The earlier slash of the miner by this evidence that did not fail.
    async fn earlier(
        &self,
        watched: &WatchedSource,
        order: &SlashOrder,
    ) -> Result<Option<StoredSlash>, SlashRefusal> {
        let known = self.store.slash_of(order.evidence.sha256, order.miner).await?;
        let Some(known) = known.filter(|known| known.state != SlashState::Failed) else {
            return Ok(None);
        };
        let is_same = known.amount == order.amount && known.source == watched.kind;
        if is_same || known.state == SlashState::Done {
            return Ok(Some(known));
        }
        Err(SlashRefusal::Differs {
            planned: known.amount,
            kind: known.source,
        })
    }

    /// Stores a slash before it is carried out.
    async fn store_plan(
        &self,
        watched: &WatchedSource,
        order: &SlashOrder,
        plan: &SlashPlan,
    ) -> Result<(), SlashRefusal> {
        let slash = StoredSlash {
            evidence: order.evidence.sha256,
            miner: order.miner,
            source: watched.kind.to_owned(),
            account: plan.account.clone(),
            amount: order.amount,
            md5: order.evidence.md5_hex(),
            url: order.url.clone(),
            plan: serde_json::to_string(plan).map_err(|_| CollateralError::Stored("plan"))?,
            state: SlashState::Planned,
            reference: String::new(),
            created_at: self.clock.now(),
            ended_at: None,
        };
        if self.store.plan_slash(&slash).await? {
            return Ok(());
        }
        // The turn is ours, so only another process could have stored one.
        Err(SlashRefusal::Differs {
            planned: order.amount,
            kind: watched.kind.to_owned(),
        })
    }
}

async fn plan(
    watched: &WatchedSource,
    order: &SlashOrder,
    metagraph: Option<&Metagraph>,
) -> Result<SlashPlan, SlashRefusal> {
    let metagraph = metagraph.ok_or(SlashRefusal::NoMetagraph)?;
    Ok(watched
        .source
        .plan_slash(order, &miner_accounts(metagraph))
        .await?)
}
