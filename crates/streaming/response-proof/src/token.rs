//! The token by which a facilitator vouches for a client's request at a validator's gateway.

use std::time::Duration;

use muster_protocol::{Digest, Hotkey, Timestamp, ValidatorKey};

use crate::codec::{LayoutError, Reader, Writer};
use crate::envelope::Sealable;

/// The longest validity of a token. It is short so that a stolen token is worth little.
pub const MAX_LIFETIME: Duration = Duration::from_secs(300);

/// The name under which a gateway keeps the answers to a client. `issuer` is the key of the facilitator that vouches
/// for the client, and `name` the client's pseudonym in its token. Miners see it only if the facilitator gives the
/// client no [`ClientKey`](crate::ClientKey).
pub fn client_pseudonym(issuer: &[u8], name: &[u8]) -> Digest {
    let mut bytes = b"muster/gateway-client/1".to_vec();
    bytes.extend_from_slice(Digest::of(issuer).as_bytes());
    bytes.extend_from_slice(name);
    Digest::of(&bytes)
}

/// A statement signed by the facilitator's hotkey, for one request or for the requests of one client within a few
/// minutes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GatewayToken {
    /// The facilitator that signs the token.
    pub facilitator: Hotkey,
    /// The validator at whose gateway the token is valid.
    pub audience: ValidatorKey,
    /// The client's pseudonym, which only the facilitator can resolve.
    pub client: Digest,
    /// The first instant at which the token is valid.
    pub not_before: Timestamp,
    /// The last instant at which the token is valid.
    pub not_after: Timestamp,
}

/// Why a token is rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenRejection {
    /// It was made for another validator.
    #[error("the token was made for another validator")]
    Audience,
    /// It is not valid yet.
    #[error("the token is not valid yet: the facilitator's clock is ahead by more than {} ms", .0.as_millis())]
    NotYet(Duration),
    /// It is not valid any longer.
    #[error("the token has expired")]
    Expired,
    /// Its validity is longer than [`MAX_LIFETIME`].
    #[error("a token is valid for {} s at most", MAX_LIFETIME.as_secs())]
    Lifetime,
}

impl GatewayToken {
    /// Checks audience and validity. The caller checks the signature, and whether the facilitator may vouch for
    /// clients.
    ///
    /// # Errors
    /// The token was made for another validator, or is not valid now.
    pub fn judge(
        &self,
        audience: ValidatorKey,
        now: Timestamp,
        skew: Duration,
    ) -> Result<(), TokenRejection> {
        if self.audience != audience {
            return Err(TokenRejection::Audience);
        }
        if self.not_after.since(self.not_before) > MAX_LIFETIME {
            return Err(TokenRejection::Lifetime);
        }
        if self.not_before.since(now) > skew {
            return Err(TokenRejection::NotYet(skew));
        }
        if now.since(self.not_after) > skew {
            return Err(TokenRejection::Expired);
        }
        Ok(())
    }
}

impl Sealable for GatewayToken {
    const TAG: &'static str = "muster/gateway-token/1";

    fn signed_bytes(&self) -> Vec<u8> {
        Writer::new(Self::TAG)
            .raw(self.facilitator.as_bytes())
            .raw(self.audience.0.as_bytes())
            .digest(&self.client)
            .time(self.not_before)
            .time(self.not_after)
            .done()
    }

    fn read(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut reader = Reader::new(Self::TAG, bytes)?;
        let read = Self {
            facilitator: Hotkey::from_bytes(reader.array("the facilitator")?),
            audience: ValidatorKey(Hotkey::from_bytes(reader.array("the audience")?)),
            client: reader.digest("the client")?,
            not_before: reader.time("the beginning of validity")?,
            not_after: reader.time("the end of validity")?,
        };
        reader.done()?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn token() -> GatewayToken {
        GatewayToken {
            facilitator: Hotkey::from_bytes([1; 32]),
            audience: ValidatorKey(Hotkey::from_bytes([2; 32])),
            client: Digest::of(b"client"),
            not_before: Timestamp::from_secs(100),
            not_after: Timestamp::from_secs(160),
        }
    }

    #[test]
    fn a_token_holds_for_one_validator_and_a_short_time() {
        let skew = Duration::from_secs(5);
        let (us, other) = (token().audience, ValidatorKey(Hotkey::from_bytes([3; 32])));
        let judge = |token: &GatewayToken, at| token.judge(us, Timestamp::from_secs(at), skew);
        assert_eq!(judge(&token(), 95), Ok(()));
        assert_eq!(judge(&token(), 165), Ok(()));
        assert_eq!(judge(&token(), 94), Err(TokenRejection::NotYet(skew)));
        assert_eq!(judge(&token(), 166), Err(TokenRejection::Expired));
        let refused = token().judge(other, Timestamp::from_secs(100), skew);
        assert_eq!(refused, Err(TokenRejection::Audience));
        let mut eternal = token();
        eternal.not_after = Timestamp::from_secs(1_000);
        assert_eq!(judge(&eternal, 100), Err(TokenRejection::Lifetime));
    }

    /// Changed bytes are another statement, which needs another tag.
    #[test]
    fn its_bytes_are_what_they_were() {
        let bytes = token().signed_bytes();
        let mut expected = b"muster/gateway-token/1".to_vec();
        expected.extend([1; 32]);
        expected.extend([2; 32]);
        expected.extend(Digest::of(b"client").as_bytes());
        expected.extend(100_000_000_u64.to_be_bytes());
        expected.extend(160_000_000_u64.to_be_bytes());
        assert_eq!(bytes, expected);
        assert_eq!(GatewayToken::read(&bytes), Ok(token()));
        bytes.iter().enumerate().for_each(|(cut, _)| {
            assert!(GatewayToken::read(&bytes[..cut]).is_err(), "cut at {cut}");
        });
    }
}
