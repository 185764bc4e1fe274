//! What a digest is over, and how a stream ended.

use crate::layout::LayoutError;

/// What the digests of input and output are taken over. Chosen per image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum HashScheme {
    /// The bytes of the HTTP bodies as they pass, without our own comment line.
    #[default]
    RawHttp,
    /// The text that went in and the text that came out, whatever JSON carried it: for engines whose bodies hold ids and
    /// times that differ from replay to replay.
    Text,
}

impl HashScheme {
    /// Every scheme.
    pub const ALL: [Self; 2] = [Self::RawHttp, Self::Text];

    /// Its name in a whitelist and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RawHttp => "raw-http",
            Self::Text => "text",
        }
    }

    /// The scheme of this name.
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|scheme| scheme.name() == name)
    }

    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::RawHttp => 0,
            Self::Text => 1,
        }
    }

    pub(crate) fn from_code(code: u8) -> Result<Self, LayoutError> {
        Self::ALL
            .into_iter()
            .find(|scheme| scheme.code() == code)
            .ok_or(LayoutError::Value("the hash scheme"))
    }
}

/// How a response ended. Whatever it was, what had been sent until then is signed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum StreamEnd {
    /// The engine finished its answer.
    Completed,
    /// The engine broke off, or answered what is no HTTP.
    EngineFailed,
    /// The engine was silent for longer than it may be.
    EngineSilent,
    /// The client went away, or stopped reading for longer than it may.
    ClientGone,
    /// The answer outgrew its bound and was cut there.
    Oversize,
    /// The session was closed while the answer was under way.
    SessionClosed,
}

impl StreamEnd {
    /// Every end.
    pub const ALL: [Self; 6] = [
        Self::Completed,
        Self::EngineFailed,
        Self::EngineSilent,
        Self::ClientGone,
        Self::Oversize,
        Self::SessionClosed,
    ];

    /// Its name in logs and in JSON.
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
    fn codes_and_names_are_distinct_and_come_back() {
        for scheme in HashScheme::ALL {
            assert_eq!(HashScheme::from_code(scheme.code()), Ok(scheme));
            assert_eq!(HashScheme::from_name(scheme.name()), Some(scheme));
        }
        for end in StreamEnd::ALL {
            assert_eq!(StreamEnd::from_code(end.code()), Ok(end));
        }
        assert!(HashScheme::from_code(2).is_err());
        assert!(StreamEnd::from_code(6).is_err());
    }
}
