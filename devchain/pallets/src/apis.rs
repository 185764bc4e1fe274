//! The runtime APIs that Bittensor's clients call.

use crate::AccountId;
use crate::types::{
    DynamicInfo, HyperparamEntry, Metagraph, NetUid, NeuronInfo, NeuronInfoLite, SelectiveMetagraph,
    StakeInfo, SubnetHyperparams, SubnetState,
};

sp_api::decl_runtime_apis! {
    /// Views of neurons.
    pub trait NeuronInfoRuntimeApi {
        /// All neurons of a subnet, with weights and bonds.
        fn get_neurons(netuid: NetUid) -> Vec<NeuronInfo>;
        /// One neuron, with weights and bonds.
        fn get_neuron(netuid: NetUid, uid: u16) -> Option<NeuronInfo>;
        /// All neurons of a subnet.
        fn get_neurons_lite(netuid: NetUid) -> Vec<NeuronInfoLite>;
        /// One neuron without its weights and bonds.
        fn get_neuron_lite(netuid: NetUid, uid: u16) -> Option<NeuronInfoLite>;
    }

    /// Views of stake.
    pub trait StakeInfoRuntimeApi {
        /// The stake of a coldkey to a hotkey on a subnet.
        fn get_stake_info_for_hotkey_coldkey_netuid(
            hotkey_account: AccountId,
            coldkey_account: AccountId,
            netuid: NetUid,
        ) -> Option<StakeInfo>;
        /// All that a coldkey has staked.
        fn get_stake_info_for_coldkey(coldkey_account: AccountId) -> Vec<StakeInfo>;
        /// All that each of these coldkeys has staked.
        fn get_stake_info_for_coldkeys(coldkey_accounts: Vec<AccountId>) -> Vec<(AccountId, Vec<StakeInfo>)>;
    }

    /// Views of subnets.
    pub trait SubnetInfoRuntimeApi {
        /// A subnet and its neurons.
        fn get_metagraph(netuid: NetUid) -> Option<Metagraph>;
        /// All subnets and their neurons.
        fn get_all_metagraphs() -> Vec<Option<Metagraph>>;
        /// The fields of a subnet's metagraph at these positions.
        fn get_selective_metagraph(netuid: NetUid, metagraph_indexes: Vec<u16>) -> Option<SelectiveMetagraph>;
        /// Hyperparameters in one record.
        fn get_subnet_hyperparams(netuid: NetUid) -> Option<SubnetHyperparams>;
        /// Hyperparameters by name.
        fn get_subnet_hyperparams_v3(netuid: NetUid) -> Option<Vec<HyperparamEntry>>;
        /// A subnet's neurons by column.
        fn get_subnet_state(netuid: NetUid) -> Option<SubnetState>;
        /// A subnet's token pool and schedule.
        fn get_dynamic_info(netuid: NetUid) -> Option<DynamicInfo>;
        /// The token pools and schedules of all subnets.
        fn get_all_dynamic_info() -> Vec<Option<DynamicInfo>>;
        /// The block of a subnet's next epoch.
        fn get_next_epoch_start_block(netuid: NetUid) -> Option<u64>;
    }
}
