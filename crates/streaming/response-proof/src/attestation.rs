//! A miner's statement that a session key signs for a container.

use muster_protocol::{AttemptId, Digest, Hotkey, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use uuid::Uuid;

use crate::codec::{LayoutError, Reader, Text, Writer};
use crate::envelope::Sealable;
use crate::hash_scheme::HashScheme;

/// The id of one streaming session: one container behind one sealing proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub Uuid);

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// The price of a session, in rao (10⁻⁹ of the chain's unit).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Price {
    /// Rao for a million tokens of input.
    pub input: u64,
    /// Rao for a million tokens of output.
    pub output: u64,
}

/// The attestation of a session, signed by the miner's hotkey before the session serves a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attestation {
    /// The session's id, drawn by its executor.
    pub session: SessionId,
    /// The public key that signs every response proof of the session.
    pub session_key: Hotkey,
    /// The id under which its user knows the job.
    pub job: JobId,
    /// The attempt that runs the job.
    pub attempt: AttemptId,
    /// The miner that attests the session.
    pub miner: MinerKey,
    /// The validator that the session serves.
    pub audience: ValidatorKey,
    /// SHA-256 of the certificate that the sealed endpoint shows, in DER.
    pub server_certificate: Digest,
    /// SHA-256 of the only client certificate that the sealed endpoint accepts, in DER.
    pub client_certificate: Digest,
    /// The executor's name at its miner.
    pub executor: Text,
    /// The sealed endpoint's address: `host:port`.
    pub address: Text,
    /// The image that the container runs.
    pub image: ImageId,
    /// The digest of the served model's weights, dtype, tokenizer and template, if the whitelist names one.
    pub model: Option<Digest>,
    /// The scheme of the digests of requests and responses.
    pub scheme: HashScheme,
    /// The price that the whitelist names.
    pub price: Price,
    /// The first instant at which the session may serve.
    pub not_before: Timestamp,
    /// The last instant at which the session may serve.
    pub not_after: Timestamp,
}

impl Sealable for Attestation {
    const TAG: &'static str = "muster/attestation/1";

    fn signed_bytes(&self) -> Vec<u8> {
        Writer::new(Self::TAG)
            .raw(self.session.0.as_bytes())
            .raw(self.session_key.as_bytes())
            .raw(self.job.as_uuid().as_bytes())
            .raw(self.attempt.as_uuid().as_bytes())
            .raw(self.miner.0.as_bytes())
            .raw(self.audience.0.as_bytes())
            .digest(&self.server_certificate)
            .digest(&self.client_certificate)
            .text(&self.executor)
            .text(&self.address)
            .digest(&self.image.0)
            .maybe(self.model.as_ref(), Writer::digest)
            .byte(self.scheme.code())
            .u64(self.price.input)
            .u64(self.price.output)
            .time(self.not_before)
            .time(self.not_after)
            .done()
    }

    fn read(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut reader = Reader::new(Self::TAG, bytes)?;
        let read = Self {
            session: SessionId(Uuid::from_bytes(reader.array("the session")?)),
            session_key: Hotkey::from_bytes(reader.array("the session key")?),
            job: JobId::from_uuid(Uuid::from_bytes(reader.array("the job")?)),
            attempt: AttemptId::from_uuid(Uuid::from_bytes(reader.array("the attempt")?)),
            miner: MinerKey(Hotkey::from_bytes(reader.array("the miner")?)),
            audience: ValidatorKey(Hotkey::from_bytes(reader.array("the audience")?)),
            server_certificate: reader.digest("the server's certificate")?,
            client_certificate: reader.digest("the client's certificate")?,
            executor: reader.text("the executor")?,
            address: reader.text("the address")?,
            image: ImageId(reader.digest("the image")?),
            model: reader.maybe("the model", |reader| reader.digest("the model"))?,
            scheme: HashScheme::from_code(reader.byte("the hash scheme")?)?,
            price: Price {
                input: reader.u64("the price of input")?,
                output: reader.u64("the price of output")?,
            },
            not_before: reader.time("the beginning of validity")?,
            not_after: reader.time("the end of validity")?,
        };
        reader.done()?;
        Ok(read)
    }
}
