//! `serve_axon`, `serve_axon_tls`, `serve_prometheus`.

use crate::support::{Error, NET, NOWHERE, bob, by, chain, chain_with, dave, run_to};
use frame_support::{assert_noop, assert_ok};
use muster_devchain_runtime::subtensor::{Axons, NeuronCertificates, Prometheus};
use muster_devchain_runtime::types::{AxonInfo, NetUid};
use muster_devchain_runtime::{AccountId, Runtime, SubtensorModule};
use sp_runtime::DispatchResult;

const IP: u128 = 0x0a01_0203;
const LOCALHOST: u128 = 0x7f00_0001;

fn serve(who: AccountId, netuid: NetUid, ip: u128, port: u16, ip_type: u8) -> DispatchResult {
    SubtensorModule::serve_axon(by(who), netuid, 1, ip, port, ip_type, 0, 3, 4)
}

#[test]
fn an_axon_is_stored_with_its_block() {
    chain(|_| ()).execute_with(|| {
        run_to(6);
        assert_ok!(serve(bob(), NET, IP, 8091, 4));
        let axon = AxonInfo {
            block: 6,
            version: 1,
            ip: IP,
            port: 8091,
            ip_type: 4,
            protocol: 0,
            placeholder1: 3,
            placeholder2: 4,
        };
        assert_eq!(Axons::<Runtime>::get(NET, bob()), Some(axon));
    });
}

#[test]
fn a_tls_key_is_stored_where_it_is_one() {
    chain(|_| ()).execute_with(|| {
        let serve = |certificate| {
            SubtensorModule::serve_axon_tls(by(bob()), NET, 1, IP, 8091, 4, 0, 0, 0, certificate)
        };
        for not_a_key in [vec![], vec![1; 66]] {
            assert_ok!(serve(not_a_key));
            assert_eq!(NeuronCertificates::<Runtime>::get(NET, bob()), None);
        }
        assert_ok!(serve([vec![2], vec![5; 64]].concat()));
        let stored = NeuronCertificates::<Runtime>::get(NET, bob()).unwrap();
        assert_eq!((stored.algorithm, stored.public_key.to_vec()), (2, vec![5; 64]));
    });
}

#[test]
fn axons_that_cannot_be_served_are_refused() {
    chain(|_| ()).execute_with(|| {
        assert_noop!(serve(bob(), NOWHERE, IP, 1, 4), Error::SubnetNotExists);
        assert_noop!(serve(dave(), NET, IP, 1, 4), Error::HotKeyNotRegisteredInNetwork);
        assert_noop!(serve(bob(), NET, IP, 1, 5), Error::InvalidIpType);
        assert_noop!(serve(bob(), NET, IP, 0, 4), Error::InvalidPort);
        assert_noop!(
            serve(bob(), NET, u128::from(u32::MAX), 1, 4),
            Error::InvalidIpAddress
        );
        assert_noop!(serve(bob(), NET, u128::MAX, 1, 6), Error::InvalidIpAddress);
        assert_noop!(serve(bob(), NET, LOCALHOST, 1, 4), Error::InvalidIpAddress);
        assert_noop!(serve(bob(), NET, 1, 1, 6), Error::InvalidIpAddress);
        assert_ok!(serve(bob(), NET, 0, 1, 4));
        assert_ok!(serve(bob(), NET, 1 << 120, 1, 6));
    });
}

#[test]
fn loopback_is_served_where_the_chain_allows_it() {
    chain_with(|config| config.subtensor_module.allow_loopback = true).execute_with(|| {
        assert_ok!(serve(bob(), NET, LOCALHOST, 1, 4));
        assert_ok!(serve(bob(), NET, 1, 1, 6));
    });
}

#[test]
fn serving_waits_for_its_rate_limit() {
    chain(|s| s.serving_rate_limit = 5).execute_with(|| {
        let prometheus = || SubtensorModule::serve_prometheus(by(bob()), NET, 1, IP, 9090, 4);
        assert_ok!(serve(bob(), NET, IP, 1, 4));
        assert_ok!(prometheus());
        run_to(5);
        assert_noop!(serve(bob(), NET, IP, 1, 4), Error::ServingRateLimitExceeded);
        assert_noop!(prometheus(), Error::ServingRateLimitExceeded);
        run_to(6);
        assert_ok!(serve(bob(), NET, IP, 1, 4));
        assert_ok!(prometheus());
    });
}

#[test]
fn metrics_have_the_same_checks() {
    chain(|_| ()).execute_with(|| {
        let serve = |who, netuid, ip, port, ip_type| {
            SubtensorModule::serve_prometheus(by(who), netuid, 1, ip, port, ip_type)
        };
        assert_noop!(serve(bob(), NOWHERE, IP, 1, 4), Error::SubnetNotExists);
        assert_noop!(serve(dave(), NET, IP, 1, 4), Error::HotKeyNotRegisteredInNetwork);
        assert_noop!(serve(bob(), NET, IP, 1, 0), Error::InvalidIpType);
        assert_noop!(serve(bob(), NET, IP, 0, 4), Error::InvalidPort);
        assert_noop!(serve(bob(), NET, 0, 1, 4), Error::InvalidIpAddress);
        assert_ok!(serve(bob(), NET, IP, 9090, 4));
        assert_eq!(Prometheus::<Runtime>::get(NET, bob()).unwrap().port, 9090);
    });
}
