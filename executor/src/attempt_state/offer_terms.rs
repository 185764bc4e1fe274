//! The terms of an offer that decide the life of its attempt.

use std::time::Duration;

use muster_protocol::wire::miner::InitialJobRequest;

use super::attempt_limits::StageLimits;

/// The parts of an offer that the machine needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct OfferTerms {
    /// The time limits of the job.
    pub limits: StageLimits,
    /// How the job's session ends, if the job answers requests while it runs.
    pub streaming: Option<StreamingMode>,
    /// The time that the job's terms allow for its image, if its miner grants slots for fetching. Without it the image
    /// is fetched at once, within the operator's limit.
    pub image: Option<Duration>,
}

/// How a streaming job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StreamingMode {
    /// The program ends by itself. A program that still runs when its time is over has failed, as in ComputeHorde.
    Direct,
    /// The job ends with its session, whose close is signed. Its time is how long the validator wanted the session.
    Sealed,
}

impl OfferTerms {
    /// The terms of this offer.
    pub(crate) fn of(offer: &InitialJobRequest) -> Self {
        let extension = offer.muster.as_ref();
        Self {
            limits: StageLimits::of(offer),
            streaming: StreamingMode::of(offer),
            image: extension
                .and_then(|terms| terms.image_time_limit)
                .map(Duration::from_secs),
        }
    }
}

impl StreamingMode {
    /// The mode of the offered job; `None` for a job that does not answer requests.
    pub(crate) fn of(offer: &InitialJobRequest) -> Option<Self> {
        let details = offer.streaming_details.as_ref()?;
        Some(match details.muster {
            Some(_) => Self::Sealed,
            None => Self::Direct,
        })
    }
}
