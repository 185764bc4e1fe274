//! Associating a key of the EVM with a hotkey: the key signs for the hotkey, and the chain recovers its address from
//! the signature. There is no EVM here, only this part of its interface.

use super::{AssociatedEvmAddress, Config, Error, Event, Pallet, Uids};
use crate::AccountId;
use crate::types::NetUid;
use codec::Encode;
use frame_support::{dispatch::DispatchResult, ensure};
use sp_core::{H160, ecdsa::Signature};
use sp_io::{crypto::secp256k1_ecdsa_recover, hashing::keccak_256};

impl<T: Config> Pallet<T> {
    /// The public chain allows this once in some thousand blocks, which would lock a young local chain out.
    pub(super) fn do_associate_evm_key(
        hotkey: AccountId,
        netuid: NetUid,
        evm_key: H160,
        block_number: u64,
        signature: Signature,
    ) -> DispatchResult {
        let uid = Uids::<T>::get(netuid, &hotkey).ok_or(Error::<T>::HotKeyNotRegisteredInSubNet)?;
        let mut signature = signature.0;
        // Wallets count the parity from 27.
        if let Some(parity) = signature.last_mut()
            && *parity >= 27
        {
            *parity = parity.saturating_sub(27);
        }
        let hash = Self::evm_message_hash(&hotkey, block_number);
        let public =
            secp256k1_ecdsa_recover(&signature, &hash).map_err(|_| Error::<T>::UnableToRecoverPublicKey)?;
        let [_, _, _, _, _, _, _, _, _, _, _, _, address @ ..] = keccak_256(&public);
        ensure!(H160(address) == evm_key, Error::<T>::InvalidRecoveredPublicKey);
        let now = Self::now();
        AssociatedEvmAddress::<T>::insert(netuid, uid, (evm_key, now));
        Self::deposit_event(Event::EvmKeyAssociated {
            netuid,
            hotkey,
            evm_key,
            block_associated: now,
        });
        Ok(())
    }

    /// The hash that the key signs: the hotkey and the hash of a block's number, in a wallet's personal message
    /// (EIP-191).
    #[must_use]
    pub fn evm_message_hash(hotkey: &AccountId, block_number: u64) -> [u8; 32] {
        let mut message = hotkey.encode();
        message.extend(keccak_256(&block_number.encode()));
        let mut personal = format!("\u{19}Ethereum Signed Message:\n{}", message.len()).into_bytes();
        personal.extend(message);
        keccak_256(&personal)
    }
}
