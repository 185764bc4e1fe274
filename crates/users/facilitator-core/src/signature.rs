//! The headers that carry a user's signature, and when they are believed. Pure.

use std::time::Duration;

use http::HeaderMap;
use muster_protocol::rest::headers;
use muster_protocol::wire::facilitator::{BittensorSignature, SignatureScope, UserSignature};
use muster_protocol::{Signature, Timestamp, UserKey};

/// How far the time inside a signature may lie from ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureFreshness {
    /// In the past: a signature that leaked is of no use later.
    pub max_age: Duration,
    /// In the future: clocks differ.
    pub max_ahead: Duration,
}

/// Why a request's signature is not believed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureRejection {
    /// Not signed.
    #[error("Signature not found: the header {0} is missing")]
    Missing(&'static str),
    /// A header that does not say what it should.
    #[error("Signature malformed: the header {header} must be {expected}")]
    Malformed {
        /// Which.
        header: &'static str,
        /// What would do.
        expected: &'static str,
    },
    /// Another user's.
    #[error("Signature refused: it is {signatory}'s, but the token is {user}'s")]
    OtherUser {
        /// Who signed.
        signatory: UserKey,
        /// Who logged in.
        user: UserKey,
    },
    /// Signed too long ago.
    #[error("Signature refused: it is {age} s old, {limit} s are allowed; sign again, and check your clock")]
    Old {
        /// Seconds.
        age: u64,
        /// Seconds.
        limit: u64,
    },
    /// Signed in the future.
    #[error("Signature refused: its time lies {ahead} s ahead, {limit} s are allowed; check your clock")]
    Ahead {
        /// Seconds.
        ahead: u64,
        /// Seconds.
        limit: u64,
    },
    /// It does not cover this body, or is not of this key.
    #[error("Signature refused: it does not match the request's fields")]
    Wrong,
}

impl SignatureRejection {
    /// Whether the request could not be understood, as opposed to not being believed.
    pub fn is_malformed(&self) -> bool {
        match self {
            Self::Malformed { .. } => true,
            Self::Missing(_)
            | Self::OtherUser { .. }
            | Self::Old { .. }
            | Self::Ahead { .. }
            | Self::Wrong => false,
        }
    }
}

/// Reads the signature of a request, not yet believed.
///
/// # Errors
/// A header is missing or malformed.
pub fn read_headers(request: &HeaderMap) -> Result<UserSignature, SignatureRejection> {
    let scheme = header(request, headers::SIGNATURE_TYPE)?;
    if scheme != "bittensor" {
        return Err(malformed(headers::SIGNATURE_TYPE, "bittensor"));
    }
    let signatory = header(request, headers::SIGNATORY)?
        .parse()
        .map_err(|_| malformed(headers::SIGNATORY, "an ss58 address"))?;
    let timestamp_ns = header(request, headers::TIMESTAMP_NS)?
        .parse()
        .map_err(|_| malformed(headers::TIMESTAMP_NS, "an integer: Unix time in nanoseconds"))?;
    let signature = Signature::from_base64(header(request, headers::SIGNATURE)?)
        .map_err(|_| malformed(headers::SIGNATURE, "the base64 of 64 bytes"))?;
    let signature_scope = match header(request, headers::SIGNATURE_SCOPE)? {
        "SignedFields" => SignatureScope::SignedFields,
        "FullRequest" => SignatureScope::FullRequest,
        _ => {
            return Err(malformed(headers::SIGNATURE_SCOPE, "SignedFields or FullRequest"));
        }
    };
    Ok(UserSignature {
        signature_type: BittensorSignature,
        signatory,
        timestamp_ns,
        signature,
        signature_scope,
    })
}

/// Whether `user` may use this signature now, for a request that is signed with `scope`.
///
/// # Errors
/// Another user's, another scope's, or not fresh. Whether it covers the body is checked elsewhere.
pub fn check(
    signature: &UserSignature,
    scope: SignatureScope,
    user: UserKey,
    freshness: SignatureFreshness,
    now: Timestamp,
) -> Result<(), SignatureRejection> {
    if signature.signature_scope != scope {
        let expected = match scope {
            SignatureScope::SignedFields => "SignedFields for this request",
            SignatureScope::FullRequest => "FullRequest for this request",
        };
        return Err(malformed(headers::SIGNATURE_SCOPE, expected));
    }
    if signature.signatory != user {
        return Err(SignatureRejection::OtherUser {
            signatory: signature.signatory,
            user,
        });
    }
    let signed_ns = i128::from(signature.timestamp_ns);
    let now_ns = i128::from(now.micros()) * 1000;
    let (age, ahead) = (now_ns - signed_ns, signed_ns - now_ns);
    if age > nanos(freshness.max_age) {
        return Err(SignatureRejection::Old {
            age: seconds(age),
            limit: freshness.max_age.as_secs(),
        });
    }
    if ahead > nanos(freshness.max_ahead) {
        return Err(SignatureRejection::Ahead {
            ahead: seconds(ahead),
            limit: freshness.max_ahead.as_secs(),
        });
    }
    Ok(())
}

fn header<'a>(request: &'a HeaderMap, name: &'static str) -> Result<&'a str, SignatureRejection> {
    let value = request.get(name).ok_or(SignatureRejection::Missing(name))?;
    value.to_str().map_err(|_| malformed(name, "visible ASCII"))
}

fn malformed(header: &'static str, expected: &'static str) -> SignatureRejection {
    SignatureRejection::Malformed { header, expected }
}

fn nanos(span: Duration) -> i128 {
    i128::try_from(span.as_nanos()).unwrap_or(i128::MAX)
}

fn seconds(nanos: i128) -> u64 {
    u64::try_from(nanos / 1_000_000_000).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use http::{HeaderName, HeaderValue};

    const ALICE: &str = "5GrwvaEF5zXb26Fz9rcQpDWS57CtERHpNehXCPcNoHGKutQY";
    const NOW: i64 = 1_769_000_000;
    const FRESH: SignatureFreshness = SignatureFreshness {
        max_age: Duration::from_secs(300),
        max_ahead: Duration::from_secs(30),
    };

    fn signed(changed: &[(&'static str, Option<&str>)]) -> HeaderMap {
        let good = Signature::from_bytes([7; 64]).to_base64();
        let mut map = HeaderMap::new();
        for (name, value) in [
            (headers::SIGNATURE_TYPE, "bittensor"),
            (headers::SIGNATORY, ALICE),
            (headers::TIMESTAMP_NS, "1769000000000000000"),
            (headers::SIGNATURE, good.as_str()),
            (headers::SIGNATURE_SCOPE, "SignedFields"),
        ] {
            let value = changed
                .iter()
                .find(|(other, _)| *other == name)
                .map_or(Some(value), |(_, value)| *value);
            if let Some(value) = value {
                let value = HeaderValue::from_bytes(value.as_bytes()).unwrap();
                map.insert(HeaderName::from_static(name), value);
            }
        }
        map
    }

    #[test]
    fn each_header_is_needed_and_checked() {
        assert!(read_headers(&signed(&[])).is_ok());
        for name in [
            headers::SIGNATURE_TYPE,
            headers::SIGNATORY,
            headers::TIMESTAMP_NS,
            headers::SIGNATURE,
            headers::SIGNATURE_SCOPE,
        ] {
            assert_eq!(
                read_headers(&signed(&[(name, None)])),
                Err(SignatureRejection::Missing(name))
            );
            for bad in ["", "é", "x", "99999999999999999999"] {
                let refused = read_headers(&signed(&[(name, Some(bad))])).unwrap_err();
                assert!(refused.is_malformed(), "{name}: {bad}");
            }
        }
    }

    #[test]
    fn only_the_users_own_fresh_signature_is_admitted() {
        let user: UserKey = ALICE.parse().unwrap();
        let other = UserKey(muster_protocol::Hotkey::from_bytes([1; 32]));
        let signature = read_headers(&signed(&[])).unwrap();
        let admitted = |user, secs| {
            check(
                &signature,
                SignatureScope::SignedFields,
                user,
                FRESH,
                Timestamp::from_secs(NOW + secs),
            )
        };
        assert_eq!(admitted(user, 0), Ok(()));
        assert_eq!(admitted(user, 300), Ok(()));
        assert_eq!(admitted(user, -30), Ok(()));
        assert_eq!(
            admitted(user, 301),
            Err(SignatureRejection::Old { age: 301, limit: 300 })
        );
        assert_eq!(
            admitted(user, -31),
            Err(SignatureRejection::Ahead { ahead: 31, limit: 30 })
        );
        assert!(matches!(
            admitted(other, 0),
            Err(SignatureRejection::OtherUser { .. })
        ));
        let scope = check(
            &signature,
            SignatureScope::FullRequest,
            user,
            FRESH,
            Timestamp::from_secs(NOW),
        );
        assert!(scope.unwrap_err().is_malformed());
    }

    #[test]
    fn no_timestamp_overflows() {
        for extreme in [i64::MIN, i64::MAX] {
            let signature = UserSignature {
                timestamp_ns: extreme,
                ..read_headers(&signed(&[])).unwrap()
            };
            let user = signature.signatory;
            let now = Timestamp::from_secs(NOW);
            assert!(check(&signature, SignatureScope::SignedFields, user, FRESH, now).is_err());
        }
    }
}
