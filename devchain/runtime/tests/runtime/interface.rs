//! The interface against the public network's own metadata: what both have must be the same, or a client that works
//! here fails there.

use codec::{Decode, Encode};
use frame_metadata::v16::{PalletMetadata, RuntimeMetadataV16, StorageEntryType};
use frame_metadata::{RuntimeMetadata, RuntimeMetadataPrefixed};
use muster_devchain_runtime::Runtime;
use scale_info::form::PortableForm;
use scale_info::{PortableRegistry, TypeDef, TypeDefPrimitive};

/// Metadata of the public network, spec version 365, December 2025.
const PUBLIC: &[u8] = include_bytes!("../../../../tests/vectors/finney-spec365.scale");

fn decode(mut bytes: &[u8]) -> RuntimeMetadataV16 {
    let RuntimeMetadata::V16(metadata) = RuntimeMetadataPrefixed::decode(&mut bytes).unwrap().1 else {
        panic!("metadata of another version than 16")
    };
    metadata
}

fn public() -> RuntimeMetadataV16 {
    decode(PUBLIC)
}

fn ours() -> RuntimeMetadataV16 {
    decode(&Runtime::metadata_at_version(16).unwrap())
}

/// The layout of a type: names of records and roles of numbers do not matter on the wire, order and width do.
fn layout(types: &PortableRegistry, id: u32) -> String {
    let ty = types.resolve(id).unwrap();
    let all = |ids: Vec<u32>| {
        ids.into_iter()
            .map(|id| layout(types, id))
            .collect::<Vec<_>>()
            .join(",")
    };
    match &ty.type_def {
        TypeDef::Composite(c) => match c.fields.as_slice() {
            [one] => layout(types, one.ty.id),
            many => format!("({})", all(many.iter().map(|f| f.ty.id).collect())),
        },
        TypeDef::Tuple(t) => match t.fields.as_slice() {
            [one] => layout(types, one.id),
            many => format!("({})", all(many.iter().map(|f| f.id).collect())),
        },
        TypeDef::Variant(v) if ty.path.segments.last().is_some_and(|name| name == "Data") => {
            format!("Data{}", v.variants.len())
        }
        TypeDef::Variant(v) => {
            let arm = |v: &scale_info::Variant<PortableForm>| {
                format!("{}:{}", v.index, all(v.fields.iter().map(|f| f.ty.id).collect()))
            };
            format!(
                "enum[{}]",
                v.variants.iter().map(arm).collect::<Vec<_>>().join("|")
            )
        }
        TypeDef::Sequence(s) => format!("[{}]", layout(types, s.type_param.id)),
        TypeDef::Array(a) => format!("[{};{}]", layout(types, a.type_param.id), a.len),
        TypeDef::Compact(c) => format!("compact {}", layout(types, c.type_param.id)),
        TypeDef::Primitive(TypeDefPrimitive::Bool) => "u8".into(),
        TypeDef::Primitive(p) => format!("{p:?}").to_lowercase(),
        TypeDef::BitSequence(_) => "bits".into(),
    }
}

fn pallet<'a>(metadata: &'a RuntimeMetadataV16, name: &str) -> &'a PalletMetadata<PortableForm> {
    metadata
        .pallets
        .iter()
        .find(|pallet| pallet.name == name)
        .unwrap()
}

/// Index, name and the layout of every argument of a call.
type CallLayout = (u8, String, Vec<(String, String)>);

/// A pallet's calls.
fn calls(metadata: &RuntimeMetadataV16, name: &str) -> Vec<CallLayout> {
    let id = pallet(metadata, name).calls.as_ref().unwrap().ty.id;
    let TypeDef::Variant(calls) = &metadata.types.resolve(id).unwrap().type_def else {
        panic!("calls are variants")
    };
    let argument = |f: &scale_info::Field<PortableForm>| {
        (
            f.name.clone().unwrap_or_default(),
            layout(&metadata.types, f.ty.id),
        )
    };
    calls
        .variants
        .iter()
        .map(|v| (v.index, v.name.clone(), v.fields.iter().map(argument).collect()))
        .collect()
}

/// Name, hashers, and the layouts of keys and values of a pallet's storage.
fn storage(metadata: &RuntimeMetadataV16, name: &str) -> Vec<(String, String)> {
    let show = |ty: &StorageEntryType<PortableForm>| match ty {
        StorageEntryType::Plain(value) => layout(&metadata.types, value.id),
        StorageEntryType::Map { hashers, key, value } => {
            let (key, value) = (layout(&metadata.types, key.id), layout(&metadata.types, value.id));
            format!("{hashers:?} {key} -> {value}")
        }
    };
    let entries = &pallet(metadata, name).storage.as_ref().unwrap().entries;
    entries
        .iter()
        .map(|entry| (entry.name.clone(), show(&entry.ty)))
        .collect()
}

#[test]
fn pallets_have_the_public_indices() {
    let public = public();
    for ours in &ours().pallets {
        assert_eq!(ours.index, pallet(&public, &ours.name).index, "{}", ours.name);
    }
}

#[test]
fn calls_are_the_public_calls() {
    let (public, ours) = (public(), ours());
    for name in ["SubtensorModule", "Commitments", "AdminUtils"] {
        let theirs = calls(&public, name);
        for call in calls(&ours, name) {
            let later = call.1 == "register_limit";
            assert!(
                later || theirs.contains(&call),
                "{name}: {call:?} is not among the public calls"
            );
        }
    }
    let count = |name| calls(&ours, name).len();
    let counts = ["SubtensorModule", "Commitments", "AdminUtils"].map(count);
    assert_eq!(counts, [20, 1, 27]);
}

/// Storage that spec version 365 does not have, from later versions or our own.
const LATER: [&str; 10] = [
    "KeptRounds",
    "DevelopmentSecret",
    "BurnHalfLife",
    "BurnIncreaseMult",
    "SubnetEpochConsensus",
    "CollateralLockShare",
    "LastEpochBlock",
    "PendingEpochAt",
    "SubnetEpochIndex",
    "LoopbackAllowed",
];

#[test]
fn storage_is_the_public_storage() {
    let (public, ours) = (public(), ours());
    for name in ["SubtensorModule", "Commitments", "Drand"] {
        let theirs = storage(&public, name);
        for (entry, kind) in storage(&ours, name) {
            let public = theirs
                .iter()
                .find(|(name, _)| *name == entry)
                .map(|(_, kind)| kind);
            if !LATER.contains(&entry.as_str()) {
                assert_eq!(Some(&kind), public, "{name}.{entry}");
            }
        }
    }
}

/// Index and name of each variant.
fn variants(metadata: &RuntimeMetadataV16, id: u32) -> Vec<(u8, String)> {
    let TypeDef::Variant(variants) = &metadata.types.resolve(id).unwrap().type_def else {
        panic!("errors and events are variants")
    };
    let pair = |v: &scale_info::Variant<PortableForm>| (v.index, v.name.clone());
    variants.variants.iter().map(pair).collect()
}

#[test]
fn errors_have_public_names_and_numbers() {
    let (public, ours) = (public(), ours());
    let errors = |metadata: &RuntimeMetadataV16, name: &str| {
        variants(metadata, pallet(metadata, name).error.as_ref().unwrap().ty.id)
    };
    for name in ["SubtensorModule", "Commitments", "AdminUtils"] {
        let theirs = errors(&public, name);
        for error in errors(&ours, name) {
            let later = error.1 == "RegistrationPriceLimitExceeded";
            assert!(
                later || theirs.contains(&error),
                "{name}: {error:?} is not among the public errors"
            );
        }
    }
}

#[test]
fn events_have_public_names_and_numbers() {
    let (public, ours) = (public(), ours());
    let events = |metadata: &RuntimeMetadataV16, name: &str| {
        variants(metadata, pallet(metadata, name).event.as_ref().unwrap().ty.id)
    };
    for name in ["SubtensorModule", "Commitments"] {
        let theirs = events(&public, name);
        for event in events(&ours, name) {
            let own = event.1 == "TimelockedWeightsDropped";
            assert!(
                own || theirs.contains(&event),
                "{name}: {event:?} is not among the public events"
            );
        }
    }
}

#[test]
fn a_call_has_the_public_bytes() {
    use muster_devchain_runtime::types::{MechId, NetUid};
    use muster_devchain_runtime::{RuntimeCall, subtensor};
    // Made from the public network's metadata by an independent client.
    let call = subtensor::Call::<Runtime>::set_mechanism_weights {
        netuid: NetUid(1),
        mecid: MechId(0),
        dests: vec![0, 1],
        weights: vec![100, 65535],
        version_key: 0,
    };
    let bytes = RuntimeCall::SubtensorModule(call).encode();
    assert_eq!(
        bytes,
        [
            7, 119, 1, 0, 0, 8, 0, 0, 1, 0, 8, 100, 0, 255, 255, 0, 0, 0, 0, 0, 0, 0, 0
        ]
    );
}
