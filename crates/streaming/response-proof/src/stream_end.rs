//! The ways in which a response ends.

use crate::codec::LayoutError;

/// How a response ended. The bytes that were sent until then are signed in every case.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamEnd {
    /// The engine finished its answer.
    Completed,
    /// The engine broke off, or did not answer in HTTP.
    EngineFailed,
    /// The engine sent nothing for longer than the limit.
    EngineSilent,
    /// The client went away, or took nothing for longer than the limit.
    ClientGone,
    /// The response reached the limit on its size and was cut there.
    Oversize,
    /// The session was closed while the response was under way.
    SessionClosed,
}

impl StreamEnd {
    /// All ends, in the order of their codes.
    pub const ALL: [Self; 6] = [
        Self::Completed,
        Self::EngineFailed,
        Self::EngineSilent,
        Self::ClientGone,
        Self::Oversize,
        Self::SessionClosed,
    ];

    /// The name in logs, metrics and JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Completed => "completed",
            Self::EngineFailed => "engine-failed",
            Self::EngineSilent => "engine-silent",
            Self::ClientGone => "client-gone",
            Self::Oversize => "oversize",
            Self::SessionClosed => "session-closed",
        }
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Completed => 0,
            Self::EngineFailed => 1,
            Self::EngineSilent => 2,
            Self::ClientGone => 3,
            Self::Oversize => 4,
            Self::SessionClosed => 5,
        }
    }

    pub(crate) fn from_code(code: u8) -> Result<Self, LayoutError> {
        Self::ALL
            .into_iter()
            .find(|end| end.code() == code)
            .ok_or(LayoutError::Value("the stream's end"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_come_back() {
        for end in StreamEnd::ALL {
            assert_eq!(StreamEnd::from_code(end.code()), Ok(end));
        }
        assert!(StreamEnd::from_code(6).is_err());
    }
}
