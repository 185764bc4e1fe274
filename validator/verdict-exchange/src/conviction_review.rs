//! Takes each conviction a step further in its life, once a cycle, before the cycle's scores are computed.

use muster_chain::Metagraph;
use muster_process::SharedClock;
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::BucketNumber;
use muster_store::StoreError;
use muster_validator_store::{AdoptedAudit, Store, genesis_digest};

use crate::adoption_rule::count_endorsers;
use crate::conviction_life::{
    ConvictionEnd, ConvictionFacts, ConvictionGround, ConvictionStage, ConvictionStep, Supporters,
};
use crate::statements::{AuditEndorsement, open_text};

/// Ends the convictions that count no longer at the metagraph's block, notes who supports the others, and settles those
/// that have ended once nothing more follows from them.
///
/// # Errors
/// The database fails.
pub async fn review_convictions(
    store: &Store,
    metagraph: &Metagraph,
    me: ValidatorKey,
    clock: &SharedClock,
) -> Result<(), StoreError> {
    let Some(genesis) = genesis_digest(&store.genesis()) else {
        return Ok(());
    };
    let subnet = (genesis, metagraph.netuid.0);
    let mut reviewed = Vec::new();
    for conviction in store.standing_convictions().await? {
        let stage = ConvictionStage::Counts {
            supporters: supporters_of(store, metagraph, (me, subnet), &conviction.audit).await?,
            unsupported_since: conviction.unsupported_since,
        };
        reviewed.push((conviction.audit, stage));
    }
    for conviction in store.ended_convictions().await? {
        let stage = ConvictionStage::Ended {
            consistent_since: conviction.consistent_since,
        };
        reviewed.push((conviction.audit, stage));
    }
    for (audit, stage) in reviewed {
        take_step(store, &audit, facts_of(&audit, stage, metagraph), clock).await?;
    }
    Ok(())
}

/// Why a conviction that is stored now counts no longer; `None` if it counts.
pub fn end_of_new(audit: &AdoptedAudit, metagraph: &Metagraph) -> Option<ConvictionEnd> {
    let stage = ConvictionStage::Counts {
        // Their permits are looked at in the next review.
        supporters: Supporters::NOBODY,
        unsupported_since: None,
    };
    match facts_of(audit, stage, metagraph).step() {
        ConvictionStep::End(end) => Some(end),
        ConvictionStep::Count { .. } | ConvictionStep::Watch | ConvictionStep::Settle => None,
    }
}

fn facts_of(audit: &AdoptedAudit, stage: ConvictionStage, metagraph: &Metagraph) -> ConvictionFacts {
    ConvictionFacts {
        ground: ConvictionGround::of(audit.origin),
        newest_answer: BucketNumber(audit.newest_answer),
        stage,
        block: metagraph.block.0,
        cycle: u64::from(metagraph.tempo) + 1,
    }
}

async fn take_step(
    store: &Store,
    audit: &AdoptedAudit,
    facts: ConvictionFacts,
    clock: &SharedClock,
) -> Result<(), StoreError> {
    let (bundle, coldkey, model) = (audit.digest, audit.coldkey, &audit.model);
    match facts.step() {
        ConvictionStep::Count { unsupported_since } if facts.notes(unsupported_since) => Ok(()),
        ConvictionStep::Count { unsupported_since } => store.note_support(bundle, unsupported_since).await,
        ConvictionStep::End(end) => {
            let reason = end.explanation();
            tracing::warn!(%bundle, %coldkey, model, reason, "a conviction counts no longer");
            store.end_conviction(bundle, reason, clock.now()).await
        }
        ConvictionStep::Watch => Ok(()),
        ConvictionStep::Settle => {
            tracing::info!(%bundle, %coldkey, model, "nothing more follows from a conviction that has ended");
            store.settle_conviction(bundle, clock.now()).await
        }
    }
}

async fn supporters_of(
    store: &Store,
    metagraph: &Metagraph,
    (me, subnet): (ValidatorKey, (Digest, u16)),
    audit: &AdoptedAudit,
) -> Result<Supporters, StoreError> {
    let Some(author) = audit.author else {
        return Ok(Supporters::NOBODY);
    };
    let statements: Vec<AuditEndorsement> = store
        .endorsements_of(audit.digest)
        .await?
        .iter()
        .filter_map(|stored| open_text(&stored.statement, stored.validator, subnet))
        .collect();
    let endorsers = count_endorsers(&statements, audit.digest, &audit.verdict, (author, me), metagraph);
    let has_permit = metagraph.find(&author.0).is_some_and(|neuron| neuron.permit);
    Ok(Supporters {
        author: has_permit,
        endorsers: endorsers.len(),
    })
}
