//! Who may ask, and under which name their requests go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::HeaderMap;
use muster_gateway_client::bearer_token;
use muster_openai::OpenAiError;
use muster_protocol::{Digest, Hotkey, Timestamp, ValidatorKey};
use muster_response_proof::{Envelope, GatewayToken};

/// Whoever asks, under a name that the miners may see.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Client(pub(crate) Digest);

/// Whom a gateway lets in.
#[derive(Debug)]
pub(crate) struct Porter {
    pub(crate) me: ValidatorKey,
    pub(crate) facilitators: BTreeSet<Hotkey>,
    /// SHA-256 of each key of the validator's own, and its name.
    pub(crate) keys: BTreeMap<Digest, String>,
    pub(crate) skew: Duration,
}

impl Porter {
    /// Whom the request's bearer names.
    pub(crate) fn admit(&self, headers: &HeaderMap, now: Timestamp) -> Result<Client, OpenAiError> {
        let bearer = bearer_token(headers)?;
        // Whoever compares digests learns nothing from how long it takes.
        if let Some(name) = self.keys.get(&Digest::of(bearer.as_bytes())) {
            return Ok(Client(pseudonym(b"own", name.as_bytes())));
        }
        let refuse = |why: &str| OpenAiError::InvalidKey(why.to_owned());
        let envelope = Envelope::<GatewayToken>::from_text(bearer)
            .map_err(|_| refuse("the API key is unknown, or was revoked"))?;
        let token = envelope.statement().map_err(|error| refuse(&error.to_string()))?;
        if !self.facilitators.contains(&token.facilitator) {
            return Err(refuse(
                "this validator does not serve the facilitator that vouches",
            ));
        }
        if !muster_identity::verify(&token.facilitator, envelope.signed_bytes(), envelope.signature()) {
            return Err(refuse("the facilitator did not sign this token"));
        }
        token
            .judge(self.me, now, self.skew)
            .map_err(|error| refuse(&error.to_string()))?;
        Ok(Client(pseudonym(
            token.facilitator.as_bytes(),
            token.client.as_bytes(),
        )))
    }
}

fn pseudonym(who: &[u8], name: &[u8]) -> Digest {
    let mut bytes = b"muster/gateway-client/1".to_vec();
    bytes.extend_from_slice(Digest::of(who).as_bytes());
    bytes.extend_from_slice(name);
    Digest::of(&bytes)
}

#[cfg(test)]
mod tests {
    use http::header;
    use muster_identity::Keypair;

    use super::*;

    const NOW: fn() -> Timestamp = || Timestamp::from_secs(1_000);

    fn porter(facilitator: &Keypair) -> Porter {
        Porter {
            me: ValidatorKey(Hotkey::from_bytes([2; 32])),
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
    fn keys_of_ones_own_and_tokens_of_listed_facilitators_open_and_nothing_else() {
        let (listed, stranger) = (Keypair::from_seed([1; 32]), Keypair::from_seed([9; 32]));
        let porter = porter(&listed);
        let own = porter.admit(&with("bearer secret"), NOW()).unwrap();
        let theirs = porter.admit(&token(&listed, |_| ()), NOW()).unwrap();
        assert_ne!(own, theirs);
        assert_eq!(
            porter.admit(&HeaderMap::new(), NOW()),
            Err(OpenAiError::MissingKey)
        );
        assert_eq!(
            porter.admit(&with("Basic secret"), NOW()),
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
            let refused = porter.admit(&headers, NOW()).unwrap_err();
            assert!(refused.to_string().contains(says), "{says}: {refused}");
            assert_eq!(refused.status().as_u16(), 401);
        }
    }
}
