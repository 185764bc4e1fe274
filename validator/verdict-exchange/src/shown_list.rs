//! The list that a validator shows of its own bundles and statements, and which of them another one fetches.

use std::collections::BTreeMap;

use muster_protocol::{Digest, Hotkey, canonical};
use muster_validator_store::AuthorTally;
use serde::{Deserialize, Serialize};

use crate::offered_bundle::MAX_OFFERED_BYTES;

/// The largest list that is read, in bytes.
pub const MAX_LIST_BYTES: usize = 256 * 1024;
/// Bundles and statements of a list that are looked at.
const MAX_ENTRIES: usize = 256;
/// Bundles of one validator that are read in a day, those that are refused included.
const DAILY_BUNDLES: usize = 8;
/// Bytes of one validator's bundles that wait for their adoption, at most.
const MAX_WAITING_BYTES: u64 = 64 * 1024 * 1024;

/// A bundle in a validator's list.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownBundle {
    /// The digest of the bundle's text.
    pub digest: Digest,
    /// The coldkey that is judged.
    pub coldkey: Hotkey,
    /// The model by its name in the whitelist.
    pub model: String,
    /// The last bucket whose answers are judged.
    pub through_bucket: u64,
    /// The length of the text in bytes.
    pub bytes: u64,
}

/// The list of a validator.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ShownList {
    /// The newest bundle that it made about each coldkey and model.
    #[serde(default)]
    pub bundles: Vec<ShownBundle>,
    /// Its statements about others' bundles, in text form, the newest first.
    #[serde(default)]
    pub endorsements: Vec<String>,
    /// Its statement about the newest test of its own pipeline.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub self_test: Option<String>,
    /// The signed header of the newest bucket that it has closed, in text form. Readers note when they see it first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub header: Option<String>,
    /// Pairs of headers that one validator signed of one bucket, in text form, the newest first.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub second_headers: Vec<(String, String)>,
}

impl ShownList {
    /// Reads a list; `None` if the text is none, or is too long.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_LIST_BYTES {
            return None;
        }
        let mut list: Self = serde_json::from_str(text).ok()?;
        list.bundles.truncate(MAX_ENTRIES);
        list.endorsements.truncate(MAX_ENTRIES);
        Some(list)
    }

    /// The canonical text.
    pub fn to_text(&self) -> String {
        // A struct of texts, integers and lists always has a JSON form.
        canonical::sorted_compact_of(self).unwrap_or_default()
    }
}

/// The bundles of a list that are fetched now: of each coldkey and model the newest one, unless it was read before, as
/// long as the author's bounds of the day and of waiting bytes allow. `failures` are fetches of the last day that
/// brought no text.
pub fn plan_fetches(list: &[ShownBundle], tally: &AuthorTally, failures: usize) -> Vec<ShownBundle> {
    let mut newest: BTreeMap<(Hotkey, &str), &ShownBundle> = BTreeMap::new();
    for shown in list {
        let place = newest.entry((shown.coldkey, &shown.model)).or_insert(shown);
        if shown.through_bucket > place.through_bucket {
            *place = shown;
        }
    }
    let spent = tally.lately.saturating_add(failures);
    let mut stored = tally.stored_bytes;
    let mut planned = Vec::new();
    for shown in newest.into_values() {
        let is_new = !tally.known.contains(&shown.digest);
        let with_it = stored.saturating_add(shown.bytes);
        let has_room = shown.bytes <= MAX_OFFERED_BYTES && with_it <= MAX_WAITING_BYTES;
        if is_new && has_room && spent.saturating_add(planned.len()) < DAILY_BUNDLES {
            stored = with_it;
            planned.push(shown.clone());
        }
    }
    planned
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn shown(coldkey: u8, name: &str, through_bucket: u64) -> ShownBundle {
        ShownBundle {
            digest: Digest::of(name.as_bytes()),
            coldkey: Hotkey::from_bytes([coldkey; 32]),
            model: "tiny".to_owned(),
            through_bucket,
            bytes: 1_000,
        }
    }

    #[test]
    fn the_newest_bundle_of_a_coldkey_and_model_is_fetched_once() {
        let list = [shown(1, "old", 3), shown(1, "new", 5), shown(2, "other", 1)];
        let planned = |tally: &AuthorTally| -> Vec<Digest> {
            let planned = plan_fetches(&list, tally, 0);
            planned.iter().map(|one| one.digest).collect()
        };
        let none = AuthorTally::default();
        assert_eq!(planned(&none), [list[1].digest, list[2].digest]);
        let known = AuthorTally {
            known: vec![list[1].digest],
            ..none
        };
        assert_eq!(planned(&known), [list[2].digest], "and not the older one instead");
    }

    #[test]
    fn a_list_is_text_of_bounded_length() {
        let list = ShownList {
            bundles: vec![shown(1, "a", 1)],
            endorsements: vec!["x".to_owned()],
            self_test: None,
            header: Some("signed".to_owned()),
            second_headers: vec![("one".to_owned(), "other".to_owned())],
        };
        assert_eq!(ShownList::parse(&list.to_text()), Some(list));
        assert_eq!(ShownList::parse("{}"), Some(ShownList::default()));
        assert_eq!(ShownList::parse("[1"), None);
        assert_eq!(ShownList::parse(&" ".repeat(MAX_LIST_BYTES + 1)), None);
    }

    proptest! {
        #[test]
        fn no_list_fills_the_disk_or_the_day(
            entries in proptest::collection::vec((0u8..40, 0u64..9, 0u64..100_000_000), 0..200),
            lately in 0usize..12, failures in 0usize..4, stored in 0u64..80_000_000,
        ) {
            let list: Vec<_> = entries.iter().enumerate().map(|(at, (coldkey, through, bytes))| ShownBundle {
                bytes: *bytes,
                ..shown(*coldkey, &at.to_string(), *through)
            }).collect();
            let tally = AuthorTally { known: vec![], lately, stored_bytes: stored };
            let planned = plan_fetches(&list, &tally, failures);
            prop_assert!(planned.len() + lately + failures <= DAILY_BUNDLES.max(lately + failures));
            let bytes: u64 = planned.iter().map(|one| one.bytes).sum();
            prop_assert!(planned.is_empty() || stored + bytes <= MAX_WAITING_BYTES);
            prop_assert!(planned.iter().all(|one| one.bytes <= MAX_OFFERED_BYTES));
        }
    }
}
