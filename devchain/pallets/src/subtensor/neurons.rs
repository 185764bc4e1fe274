//! Neurons as clients see them, assembled from the columns.

use super::{
    Active, Alpha, Axons, Bonds, Config, Consensus, Dividends, Emission, Incentive, Keys, LastUpdate,
    NetworksAdded, Owner, Pallet, Prometheus, PruningScores, Rank, SubnetworkN, TotalHotkeyAlpha, Trust,
    Uids, ValidatorPermit, ValidatorTrust, Weights,
};
use crate::AccountId;
use crate::types::{AlphaBalance, MechId, NetUid, NeuronInfo, NeuronInfoLite, StakeInfo, TaoBalance};
use codec::Compact;

/// A subnet's columns, read once for all of its neurons.
struct Columns {
    active: Vec<bool>,
    permit: Vec<bool>,
    last_update: Vec<u64>,
    incentive: Vec<u16>,
    dividends: Vec<u16>,
    consensus: Vec<u16>,
    validator_trust: Vec<u16>,
    rank: Vec<u16>,
    trust: Vec<u16>,
    pruning_scores: Vec<u16>,
    emission: Vec<AlphaBalance>,
}

impl Columns {
    fn read<T: Config>(netuid: NetUid) -> Self {
        let index = netuid.index(MechId(0));
        Self {
            active: Active::<T>::get(netuid),
            permit: ValidatorPermit::<T>::get(netuid),
            last_update: LastUpdate::<T>::get(index),
            incentive: Incentive::<T>::get(index),
            dividends: Dividends::<T>::get(netuid),
            consensus: Consensus::<T>::get(netuid),
            validator_trust: ValidatorTrust::<T>::get(netuid),
            rank: Rank::<T>::get(netuid),
            trust: Trust::<T>::get(netuid),
            pruning_scores: PruningScores::<T>::get(netuid),
            emission: Emission::<T>::get(netuid),
        }
    }
}

/// The value of a column at a uid; a column that is too short has the default there.
fn at<V: Copy + Default>(column: &[V], uid: u16) -> V {
    column.get(usize::from(uid)).copied().unwrap_or_default()
}

impl<T: Config> Pallet<T> {
    /// All neurons of a subnet, by uid.
    #[must_use]
    pub fn neurons_lite(netuid: NetUid) -> Vec<NeuronInfoLite> {
        let columns = Columns::read::<T>(netuid);
        (0..SubnetworkN::<T>::get(netuid))
            .filter_map(|uid| Self::lite(netuid, uid, &columns))
            .collect()
    }

    /// One neuron without its weights and bonds.
    #[must_use]
    pub fn neuron_lite(netuid: NetUid, uid: u16) -> Option<NeuronInfoLite> {
        Self::lite(netuid, uid, &Columns::read::<T>(netuid))
    }

    /// All neurons of a subnet with their weights and bonds, by uid.
    #[must_use]
    pub fn neurons(netuid: NetUid) -> Vec<NeuronInfo> {
        Self::neurons_lite(netuid)
            .into_iter()
            .map(|neuron| Self::full(netuid, neuron))
            .collect()
    }

    /// One neuron with its weights and bonds.
    #[must_use]
    pub fn neuron(netuid: NetUid, uid: u16) -> Option<NeuronInfo> {
        Some(Self::full(netuid, Self::neuron_lite(netuid, uid)?))
    }

    /// A hotkey's owner; the zero account where it has none.
    pub(super) fn owner_of(hotkey: &AccountId) -> AccountId {
        Owner::<T>::get(hotkey).unwrap_or_else(zero_account)
    }

    fn lite(netuid: NetUid, uid: u16, columns: &Columns) -> Option<NeuronInfoLite> {
        let hotkey = Keys::<T>::get(netuid, uid)?;
        let coldkey = Self::owner_of(&hotkey);
        Some(NeuronInfoLite {
            uid: Compact(uid),
            netuid: Compact(netuid),
            active: at(&columns.active, uid),
            axon_info: Axons::<T>::get(netuid, &hotkey).unwrap_or_default(),
            prometheus_info: Prometheus::<T>::get(netuid, &hotkey).unwrap_or_default(),
            stake: vec![(
                coldkey.clone(),
                Compact(TotalHotkeyAlpha::<T>::get(&hotkey, netuid)),
            )],
            emission: Compact(at(&columns.emission, uid)),
            incentive: Compact(at(&columns.incentive, uid)),
            consensus: Compact(at(&columns.consensus, uid)),
            validator_trust: Compact(at(&columns.validator_trust, uid)),
            dividends: Compact(at(&columns.dividends, uid)),
            last_update: Compact(at(&columns.last_update, uid)),
            validator_permit: at(&columns.permit, uid),
            rank: Compact(at(&columns.rank, uid)),
            trust: Compact(at(&columns.trust, uid)),
            pruning_score: Compact(at(&columns.pruning_scores, uid)),
            hotkey,
            coldkey,
        })
    }

    fn full(netuid: NetUid, lite: NeuronInfoLite) -> NeuronInfo {
        let index = netuid.index(MechId(0));
        let compact = |row: Vec<(u16, u16)>| {
            row.into_iter()
                .map(|(uid, value)| (Compact(uid), Compact(value)))
                .collect()
        };
        NeuronInfo {
            weights: compact(Weights::<T>::get(index, lite.uid.0)),
            bonds: compact(Bonds::<T>::get(index, lite.uid.0)),
            hotkey: lite.hotkey,
            coldkey: lite.coldkey,
            uid: lite.uid,
            netuid: lite.netuid,
            active: lite.active,
            axon_info: lite.axon_info,
            prometheus_info: lite.prometheus_info,
            stake: lite.stake,
            rank: lite.rank,
            emission: lite.emission,
            incentive: lite.incentive,
            consensus: lite.consensus,
            trust: lite.trust,
            validator_trust: lite.validator_trust,
            dividends: lite.dividends,
            last_update: lite.last_update,
            validator_permit: lite.validator_permit,
            pruning_score: lite.pruning_score,
        }
    }

    /// The stake of a coldkey to a hotkey on a subnet; none where there is no such subnet.
    #[must_use]
    pub fn stake_info(hotkey: &AccountId, coldkey: &AccountId, netuid: NetUid) -> Option<StakeInfo> {
        if !NetworksAdded::<T>::get(netuid) {
            return None;
        }
        let stake = AlphaBalance(Self::stake_of(hotkey, coldkey, netuid));
        let uid = Uids::<T>::get(netuid, hotkey);
        let emission = uid.map(|uid| at(&Emission::<T>::get(netuid), uid));
        Some(StakeInfo {
            hotkey: hotkey.clone(),
            coldkey: coldkey.clone(),
            netuid: Compact(netuid),
            stake: Compact(stake),
            locked: Compact(0),
            emission: Compact(emission.unwrap_or_default()),
            tao_emission: Compact(TaoBalance::default()),
            drain: Compact(0),
            is_registered: uid.is_some(),
        })
    }

    /// All that a coldkey has staked.
    #[must_use]
    pub fn stakes_of(coldkey: &AccountId) -> Vec<StakeInfo> {
        let theirs = Alpha::<T>::iter_keys().filter(|(_, staker, _)| staker == coldkey);
        let stakes = theirs.filter_map(|(hotkey, _, netuid)| Self::stake_info(&hotkey, coldkey, netuid));
        stakes.filter(|stake| stake.stake.0.0 > 0).collect()
    }
}

/// The account that stands for nobody.
pub(super) fn zero_account() -> AccountId {
    AccountId::new([0; 32])
}
