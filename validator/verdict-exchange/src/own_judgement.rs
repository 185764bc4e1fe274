//! The test of another validator's bundle by own scores: which answers are scored. Pure.

use std::collections::{BTreeMap, BTreeSet};

use muster_audit::{AuditBundle, Calibration, LinkState, OwnTest, RescorablePair};
use muster_chain::Metagraph;
use muster_process::error::Causes;
use muster_protocol::{Digest, MinerKey};
use muster_response_proof::BucketNumber;

/// The test of a bundle, and the answers that are scored for it.
pub(crate) type ChosenAnswers = (OwnTest, Vec<RescorablePair>);

/// The miners whose own prompts count: those of the bundle, and all others of their coldkey. An author that could
/// choose among them would have more chances.
pub(crate) fn miners_of(bundle: &AuditBundle, metagraph: &Metagraph) -> BTreeSet<MinerKey> {
    let neurons = metagraph.neurons.iter();
    let of_coldkey = neurons.filter(|neuron| neuron.coldkey == bundle.coldkey);
    let registered = of_coldkey.map(|neuron| MinerKey(neuron.hotkey));
    bundle.miners.iter().copied().chain(registered).collect()
}

/// The test of a bundle by the own calibration, and the answers to score. `links` states of each header whether its
/// lists count. The error states why there is no test.
pub(crate) fn choose_answers(
    bundle: &AuditBundle,
    own: &Calibration,
    oldest: BucketNumber,
    miners: &BTreeSet<MinerKey>,
    links: &BTreeMap<Digest, LinkState>,
) -> Result<ChosenAnswers, String> {
    let judged = &bundle.calibration;
    if (judged.model, judged.engine) != (own.model, own.engine)
        || judged.reference_engine() != own.reference_engine()
    {
        return Err(
            "it is about another engine, model or reference than this validator's calibration".to_owned(),
        );
    }
    if !bundle.fixes_own_prompts() {
        return Err("it is of an earlier format, in which an author may choose among own prompts".to_owned());
    }
    let state_of = |header: &Digest| links.get(header).copied().unwrap_or(LinkState::Unseen);
    let (test, mut pairs) = OwnTest::new(bundle, own, oldest.0, miners, &state_of)
        .map_err(|error| format!("it proves nothing: {}", Causes(&error)))?;
    if test.alternatives() == 0 {
        return Err("this validator's calibration of the model tests no alternative".to_owned());
    }
    let chosen = test.choose();
    let chosen = chosen.iter().filter_map(|digest| pairs.remove(digest));
    let chosen = chosen.collect();
    Ok((test, chosen))
}
