//! Admits clients by API key or by a facilitator's token, and knows each by a name and a key. Wrong ones are paced by
//! address.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use http::HeaderMap;
use muster_gateway_client::bearer_token;
use muster_http::rate_limit::CredentialPace;
use muster_openai::OpenAiError;
use muster_process::connections::AddressGroup;
use muster_protocol::{Digest, Hotkey, Timestamp, ValidatorKey};
use muster_response_proof::headers::CLIENT_KEY;
use muster_response_proof::{ClientKey, Envelope, GatewayToken, client_pseudonym};
use parking_lot::Mutex;

use crate::request_client::{AdmittedClient, SeenAs};
use crate::settings::Settings;

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
    /// The wrong credentials of each address, and the facilitators that each address has shown a right token of.
    pace: Mutex<CredentialPace<AddressGroup, (AddressGroup, Option<Hotkey>)>>,
}

// === impl Authenticator ===

impl Authenticator {
    pub(crate) fn new(validator: ValidatorKey, settings: &Settings) -> Self {
        let keys = settings.keys.iter().map(|(name, digest)| (*digest, name.clone()));
        Self {
            validator,
            facilitators: settings.facilitators.clone(),
            keys: keys.collect(),
            skew: settings.skew(),
            pace: Mutex::new(CredentialPace::new(settings.failures_per_minute)),
        }
    }

    /// The client that the bearer token of a request from this address stands for.
    ///
    /// An address that has shown too many wrong credentials gets in by the validator's own keys, and by tokens of a
    /// facilitator that has shown a right one there within the last hour. So a guesser cannot lock out those who share
    /// its address.
    ///
    /// # Errors
    /// [`OpenAiError::MissingKey`], [`OpenAiError::InvalidKey`] or [`OpenAiError::RateLimited`].
    pub(crate) fn authenticate(
        &self,
        headers: &HeaderMap,
        address: AddressGroup,
        now: Timestamp,
    ) -> Result<AdmittedClient, OpenAiError> {
        let bearer = bearer_token(headers)?;
        // Digests are compared and not keys, so the time that it takes reveals nothing about a key.
        let digest = Digest::of(bearer.as_bytes());
        if let Some(name) = self.keys.get(&digest) {
            return Ok(own_client(name, &digest));
        }
        let read = read_token(bearer);
        let issuer = read.as_ref().ok().map(|(_, token)| token.facilitator);
        self.pace
            .lock()
            .admit(&address, &(address, issuer), now)
            .map_err(too_many_failures)?;
        let judged = read.and_then(|(envelope, token)| {
            self.judge(&envelope, &token, now)?;
            client_of(&token, headers)
        });
        let mut pace = self.pace.lock();
        match &judged {
            Ok(_) => pace.note_right((address, issuer), now),
            // The client's answer states why the credential is wrong; the next client of its address is asked to wait.
            Err(_) => drop(pace.note_wrong(address, None, now)),
        }
        judged
    }

    fn judge(
        &self,
        envelope: &Envelope<GatewayToken>,
        token: &GatewayToken,
        now: Timestamp,
    ) -> Result<(), OpenAiError> {
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
            .map_err(|error| invalid(&error.to_string()))
    }
}

fn invalid(reason: &str) -> OpenAiError {
    OpenAiError::InvalidKey(reason.to_owned())
}

fn read_token(bearer: &str) -> Result<(Envelope<GatewayToken>, GatewayToken), OpenAiError> {
    let envelope = Envelope::<GatewayToken>::from_text(bearer)
        .map_err(|_| invalid("the API key is unknown, or was revoked"))?;
    let token = envelope
        .statement()
        .map_err(|error| invalid(&error.to_string()))?;
    Ok((envelope, token))
}

fn too_many_failures(retry_after: Duration) -> OpenAiError {
    OpenAiError::RateLimited {
        message: "too many wrong API keys or tokens came from this address; try again later".to_owned(),
        retry_after,
    }
}

/// A client of the validator's own. `digest` is that of its API key, which no miner knows.
fn own_client(name: &str, digest: &Digest) -> AdmittedClient {
    AdmittedClient {
        name: client_pseudonym(b"own", name.as_bytes()),
        key: ClientKey::of_secret(b"own", digest.as_bytes()),
        seen_as: SeenAs::EachRequest,
    }
}

/// The client that a facilitator vouches for. One without a key has a facilitator of an earlier release, which finds an
/// account's reports by its one pseudonym.
fn client_of(token: &GatewayToken, headers: &HeaderMap) -> Result<AdmittedClient, OpenAiError> {
    let issuer = token.facilitator.as_bytes();
    let name = client_pseudonym(issuer, token.client.as_bytes());
    let Some(value) = headers.get(CLIENT_KEY) else {
        return Ok(AdmittedClient {
            name,
            key: ClientKey::of_secret(issuer, token.client.as_bytes()),
            seen_as: SeenAs::Always(name),
        });
    };
    let key = value.to_str().ok().and_then(ClientKey::from_hex);
    Ok(AdmittedClient {
        name,
        key: key
            .ok_or_else(|| invalid("the facilitator's header muster-client-key must be 64 hex digits"))?,
        seen_as: SeenAs::EachRequest,
    })
}

#[cfg(test)]
mod tests {
    use http::header;
    use muster_identity::Keypair;
    use muster_response_proof::seal;

    use super::*;

    const NOW: fn() -> Timestamp = || Timestamp::from_secs(1_000);
    const HERE: fn() -> AddressGroup = || AddressGroup::of([192, 0, 2, 1].into());

    fn authenticator(facilitator: &Keypair) -> Authenticator {
        Authenticator {
            validator: ValidatorKey(Hotkey::from_bytes([2; 32])),
            facilitators: BTreeSet::from([facilitator.hotkey()]),
            keys: BTreeMap::from([(Digest::of(b"secret"), "me".to_owned())]),
            skew: Duration::from_secs(5),
            pace: Mutex::new(CredentialPace::new(0)),
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
        let envelope = seal(&token, signer);
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
        let own = authenticator
            .authenticate(&with("bearer secret"), HERE(), NOW())
            .unwrap();
        let theirs = authenticator
            .authenticate(&token(&listed, |_| ()), HERE(), NOW())
            .unwrap();
        assert_ne!(own.name, theirs.name);
        assert_eq!(
            authenticator.authenticate(&HeaderMap::new(), HERE(), NOW()),
            Err(OpenAiError::MissingKey)
        );
        assert_eq!(
            authenticator.authenticate(&with("Basic secret"), HERE(), NOW()),
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
            let refused = authenticator.authenticate(&headers, HERE(), NOW()).unwrap_err();
            assert!(refused.to_string().contains(says), "{says}: {refused}");
            assert_eq!(refused.status().as_u16(), 401);
        }
    }

    #[test]
    fn a_client_is_kept_by_name_and_seen_by_request_if_its_facilitator_gives_a_key() {
        let listed = Keypair::from_seed([1; 32]);
        let authenticator = authenticator(&listed);
        let admit = |headers: &HeaderMap| authenticator.authenticate(headers, HERE(), NOW());
        let with_key = |value: &str| {
            let mut headers = token(&listed, |_| ());
            headers.insert(CLIENT_KEY, value.parse().unwrap());
            headers
        };
        let earlier = admit(&token(&listed, |_| ())).unwrap();
        assert_eq!(
            earlier.seen_as,
            SeenAs::Always(earlier.name),
            "its facilitator opens no other"
        );
        let key = ClientKey::from_bytes([7; 32]);
        let keyed = admit(&with_key(&key.hex())).unwrap();
        assert_eq!((keyed.seen_as, keyed.key), (SeenAs::EachRequest, key));
        assert_eq!(keyed.name, earlier.name, "its earlier proofs are found");
        let refused = admit(&with_key("no key")).unwrap_err();
        assert!(refused.to_string().contains("muster-client-key"), "{refused}");
        // The key of a validator's own client follows from its API key, whatever a header says.
        let own = admit(&with("Bearer secret")).unwrap();
        assert_eq!(
            own.key,
            ClientKey::of_secret(b"own", Digest::of(b"secret").as_bytes())
        );
        assert_eq!(own.seen_as, SeenAs::EachRequest);
        let mut claimed = with("Bearer secret");
        claimed.insert(CLIENT_KEY, key.hex().parse().unwrap());
        assert_eq!(admit(&claimed), Ok(own));
    }

    #[test]
    fn a_guesser_is_stopped_and_right_clients_of_its_address_are_not() {
        let (listed, other) = (Keypair::from_seed([1; 32]), Keypair::from_seed([9; 32]));
        let mut authenticator = authenticator(&listed);
        authenticator.facilitators.insert(other.hotkey());
        authenticator.pace = Mutex::new(CredentialPace::new(3));
        let ask = |headers: HeaderMap, address| {
            authenticator
                .authenticate(&headers, address, NOW())
                .map_err(|error| error.status().as_u16())
        };
        assert!(ask(token(&listed, |_| ()), HERE()).is_ok());
        let forged = || token(&other, |token| token.facilitator = listed.hotkey());
        for wrong in [with("Bearer wrong"), forged(), forged()] {
            assert_eq!(ask(wrong, HERE()), Err(401));
        }
        assert_eq!(ask(with("Bearer wrong"), HERE()), Err(429));
        // Nobody has shown a right token of this facilitator here.
        assert_eq!(ask(token(&other, |_| ()), HERE()), Err(429));
        assert_eq!(
            ask(HeaderMap::new(), HERE()),
            Err(401),
            "no credential is no guess"
        );
        for right in [with("Bearer secret"), token(&listed, |_| ())] {
            assert!(ask(right, HERE()).is_ok());
        }
        let elsewhere = AddressGroup::of([192, 0, 2, 2].into());
        assert_eq!(ask(with("Bearer wrong"), elsewhere), Err(401));
        let later = NOW().plus(Duration::from_secs(20));
        assert!(
            authenticator
                .authenticate(&token(&other, |_| ()), HERE(), later)
                .is_ok()
        );
    }
}
