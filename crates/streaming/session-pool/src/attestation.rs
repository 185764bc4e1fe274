//! Whether a miner's attestation of a session matches the session that was ordered.

use std::time::Duration;

use muster_protocol::{AttemptId, Digest, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use muster_response_proof::{Attestation, HashScheme};

use crate::whitelist::Service;

/// The first difference between an attestation and the session that was ordered.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AttestationMismatch {
    /// The attestation names another miner than the one that runs the job.
    #[error("the session was attested by {0}, who does not run it")]
    Miner(MinerKey),
    /// The attestation was made for another validator.
    #[error("the session was attested for another validator")]
    Audience,
    /// The attestation is of another job or attempt.
    #[error("the attestation is of another job")]
    Job,
    /// The session runs another image.
    #[error("the image {0} runs instead of the whitelisted one")]
    Image(ImageId),
    /// The session serves another model than the whitelisted one.
    #[error("another model is attested than the whitelist names")]
    Weights,
    /// The session's proofs use another hash scheme.
    #[error("the session hashes by {}, the whitelist says {}", .got.name(), .wanted.name())]
    Scheme {
        /// The scheme of the attestation.
        got: HashScheme,
        /// The scheme of the whitelist.
        wanted: HashScheme,
    },
    /// The session has another price.
    #[error("the session asks another price than the whitelist's")]
    Price,
    /// The session accepts another client certificate.
    #[error("the session accepts another client certificate than this validator's")]
    ClientCertificate,
    /// The endpoint presents another certificate than the attested one.
    #[error("the endpoint presents another certificate than the attested one")]
    ServerCertificate,
    /// The attestation is not valid yet: the executor's clock is ahead.
    #[error(
        "the attestation becomes valid in {} ms: the executor's clock is ahead by more than {} ms",
        .ahead.as_millis(), .allowed.as_millis()
    )]
    NotYet {
        /// Time until it becomes valid.
        ahead: Duration,
        /// The largest allowed difference between the clocks.
        allowed: Duration,
    },
    /// The attestation has expired.
    #[error("the attestation has expired")]
    Expired,
}

/// The session that was ordered, to be compared with the attestation.
#[derive(Clone, Copy, Debug)]
pub struct OrderedSession<'a> {
    /// The miner that runs the job.
    pub miner: MinerKey,
    /// The validator that ordered the session.
    pub audience: ValidatorKey,
    /// The streaming job that runs the session.
    pub job: JobId,
    /// The attempt of the job.
    pub attempt: AttemptId,
    /// SHA-256 of the validator's client certificate, DER.
    pub client_certificate: Digest,
    /// SHA-256 of the certificate that the miner stated for its endpoint, DER.
    pub server_certificate: Digest,
    /// The service that was ordered.
    pub service: &'a Service,
}

impl OrderedSession<'_> {
    /// Compares an attestation with the session that was ordered. The signature is not checked here. `skew` is the
    /// largest allowed difference between the clocks.
    ///
    /// # Errors
    /// The first difference.
    pub fn check_attestation(
        &self,
        attested: &Attestation,
        now: Timestamp,
        skew: Duration,
    ) -> Result<(), AttestationMismatch> {
        let service = self.service;
        if attested.miner != self.miner {
            return Err(AttestationMismatch::Miner(attested.miner));
        }
        if attested.audience != self.audience {
            return Err(AttestationMismatch::Audience);
        }
        if attested.job != self.job || attested.attempt != self.attempt {
            return Err(AttestationMismatch::Job);
        }
        if attested.image != service.image {
            return Err(AttestationMismatch::Image(attested.image));
        }
        // A model that the whitelist does not name is not attested either: evidence about the session would not fit.
        if attested.model != service.weights {
            return Err(AttestationMismatch::Weights);
        }
        if attested.scheme != service.scheme {
            return Err(AttestationMismatch::Scheme {
                got: attested.scheme,
                wanted: service.scheme,
            });
        }
        if attested.price != service.price() {
            return Err(AttestationMismatch::Price);
        }
        if attested.client_certificate != self.client_certificate {
            return Err(AttestationMismatch::ClientCertificate);
        }
        if attested.server_certificate != self.server_certificate {
            return Err(AttestationMismatch::ServerCertificate);
        }
        let ahead = attested.not_before.since(now);
        if ahead > skew {
            return Err(AttestationMismatch::NotYet { ahead, allowed: skew });
        }
        if attested.not_after <= now {
            return Err(AttestationMismatch::Expired);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::Hotkey;
    use muster_response_proof::{Price, SessionId, Text};
    use uuid::Uuid;

    use super::*;

    fn service() -> Service {
        let text = r#"
            model = "tiny"
            image = "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
            class = "always_on.test"
            scheme = "text"
            listen = { port = 8000 }
            output_price = 7
            input_tokens_per_s = 1000
            output_tokens_per_s = 50
        "#;
        toml::from_str(text).unwrap()
    }

    fn digest(byte: u8) -> Digest {
        Digest::from_bytes([byte; 32])
    }

    fn key(byte: u8) -> Hotkey {
        Hotkey::from_bytes([byte; 32])
    }

    fn attestation() -> Attestation {
        Attestation {
            session: SessionId(Uuid::from_u128(1)),
            session_key: key(9),
            job: JobId::from_uuid(Uuid::from_u128(2)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
            miner: MinerKey(key(1)),
            audience: ValidatorKey(key(2)),
            server_certificate: digest(4),
            client_certificate: digest(5),
            executor: Text::new("e").unwrap(),
            address: Text::new("127.0.0.1:1").unwrap(),
            image: service().image,
            model: None,
            scheme: HashScheme::Text,
            price: Price { input: 0, output: 7 },
            not_before: Timestamp::from_secs(100),
            not_after: Timestamp::from_secs(200),
        }
    }

    fn check(change: impl FnOnce(&mut Attestation), at: i64) -> Result<(), AttestationMismatch> {
        let mut attested = attestation();
        change(&mut attested);
        let service = service();
        let ordered = OrderedSession {
            miner: MinerKey(key(1)),
            audience: ValidatorKey(key(2)),
            job: JobId::from_uuid(Uuid::from_u128(2)),
            attempt: AttemptId::from_uuid(Uuid::from_u128(3)),
            client_certificate: digest(5),
            server_certificate: digest(4),
            service: &service,
        };
        let now = Timestamp::from_secs(at);
        ordered.check_attestation(&attested, now, Duration::from_secs(5))
    }

    #[test]
    fn a_matching_attestation_passes_and_each_difference_is_named() {
        assert_eq!(check(|_| (), 100), Ok(()));
        assert_eq!(check(|_| (), 95), Ok(()), "within the clocks' bound");
        type Change = fn(&mut Attestation);
        let table: [(Change, AttestationMismatch); 10] = [
            (
                |a| a.miner = MinerKey(key(7)),
                AttestationMismatch::Miner(MinerKey(key(7))),
            ),
            (
                |a| a.audience = ValidatorKey(key(7)),
                AttestationMismatch::Audience,
            ),
            (
                |a| a.job = JobId::from_uuid(Uuid::from_u128(9)),
                AttestationMismatch::Job,
            ),
            (
                |a| a.attempt = AttemptId::from_uuid(Uuid::from_u128(9)),
                AttestationMismatch::Job,
            ),
            (
                |a| a.image = ImageId(digest(7)),
                AttestationMismatch::Image(ImageId(digest(7))),
            ),
            (
                |a| a.scheme = HashScheme::RawHttp,
                AttestationMismatch::Scheme {
                    got: HashScheme::RawHttp,
                    wanted: HashScheme::Text,
                },
            ),
            (|a| a.model = Some(digest(7)), AttestationMismatch::Weights),
            (|a| a.price.output = 8, AttestationMismatch::Price),
            (
                |a| a.client_certificate = digest(7),
                AttestationMismatch::ClientCertificate,
            ),
            (
                |a| a.server_certificate = digest(7),
                AttestationMismatch::ServerCertificate,
            ),
        ];
        for (change, reason) in table {
            assert_eq!(check(change, 100), Err(reason));
        }
        assert_eq!(check(|_| (), 200), Err(AttestationMismatch::Expired));
        let ahead = AttestationMismatch::NotYet {
            ahead: Duration::from_secs(6),
            allowed: Duration::from_secs(5),
        };
        assert!(
            ahead.to_string().contains("6000 ms"),
            "the text has the measured difference: {ahead}"
        );
        assert_eq!(check(|_| (), 94), Err(ahead));
    }
}
