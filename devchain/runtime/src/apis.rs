//! The runtime APIs, each a line that names the pallet function behind it. `state_call` reaches them by name through
//! `api::dispatch`, which the macro makes.

use crate::types::{
    DynamicInfo, HyperparamEntry, Metagraph, NetUid, NeuronInfo, NeuronInfoLite, SelectiveMetagraph,
    StakeInfo, SubnetHyperparams, SubnetState,
};
use crate::{
    AccountId, Balance, Block, Commitments, Executive, Nonce, Runtime, SubtensorModule, System,
    TransactionPayment, VERSION,
};
use muster_devchain_pallets::apis;
use pallet_transaction_payment::{FeeDetails, RuntimeDispatchInfo};
use sp_core::OpaqueMetadata;
use sp_runtime::ApplyExtrinsicResult;
use sp_runtime::traits::Block as BlockT;
use sp_runtime::transaction_validity::{TransactionSource, TransactionValidity};
use sp_version::RuntimeVersion;

sp_api::impl_runtime_apis! {
    impl sp_api::Core<Block> for Runtime {
        fn version() -> RuntimeVersion {
            VERSION
        }
        fn execute_block(block: <Block as BlockT>::LazyBlock) {
            Executive::execute_block(block);
        }
        fn initialize_block(header: &<Block as BlockT>::Header) -> sp_runtime::ExtrinsicInclusionMode {
            Executive::initialize_block(header)
        }
    }

    impl sp_api::Metadata<Block> for Runtime {
        fn metadata() -> OpaqueMetadata {
            OpaqueMetadata::new(Runtime::metadata().into())
        }
        fn metadata_at_version(version: u32) -> Option<OpaqueMetadata> {
            Runtime::metadata_at_version(version)
        }
        fn metadata_versions() -> Vec<u32> {
            Runtime::metadata_versions()
        }
    }

    impl sp_block_builder::BlockBuilder<Block> for Runtime {
        fn apply_extrinsic(extrinsic: <Block as BlockT>::Extrinsic) -> ApplyExtrinsicResult {
            Executive::apply_extrinsic(extrinsic)
        }
        fn finalize_block() -> <Block as BlockT>::Header {
            Executive::finalize_block()
        }
        fn inherent_extrinsics(_data: sp_inherents::InherentData) -> Vec<<Block as BlockT>::Extrinsic> {
            Vec::new()
        }
        fn check_inherents(
            _block: <Block as BlockT>::LazyBlock,
            _data: sp_inherents::InherentData,
        ) -> sp_inherents::CheckInherentsResult {
            sp_inherents::CheckInherentsResult::default()
        }
    }

    impl sp_transaction_pool::runtime_api::TaggedTransactionQueue<Block> for Runtime {
        fn validate_transaction(
            source: TransactionSource,
            tx: <Block as BlockT>::Extrinsic,
            block_hash: <Block as BlockT>::Hash,
        ) -> TransactionValidity {
            Executive::validate_transaction(source, tx, block_hash)
        }
    }

    impl frame_system_rpc_runtime_api::AccountNonceApi<Block, AccountId, Nonce> for Runtime {
        fn account_nonce(account: AccountId) -> Nonce {
            System::account_nonce(account)
        }
    }

    impl pallet_transaction_payment_rpc_runtime_api::TransactionPaymentApi<Block, Balance> for Runtime {
        fn query_info(uxt: <Block as BlockT>::Extrinsic, len: u32) -> RuntimeDispatchInfo<Balance> {
            TransactionPayment::query_info(uxt, len)
        }
        fn query_fee_details(uxt: <Block as BlockT>::Extrinsic, len: u32) -> FeeDetails<Balance> {
            TransactionPayment::query_fee_details(uxt, len)
        }
        fn query_weight_to_fee(weight: frame_support::weights::Weight) -> Balance {
            TransactionPayment::weight_to_fee(weight)
        }
        fn query_length_to_fee(length: u32) -> Balance {
            TransactionPayment::length_to_fee(length)
        }
    }

    impl apis::NeuronInfoRuntimeApi<Block> for Runtime {
        fn get_neurons(netuid: NetUid) -> Vec<NeuronInfo> {
            SubtensorModule::neurons(netuid)
        }
        fn get_neuron(netuid: NetUid, uid: u16) -> Option<NeuronInfo> {
            SubtensorModule::neuron(netuid, uid)
        }
        fn get_neurons_lite(netuid: NetUid) -> Vec<NeuronInfoLite> {
            SubtensorModule::neurons_lite(netuid)
        }
        fn get_neuron_lite(netuid: NetUid, uid: u16) -> Option<NeuronInfoLite> {
            SubtensorModule::neuron_lite(netuid, uid)
        }
    }

    impl apis::StakeInfoRuntimeApi<Block> for Runtime {
        fn get_stake_info_for_hotkey_coldkey_netuid(
            hotkey: AccountId,
            coldkey: AccountId,
            netuid: NetUid,
        ) -> Option<StakeInfo> {
            SubtensorModule::stake_info(&hotkey, &coldkey, netuid)
        }
        fn get_stake_info_for_coldkey(coldkey: AccountId) -> Vec<StakeInfo> {
            SubtensorModule::stakes_of(&coldkey)
        }
        fn get_stake_info_for_coldkeys(coldkeys: Vec<AccountId>) -> Vec<(AccountId, Vec<StakeInfo>)> {
            let stakes = |coldkey: AccountId| {
                let stakes = SubtensorModule::stakes_of(&coldkey);
                (coldkey, stakes)
            };
            coldkeys.into_iter().map(stakes).collect()
        }
    }

    impl apis::SubnetInfoRuntimeApi<Block> for Runtime {
        fn get_metagraph(netuid: NetUid) -> Option<Metagraph> {
            SubtensorModule::metagraph(netuid)
        }
        fn get_all_metagraphs() -> Vec<Option<Metagraph>> {
            SubtensorModule::netuids().into_iter().map(SubtensorModule::metagraph).collect()
        }
        fn get_selective_metagraph(netuid: NetUid, metagraph_indexes: Vec<u16>) -> Option<SelectiveMetagraph> {
            let metagraph = SubtensorModule::metagraph(netuid)?;
            Some(metagraph.select(&metagraph_indexes, || Commitments::encoded_commitments(netuid)))
        }
        fn get_subnet_hyperparams(netuid: NetUid) -> Option<SubnetHyperparams> {
            SubtensorModule::subnet_hyperparams(netuid)
        }
        fn get_subnet_hyperparams_v3(netuid: NetUid) -> Option<Vec<HyperparamEntry>> {
            SubtensorModule::subnet_hyperparams_v3(netuid)
        }
        fn get_subnet_state(netuid: NetUid) -> Option<SubnetState> {
            SubtensorModule::subnet_state(netuid)
        }
        fn get_dynamic_info(netuid: NetUid) -> Option<DynamicInfo> {
            SubtensorModule::dynamic_info(netuid)
        }
        fn get_all_dynamic_info() -> Vec<Option<DynamicInfo>> {
            SubtensorModule::netuids().into_iter().map(SubtensorModule::dynamic_info).collect()
        }
        fn get_next_epoch_start_block(netuid: NetUid) -> Option<u64> {
            SubtensorModule::next_epoch(netuid)
        }
    }
}
