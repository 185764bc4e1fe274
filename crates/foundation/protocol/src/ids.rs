//! Identities of jobs, of their attempts, and of the lease an executor dials in with.

use std::fmt;
use std::str::FromStr;

use uuid::Uuid;

use crate::macros::serde_as_text;

/// Why a text is not an id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IdError {
    /// Not a UUID in its canonical form (lower case, hyphens).
    #[error("{kind} must be a canonical uuid such as 11111111-2222-4333-8444-555555555555, got {text:?}")]
    NotCanonical {
        /// What the id was to be.
        kind: &'static str,
        /// What came, shortened.
        text: String,
    },
    /// Not `{attempt}-{uuid}`.
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
    /// The one name of a job for its user, however many attempts it takes.
    JobId, "a job id"
);
uuid_id!(
    /// One try of a job on one miner, and the fencing token of its lease.
    ///
    /// The first attempt carries the job's own uuid on the wire, every further one a fresh uuid, so that receipts
    /// never collide and a late message of an old attempt is recognised (ADR 0001).
    AttemptId, "an attempt id"
);

impl AttemptId {
    /// The first attempt of a job.
    pub const fn first_of(job: JobId) -> Self {
        Self(job.0)
    }
}

/// What a one-shot executor shows its miner: the attempt it serves and a random part that is the credential.
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

    /// The attempt it admits to.
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
    /// The secret half stays out of logs.
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

/// Enough of a peer's text to recognise it in a log, never all of it.
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
