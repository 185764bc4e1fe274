//! The signature in a request's headers: parsing it, and checking its scope, its signatory and its age. Pure.

use std::time::Duration;

use http::HeaderMap;
use muster_protocol::rest::headers;
use muster_protocol::wire::facilitator::{BittensorSignature, SignatureScope, UserSignature};
use muster_protocol::{Signature, Timestamp, UserKey};

/// The allowed distance between the time inside a signature and the facilitator's clock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SignatureFreshness {
    /// The limit for the past. A leaked signature becomes useless after it.
    pub max_age: Duration,
    /// The limit for the future, because clocks differ.
    pub max_ahead: Duration,
}

/// The reason why a request's signature is rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SignatureRejection {
    /// A signature header is missing.
    #[error("Signature not found: the header {0} is missing")]
    Missing(&'static str),
    /// A signature header has a wrong value.
    #[error("Signature malformed: the header {header} must be {expected}")]
    Malformed {
        /// The name of the header.
        header: &'static str,
        /// A description of the right value.
        expected: &'static str,
    },
    /// Another user signed.
    #[error("Signature refused: it is {signatory}'s, but the token is {user}'s")]
    OtherUser {
        /// The user who signed.
        signatory: UserKey,
        /// The user who is logged in.
        user: UserKey,
    },
    /// The signature is too old.
    #[error(
        "Signature refused: it is {age} s old, and at most {limit} s are allowed; sign again, and check your clock"
    )]
    Old {
        /// The age of the signature in seconds.
        age: u64,
        /// The configured limit in seconds.
        limit: u64,
    },
    /// The time inside the signature is too far in the future.
    #[error(
        "Signature refused: its time is {ahead} s ahead of the facilitator's clock, and at most {limit} s are allowed; check your clock"
    )]
    Ahead {
        /// The distance in seconds.
        ahead: u64,
        /// The configured limit in seconds.
        limit: u64,
    },
    /// The signature is not the signatory's signature over this body.
    #[error("Signature refused: it does not match the request's fields")]
    Wrong,
}

impl SignatureRejection {
    /// Whether the headers are malformed, as opposed to a missing or wrong signature.
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

/// Parses the signature in a request's headers, without checking it.
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

/// Checks that `user` may use this signature at `now` for a request that needs the scope `scope`.
///
/// # Errors
/// The signature has another scope, is another user's, or is not fresh. The body is not checked here.
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
