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

/// Why a calibration says nothing about machines of these executor classes, which the accused miners have proven here;
/// `None` if it does. One that states no classes is taken to be about all.
pub(crate) fn unmeasured_classes(own: &Calibration, proven: &BTreeSet<String>) -> Option<String> {
    let measured: BTreeSet<&String> = own.machines.iter().filter_map(|run| run.class.as_ref()).collect();
    if measured.is_empty() {
        return None;
    }
    if proven.is_empty() {
        return Some("this validator has proven no executor of the accused miners".to_owned());
    }
    let missing = proven.iter().find(|class| !measured.contains(class))?;
    Some(format!(
        "this validator's calibration has no machine of the class {missing}, of which the accused miners have executors"
    ))
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
    if (judged.model, judged.engine, judged.reference) != (own.model, own.engine, own.reference)
        || judged.sampler != own.sampler
    {
        let why = "it is about another engine, model, reference or sampler than this validator's calibration";
        return Err(why.to_owned());
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

#[cfg(test)]
mod tests {
    use muster_audit::{EngineSampler, ReferenceBuild, SamplerEngine};

    use super::*;

    const BUNDLE: &str = include_str!("../../../tests/vectors/audit-bundle-5.json");

    #[test]
    fn a_bundle_of_another_model_engine_reference_or_sampler_is_not_scored() {
        let bundle: AuditBundle = serde_json::from_str(BUNDLE).unwrap();
        let choose = |alter: &dyn Fn(&mut Calibration)| {
            let mut own = bundle.calibration.clone();
            alter(&mut own);
            let miners = bundle.miners.iter().copied().collect();
            choose_answers(&bundle, &own, BucketNumber(0), &miners, &BTreeMap::new())
        };
        assert!(choose(&|_| {}).is_ok());
        let other = EngineSampler {
            engine: SamplerEngine::LlamaCpp,
            version: "another".to_owned(),
        };
        let refused = |alter: &dyn Fn(&mut Calibration)| {
            let why = choose(alter).unwrap_err();
            assert!(
                why.contains("another engine, model, reference or sampler"),
                "{why}"
            );
        };
        refused(&|own| own.model = Digest::of(b"another"));
        refused(&|own| own.engine = Digest::of(b"another"));
        refused(&|own| own.sampler = Some(other.clone()));
        refused(&|own| {
            own.reference = Some(ReferenceBuild {
                engine: own.engine,
                arguments: Digest::of(b"another"),
            });
        });
    }

    #[test]
    fn a_calibration_that_states_classes_is_about_no_others() {
        let mut own =
            Calibration::parse(include_str!("../../../tests/vectors/audit-calibration.json")).unwrap();
        let proven = |classes: &[&str]| classes.iter().map(|class| (*class).to_owned()).collect();
        assert_eq!(
            unmeasured_classes(&own, &proven(&["small"])),
            None,
            "it states none"
        );
        own.machines[0].class = Some("small".to_owned());
        own.machines[1].class = Some("large".to_owned());
        assert_eq!(unmeasured_classes(&own, &proven(&["small"])), None);
        assert_eq!(unmeasured_classes(&own, &proven(&["large", "small"])), None);
        let why = unmeasured_classes(&own, &proven(&["other", "small"])).unwrap();
        assert!(why.contains("the class other"), "{why}");
        let why = unmeasured_classes(&own, &proven(&[])).unwrap();
        assert!(why.contains("proven no executor"), "{why}");
    }
}
