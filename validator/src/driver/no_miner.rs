//! The outcomes of jobs for which no miner is found, as their users read them.

use std::collections::BTreeMap;

use muster_protocol::ExecutorClass;
use muster_protocol::job::Outcome;
use muster_protocol::status::{JobRejectionReason, ParticipantType};
use muster_protocol::wire::facilitator::RejectionDetails;
use muster_routing::Route;
use muster_routing::availability::{
    Availability, ClassCapacity, availability, describe_collateral, describe_offers, describe_private_offers,
};
use serde_json::{Value, json};

use super::executor_need::ExecutorNeed;

/// The outcome of a job that no miner may be asked for. It names what would fit.
///
/// `offered` are the offers of the miners that the job waits for, `keeps_trusted` whether this validator keeps a
/// trusted miner.
pub(super) fn no_miner_fits(
    need: ExecutorNeed,
    found: &Route,
    offered: &BTreeMap<ExecutorClass, ClassCapacity>,
    keeps_trusted: bool,
) -> Outcome {
    let class = need.line.class;
    let image = if need.private_image {
        " with a private image"
    } else {
        ""
    };
    let message = match availability(found) {
        Availability::Later(reasons) => {
            let nobody = if need.line.on_trusted_miner {
                "this validator's trusted miner cannot"
            } else {
                "no miner can"
            };
            format!("{nobody} take a job of class {class}{image} now: {reasons}")
        }
        Availability::Now(_) | Availability::Never => {
            let (nobody, mut offers) = if need.line.on_trusted_miner {
                let offers = describe_trusted_offers(offered, keeps_trusted);
                ("this validator's trusted miner cannot", offers)
            } else {
                ("no miner of this subnet can", describe_offers(offered))
            };
            if need.private_image && !offered.is_empty() {
                offers = format!("{offers}; {}", describe_private_offers(offered));
            }
            if let Some(short) = describe_collateral(found) {
                offers = format!("{offers}; {short}");
            }
            format!("{nobody} take a job of class {class}{image}: {offers}")
        }
    };
    let count = |of: fn(&ClassCapacity) -> u32| -> BTreeMap<_, _> {
        let counts = offered
            .iter()
            .map(|(class, capacity)| (class.as_str(), of(capacity)));
        counts.collect()
    };
    let mut context = json!({
        "excluded": found.explain(),
        "offered": count(|capacity| capacity.executors),
    });
    if need.private_image
        && let Some(context) = context.as_object_mut()
    {
        let takers = json!(count(|capacity| capacity.private_images));
        context.insert("private_images".to_owned(), takers);
    }
    no_miner(&message, context)
}

/// The classes that the trusted miner offers, as a user reads them.
fn describe_trusted_offers(offered: &BTreeMap<ExecutorClass, ClassCapacity>, keeps_trusted: bool) -> String {
    if !keeps_trusted {
        return "this validator keeps none any more; submit the job without on_trusted_miner".to_owned();
    }
    if offered.is_empty() {
        return "it has not shown its executors".to_owned();
    }
    describe_offers(offered)
}

/// The outcome of a job for which no miner is known, because the chain has not answered since the start.
pub(super) fn no_chain() -> Outcome {
    let message = "the chain does not answer, so no miner is known; submit the job again later";
    no_miner(message, Value::Null)
}

pub(super) fn no_miner(message: &str, context: Value) -> Outcome {
    Outcome::Rejected(RejectionDetails {
        rejected_by: ParticipantType::Validator,
        reason: JobRejectionReason::NoMinerForJob,
        message: message.to_owned(),
        context: Some(context).filter(|context| !context.is_null()),
    })
}
