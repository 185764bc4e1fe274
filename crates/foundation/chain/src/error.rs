//! What can go wrong with the chain: the address, the endpoint, the chain's answer, or its refusal.

use muster_process::error::Coded;
use muster_protocol::{ErrorCode, Hotkey, Netuid};

use crate::rejection::CallRejection;

/// A cause, kept as it came.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// Why the chain was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The configured address cannot be used.
    #[error("cannot use the chain address {url:?}: {reason}")]
    Address {
        /// As configured.
        url: String,
        /// What is wrong with it.
        reason: &'static str,
    },
    /// No endpoint answers, or not in time. The client keeps reconnecting: try again later.
    #[error("cannot {doing}: no chain endpoint answers at {url}")]
    Unreachable {
        /// The operation that failed.
        doing: &'static str,
        /// The endpoint.
        url: String,
        /// The last error, where there was one.
        #[source]
        cause: Option<Cause>,
    },
    /// The endpoint serves another chain than the others, or than before.
    #[error(
        "the endpoint {url} serves another chain: its first block is {found}, not {expected}; remove it from the configuration, or give each chain its own"
    )]
    WrongChain {
        /// The endpoint.
        url: String,
        /// The genesis hash of the chain that is talked to.
        expected: String,
        /// The genesis hash that it shows.
        found: String,
    },
    /// The endpoint answers, but not as Bittensor's chain does.
    #[error(
        "cannot {doing}: the chain's answer is not understood, so either it is another kind of chain or its endpoint is broken; check the address: {what}"
    )]
    Answer {
        /// The operation that failed.
        doing: &'static str,
        /// What is missing or wrong.
        what: String,
    },
    /// The subnet does not exist.
    #[error("subnet {0} does not exist on this chain")]
    NoSubnet(Netuid),
    /// The hotkey has no uid.
    #[error("hotkey {hotkey} is not registered in subnet {netuid}")]
    NotRegistered {
        /// Whose.
        hotkey: Hotkey,
        /// Where.
        netuid: Netuid,
    },
    /// The chain refused a call.
    #[error("the chain refused {call}: {refusal}")]
    Refused {
        /// The call's name.
        call: &'static str,
        /// Why.
        refusal: CallRejection,
    },
    /// The call was submitted, and then the endpoint was lost or too slow: it may or may not have happened. Read it back.
    #[error("it is not known whether {call} reached the chain: the endpoint was lost after it was submitted")]
    Unconfirmed {
        /// The call's name.
        call: &'static str,
        /// What ended the wait.
        #[source]
        cause: Option<Cause>,
    },
    /// A text that does not fit into a commitment.
    #[error("a commitment of {size} bytes does not fit, {limit} are allowed")]
    CommitmentTooLong {
        /// Bytes of the text.
        size: usize,
        /// Bytes allowed.
        limit: usize,
    },
    /// What a registration costs is more than the caller would pay.
    #[error(
        "registering costs {price} now and at most {limit} was allowed: wait for the price to fall, or allow more"
    )]
    TooDear {
        /// The price, read just now.
        price: muster_protocol::Rao,
        /// The most that the caller would pay.
        limit: muster_protocol::Rao,
    },
    /// Weights could not be sealed.
    #[error("cannot seal the weights")]
    Timelock(#[from] crate::timelock::TimelockError),
    /// An address that nobody could dial.
    #[error("cannot announce {0}: serve a routable address and a port other than 0")]
    Unroutable(std::net::SocketAddr),
}

impl ChainError {
    /// Its page in `docs/errors/`.
    pub fn code(&self) -> Option<ErrorCode> {
        match self {
            Self::Address { .. } | Self::WrongChain { .. } => Some(ErrorCode::ConfigInvalid),
            Self::Unreachable { .. } => Some(ErrorCode::ChainUnreachable),
            Self::NotRegistered { .. } => Some(ErrorCode::NotRegistered),
            Self::Refused {
                refusal: CallRejection::NotRegistered,
                ..
            } => Some(ErrorCode::NotRegistered),
            Self::Refused { call, .. } | Self::Unconfirmed { call, .. } if call.ends_with("weights") => {
                Some(ErrorCode::WeightsNotSet)
            }
            Self::Timelock(_) => Some(ErrorCode::WeightsNotSet),
            Self::Answer { .. }
            | Self::NoSubnet(_)
            | Self::Refused { .. }
            | Self::Unconfirmed { .. }
            | Self::CommitmentTooLong { .. }
            | Self::TooDear { .. }
            | Self::Unroutable(_) => None,
        }
    }

    /// The same error, of the operation that met it.
    pub(crate) fn during(self, operation: &'static str) -> Self {
        if let Self::Unreachable { url, cause, .. } = self {
            return Self::Unreachable {
                doing: operation,
                url,
                cause,
            };
        }
        self
    }

    /// Whether nothing but the endpoint stands in the way, so that the same call may succeed later.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

impl Coded for ChainError {
    fn code(&self) -> Option<ErrorCode> {
        Self::code(self)
    }
}
