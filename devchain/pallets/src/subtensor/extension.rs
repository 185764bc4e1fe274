//! Refusals of the pool before a block: the public chain checks stake, axons and reveals in a transaction extension,
//! and clients meet these refusals as RPC error 1010 with a number.

use super::commit_reveal::RevealWindow;
use super::{Call, CommitRevealWeightsEnabled, Config, Error, Pallet, Uids, WeightCommits};
use crate::AccountId;
use crate::beacon::Beacon;
use crate::types::{AxonInfo, MechId, NetUid};
use codec::{Compact, Decode, DecodeWithMemTracking, Encode};
use core::fmt;
use core::marker::PhantomData;
use frame_support::traits::IsSubType;
use scale_info::TypeInfo;
use sp_runtime::impl_tx_ext_default;
use sp_runtime::traits::{
    AsSystemOriginSigner, DispatchInfoOf, Dispatchable, Implication, TransactionExtension, ValidateResult,
};
use sp_runtime::transaction_validity::{
    InvalidTransaction, TransactionSource, TransactionValidityError, ValidTransaction,
};

/// Why the pool refuses a transaction, with the public chain's numbers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub enum PoolRejection {
    /// The hotkey's stake is below the threshold for weights.
    StakeAmountTooLow = 1,
    /// Weights were set or committed too recently.
    RateLimitExceeded = 6,
    /// The hotkey is not registered on the subnet on which it serves.
    HotKeyNotRegisteredInNetwork = 10,
    /// The address cannot be served.
    InvalidIpAddress = 11,
    /// The last serve call is too recent.
    ServingRateLimitExceeded = 12,
    /// The port is 0.
    InvalidPort = 13,
    /// The round that opens a timelocked commit is over.
    InvalidRevealRound = 15,
    /// There is no such commit.
    CommitNotFound = 16,
    /// The commit cannot be revealed in this epoch.
    CommitBlockNotInRevealRange = 17,
    /// The lists of a batch differ in length.
    InputLengthsUnequal = 18,
    /// Any other refusal.
    BadRequest = 255,
}

impl From<PoolRejection> for TransactionValidityError {
    fn from(rejection: PoolRejection) -> Self {
        InvalidTransaction::Custom(rejection as u8).into()
    }
}

/// The extension. It adds nothing to a transaction's bytes.
#[derive(Encode, Decode, DecodeWithMemTracking, TypeInfo, Clone, PartialEq, Eq)]
#[scale_info(skip_type_params(T))]
pub struct SubtensorTransactionExtension<T>(PhantomData<T>);

impl<T> Default for SubtensorTransactionExtension<T> {
    fn default() -> Self {
        Self(PhantomData)
    }
}

impl<T> fmt::Debug for SubtensorTransactionExtension<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SubtensorTransactionExtension")
    }
}

impl<T> TransactionExtension<T::RuntimeCall> for SubtensorTransactionExtension<T>
where
    T: Config + Send + Sync,
    T::RuntimeCall: Dispatchable<RuntimeOrigin = T::RuntimeOrigin> + IsSubType<Call<T>>,
    T::RuntimeOrigin: AsSystemOriginSigner<AccountId> + Clone,
{
    const IDENTIFIER: &'static str = "SubtensorTransactionExtension";
    type Implicit = ();
    type Val = ();
    type Pre = ();

    fn validate(
        &self,
        origin: T::RuntimeOrigin,
        call: &T::RuntimeCall,
        _info: &DispatchInfoOf<T::RuntimeCall>,
        _len: usize,
        _implicit: (),
        _implication: &impl Implication,
        _source: TransactionSource,
    ) -> ValidateResult<(), T::RuntimeCall> {
        if let (Some(who), Some(call)) = (origin.as_system_origin_signer(), call.is_sub_type()) {
            check::<T>(who, call)?;
        }
        Ok((ValidTransaction::default(), (), origin))
    }

    impl_tx_ext_default!(T::RuntimeCall; weight prepare);
}

/// In the public chain's order: the shape of a batch, stake, what can be revealed, the rate limit, axons.
fn check<T: Config>(who: &AccountId, call: &Call<T>) -> Result<(), PoolRejection> {
    match call {
        Call::set_weights { netuid, .. } => {
            check_stake::<T>(who, *netuid)?;
            check_set_rate::<T>(who, *netuid, MechId(0))
        }
        Call::set_mechanism_weights { netuid, mecid, .. } => {
            check_stake::<T>(who, *netuid)?;
            check_set_rate::<T>(who, *netuid, *mecid)
        }
        Call::batch_set_weights {
            netuids,
            weights,
            version_keys,
        } => {
            check_lengths(netuids.len(), &[weights.len(), version_keys.len()])?;
            check_stakes::<T>(who, netuids)
        }
        Call::commit_weights { netuid, .. } => {
            check_stake::<T>(who, *netuid)?;
            check_rate::<T>(who, *netuid, MechId(0))
        }
        Call::commit_mechanism_weights { netuid, mecid, .. } => {
            check_stake::<T>(who, *netuid)?;
            check_rate::<T>(who, *netuid, *mecid)
        }
        Call::batch_commit_weights {
            netuids,
            commit_hashes,
        } => {
            check_lengths(netuids.len(), &[commit_hashes.len()])?;
            check_stakes::<T>(who, netuids)
        }
        Call::commit_timelocked_weights {
            netuid, reveal_round, ..
        } => check_timelocked::<T>(who, *netuid, MechId(0), *reveal_round),
        Call::commit_timelocked_mechanism_weights {
            netuid,
            mecid,
            reveal_round,
            ..
        } => check_timelocked::<T>(who, *netuid, *mecid, *reveal_round),
        Call::reveal_weights {
            netuid,
            uids,
            values,
            salt,
            version_key,
        } => check_reveal::<T>(who, *netuid, MechId(0), uids, values, salt, *version_key),
        Call::reveal_mechanism_weights {
            netuid,
            mecid,
            uids,
            values,
            salt,
            version_key,
        } => check_reveal::<T>(who, *netuid, *mecid, uids, values, salt, *version_key),
        Call::batch_reveal_weights {
            netuid,
            uids_list,
            values_list,
            salts_list,
            version_keys,
        } => check_reveals::<T>(who, *netuid, (uids_list, values_list), (salts_list, version_keys)),
        Call::serve_axon { .. } | Call::serve_axon_tls { .. } => axon_of(call)
            .map_or(Ok(()), |(netuid, axon)| {
                Pallet::<T>::check_axon(who, netuid, &axon).map_err(rejection)
            }),
        Call::serve_prometheus { .. }
        | Call::burned_register { .. }
        | Call::register { .. }
        | Call::register_limit { .. }
        | Call::associate_evm_key { .. }
        | Call::add_stake { .. }
        | Call::remove_stake { .. } => Ok(()),
        // The macro adds a variant that cannot exist.
        Call::__Ignore(..) => Err(PoolRejection::BadRequest),
    }
}

/// The subnet and the axon of a call that announces one.
fn axon_of<T: Config>(call: &Call<T>) -> Option<(NetUid, AxonInfo)> {
    let (Call::serve_axon {
        netuid,
        version,
        ip,
        port,
        ip_type,
        protocol,
        placeholder1,
        placeholder2,
    }
    | Call::serve_axon_tls {
        netuid,
        version,
        ip,
        port,
        ip_type,
        protocol,
        placeholder1,
        placeholder2,
        ..
    }) = call
    else {
        return None;
    };
    let axon = AxonInfo {
        block: 0,
        version: *version,
        ip: *ip,
        port: *port,
        ip_type: *ip_type,
        protocol: *protocol,
        placeholder1: *placeholder1,
        placeholder2: *placeholder2,
    };
    Some((*netuid, axon))
}

/// Checks every reveal of a batch: uids with values, salts with version keys.
fn check_reveals<T: Config>(
    who: &AccountId,
    netuid: NetUid,
    (uids, values): (&[Vec<u16>], &[Vec<u16>]),
    (salts, keys): (&[Vec<u16>], &[u64]),
) -> Result<(), PoolRejection> {
    check_lengths(uids.len(), &[values.len(), salts.len(), keys.len()])?;
    let reveals = uids.iter().zip(values);
    let mut reveals = reveals.zip(salts.iter().zip(keys));
    reveals.try_for_each(|((uids, values), (salt, key))| {
        check_reveal::<T>(who, netuid, MechId(0), uids, values, salt, *key)
    })
}

fn check_stakes<T: Config>(who: &AccountId, netuids: &[Compact<NetUid>]) -> Result<(), PoolRejection> {
    netuids
        .iter()
        .try_for_each(|netuid| check_stake::<T>(who, netuid.0))
}

fn check_lengths(length: usize, others: &[usize]) -> Result<(), PoolRejection> {
    if others.iter().all(|other| *other == length) {
        Ok(())
    } else {
        Err(PoolRejection::InputLengthsUnequal)
    }
}

/// Direct weights are limited where they are allowed; elsewhere the call itself reports why they are not.
fn check_set_rate<T: Config>(who: &AccountId, netuid: NetUid, mecid: MechId) -> Result<(), PoolRejection> {
    if CommitRevealWeightsEnabled::<T>::get(netuid) {
        Ok(())
    } else {
        check_rate::<T>(who, netuid, mecid)
    }
}

fn check_rate<T: Config>(who: &AccountId, netuid: NetUid, mecid: MechId) -> Result<(), PoolRejection> {
    match Uids::<T>::get(netuid, who) {
        Some(uid) if !Pallet::<T>::weights_are_due(netuid, netuid.index(mecid), uid) => {
            Err(PoolRejection::RateLimitExceeded)
        }
        Some(_) | None => Ok(()),
    }
}

fn check_timelocked<T: Config>(
    who: &AccountId,
    netuid: NetUid,
    mecid: MechId,
    round: u64,
) -> Result<(), PoolRejection> {
    check_stake::<T>(who, netuid)?;
    if round < T::Beacon::last_round() {
        return Err(PoolRejection::InvalidRevealRound);
    }
    check_rate::<T>(who, netuid, mecid)
}

fn check_stake<T: Config>(who: &AccountId, netuid: NetUid) -> Result<(), PoolRejection> {
    if Pallet::<T>::has_stake_for_weights(who, netuid) {
        Ok(())
    } else {
        Err(PoolRejection::StakeAmountTooLow)
    }
}

fn check_reveal<T: Config>(
    who: &AccountId,
    netuid: NetUid,
    mecid: MechId,
    uids: &[u16],
    values: &[u16],
    salt: &[u16],
    version_key: u64,
) -> Result<(), PoolRejection> {
    check_stake::<T>(who, netuid)?;
    let index = netuid.index(mecid);
    let hash = Pallet::<T>::commit_hash(who, index, uids, values, salt, version_key);
    let commits = WeightCommits::<T>::get(index, who).unwrap_or_default();
    let (_, epoch, ..) = commits
        .iter()
        .find(|commit| commit.0 == hash)
        .ok_or(PoolRejection::CommitNotFound)?;
    match Pallet::<T>::reveal_window(netuid, *epoch) {
        RevealWindow::Open => Ok(()),
        RevealWindow::TooEarly | RevealWindow::Expired => Err(PoolRejection::CommitBlockNotInRevealRange),
    }
}

#[expect(
    clippy::wildcard_enum_match_arm,
    reason = "only the errors of serving reach the pool; the rest is one number"
)]
fn rejection<T>(error: Error<T>) -> PoolRejection {
    match error {
        Error::HotKeyNotRegisteredInNetwork => PoolRejection::HotKeyNotRegisteredInNetwork,
        Error::InvalidIpAddress => PoolRejection::InvalidIpAddress,
        Error::ServingRateLimitExceeded => PoolRejection::ServingRateLimitExceeded,
        Error::InvalidPort => PoolRejection::InvalidPort,
        _ => PoolRejection::BadRequest,
    }
}
