//! Rescoring: the own reference scores answers of a bundle again, and the verdict rests on these scores alone.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::{AnswerFinding, AuditBundle, PositionTally};
use muster_protocol::{Digest, MinerKey};
use muster_store::StoreError;
use muster_validator_store::{AuditOffer, OfferedVerdict};

use super::decide::OpenOffer;
use super::witness::HeaderWitnesses;
use super::{Moment, READ_EVERY, RescoreTries, VerdictExchange};
use crate::adoption_rule::Rescoring;
use crate::conviction_life::oldest_bucket;
use crate::own_judgement::{choose_answers, miners_of, unmeasured_classes};
use crate::rescore_budget::{CONTRADICTIONS_COUNT_FOR, is_paused};

/// Times that references are started for one bundle, and blocks between two of them.
const MOST_TRIES: u32 = 3;
const TRY_EVERY: u64 = 25;

impl VerdictExchange {
    /// How far the own reference is with a bundle that it has not scored.
    pub(super) async fn rescoring(
        &self,
        moment: &Moment,
        offer: &AuditOffer,
        says: &OfferedVerdict,
    ) -> Result<Rescoring, StoreError> {
        if (self.deps.calibration)(&says.model).is_none() {
            let why = "this validator has no calibration of the model ([audit.calibrations]), or no miner of its own \
                       that could score ([trusted_miner])";
            return Ok(Rescoring::Unavailable(why.to_owned()));
        }
        if let Some(tries) = self.tries.get(&(offer.author, offer.digest))
            && (tries.count >= MOST_TRIES || moment.block < tries.not_before)
        {
            return Ok(Rescoring::Later(tries.why.clone()));
        }
        let now = self.deps.clock.now();
        if let Some(why) = self.budget.refusal(offer.author, now) {
            return Ok(Rescoring::Later(why.to_owned()));
        }
        let since = now.minus(CONTRADICTIONS_COUNT_FOR);
        let contradicted = self.deps.store.contradictions_of(offer.author, since).await?;
        if is_paused(&contradicted, now) {
            let why = "own scores contradicted two bundles of its author lately";
            return Ok(Rescoring::Later(why.to_owned()));
        }
        Ok(Rescoring::Due)
    }

    /// Scores answers again, and tests all of the bundle's by these scores.
    pub(super) async fn rescore(
        &mut self,
        moment: &Moment,
        open: &OpenOffer,
    ) -> Result<Rescoring, StoreError> {
        let (offer, model) = (&open.offer, open.says.model.clone());
        let (Some(text), Some(calibration)) = (
            self.deps.store.offer_body(offer.digest).await?,
            (self.deps.calibration)(&model),
        ) else {
            return Ok(Rescoring::Later("its text is not there any more".to_owned()));
        };
        // A text may have some megabytes.
        let parsing = tokio::task::spawn_blocking(move || serde_json::from_str::<AuditBundle>(&text));
        let Ok(Ok(bundle)) = parsing.await else {
            return Ok(Rescoring::Later("its text cannot be read any more".to_owned()));
        };
        let miners = miners_of(&bundle, &moment.metagraph);
        let proven = self.proven_classes(moment, &miners).await?;
        if let Some(why) = unmeasured_classes(&calibration, &proven) {
            return Ok(self.note_failure(moment, offer, MOST_TRIES, why));
        }
        let witnesses = self.find_witnesses(moment, offer.author, &bundle).await?;
        if let Some(bucket) = witnesses.signed_twice {
            let why = format!("its author signed two headers of bucket {bucket}");
            return Ok(Rescoring::Unwitnessed(why));
        }
        // Signatures and resampling take seconds.
        let oldest = oldest_bucket(moment.block);
        let links = witnesses.links.clone();
        let choosing = tokio::task::spawn_blocking(move || {
            choose_answers(&bundle, &calibration, oldest, &miners, &links)
        });
        let (test, chosen) = match choosing.await {
            Ok(Ok(chosen)) => chosen,
            Ok(Err(why)) => return Ok(self.note_failure(moment, offer, MOST_TRIES, why)),
            Err(error) => return Ok(self.note_failure(moment, offer, 1, error.to_string())),
        };
        // Where headers do not count, or evidence begins anew, the rest has to suffice amply, so that a reference that
        // does not bear it out contradicts its author.
        let lacks_lists = witnesses.open + witnesses.unseen + witnesses.apart > 0;
        if chosen.is_empty() || (lacks_lists && !test.states_amply()) {
            return Ok(self.explain_shortfall(moment, offer, &witnesses, test.tally()));
        }
        let digests: Vec<Digest> = chosen.iter().map(|pair| pair.digest).collect();
        self.budget.note(offer.author, self.deps.clock.now());
        let scores = match (self.deps.rescore)(model, chosen).await {
            Ok(scores) => scores,
            Err(why) => return Ok(self.note_failure(moment, offer, 1, why)),
        };
        let found: BTreeMap<Digest, AnswerFinding> = digests
            .iter()
            .zip(scores)
            .filter_map(|(digest, finding)| Some((*digest, finding?)))
            .collect();
        let judged = test.judge(&found);
        // A reference that fails contradicts nobody.
        if found.len() < digests.len() && !judged.convicts {
            let why = format!(
                "the own reference scored {} of {} answers: {judged}",
                found.len(),
                digests.len()
            );
            return Ok(self.note_failure(moment, offer, 1, why));
        }
        Ok(Rescoring::Scored(judged))
    }

    /// The executor classes that these miners have proven here in the newest epoch that is known.
    async fn proven_classes(
        &self,
        moment: &Moment,
        miners: &BTreeSet<MinerKey>,
    ) -> Result<BTreeSet<String>, StoreError> {
        let epochs = self.deps.store.epochs_between(moment.block, moment.block).await?;
        let newest = epochs.iter().max_by_key(|epoch| epoch.first_block);
        let proven = newest.into_iter().flat_map(|epoch| &epoch.proven);
        let of_accused = proven.filter(|row| row.executors > 0 && miners.contains(&row.miner));
        Ok(of_accused.map(|row| row.class.to_string()).collect())
    }

    /// Why the author's scores do not convict amply by the headers that count.
    fn explain_shortfall(
        &mut self,
        moment: &Moment,
        offer: &AuditOffer,
        witnesses: &HeaderWitnesses,
        tally: PositionTally,
    ) -> Rescoring {
        let headers = witnesses.links.len();
        if witnesses.open > 0 {
            let why = format!(
                "{} of its {headers} headers were not read here in their time, and two further validators have not \
                 shown that they did",
                witnesses.open
            );
            let later = self.note_failure(moment, offer, 0, why);
            // Others may be asked again soon.
            if let Some(noted) = self.tries.get_mut(&(offer.author, offer.digest)) {
                let head = self.deps.subnet.head().map_or(moment.block, |head| head.0);
                noted.not_before = head.max(moment.block).saturating_add(READ_EVERY);
            }
            return later;
        }
        if witnesses.unseen > 0 {
            return Rescoring::Unwitnessed(format!(
                "{} of its {headers} headers were not shown before their draw blocks, so answers to their lists count \
                 for the miner",
                witnesses.unseen
            ));
        }
        if witnesses.apart > 0 {
            return Rescoring::Unwitnessed(format!(
                "headers are missing before {} of its {headers} headers, so evidence begins anew there",
                witnesses.apart
            ));
        }
        Rescoring::TooWeak(tally)
    }

    fn note_failure(&mut self, moment: &Moment, offer: &AuditOffer, tries: u32, why: String) -> Rescoring {
        tracing::info!(bundle = %offer.digest, author = %offer.author, why, "a bundle was not scored again");
        let noted = self.tries.entry((offer.author, offer.digest));
        let noted = noted.or_insert_with(|| RescoreTries {
            count: 0,
            not_before: 0,
            why: String::new(),
        });
        noted.count = noted.count.saturating_add(tries);
        noted.not_before = moment.block.saturating_add(TRY_EVERY);
        noted.why.clone_from(&why);
        Rescoring::Later(why)
    }
}
