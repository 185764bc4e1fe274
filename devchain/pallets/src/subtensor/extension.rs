//! What the pool refuses before a block: the public chain checks stake, axons and reveals in a transaction extension, and
//! clients meet these refusals as RPC error 1010 with a number.

use super::commit_reveal::RevealWindow;
use super::{Call, Config, Error, Pallet, WeightCommits};
use crate::AccountId;
use crate::types::{AxonInfo, MechId, NetUid};
use codec::{Decode, DecodeWithMemTracking, Encode};
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
    /// The hotkey is not registered on the subnet on which it serves.
    HotKeyNotRegisteredInNetwork = 10,
    /// The address cannot be served.
    InvalidIpAddress = 11,
    /// The last serve call is too recent.
    ServingRateLimitExceeded = 12,
    /// The port is 0.
    InvalidPort = 13,
    /// There is no such commit.
    CommitNotFound = 16,
    /// The commit cannot be revealed in this epoch.
    CommitBlockNotInRevealRange = 17,
    /// Anything else.
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

fn check<T: Config>(who: &AccountId, call: &Call<T>) -> Result<(), PoolRejection> {
    match call {
        Call::set_weights { netuid, .. }
        | Call::set_mechanism_weights { netuid, .. }
        | Call::commit_weights { netuid, .. }
        | Call::commit_mechanism_weights { netuid, .. }
        | Call::commit_timelocked_weights { netuid, .. }
        | Call::commit_timelocked_mechanism_weights { netuid, .. } => check_stake::<T>(who, *netuid),
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
        Call::serve_axon {
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
        } => {
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
            Pallet::<T>::check_axon(who, *netuid, &axon).map_err(rejection)
        }
        Call::serve_prometheus { .. } | Call::burned_register { .. } => Ok(()),
        // The macro adds a variant that cannot exist.
        Call::__Ignore(..) => Err(PoolRejection::BadRequest),
    }
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
