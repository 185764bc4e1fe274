//! Signed transactions: what the pool refuses, what costs a fee, who may sign without a balance.

use crate::support::{BALANCE, NET, alice, bob, chain, chain_with, charlie, run_to};
use codec::Encode;
use muster_devchain_runtime::subtensor::{PoolRejection, SubtensorTransactionExtension};
use muster_devchain_runtime::types::MechId;
use muster_devchain_runtime::{
    Balances, CheckNonce, Executive, Nonce, Runtime, RuntimeCall, SPEC_VERSION, SubtensorModule, System,
    TxExtension, UncheckedExtrinsic, VERSION, subtensor,
};
use sp_core::H256;
use sp_keyring::Sr25519Keyring;
use sp_runtime::generic::Era;
use sp_runtime::traits::TransactionExtension;
use sp_runtime::transaction_validity::{
    InvalidTransaction, TransactionSource, TransactionValidity, TransactionValidityError,
};
use sp_runtime::{MultiAddress, MultiSignature};

type Call = subtensor::Call<Runtime>;

fn signed(key: Sr25519Keyring, nonce: Nonce, call: impl Into<RuntimeCall>) -> UncheckedExtrinsic {
    let call = call.into();
    let extension: TxExtension = (
        frame_system::CheckNonZeroSender::new(),
        frame_system::CheckSpecVersion::new(),
        frame_system::CheckTxVersion::new(),
        frame_system::CheckGenesis::new(),
        frame_system::CheckMortality::from(Era::Immortal),
        CheckNonce(nonce),
        frame_system::CheckWeight::new(),
        pallet_transaction_payment::ChargeTransactionPayment::from(0),
        SubtensorTransactionExtension::default(),
    );
    let payload = (&call, &extension, extension.implicit().unwrap()).encode();
    let payload = if payload.len() > 256 {
        sp_io::hashing::blake2_256(&payload).to_vec()
    } else {
        payload
    };
    let signature = MultiSignature::Sr25519(key.sign(&payload));
    UncheckedExtrinsic::new_signed(call, MultiAddress::Id(key.to_account_id()), signature, extension)
}

fn validate(transaction: UncheckedExtrinsic) -> TransactionValidity {
    Executive::validate_transaction(TransactionSource::External, transaction, H256::zero())
}

#[track_caller]
fn refused(transaction: UncheckedExtrinsic, rejection: PoolRejection) {
    let error = TransactionValidityError::Invalid(InvalidTransaction::Custom(rejection as u8));
    assert_eq!(validate(transaction), Err(error));
}

fn weights() -> Call {
    Call::set_weights {
        netuid: NET,
        dests: vec![1],
        weights: vec![1],
        version_key: 0,
    }
}

fn axon(port: u16, ip: u128, ip_type: u8) -> Call {
    let (version, protocol, placeholder1, placeholder2) = (1, 0, 0, 0);
    Call::serve_axon {
        netuid: NET,
        version,
        ip,
        port,
        ip_type,
        protocol,
        placeholder1,
        placeholder2,
    }
}

#[test]
fn the_spec_version_is_one_place() {
    assert_eq!(VERSION.spec_version, SPEC_VERSION);
}

#[test]
fn stake_is_checked_before_a_block() {
    chain_with(|config| config.subtensor_module.stake_threshold = 1).execute_with(|| {
        assert!(validate(signed(Sr25519Keyring::Alice, 0, weights())).is_ok());
        refused(
            signed(Sr25519Keyring::Bob, 0, weights()),
            PoolRejection::StakeAmountTooLow,
        );
        let commit = Call::commit_weights {
            netuid: NET,
            commit_hash: H256::zero(),
        };
        refused(
            signed(Sr25519Keyring::Bob, 0, commit),
            PoolRejection::StakeAmountTooLow,
        );
    });
}

#[test]
fn axons_are_checked_before_a_block() {
    chain(|s| s.serving_rate_limit = 5).execute_with(|| {
        let bob = Sr25519Keyring::Bob;
        assert!(validate(signed(bob, 0, axon(1, 9, 4))).is_ok());
        refused(
            signed(Sr25519Keyring::Dave, 0, axon(1, 9, 4)),
            PoolRejection::HotKeyNotRegisteredInNetwork,
        );
        refused(
            signed(bob, 0, axon(1, u128::MAX, 6)),
            PoolRejection::InvalidIpAddress,
        );
        refused(signed(bob, 0, axon(0, 9, 4)), PoolRejection::InvalidPort);
        refused(signed(bob, 0, axon(1, 9, 7)), PoolRejection::BadRequest);
        SubtensorModule::serve_axon(
            crate::support::by(crate::support::bob()),
            NET,
            1,
            9,
            1,
            4,
            0,
            0,
            0,
        )
        .unwrap();
        refused(
            signed(bob, 0, axon(1, 9, 4)),
            PoolRejection::ServingRateLimitExceeded,
        );
    });
}

#[test]
fn reveals_are_checked_before_a_block() {
    chain(|s| s.commit_reveal = true).execute_with(|| {
        let reveal = || {
            let (uids, values, salt) = (vec![1], vec![1], vec![1]);
            signed(
                Sr25519Keyring::Alice,
                0,
                Call::reveal_weights {
                    netuid: NET,
                    uids,
                    values,
                    salt,
                    version_key: 0,
                },
            )
        };
        refused(reveal(), PoolRejection::CommitNotFound);
        let hash = SubtensorModule::commit_hash(&alice(), NET.index(MechId(0)), &[1], &[1], &[1], 0);
        SubtensorModule::commit_weights(crate::support::by(alice()), NET, hash).unwrap();
        refused(reveal(), PoolRejection::CommitBlockNotInRevealRange);
        run_to(10);
        assert!(validate(reveal()).is_ok());
        run_to(20);
        refused(reveal(), PoolRejection::CommitBlockNotInRevealRange);
    });
}

#[test]
fn weight_calls_are_free_and_need_no_account() {
    chain_with(|config| config.balances.balances.clear()).execute_with(|| {
        assert!(validate(signed(Sr25519Keyring::Alice, 0, weights())).is_ok());
        assert_eq!(
            Executive::apply_extrinsic(signed(Sr25519Keyring::Alice, 0, weights())),
            Ok(Ok(()))
        );
        assert_eq!(System::account_nonce(alice()), 1);
        let stale = validate(signed(Sr25519Keyring::Alice, 0, weights()));
        assert_eq!(stale, Err(InvalidTransaction::Stale.into()));
        let early = Executive::apply_extrinsic(signed(Sr25519Keyring::Alice, 5, weights()));
        assert_eq!(early, Err(InvalidTransaction::Future.into()));
        let register = Call::burned_register {
            netuid: NET,
            hotkey: charlie(),
        };
        let unpaid = validate(signed(Sr25519Keyring::Alice, 1, register));
        assert_eq!(unpaid, Err(InvalidTransaction::Payment.into()));
    });
    chain(|_| ()).execute_with(|| {
        Executive::apply_extrinsic(signed(Sr25519Keyring::Alice, 0, weights()))
            .unwrap()
            .unwrap();
        assert_eq!(Balances::free_balance(alice()), BALANCE);
    });
}

#[test]
fn other_calls_cost_a_fee() {
    chain(|_| ()).execute_with(|| {
        let value = 1_000;
        let call = pallet_balances::Call::<Runtime>::transfer_keep_alive {
            dest: MultiAddress::Id(bob()),
            value,
        };
        Executive::apply_extrinsic(signed(Sr25519Keyring::Alice, 0, call))
            .unwrap()
            .unwrap();
        assert_eq!(Balances::free_balance(bob()), BALANCE + value);
        let fee = BALANCE - value - Balances::free_balance(alice());
        assert!((1..1_000_000).contains(&fee), "{fee}");
    });
}

#[test]
fn a_damaged_signature_is_refused() {
    chain(|_| ()).execute_with(|| {
        let forged = signed(Sr25519Keyring::Bob, 0, weights());
        let sp_runtime::generic::Preamble::Signed(_, signature, extension) = forged.preamble else {
            unreachable!()
        };
        let forged =
            UncheckedExtrinsic::new_signed(weights().into(), MultiAddress::Id(alice()), signature, extension);
        assert_eq!(validate(forged), Err(InvalidTransaction::BadProof.into()));
    });
}
