//! Admits clients by API key or by a facilitator's token, and gives each a pseudonym.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::HeaderMap;
use muster_gateway_client::bearer_token;
use muster_openai::OpenAiError;
use muster_protocol::{Digest, Hotkey, Timestamp, ValidatorKey};
use muster_response_proof::{Envelope, GatewayToken};

use crate::settings::Settings;

/// The pseudonym of an admitted client. Miners see it; only the validator or the facilitator can resolve it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ClientPseudonym(pub(crate) Digest);

/// Decides which clients are admitted.
#[derive(Debug)]
pub(crate) struct Authenticator {
    validator: ValidatorKey,
    /// The facilitators whose tokens are accepted.
    facilitators: BTreeSet<Hotkey>,
    /// SHA-256 of each API key of the validator's own clients, and the client's name.
    keys: BTreeMap<Digest, String>,
    /// How far the clocks of facilitators may differ.
    skew: Duration,
}

impl Authenticator {
    pub(crate) fn new(validator: ValidatorKey, settings: &Settings) -> Self {
        let keys = settings.keys.iter().map(|(name, digest)| (*digest, name.clone()));
        Self {
            validator,
            facilitators: settings.facilitators.clone(),
            keys: keys.collect(),
            skew: settings.skew(),
        }
    }

    /// The client that the request's bearer token stands for.
    ///
    /// # Errors
    /// [`OpenAiError::MissingKey`] or [`OpenAiError::InvalidKey`].
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        now: Timestamp,
    ) -> Result<ClientPseudonym, OpenAiError> {
        let bearer = bearer_token(headers)?;
        // Digests are compared and not keys, so the time that it takes reveals nothing about a key.
        if let Some(name) = self.keys.get(&Digest::of(bearer.as_bytes())) {
            return Ok(pseudonym(b"own", name.as_bytes()));
        }
        let invalid = |reason: &str| OpenAiError::InvalidKey(reason.to_owned());
        let envelope = Envelope::<GatewayToken>::from_text(bearer)
            .map_err(|_| invalid("the API key is unknown, or was revoked"))?;
        let token = envelope
            .statement()
            .map_err(|error| invalid(&error.to_string()))?;
        if !self.facilitators.contains(&token.facilitator) {
            return Err(invalid(
                "this validator does not serve the facilitator that issued the token",
            ));
        }
        if !muster_identity::verify(&token.facilitator, envelope.signed_bytes(), envelope.signature()) {
            return Err(invalid("the facilitator did not sign this token"));
        }
        token
            .judge(self.validator, now, self.skew)
            .map_err(|error| invalid(&error.to_string()))?;
        Ok(pseudonym(token.facilitator.as_bytes(), token.client.as_bytes()))
    }
}

fn pseudonym(issuer: &[u8], name: &[u8]) -> ClientPseudonym {
    let mut bytes = b"muster/gateway-client/1".to_vec();
    bytes.extend_from_slice(Digest::of(issuer).as_bytes());
    bytes.extend_from_slice(name);
    ClientPseudonym(Digest::of(&bytes))
}

#[cfg(test)]
mod tests {
    use http::header;
    use muster_identity::Keypair;

    use super::*;

    const NOW: fn() -> Timestamp = || Timestamp::from_secs(1_000);

    fn authenticator(facilitator: &Keypair) -> Authenticator {
        Authenticator {
            validator: ValidatorKey(Hotkey::from_bytes([2; 32])),
            facilitators: BTreeSet::from([facilitator.hotkey()]),
            keys: BTreeMap::from([(Digest::of(b"secret"), "me".to_owned())]),
            skew: Duration::from_secs(5),
        }
    }

    fn token(signer: &Keypair, change: impl FnOnce(&mut GatewayToken)) -> HeaderMap {
        let mut token = GatewayToken {
            facilitator: signer.hotkey(),
            audience: ValidatorKey(Hotkey::from_bytes([2; 32])),
            client: Digest::of(b"somebody"),
            not_before: NOW(),
            not_after: NOW().plus(Duration::from_secs(60)),
        };
        change(&mut token);
        let envelope = Envelope::new(&token, |bytes| signer.sign(bytes));
        with(&format!("Bearer {}", envelope.to_text()))
    }

    fn with(value: &str) -> HeaderMap {
        let mut headers = HeaderMap::new();
        headers.insert(header::AUTHORIZATION, value.parse().unwrap());
        headers
    }

    #[test]
    fn only_own_keys_and_tokens_of_listed_facilitators_are_admitted() {
        let (listed, stranger) = (Keypair::from_seed([1; 32]), Keypair::from_seed([9; 32]));
        let authenticator = authenticator(&listed);
        let own = authenticator.authenticate(&with("bearer secret"), NOW()).unwrap();
        let theirs = authenticator
            .authenticate(&token(&listed, |_| ()), NOW())
            .unwrap();
        assert_ne!(own, theirs);
        assert_eq!(
            authenticator.authenticate(&HeaderMap::new(), NOW()),
            Err(OpenAiError::MissingKey)
        );
        assert_eq!(
            authenticator.authenticate(&with("Basic secret"), NOW()),
            Err(OpenAiError::MissingKey)
        );
        let mut tampered = token(&listed, |_| ());
        let text = tampered[header::AUTHORIZATION]
            .to_str()
            .unwrap()
            .replace("Bearer ", "");
        let mut bytes = Envelope::<GatewayToken>::from_text(&text).unwrap().to_bytes();
        bytes[100] ^= 1;
        let altered = Envelope::<GatewayToken>::from_bytes(&bytes).unwrap().to_text();
        tampered.insert(
            header::AUTHORIZATION,
            format!("Bearer {altered}").parse().unwrap(),
        );
        let other = ValidatorKey(Hotkey::from_bytes([7; 32]));
        for (headers, says) in [
            (with("Bearer wrong"), "unknown, or was revoked"),
            (token(&stranger, |_| ()), "does not serve the facilitator"),
            (
                token(&stranger, |token| token.facilitator = listed.hotkey()),
                "did not sign",
            ),
            (tampered, "did not sign"),
            (
                token(&listed, |token| token.audience = other),
                "another validator",
            ),
            (
                token(&listed, |token| token.not_after = Timestamp::from_secs(990)),
                "expired",
            ),
        ] {
            let refused = authenticator.authenticate(&headers, NOW()).unwrap_err();
            assert!(refused.to_string().contains(says), "{says}: {refused}");
            assert_eq!(refused.status().as_u16(), 401);
        }
    }
}
