//! Tests of the runtime APIs.

use crate::support::{NET, NOWHERE, STAKE, alice, bob, by, chain, charlie, run_to};
use codec::{Compact, Decode, Encode};
use frame_support::assert_ok;
use muster_devchain_runtime::types::{
    AlphaBalance, CommitmentData, CommitmentInfo, HyperparamValue, Metagraph, NetUid, NeuronInfo,
    NeuronInfoLite, SelectiveMetagraph, SubnetHyperparams,
};
use muster_devchain_runtime::{Commitments, SubtensorModule, api};

/// Calls a runtime API as a client does: by name, with encoded arguments.
#[track_caller]
fn call<T: Decode>(method: &str, arguments: impl Encode) -> T {
    let bytes = api::dispatch(method, &arguments.encode()).unwrap();
    let mut rest = bytes.as_slice();
    let value = T::decode(&mut rest).unwrap();
    assert!(rest.is_empty(), "{method} answered more than its type");
    value
}

#[test]
fn neurons_show_what_calls_did() {
    chain(|_| ()).execute_with(|| {
        run_to(5);
        assert_ok!(SubtensorModule::set_weights(
            by(alice()),
            NET,
            vec![1, 2],
            vec![2, 1],
            0
        ));
        assert_ok!(SubtensorModule::serve_axon(
            by(bob()),
            NET,
            1,
            9,
            8091,
            4,
            0,
            0,
            0
        ));
        let neurons: Vec<NeuronInfo> = call("NeuronInfoRuntimeApi_get_neurons", NET);
        assert_eq!(neurons.iter().map(|n| n.uid.0).collect::<Vec<_>>(), [0, 1, 2]);
        assert_eq!(
            neurons[0].weights,
            [(Compact(1), Compact(65535)), (Compact(2), Compact(32768))]
        );
        assert_eq!(neurons[0].stake, [(alice(), Compact(AlphaBalance(STAKE)))]);
        assert_eq!((neurons[0].last_update.0, neurons[0].validator_permit), (5, true));
        assert_eq!(
            (neurons[1].axon_info.port, neurons[1].validator_permit),
            (8091, false)
        );

        let one: Option<NeuronInfo> = call("NeuronInfoRuntimeApi_get_neuron", (NET, 1u16));
        assert_eq!(one.as_ref(), neurons.get(1));
        assert_eq!(
            call::<Option<NeuronInfo>>("NeuronInfoRuntimeApi_get_neuron", (NET, 3u16)),
            None
        );
        let lite: Vec<NeuronInfoLite> = call("NeuronInfoRuntimeApi_get_neurons_lite", NET);
        assert_eq!(lite[2].hotkey, charlie());
        assert!(call::<Vec<NeuronInfoLite>>("NeuronInfoRuntimeApi_get_neurons_lite", NOWHERE).is_empty());
    });
}

#[test]
fn the_metagraph_and_its_selections_agree() {
    chain(|_| ()).execute_with(|| {
        let data = CommitmentData::Raw(b"hi".to_vec().try_into().unwrap());
        let info = CommitmentInfo {
            fields: vec![data].try_into().unwrap(),
        };
        assert_ok!(Commitments::set_commitment(
            by(bob()),
            NET,
            Box::new(info.clone())
        ));
        run_to(12);
        let whole: Metagraph = call::<Option<Metagraph>>("SubnetInfoRuntimeApi_get_metagraph", NET).unwrap();
        assert_eq!(whole.hotkeys, [alice(), bob(), charlie()]);
        assert_eq!(
            (whole.block.0, whole.last_step.0, whole.blocks_since_last_step.0),
            (12, 10, 2)
        );
        assert_eq!(
            (whole.num_uids.0, whole.max_uids.0, whole.burn.0.0),
            (3, 8, 1_000)
        );

        let select = |indexes: Vec<u16>| {
            let method = "SubnetInfoRuntimeApi_get_selective_metagraph";
            call::<Option<SelectiveMetagraph>>(method, (NET, indexes)).unwrap()
        };
        let some = select(vec![7, 52, 72, 73, 900]);
        assert_eq!(
            (some.block, some.hotkeys),
            (Some(whole.block), Some(whole.hotkeys))
        );
        assert_eq!(some.validators, Some(vec![Compact(0)]));
        let bytes = info.encode().into_iter().map(Compact).collect();
        assert_eq!(some.commitments, Some(vec![(bob(), bytes)]));
        assert_eq!((some.name, some.tempo, some.axons), (None, None, None));
        assert!(call::<Option<Metagraph>>("SubnetInfoRuntimeApi_get_metagraph", NOWHERE).is_none());
        assert!(call::<Option<Metagraph>>("SubnetInfoRuntimeApi_get_metagraph", NetUid::ROOT).is_some());
    });
}

#[test]
fn hyperparameters_are_the_same_in_both_forms() {
    chain(|s| s.weights_rate_limit = 77).execute_with(|| {
        let record: SubnetHyperparams =
            call::<Option<_>>("SubnetInfoRuntimeApi_get_subnet_hyperparams", NET).unwrap();
        assert_eq!((record.weights_rate_limit.0, record.tempo.0), (77, 10));
        let named = SubtensorModule::subnet_hyperparams_v3(NET).unwrap();
        let value = |name: &str| {
            named
                .iter()
                .find(|e| e.name == name.as_bytes())
                .unwrap()
                .value
                .clone()
        };
        assert_eq!(
            value("weights_rate_limit"),
            HyperparamValue::U64(record.weights_rate_limit)
        );
        assert_eq!(value("tempo"), HyperparamValue::U16(record.tempo));
        assert_eq!(SubtensorModule::subnet_hyperparams_v3(NOWHERE), None);
    });
}

#[test]
fn the_rest_answers_too() {
    chain(|_| ()).execute_with(|| {
        assert_eq!(SubtensorModule::subnet_state(NET).unwrap().hotkeys.len(), 3);
        assert_eq!(SubtensorModule::dynamic_info(NET).unwrap().tempo.0, 10);
        assert_eq!(
            call::<Option<u64>>("SubnetInfoRuntimeApi_get_next_epoch_start_block", NET),
            Some(10)
        );
        let all: Vec<Option<Metagraph>> = call("SubnetInfoRuntimeApi_get_all_metagraphs", ());
        assert_eq!(all.len(), 2);
        assert!(api::dispatch("SubnetInfoRuntimeApi_get_nothing", &[]).is_none());
        assert_eq!(call::<u32>("AccountNonceApi_account_nonce", alice()), 0);
        for version in [14u32, 15, 16] {
            let metadata: Option<Vec<u8>> = call("Metadata_metadata_at_version", version);
            assert_eq!(
                metadata.unwrap()[..5],
                [b"meta".as_slice(), &[u8::try_from(version).unwrap()]].concat()
            );
        }
    });
}
