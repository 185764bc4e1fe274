//! The certificates that miners announce for TLS on their ports. The chain keeps an algorithm's number and up to 64
//! bytes for each hotkey; ours are the SHA-256 of a certificate.

use std::collections::BTreeMap;

use muster_protocol::{Digest, Hotkey, Netuid};
use subxt::dynamic::Value;

use crate::chain_reader::ChainClient;
use crate::endpoint_pool::ChainHead;
use crate::error::ChainError;
use crate::scale_value::{bytes, field, number};
use crate::subnet_maps::SubnetMap;

/// The algorithm's number of a SHA-256 of a certificate: the letter M. The chain gives numbers no meaning, and keys of
/// other kinds that a hotkey may announce must not be taken for ours.
const SHA256_OF_CERTIFICATE: u8 = b'M';

/// A certificate as it is announced; `None` announces that there is none any more.
pub(crate) fn announced(certificate: Option<Digest>) -> Vec<u8> {
    match certificate {
        Some(digest) => [&[SHA256_OF_CERTIFICATE], digest.as_bytes().as_slice()].concat(),
        // The chain cannot forget a certificate, and keeps one without bytes.
        None => vec![0],
    }
}

/// The certificate that an announcement names; `None` if it is of another kind.
pub(crate) fn certificate_in(announcement: &[u8]) -> Option<Digest> {
    match announcement.split_first()? {
        (&SHA256_OF_CERTIFICATE, digest) => Some(Digest::from_bytes(digest.try_into().ok()?)),
        _ => None,
    }
}

/// The certificate in the chain's structure for a neuron's certificate.
fn certificate_of(value: &Value) -> Option<Digest> {
    let algorithm: u8 = field(value, "algorithm").and_then(number)?;
    let key = field(value, "public_key").and_then(bytes)?;
    certificate_in(&[&[algorithm], key.as_slice()].concat())
}

impl ChainClient {
    /// The certificates that the subnet's hotkeys announce. A chain that knows none has none.
    pub(crate) async fn certificates_at(
        &self,
        head: &ChainHead,
        netuid: Netuid,
    ) -> Result<BTreeMap<Hotkey, Digest>, ChainError> {
        let map = SubnetMap {
            doing: "read the miners' certificates",
            pallet: "SubtensorModule",
            entry: "NeuronCertificates",
        };
        map.read_at(&self.endpoint, head, netuid, certificate_of).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_certificate_comes_back_and_other_kinds_do_not() {
        let digest = Digest::of(b"a certificate");
        assert_eq!(certificate_in(&announced(Some(digest))), Some(digest));
        assert_eq!(announced(Some(digest)).len(), 33);
        assert_eq!(
            announced(Some(digest))[0],
            0x4d,
            "told to every peer of the chain"
        );
        assert_eq!(certificate_in(&announced(None)), None);
        for other in [&[][..], &[1; 33], b"M", b"Mshort", &[b'M'; 65]] {
            assert_eq!(certificate_in(other), None, "{other:?}");
        }
    }
}
