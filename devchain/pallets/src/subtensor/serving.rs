//! Announcing where a neuron is reached. The pool makes the same checks, so that a bad announcement is refused before
//! it is in a block.

use super::{
    Axons, Config, Error, Event, LoopbackAllowed, NetworksAdded, NeuronCertificates, Pallet, Prometheus,
    ServingRateLimit, Uids,
};
use crate::AccountId;
use crate::types::{AxonInfo, NetUid, NeuronCertificate, PrometheusInfo};
use core::net::{Ipv4Addr, Ipv6Addr};
use frame_support::{dispatch::DispatchResult, ensure};

impl<T: Config> Pallet<T> {
    pub(super) fn do_serve_axon(
        who: AccountId,
        netuid: NetUid,
        axon: AxonInfo,
        certificate: Option<&[u8]>,
    ) -> DispatchResult {
        ensure!(NetworksAdded::<T>::get(netuid), Error::<T>::SubnetNotExists);
        Self::check_axon(&who, netuid, &axon)?;
        if let Some(certificate) = certificate.and_then(NeuronCertificate::parse) {
            NeuronCertificates::<T>::insert(netuid, &who, certificate);
        }
        Axons::<T>::insert(
            netuid,
            &who,
            AxonInfo {
                block: Self::now(),
                ..axon
            },
        );
        Self::deposit_event(Event::AxonServed(netuid, who));
        Ok(())
    }

    /// Whether a hotkey may announce this axon now.
    pub(super) fn check_axon(who: &AccountId, netuid: NetUid, axon: &AxonInfo) -> Result<(), Error<T>> {
        ensure!(
            Uids::<T>::contains_key(netuid, who),
            Error::<T>::HotKeyNotRegisteredInNetwork
        );
        // An axon without an address is allowed: its neuron can be distinguished from one that never served.
        Self::check_address(axon.ip_type, axon.ip, true)?;
        let last = Axons::<T>::get(netuid, who).map_or(0, |axon| axon.block);
        ensure!(
            Self::may_serve_again(netuid, last),
            Error::<T>::ServingRateLimitExceeded
        );
        ensure!(axon.port != 0, Error::<T>::InvalidPort);
        Ok(())
    }

    pub(super) fn do_serve_prometheus(
        who: AccountId,
        netuid: NetUid,
        info: PrometheusInfo,
    ) -> DispatchResult {
        ensure!(NetworksAdded::<T>::get(netuid), Error::<T>::SubnetNotExists);
        Self::check_address(info.ip_type, info.ip, false)?;
        ensure!(
            Uids::<T>::contains_key(netuid, &who),
            Error::<T>::HotKeyNotRegisteredInNetwork
        );
        let last = Prometheus::<T>::get(netuid, &who).map_or(0, |info| info.block);
        ensure!(
            Self::may_serve_again(netuid, last),
            Error::<T>::ServingRateLimitExceeded
        );
        ensure!(info.port != 0, Error::<T>::InvalidPort);
        Prometheus::<T>::insert(
            netuid,
            &who,
            PrometheusInfo {
                block: Self::now(),
                ..info
            },
        );
        Self::deposit_event(Event::PrometheusServed(netuid, who));
        Ok(())
    }

    fn check_address(ip_type: u8, ip: u128, allow_zero: bool) -> Result<(), Error<T>> {
        ensure!(ip_type == 4 || ip_type == 6, Error::<T>::InvalidIpType);
        let loopback = if ip_type == 4 {
            ip == u128::from(u32::from(Ipv4Addr::LOCALHOST))
        } else {
            ip == u128::from(Ipv6Addr::LOCALHOST)
        };
        let last = if ip_type == 4 {
            u128::from(u32::MAX)
        } else {
            u128::MAX
        };
        let valid = ip < last && (allow_zero || ip != 0) && (!loopback || LoopbackAllowed::<T>::get());
        ensure!(valid, Error::<T>::InvalidIpAddress);
        Ok(())
    }

    /// Whether enough blocks have passed since the serve call of block `last`; 0 means that there was none.
    fn may_serve_again(netuid: NetUid, last: u64) -> bool {
        let limit = ServingRateLimit::<T>::get(netuid);
        limit == 0 || last == 0 || Self::now().saturating_sub(last) >= limit
    }
}
