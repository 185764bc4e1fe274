//! A miner's appeal against a verdict about its streamed answers.

use muster_protocol::{Digest, Hotkey, MinerKey, Timestamp};

use crate::codec::{LayoutError, Reader, Text, Writer};
use crate::envelope::Sealable;

/// An appeal, signed by the hotkey of one of the bundle's miners: the validator is asked to judge fresh answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AuditAppeal {
    /// The chain's genesis hash.
    pub genesis: Digest,
    /// The number of the subnet.
    pub netuid: u16,
    /// The digest of the bundle from which the verdict follows.
    pub bundle: Digest,
    /// The miner that appeals.
    pub miner: MinerKey,
    /// When it appeals, by its clock.
    pub at: Timestamp,
    /// The reason in words, for the validator's operator.
    pub reason: Text,
}

impl Sealable for AuditAppeal {
    const TAG: &'static str = "muster/audit-appeal/1";

    fn signed_bytes(&self) -> Vec<u8> {
        Writer::new(Self::TAG)
            .digest(&self.genesis)
            .u16(self.netuid)
            .digest(&self.bundle)
            .raw(self.miner.0.as_bytes())
            .time(self.at)
            .text(&self.reason)
            .done()
    }

    fn read(bytes: &[u8]) -> Result<Self, LayoutError> {
        let mut reader = Reader::new(Self::TAG, bytes)?;
        let read = Self {
            genesis: reader.digest("the genesis hash")?,
            netuid: reader.u16("the subnet")?,
            bundle: reader.digest("the bundle")?,
            miner: MinerKey(Hotkey::from_bytes(reader.array("the miner")?)),
            at: reader.time("the time")?,
            reason: reader.text("the reason")?,
        };
        reader.done()?;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_signed_bytes_of_an_appeal_are_these() {
        let appeal = AuditAppeal {
            genesis: Digest::from_bytes([1; 32]),
            netuid: 12,
            bundle: Digest::from_bytes([2; 32]),
            miner: MinerKey(Hotkey::from_bytes([3; 32])),
            at: Timestamp::from_micros(0x0102_0304_0506_0708),
            reason: Text::new("a new driver").unwrap(),
        };
        let golden = [
            b"muster/audit-appeal/1".as_slice(),
            &[1; 32],
            &[0, 12],
            &[2; 32],
            &[3; 32],
            &[1, 2, 3, 4, 5, 6, 7, 8],
            &[0, 12],
            b"a new driver",
        ]
        .concat();
        assert_eq!(appeal.signed_bytes(), golden);
        assert_eq!(AuditAppeal::read(&golden), Ok(appeal));
        assert!(AuditAppeal::read(&golden[..golden.len() - 1]).is_err());
        assert!(AuditAppeal::read(&[golden.as_slice(), b"!"].concat()).is_err());
    }
}
