//! The token that an operator carries from a miner to an executor, or to several.

use std::fmt;
use std::str::FromStr;

use muster_protocol::Digest;
use muster_protocol::wire::executor::OneTimeSecret;

/// The first part of the text form: its kind and version.
const TAG: &str = "muster-enrol-1";
/// Bytes of an address, at most.
const MAX_ADDRESS: usize = 300;

/// The address, the certificate and the secret by which executors enroll.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invitation {
    /// `host:port` of the miner's port for persistent executors.
    pub address: String,
    /// The digest of the miner's certificate.
    pub miner: Digest,
    /// Admits one executor once, or as many as the invitation's terms say.
    pub secret: OneTimeSecret,
}

/// A text that is not an invitation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the text is not a token for enrolling: copy all of what `muster miner --enroll` printed")]
pub struct InvitationError;

impl fmt::Display for Invitation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{TAG}/{}/{}/{}", self.address, self.miner.hex(), self.secret)
    }
}

impl FromStr for Invitation {
    type Err = InvitationError;

    fn from_str(text: &str) -> Result<Self, InvitationError> {
        let parts: Vec<_> = text.trim().split('/').collect();
        let [TAG, address, miner, secret] = parts.as_slice() else {
            return Err(InvitationError);
        };
        let named = address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
        let plain = address.len() <= MAX_ADDRESS
            && address
                .bytes()
                .all(|byte| byte.is_ascii_alphanumeric() || b"-.:[]_".contains(&byte));
        if !named || !plain {
            return Err(InvitationError);
        }
        Ok(Self {
            address: (*address).to_owned(),
            miner: format!("sha256:{miner}").parse().map_err(|_| InvitationError)?,
            secret: secret.parse().map_err(|_| InvitationError)?,
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn invitation(address: &str) -> Invitation {
        Invitation {
            address: address.to_owned(),
            miner: Digest::of(b"certificate"),
            secret: OneTimeSecret::from_bytes([9; 32]),
        }
    }

    #[test]
    fn it_survives_being_copied() {
        for address in ["203.0.113.7:8093", "[::1]:1", "miner.example.org:443"] {
            let invitation = invitation(address);
            let text = format!("  {invitation}\n");
            assert_eq!(text.parse(), Ok(invitation), "{text}");
        }
    }

    #[test]
    fn half_of_it_is_refused() {
        let whole = invitation("h:1").to_string();
        for length in 0..whole.len() {
            assert!(whole[..length].parse::<Invitation>().is_err(), "{length}");
        }
        for address in ["", "h", ":1", "h:0", "h:x", "h h:1", "h:99999"] {
            assert!(
                invitation(address).to_string().parse::<Invitation>().is_err(),
                "{address}"
            );
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read_or_refused(text in ".*") {
            if let Ok(read) = text.parse::<Invitation>() {
                prop_assert_eq!(read.to_string().parse(), Ok(read));
            }
        }
    }
}
