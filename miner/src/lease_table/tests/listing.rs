//! The images that validators list: each once, with the number of its validator, and no longer than its permit.

use muster_protocol::wire::muster::{ListedImage, WhitelistNotice};
use muster_protocol::{Digest, Hotkey};

use super::*;

fn key(number: u8) -> ValidatorKey {
    ValidatorKey(Hotkey::from_bytes([number; 32]))
}

fn joined_as(connection: u64, number: u8) -> Event {
    Event::Joined {
        connection: ConnectionId(connection),
        validator: key(number),
        muster: true,
        features: FeatureSet::ours(),
    }
}

fn lists(connection: u64, images: &[&str]) -> Event {
    let listed = |name: &&str| ListedImage {
        image: muster_protocol::ImageId(Digest::of(name.as_bytes())),
        reference: None,
        class: ExecutorClass::AlwaysOnTest,
        model: (*name).to_owned(),
        // A validator's own word about shares does not count.
        share: Some(9),
    };
    Event::Listed {
        connection: ConnectionId(connection),
        notice: WhitelistNotice {
            images: images.iter().map(listed).collect(),
        },
    }
}

/// The models that executors are instructed to fetch, each with its share, in the order of models.
fn shelved(effects: &[Effect]) -> Option<Vec<(String, Option<u32>)>> {
    let images = effects.iter().find_map(|effect| match effect {
        Effect::Shelve(images) => Some(images),
        Effect::Write(_)
        | Effect::Tell { .. }
        | Effect::Live { .. }
        | Effect::Retell { .. }
        | Effect::RepeatReceipt { .. }
        | Effect::Start { .. }
        | Effect::Resume { .. }
        | Effect::Admit { .. }
        | Effect::Dismiss { .. }
        | Effect::Order { .. }
        | Effect::StopExecutor { .. } => None,
    })?;
    let mut told: Vec<_> = images
        .iter()
        .map(|listed| (listed.model.clone(), listed.share))
        .collect();
    told.sort();
    Some(told)
}

#[test]
fn a_list_is_numbered_by_its_validator_and_goes_with_the_validators_permit() {
    let mut book = open();
    let effects = apply(&mut book, [joined_as(1, 1), lists(1, &["a", "both"])]);
    let own = |name: &str, share| (name.to_owned(), Some(share));
    assert_eq!(shelved(&effects), Some(vec![own("a", 0), own("both", 0)]));
    let effects = apply(&mut book, [joined_as(2, 2), lists(2, &["b", "both"])]);
    let all = vec![own("a", 0), own("b", 1), own("both", 0)];
    assert_eq!(shelved(&effects), Some(all));
    let served = |numbers: &[u8]| Event::Permitted(numbers.iter().map(|number| key(*number)).collect());
    assert_eq!(apply(&mut book, [served(&[1, 2, 3])]), []);
    let effects = apply(&mut book, [served(&[2, 3])]);
    assert_eq!(shelved(&effects), Some(vec![own("b", 0), own("both", 0)]));
    assert_eq!(apply(&mut book, [served(&[2, 3])]), []);
    let effects = apply(&mut book, [served(&[])]);
    assert_eq!(shelved(&effects), Some(vec![]));
}
