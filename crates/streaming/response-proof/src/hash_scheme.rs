//! The data over which the digests of a response are computed.

use crate::codec::LayoutError;

/// The data over which the digests of requests and responses are computed. The whitelist chooses it for each image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub enum HashScheme {
    /// The bytes of the HTTP bodies, without the comment line that carries the proof.
    #[default]
    RawHttp,
    /// The text of the request and of the response, without the JSON around it: for engines whose bodies hold ids and
    /// times that differ when a request is repeated.
    Text,
}

impl HashScheme {
    /// All schemes, in the order of their codes.
    pub const ALL: [Self; 2] = [Self::RawHttp, Self::Text];

    /// The scheme's name in the whitelist and in JSON.
    pub const fn name(self) -> &'static str {
        match self {
            Self::RawHttp => "raw-http",
            Self::Text => "text",
        }
    }

    /// The scheme of this name, if there is one.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_and_names_are_distinct_and_come_back() {
        for scheme in HashScheme::ALL {
            assert_eq!(HashScheme::from_code(scheme.code()), Ok(scheme));
            assert_eq!(HashScheme::from_name(scheme.name()), Some(scheme));
        }
        assert!(HashScheme::from_code(2).is_err());
    }
}
