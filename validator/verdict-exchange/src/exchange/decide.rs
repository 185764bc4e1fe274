//! Adoption: what a decision rests on, and carrying it out.

use std::collections::BTreeSet;

use muster_audit::{Verdict, replay};
use muster_protocol::{Timestamp, ValidatorKey};
use muster_store::StoreError;
use muster_validator_store::{
    AdoptedAudit, AuditOffer, AuditOrigin, OfferState, OfferedVerdict, StoredEndorsement,
};

use super::{Moment, VerdictExchange};
use crate::adoption_rule::{
    Decision, OfferFacts, Rescoring, VerdictEffect, count_endorsers, deadline_of, effect_of,
};
use crate::self_test::standing_of;
use crate::statements::{AuditEndorsement, SelfTestStatement, open_text, sign_text};

/// A bundle that waits, with what its decision rests on.
pub(super) struct OpenOffer {
    pub(super) offer: AuditOffer,
    pub(super) says: OfferedVerdict,
    facts: OfferFacts,
    /// The validators whose statements count.
    endorsers: BTreeSet<ValidatorKey>,
}

impl VerdictExchange {
    pub(super) async fn decide(&mut self, moment: &Moment, offer: AuditOffer) -> Result<(), StoreError> {
        let Some(says) = offer.says.clone() else {
            return Ok(());
        };
        let mut open = self.open(moment, offer, says).await?;
        let rule = self.deps.rule;
        let mut decision = rule.decide(&open.facts);
        if decision == Decision::Rescore {
            open.facts.rescoring = self.rescore(moment, &open).await?;
            decision = rule.decide(&open.facts);
        }
        self.carry_out(moment, open, decision).await
    }

    async fn open(
        &self,
        moment: &Moment,
        offer: AuditOffer,
        says: OfferedVerdict,
    ) -> Result<OpenOffer, StoreError> {
        let store = &self.deps.store;
        let now = self.deps.clock.now();
        let counting = store.counting_audits().await?;
        let statements: Vec<AuditEndorsement> = store
            .endorsements_of(offer.digest)
            .await?
            .iter()
            .filter_map(|stored| open_text(&stored.statement, stored.validator, moment.subnet))
            .collect();
        let me = ValidatorKey(self.deps.keypair.hotkey());
        let keys = (offer.author, me);
        let endorsers = count_endorsers(&statements, offer.digest, &says.verdict, keys, &moment.metagraph);
        let tests = store.newest_self_tests().await?;
        let test = tests.iter().find(|test| test.validator == offer.author);
        let test: Option<SelfTestStatement> =
            test.and_then(|test| open_text(&test.statement, offer.author, moment.subnet));
        let facts = OfferFacts {
            effect: effect_of(&says, offer.author, &counting, moment.block),
            self_test: standing_of(test.as_ref(), now),
            rescoring: self.rescoring(moment, &offer, &says).await?,
            endorsers: endorsers.len(),
            signed_twice: self.signed_twice(offer.author).await?,
            block: moment.block,
            deadline: deadline_of(offer.seen_block, moment.metagraph.tempo),
        };
        Ok(OpenOffer {
            offer,
            says,
            facts,
            endorsers,
        })
    }

    async fn carry_out(
        &mut self,
        moment: &Moment,
        open: OpenOffer,
        decision: Decision,
    ) -> Result<(), StoreError> {
        let mut offer = open.offer.clone();
        let (state, reason) = match decision {
            Decision::Adopt(origin) => return self.adopt(moment, open, origin).await,
            // The scores have come, or have not, by now.
            Decision::Rescore => return Ok(()),
            Decision::Wait(reason) => (OfferState::Offered, Some(reason.to_string())),
            Decision::Expire(reason) => (OfferState::NotAdoptedInTime, Some(reason.to_string())),
            Decision::Refuse(reason) => (OfferState::Refused, Some(reason)),
            Decision::Contradict(reason) => (OfferState::Contradicted, Some(reason)),
            Decision::SetAside => (OfferState::WithoutEffect, None),
        };
        if (offer.state, &offer.reason) == (state, &reason) {
            return Ok(());
        }
        (offer.state, offer.reason) = (state, reason);
        if state != OfferState::Offered {
            offer.decided_at = Some(self.deps.clock.now());
            self.tries.remove(&(offer.author, offer.digest));
            tracing::info!(bundle = %offer.digest, author = %offer.author, state = state.name(), reason = offer.reason, "a bundle of another validator is decided about");
        }
        self.deps.store.update_offer(&offer).await
    }

    async fn adopt(
        &mut self,
        moment: &Moment,
        open: OpenOffer,
        origin: AuditOrigin,
    ) -> Result<(), StoreError> {
        let now = self.deps.clock.now();
        let OpenOffer {
            mut offer,
            says,
            facts,
            endorsers,
        } = open;
        let Some(body) = self.deps.store.offer_body(offer.digest).await? else {
            return Ok(());
        };
        offer.state = OfferState::Adopted;
        offer.decided_at = Some(now);
        let names: Vec<String> = endorsers.iter().map(ToString::to_string).collect();
        offer.reason = Some(match (&facts.rescoring, facts.effect) {
            (_, VerdictEffect::Lifts) => "its author takes its accusation back".to_owned(),
            (Rescoring::Scored(judged), _) => judged.to_string(),
            (
                Rescoring::Due
                | Rescoring::Later(_)
                | Rescoring::Unavailable(_)
                | Rescoring::TooWeak(_)
                | Rescoring::Unwitnessed(_),
                _,
            ) => {
                format!("signed by {}", names.join(", "))
            }
        });
        let (newest_answer, scored) = match &facts.rescoring {
            Rescoring::Scored(judged) => (judged.newest_answer, judged.scored),
            // By the word of its author, which further validators bear out.
            Rescoring::Due
            | Rescoring::Later(_)
            | Rescoring::Unavailable(_)
            | Rescoring::TooWeak(_)
            | Rescoring::Unwitnessed(_) => {
                let text = body.clone();
                let replaying = tokio::task::spawn_blocking(move || replay(&text));
                let replayed = replaying.await.ok().and_then(Result::ok);
                replayed.map_or((None, 0), |replayed| {
                    (replayed.newest_answer, replayed.counts.scored)
                })
            }
        };
        let mut audit = AdoptedAudit {
            digest: offer.digest,
            coldkey: says.coldkey,
            miners: says.miners,
            model: says.model,
            verdict: says.verdict,
            quality_per_mille: says.quality_per_mille,
            adopted_at: now,
            origin,
            author: Some(offer.author),
            through_bucket: says.through_bucket,
            newest_answer: newest_answer.unwrap_or_default(),
            scored: u64::try_from(scored).unwrap_or(u64::MAX),
        };
        for earlier in self.deps.store.standing_convictions().await? {
            audit.keep_newest(&earlier.audit);
        }
        // Only a validator whose own scores convict signs, so statements never rest on statements alone.
        let signed = (origin == AuditOrigin::Rescored).then(|| self.endorse(moment, &offer, now));
        self.deps
            .store
            .adopt_offer(&offer, &audit, &body, signed.as_ref())
            .await?;
        self.tries.remove(&(offer.author, offer.digest));
        tracing::warn!(
            bundle = %offer.digest, author = %offer.author, coldkey = %audit.coldkey, model = audit.model,
            verdict = audit.verdict, origin = origin.name(), reason = offer.reason,
            "another validator's verdict is adopted"
        );
        Ok(())
    }

    fn endorse(&self, moment: &Moment, offer: &AuditOffer, now: Timestamp) -> StoredEndorsement {
        let (genesis, netuid) = moment.subnet;
        let validator = ValidatorKey(self.deps.keypair.hotkey());
        let statement = AuditEndorsement {
            genesis,
            netuid,
            bundle: offer.digest,
            validator,
            verdict: Verdict::Convicted,
            block: moment.block,
        };
        StoredEndorsement {
            digest: offer.digest,
            validator,
            statement: sign_text(&self.deps.keypair, &statement),
            seen_at: now,
        }
    }
}
