//! The codes with which our roles close websockets.

use std::fmt;

/// Why a websocket is closed: the codes of RFC 6455 (7.4.1) that our roles use, and two of ComputeHorde's facilitator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CloseCode {
    /// 1000: the connection has done its work.
    Normal,
    /// 1001: the process stops, or the peer is connected elsewhere.
    GoingAway,
    /// 1002: the peer broke the websocket protocol.
    Protocol,
    /// 1005: the peer gave no code. Never sent.
    NoStatus,
    /// 1007: a text frame that is not UTF-8.
    InvalidData,
    /// 1008: the peer broke a rule of this service, or is not admitted.
    Policy,
    /// 1009: a message over the limit.
    TooBig,
    /// 1011: a fault of this side, such as a store that does not answer.
    Internal,
    /// 3000: the signature of the greeting does not hold (ComputeHorde's facilitator).
    InvalidSignature,
    /// 3001: the validator is not known (ComputeHorde's facilitator).
    UnknownValidator,
    /// Any other number.
    Other(u16),
}

// === impl CloseCode ===

impl From<u16> for CloseCode {
    fn from(code: u16) -> Self {
        match code {
            1000 => Self::Normal,
            1001 => Self::GoingAway,
            1002 => Self::Protocol,
            1005 => Self::NoStatus,
            1007 => Self::InvalidData,
            1008 => Self::Policy,
            1009 => Self::TooBig,
            1011 => Self::Internal,
            3000 => Self::InvalidSignature,
            3001 => Self::UnknownValidator,
            other => Self::Other(other),
        }
    }
}

impl From<CloseCode> for u16 {
    fn from(code: CloseCode) -> Self {
        match code {
            CloseCode::Normal => 1000,
            CloseCode::GoingAway => 1001,
            CloseCode::Protocol => 1002,
            CloseCode::NoStatus => 1005,
            CloseCode::InvalidData => 1007,
            CloseCode::Policy => 1008,
            CloseCode::TooBig => 1009,
            CloseCode::Internal => 1011,
            CloseCode::InvalidSignature => 3000,
            CloseCode::UnknownValidator => 3001,
            CloseCode::Other(other) => other,
        }
    }
}

/// Equal to its number.
impl PartialEq<u16> for CloseCode {
    fn eq(&self, number: &u16) -> bool {
        u16::from(*self) == *number
    }
}

/// The number, as logs show it.
impl fmt::Display for CloseCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", u16::from(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_code_is_written_as_it_was_read() {
        for code in 0..=5000 {
            assert_eq!(u16::from(CloseCode::from(code)), code);
        }
        assert_eq!(CloseCode::from(4001), CloseCode::Other(4001));
    }
}
