//! The closing statement of a session.

use muster_protocol::{Digest, Timestamp};
use uuid::Uuid;

use crate::attestation::SessionId;
use crate::codec::{LayoutError, Reader, Writer};
use crate::envelope::Sealable;

/// The closing statement of a session, signed by the session key: no response comes after it, and none before it may be
/// missing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionClose {
    /// The session's id.
    pub session: SessionId,
    /// Digest of the attestation's signed bytes.
    pub attestation: Digest,
    /// The number of signed responses, which is the number that the next one would have had.
    pub responses: u64,
    /// Digest of the last proof's signed bytes; of the attestation's if there is no proof.
    pub last: Digest,
    /// The time of closing, by the executor's clock.
    pub at: Timestamp,
}

impl Sealable for SessionClose {
    const TAG: &'static str = "muster/session-close/1";

    fn signed_bytes(&self) -> Vec<u8> {
        Writer::new(Self::TAG)
            .raw(self.session.0.as_bytes())
            .digest(&self.attestation)
            .u64(self.responses)
            .digest(&self.last)
            .time(self.at)
            .done()
    }

    fn read(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut reader = Reader::new(Self::TAG, bytes)?;
        let read = Self {
            session: SessionId(Uuid::from_bytes(reader.array("the session")?)),
            attestation: reader.digest("the attestation")?,
            responses: reader.u64("the number of responses")?,
            last: reader.digest("the last proof")?,
            at: reader.time("the time of closing")?,
        };
        reader.done()?;
        Ok(read)
    }
}
