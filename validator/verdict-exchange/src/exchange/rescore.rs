//! Rescoring: the own reference scores drawn pairs of a bundle again.

use muster_audit::{
    AuditBundle, Calibration, RescorablePair, TokenScore, Verdict, judge_by, rescorable_pairs,
};
use muster_process::error::Causes;
use muster_store::StoreError;
use muster_validator_store::{AuditOffer, OfferedVerdict};

use super::decide::OpenOffer;
use super::{Moment, RescoreTries, VerdictExchange};
use crate::adoption_rule::Rescoring;
use crate::agreement::compare_scores;
use crate::rescore_draw::{LEAST_RESCORED, RescoreDraw, draw_block};

/// Times that references are started for one bundle, and blocks between two of them.
const MOST_TRIES: u32 = 3;
const TRY_EVERY: u64 = 25;

impl VerdictExchange {
    /// How far the own reference is with a bundle that it has not scored.
    pub(super) fn rescoring(&self, moment: &Moment, offer: &AuditOffer, says: &OfferedVerdict) -> Rescoring {
        if (self.deps.calibration)(&says.model).is_none() {
            let why = "this validator has no calibration of the model: [audit.calibrations] names one";
            return Rescoring::Unavailable(why.to_owned());
        }
        if moment.block < draw_block(offer) {
            return Rescoring::NotDrawn;
        }
        match self.tries.get(&(offer.author, offer.digest)) {
            Some(tries) if tries.count >= MOST_TRIES || moment.block < tries.not_before => {
                Rescoring::Unavailable(tries.why.clone())
            }
            _ => match self.budget.refusal(offer.author, self.deps.clock.now()) {
                Some(why) => Rescoring::Unavailable(why.to_owned()),
                None => Rescoring::Due,
            },
        }
    }

    /// Scores drawn pairs again.
    pub(super) async fn rescore(
        &mut self,
        moment: &Moment,
        open: &OpenOffer,
    ) -> Result<Rescoring, StoreError> {
        let (offer, model) = (&open.offer, open.says.model.clone());
        let block = draw_block(offer);
        let Some(hash) = self.deps.subnet.block_hash(block).await else {
            return Ok(Rescoring::NotDrawn);
        };
        let (Some(text), Some(calibration)) = (
            self.deps.store.offer_body(offer.digest).await?,
            (self.deps.calibration)(&model),
        ) else {
            return Ok(Rescoring::Unavailable(
                "its text is not there any more".to_owned(),
            ));
        };
        let draw = RescoreDraw::prove(&self.deps.keypair, moment.subnet, &offer.digest, &hash);
        let own = calibration.clone();
        let drawing = tokio::task::spawn_blocking(move || draw_pairs(&text, &own, draw));
        let (verdict, pairs) = match drawing.await {
            Ok(Ok(drawn)) => drawn,
            Ok(Err(why)) => return Ok(self.note_failure(moment, offer, MOST_TRIES, why)),
            Err(error) => return Ok(self.note_failure(moment, offer, 1, error.to_string())),
        };
        if verdict.name() != open.says.verdict {
            return Ok(Rescoring::OtherVerdict(verdict));
        }
        if pairs.len() < LEAST_RESCORED {
            let why = format!(
                "the bundle opens the words of {} answers that can be scored again, and {LEAST_RESCORED} are needed",
                pairs.len()
            );
            return Ok(self.note_failure(moment, offer, MOST_TRIES, why));
        }
        self.budget.note(offer.author, self.deps.clock.now());
        let stated: Vec<Vec<TokenScore>> = pairs.iter().map(|pair| pair.stated.clone()).collect();
        let scores = match (self.deps.rescore)(model, pairs).await {
            Ok(scores) => scores,
            Err(why) => return Ok(self.note_failure(moment, offer, 1, why)),
        };
        let compared: Vec<_> = stated
            .into_iter()
            .zip(scores)
            .filter_map(|(stated, own)| Some((stated, own?)))
            .collect();
        if compared.len() < LEAST_RESCORED {
            let why = format!("the own reference scored {} of the drawn pairs", compared.len());
            return Ok(self.note_failure(moment, offer, 1, why));
        }
        Ok(Rescoring::Scored(compare_scores(&calibration.bound(), &compared)))
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
        Rescoring::Unavailable(why)
    }
}

/// The verdict by the own calibration, and the pairs to score again. The error states why there is none.
fn draw_pairs(
    text: &str,
    own: &Calibration,
    draw: RescoreDraw,
) -> Result<(Verdict, Vec<RescorablePair>), String> {
    let bundle: AuditBundle = serde_json::from_str(text).map_err(|error| error.to_string())?;
    let explain = |error: muster_audit::ReplayError| {
        format!(
            "by this validator's calibration it proves nothing: {}",
            Causes(&error)
        )
    };
    let verdict = judge_by(&bundle, own).map_err(explain)?.verdict;
    let judged = AuditBundle {
        calibration: own.clone(),
        ..bundle
    };
    let pairs = rescorable_pairs(&judged).map_err(explain)?;
    Ok((verdict, draw.choose(pairs, verdict)))
}
