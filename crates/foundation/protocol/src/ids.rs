//! Ids of jobs and of their attempts, and the token with which an executor dials its miner.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::macros::serde_as_text;

/// The reason why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// The text is not a UUID in its canonical form (lower case, hyphens).
    #[error("{kind} must be a canonical uuid such as 11111111-2222-4333-8444-555555555555, got {text:?}")]
    NotCanonical {
        /// The kind of id that was expected.
        kind: &'static str,
        /// The first 64 characters of the text.
        text: String,
    },
    /// The text is not `{attempt}-{uuid}`; holds its length in characters.
    #[error("an executor token is two uuids joined by a hyphen, got {0} characters")]
    NotToken(usize),
}

macro_rules! uuid_id {
    ($(#[$meta:meta])* $name:ident, $kind:literal) => {
        $(#[$meta])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub struct $name(Uuid);

        impl $name {
            /// Wraps a uuid that the caller drew; this crate has no randomness of its own.
            pub const fn from_uuid(uuid: Uuid) -> Self { Self(uuid) }

            /// The uuid inside.
            pub const fn as_uuid(&self) -> &Uuid { &self.0 }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { self.0.hyphenated().fmt(f) }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result { write!(f, concat!(stringify!($name), "({})"), self.0) }
        }

        impl FromStr for $name {
            type Err = IdError;

            fn from_str(text: &str) -> Result<Self, IdError> {
                parse_canonical(text).map(Self).ok_or_else(|| IdError::NotCanonical { kind: $kind, text: shortened(text) })
            }
        }

        serde_as_text!($name);
    };
}

uuid_id!(
    /// The id of a job for its user. It stays the same however many attempts the job takes.
    JobId, "a job id"
);
uuid_id!(
    /// One attempt of a job on one miner, and the fencing token of its lease.
    ///
    /// The first attempt carries the job's own uuid on the wire, every further one a fresh uuid. Receipts therefore
    /// never collide, and a late message of an old attempt is recognised (ADR 0001).
    AttemptId, "an attempt id"
);

impl AttemptId {
    /// The id of a job's first attempt.
    pub const fn first_of(job: JobId) -> Self {
        Self(job.0)
    }
}

/// The token that a one-shot executor shows its miner: the attempt it serves and a random part, which is the
/// credential.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct ExecutorToken {
    attempt: AttemptId,
    secret: Uuid,
}

impl ExecutorToken {
    /// Joins an attempt and a random uuid that the caller drew.
    pub const fn new(attempt: AttemptId, secret: Uuid) -> Self {
        Self { attempt, secret }
    }

    /// The attempt that the token admits to.
    pub const fn attempt(&self) -> AttemptId {
        self.attempt
    }
}

impl fmt::Display for ExecutorToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.attempt, self.secret)
    }
}

impl fmt::Debug for ExecutorToken {
    /// Keeps the secret half out of logs.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "ExecutorToken({}-…)", self.attempt)
    }
}

impl FromStr for ExecutorToken {
    type Err = IdError;

    fn from_str(text: &str) -> Result<Self, IdError> {
        let malformed = || IdError::NotToken(text.chars().count());
        let (attempt, rest) = text.split_at_checked(36).ok_or_else(malformed)?;
        let secret = rest
            .strip_prefix('-')
            .and_then(parse_canonical)
            .ok_or_else(malformed)?;
        let attempt = parse_canonical(attempt).map(AttemptId).ok_or_else(malformed)?;
        Ok(Self { attempt, secret })
    }
}

serde_as_text!(ExecutorToken);

fn parse_canonical(text: &str) -> Option<Uuid> {
    let uuid = Uuid::parse_str(text).ok()?;
    (uuid.hyphenated().to_string() == text).then_some(uuid)
}

/// The first 64 characters: enough of a peer's text to recognise it in a log.
fn shortened(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "11111111-2222-4333-8444-555555555555";

    #[test]
    fn only_the_canonical_form_is_an_id() {
        assert_eq!(UUID.parse::<JobId>().unwrap().to_string(), UUID);
        for bad in [
            "",
            "x",
            "11111111222243338444555555555555",
            "{11111111-2222-4333-8444-555555555555}",
            "AAAAAAAA-2222-4333-8444-555555555555",
        ] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_token_names_its_attempt_and_hides_its_secret() {
        let token: ExecutorToken = format!("{UUID}-{UUID}").parse().unwrap();
        assert_eq!(token.attempt().to_string(), UUID);
        assert_eq!(token.to_string().parse::<ExecutorToken>().unwrap(), token);
        assert!(!format!("{token:?}").contains(&format!("-{UUID}")));
        for bad in ["", UUID, "11111111-2222-4333-8444-55555555555é-x"] {
            assert!(bad.parse::<ExecutorToken>().is_err(), "{bad}");
        }
    }
}
