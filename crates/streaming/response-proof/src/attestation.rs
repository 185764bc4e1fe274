//! A miner's word that a session key speaks for a container.

use muster_protocol::{AttemptId, Digest, Hotkey, ImageId, JobId, MinerKey, Timestamp, ValidatorKey};
use uuid::Uuid;

use crate::envelope::Sealable;
use crate::layout::{LayoutError, Reader, Text, Writer};
use crate::scheme::HashScheme;

/// The name of one streaming session: one container behind one seal.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct SessionId(pub Uuid);

impl std::fmt::Display for SessionId {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.0.hyphenated().fmt(f)
    }
}

/// What a session costs, in rao (10⁻⁹ of the chain's unit).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Default)]
pub struct Price {
    /// For a million tokens of input.
    pub input: u64,
    /// For a million tokens of output.
    pub output: u64,
}

/// Signed by the miner's hotkey before the session serves anybody.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Attestation {
    /// The session.
    pub session: SessionId,
    /// Signs every response of it.
    pub session_key: Hotkey,
    /// The job as its user knows it.
    pub job: JobId,
    /// The attempt that runs it.
    pub attempt: AttemptId,
    /// Who attests.
    pub miner: MinerKey,
    /// Whom it serves.
    pub audience: ValidatorKey,
    /// SHA-256 of the certificate that the sealed endpoint shows, in DER.
    pub server_certificate: Digest,
    /// SHA-256 of the only certificate that it lets in, in DER.
    pub client_certificate: Digest,
    /// The executor, as its miner names it.
    pub executor: Text,
    /// Where the sealed endpoint answers: `host:port`.
    pub address: Text,
    /// The image that runs.
    pub image: ImageId,
    /// The model it serves, if the whitelist names one: digest of weights, dtype, tokenizer and template.
    pub model: Option<Digest>,
    /// What digests are over.
    pub scheme: HashScheme,
    /// What it costs.
    pub price: Price,
    /// Not to be believed before.
    pub not_before: Timestamp,
    /// Nor after.
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
