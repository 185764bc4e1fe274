//! The subnet in which everything happens: its class, its blocks, its keys, its stake.

use muster_protocol::{ExecutorClass, Hotkey, MinerKey, Timestamp, Uid, ValidatorKey};
use muster_scoring::Neuron;

/// The class of all executors.
pub(crate) const CLASS: ExecutorClass = ExecutorClass::AlwaysOnGpu24Gb;
/// An epoch of the public network: 360 blocks of twelve seconds.
pub(crate) const BLOCKS: u64 = 360;
pub(crate) const BLOCK_MS: u64 = 12_000;
pub(crate) const EPOCH_MS: u64 = BLOCKS * BLOCK_MS;
/// The time of block 0, in milliseconds since 1970.
const BEGIN_MS: u64 = 1_769_000_000_000;
/// Epochs in which miners prove their first executors; they are not measured.
pub(crate) const WARM_UP: u32 = 10;
/// All stake, in rao.
pub(crate) const STAKE: u64 = 1_000_000;

/// The first block of an epoch.
pub(crate) fn first_block(epoch: u32) -> u64 {
    u64::from(epoch).saturating_mul(BLOCKS)
}

/// The time of an epoch's first block, in milliseconds since 1970.
pub(crate) fn begin_ms(epoch: u32) -> u64 {
    u64::from(epoch).saturating_mul(EPOCH_MS).saturating_add(BEGIN_MS)
}

/// A time within an epoch.
pub(crate) fn time(epoch: u32, ms: u64) -> Timestamp {
    let micros = begin_ms(epoch).saturating_add(ms).saturating_mul(1_000);
    Timestamp::from_micros(i64::try_from(micros).unwrap_or(i64::MAX))
}

fn key(number: u16, salt: u8) -> Hotkey {
    let mut bytes = [salt; 32];
    let [high, low] = number.to_be_bytes();
    bytes[0] = high;
    bytes[1] = low;
    Hotkey::from_bytes(bytes)
}

/// The key of a validator by its place.
pub(crate) fn validator_key(place: usize) -> ValidatorKey {
    ValidatorKey(key(u16::try_from(place).unwrap_or(u16::MAX), 9))
}

/// The neuron of a validator. Validators have the highest uids.
pub(crate) fn validator_neuron(place: usize) -> Neuron {
    let uid = u16::MAX.saturating_sub(u16::try_from(place).unwrap_or(u16::MAX));
    Neuron {
        hotkey: validator_key(place).0,
        ..neuron(uid, 5)
    }
}

/// The neuron of a miner by its place, with a coldkey of its own.
pub(crate) fn miner_neuron(place: usize) -> Neuron {
    neuron(u16::try_from(place).unwrap_or(u16::MAX), 1)
}

pub(crate) fn miner_key(neuron: &Neuron) -> MinerKey {
    MinerKey(neuron.hotkey)
}

fn neuron(uid: u16, salt: u8) -> Neuron {
    Neuron {
        uid: Uid(uid),
        hotkey: key(uid, salt),
        coldkey: key(uid, salt.saturating_add(1)),
        registered: u64::from(uid).saturating_add(1),
    }
}
