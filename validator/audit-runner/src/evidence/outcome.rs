//! The findings of the references about one answer.

use muster_audit::{FalseIds, TokenScore, UnusableReason};
use serde::{Deserialize, Serialize};

use crate::reference::score_request::ScoreFailure;

/// The result of one answer's audit by one reference.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ReferenceOutcome {
    /// The tokens as the reference scored them.
    Scored(Vec<TokenScore>),
    /// The tokens as the reference scored them without a seed.
    Unseeded(Vec<TokenScore>),
    /// The session signed false ids.
    FalseIds(FalseIds),
    /// The reason why it did not.
    Unusable(UnusableReason),
}

impl ReferenceOutcome {
    pub(crate) const fn scored(&self) -> Option<&Vec<TokenScore>> {
        match self {
            Self::Scored(tokens) => Some(tokens),
            Self::Unseeded(_) | Self::FalseIds(_) | Self::Unusable(_) => None,
        }
    }

    pub(crate) const fn unseeded(&self) -> Option<&Vec<TokenScore>> {
        match self {
            Self::Unseeded(tokens) => Some(tokens),
            Self::Scored(_) | Self::FalseIds(_) | Self::Unusable(_) => None,
        }
    }

    pub(crate) const fn false_ids(&self) -> Option<&FalseIds> {
        match self {
            Self::FalseIds(falsehood) => Some(falsehood),
            Self::Unseeded(_) | Self::Scored(_) | Self::Unusable(_) => None,
        }
    }
}

impl From<ScoreFailure> for ReferenceOutcome {
    fn from(failure: ScoreFailure) -> Self {
        match failure {
            ScoreFailure::Unusable(reason) => Self::Unusable(reason),
            ScoreFailure::FalseIds(falsehood) => Self::FalseIds(falsehood),
        }
    }
}

/// The results of an answer by both references.
pub(crate) type BothOutcomes = [Option<ReferenceOutcome>; 2];
