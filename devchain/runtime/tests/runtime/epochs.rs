//! The clock of epochs.

use crate::support::{NET, NOWHERE, chain, run_to};
use muster_devchain_runtime::subtensor::{
    BlocksSinceLastStep, LastEpochBlock, PendingEpochAt, SubnetEpochIndex,
};
use muster_devchain_runtime::types::NetUid;
use muster_devchain_runtime::{Runtime, SubtensorModule};

/// (index, last, blocks since, next)
fn clock() -> (u64, u64, u64, Option<u64>) {
    (
        SubnetEpochIndex::<Runtime>::get(NET),
        LastEpochBlock::<Runtime>::get(NET),
        BlocksSinceLastStep::<Runtime>::get(NET),
        SubtensorModule::next_epoch(NET),
    )
}

#[test]
fn epochs_come_every_tempo_blocks() {
    chain(|_| ()).execute_with(|| {
        assert_eq!(clock(), (0, 0, 1, Some(10)));
        run_to(9);
        assert_eq!(clock(), (0, 0, 9, Some(10)));
        run_to(10);
        assert_eq!(clock(), (1, 10, 0, Some(20)));
        run_to(35);
        assert_eq!(clock(), (3, 30, 5, Some(40)));
    });
}

#[test]
fn an_epoch_that_was_asked_for_comes_early() {
    chain(|_| ()).execute_with(|| {
        PendingEpochAt::<Runtime>::insert(NET, 4);
        assert_eq!(SubtensorModule::next_epoch(NET), Some(4));
        run_to(4);
        assert_eq!(clock(), (1, 4, 0, Some(14)));
    });
}

#[test]
fn the_root_network_has_no_epochs_of_its_own() {
    chain(|_| ()).execute_with(|| {
        run_to(400);
        assert_eq!(SubnetEpochIndex::<Runtime>::get(NetUid::ROOT), 0);
        assert_eq!(SubtensorModule::next_epoch(NOWHERE), None);
    });
}
