//! `associate_evm_key` with signatures of an official wallet.

use crate::support::{Error, NET, bob, by, chain, charlie, dave};
use frame_support::{assert_noop, assert_ok};
use muster_devchain_runtime::subtensor::AssociatedEvmAddress;
use muster_devchain_runtime::{AccountId, Runtime, SubtensorModule};
use sp_core::{H160, ecdsa::Signature};
use sp_runtime::DispatchResult;

/// The address of the key 0x4646…46.
const ADDRESS: &str = "9d8a62f656a8d1615c1294fd71e9cfb3e4855a4f";

/// That key's signature for Bob and block 6, made with eth-account 0.14.0 as ComputeHorde's `associate_evm_key.py`
/// makes it.
const SIGNATURE: &str = "fda8748f265d819235aa1a2a24ab0ba17319cee4f1f2c8084d5f48b516addc8103\
     50f2eceb2723563538507a6ac59331e4e67c7b0dd8d996d5d82fc115380ebb1b";

fn bytes<const N: usize>(text: &str) -> [u8; N] {
    let byte = |at: usize| u8::from_str_radix(&text[2 * at..2 * at + 2], 16).unwrap();
    std::array::from_fn(byte)
}

fn associate(who: AccountId, address: H160, block: u64, signature: [u8; 65]) -> DispatchResult {
    SubtensorModule::associate_evm_key(by(who), NET, address, block, Signature::from(signature))
}

#[test]
fn a_wallets_signature_associates_its_address() {
    chain(|_| ()).execute_with(|| {
        let (address, mut signature) = (H160(bytes(ADDRESS)), bytes(SIGNATURE));
        assert_ok!(associate(bob(), address, 6, signature));
        let uid = muster_devchain_runtime::subtensor::Uids::<Runtime>::get(NET, bob()).unwrap();
        let stored = AssociatedEvmAddress::<Runtime>::get(NET, uid);
        assert_eq!(stored.map(|(address, _)| address), Some(address));
        // The parity without the wallets' 27 is taken, too.
        signature[64] -= 27;
        assert_ok!(associate(bob(), address, 6, signature));
    });
}

#[test]
fn nobody_associates_an_address_that_did_not_sign() {
    chain(|_| ()).execute_with(|| {
        let (address, signature) = (H160(bytes(ADDRESS)), bytes(SIGNATURE));
        let wrong = Error::InvalidRecoveredPublicKey;
        assert_noop!(associate(bob(), H160([1; 20]), 6, signature), wrong);
        assert_noop!(
            associate(bob(), address, 7, signature),
            Error::InvalidRecoveredPublicKey
        );
        assert_noop!(
            associate(charlie(), address, 6, signature),
            Error::InvalidRecoveredPublicKey
        );
        assert_noop!(
            associate(dave(), address, 6, signature),
            Error::HotKeyNotRegisteredInSubNet
        );
        assert_noop!(
            associate(bob(), address, 6, [9; 65]),
            Error::UnableToRecoverPublicKey
        );
    });
}
