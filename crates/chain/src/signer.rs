//! Our keys in the form in which subxt signs with them.

use muster_identity::Keypair;
use subxt::config::SubstrateConfig;
use subxt::config::substrate::{AccountId32, MultiSignature};
use subxt::transactions::Signer;

/// Signs extrinsics with one of our keys.
pub(crate) struct KeySigner<'a>(pub(crate) &'a Keypair);

impl Signer<SubstrateConfig> for KeySigner<'_> {
    fn account_id(&self) -> AccountId32 {
        AccountId32(*self.0.hotkey().as_bytes())
    }

    fn sign(&self, payload: &[u8]) -> MultiSignature {
        MultiSignature::Sr25519(*self.0.sign(payload).as_bytes())
    }
}
