//! Errors of the chain: the address, the endpoint, the chain's answer, or its rejection of a call.

use muster_process::error::Coded;
use muster_protocol::{ErrorCode, Hotkey, Netuid};

use crate::call_rejection::CallRejection;

/// The underlying error, unchanged.
pub(crate) type Cause = Box<dyn std::error::Error + Send + Sync>;

/// The reason why the chain was not read or written.
#[derive(Debug, thiserror::Error)]
pub enum ChainError {
    /// The configured address cannot be used.
    #[error("cannot use the chain address {url:?}: {reason}")]
    Address {
        /// The address in the configuration.
        url: String,
        /// The fault of the address.
        reason: &'static str,
    },
    /// No endpoint answers, or not in time. The client keeps reconnecting: try again later.
    #[error("cannot {doing}: no chain endpoint answers at {url}")]
    Unreachable {
        /// The operation that failed.
        doing: &'static str,
        /// The address of the endpoint.
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
        /// The address of the endpoint.
        url: String,
        /// The genesis hash of the chain in use.
        expected: String,
        /// The genesis hash that the endpoint shows.
        found: String,
    },
    /// The endpoint answers, but not as Bittensor's chain does.
    #[error(
        "cannot {doing}: the chain's answer is not understood, so either it is another kind of chain or its endpoint is broken; check the address: {what}"
    )]
    Answer {
        /// The operation that failed.
        doing: &'static str,
        /// The missing or wrong part of the answer.
        what: String,
    },
    /// The subnet does not exist.
    #[error("subnet {0} does not exist on this chain")]
    NoSubnet(Netuid),
    /// The hotkey has no uid in the subnet.
    #[error("hotkey {hotkey} is not registered in subnet {netuid}")]
    NotRegistered {
        /// The hotkey without a uid.
        hotkey: Hotkey,
        /// The number of the subnet.
        netuid: Netuid,
    },
    /// The chain refused a call.
    #[error("the chain refused {call}: {refusal}")]
    Refused {
        /// The name of the call.
        call: &'static str,
        /// The reason of the rejection.
        refusal: CallRejection,
    },
    /// The call was submitted, and then the endpoint was lost or too slow: the call may or may not have happened. Read
    /// the chain to find out.
    #[error("nobody knows whether {call} reached the chain: the endpoint was lost after it was submitted")]
    Unconfirmed {
        /// The name of the call.
        call: &'static str,
        /// The error that ended the wait.
        #[source]
        cause: Option<Cause>,
    },
    /// The text does not fit into a commitment.
    #[error("a commitment of {size} bytes does not fit, {limit} are allowed")]
    CommitmentTooLong {
        /// Bytes of the text.
        size: usize,
        /// The most bytes that a commitment holds.
        limit: usize,
    },
    /// A registration costs more than the caller would pay.
    #[error(
        "registering costs {price} now and at most {limit} was allowed: wait for the price to fall, or allow more"
    )]
    TooDear {
        /// The current price.
        price: muster_protocol::Rao,
        /// The highest price that the caller would pay.
        limit: muster_protocol::Rao,
    },
    /// Weights could not be sealed.
    #[error("cannot seal the weights")]
    Timelock(#[from] crate::timelock::TimelockError),
    /// The address cannot be dialled.
    #[error("cannot announce {0}: serve a routable address and a port other than 0")]
    Unroutable(std::net::SocketAddr),
}

impl ChainError {
    /// The error's code, which has a page in `docs/errors/`, if it has one.
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

    /// The same error, attributed to the operation that met it.
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

    /// Whether only the endpoint is at fault, so that the same call may succeed later.
    pub fn is_unreachable(&self) -> bool {
        matches!(self, Self::Unreachable { .. })
    }
}

impl Coded for ChainError {
    fn code(&self) -> Option<ErrorCode> {
        Self::code(self)
    }
}
