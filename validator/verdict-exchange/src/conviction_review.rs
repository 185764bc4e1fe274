//! Ends convictions whose time is over, once a cycle, before its scores are computed.

use muster_chain::Metagraph;
use muster_process::SharedClock;
use muster_protocol::{Digest, ValidatorKey};
use muster_response_proof::BucketNumber;
use muster_store::StoreError;
use muster_validator_store::{StandingConviction, Store, genesis_digest};

use crate::adoption_rule::count_endorsers;
use crate::conviction_life::{ConvictionFacts, ConvictionGround, ConvictionStep, Supporters};
use crate::statements::{AuditEndorsement, open_text};

/// Ends the convictions that count no longer at the metagraph's block, and notes who supports the others.
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
    for conviction in store.standing_convictions().await? {
        let supporters = supporters_of(store, metagraph, (me, subnet), &conviction).await?;
        let audit = &conviction.audit;
        let facts = ConvictionFacts {
            ground: ConvictionGround::of(audit.origin),
            newest_answer: BucketNumber(audit.newest_answer).last_block(),
            supporters,
            unsupported_since: conviction.unsupported_since,
            block: metagraph.block.0,
            cycle: u64::from(metagraph.tempo) + 1,
        };
        match facts.step() {
            ConvictionStep::Count { unsupported_since }
                if unsupported_since == conviction.unsupported_since => {}
            ConvictionStep::Count { unsupported_since } => {
                store.note_support(audit.digest, unsupported_since).await?;
            }
            ConvictionStep::End(end) => {
                let reason = end.explanation();
                tracing::warn!(bundle = %audit.digest, coldkey = %audit.coldkey, model = audit.model, reason, "a conviction counts no longer");
                store.end_conviction(audit.digest, reason, clock.now()).await?;
            }
        }
    }
    Ok(())
}

async fn supporters_of(
    store: &Store,
    metagraph: &Metagraph,
    (me, subnet): (ValidatorKey, (Digest, u16)),
    conviction: &StandingConviction,
) -> Result<Supporters, StoreError> {
    let audit = &conviction.audit;
    let Some(author) = audit.author else {
        return Ok(Supporters {
            author: false,
            endorsers: 0,
        });
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
