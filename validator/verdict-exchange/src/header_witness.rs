//! Whether the headers that commit to lists of own prompts were seen before their draw blocks, and whether they are all
//! that there were. Pure.
//!
//! The seeds of own prompts follow from the draw block, so an author that signs a header afterwards chooses its seeds.
//! One that leaves a header out hides the prompts whose answers do not please it. Readers come once a minute and note
//! the header that they see first, or that there was none.

use std::collections::BTreeMap;

use muster_audit::{AuditBundle, CommittedList, ListCommitment};
use muster_chain::Metagraph;
use muster_protocol::{Digest, Timestamp, ValidatorKey};
use muster_response_proof::{BucketHeader, BucketNumber, Envelope};
use muster_validator_store::{HeaderReading, SecondHeader};

use crate::adoption_rule::count_independent;
use crate::statements::{HeaderNote, open_text};

/// Blocks between two readings of the others' lists.
pub(crate) const READ_EVERY: u64 = 5;
/// Blocks by which the newest final block, which readers see, may lie behind the newest one, whose hash an author may
/// know: a reading counts only where even so the draw block did not exist.
const FINALITY_BLOCKS: u64 = 6;
/// Further validators whose notes take the place of a reading of this validator's own.
const LEAST_NOTES: usize = 2;
/// A header that a bundle shows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ShownHeader {
    /// The bucket whose answers it commits to.
    pub(crate) bucket: BucketNumber,
    /// The digest of its bytes.
    pub(crate) digest: Digest,
    /// The digest of the header before it.
    pub(crate) previous: Digest,
    /// Whether the bundle opens a list of own prompts to which it commits.
    pub(crate) opens_lists: bool,
    /// The header with its signature, in text form.
    pub(crate) text: String,
}

/// Whether the lists of a header count.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HeaderWitness {
    /// It was seen in time.
    Seen,
    /// It was not shown in time.
    Unseen,
    /// This validator did not read in that time, and too few others have shown notes until now.
    Open,
}

/// The bucket that has ended and whose draw block cannot exist yet, if there is one at this final block: its header can
/// be noted.
pub(crate) fn noted_bucket(block: u64) -> Option<BucketNumber> {
    let ended = BucketNumber(BucketNumber::of_block(block).0.checked_sub(1)?);
    is_before_draw(block, ended).then_some(ended)
}

/// Whether the draw block of a bucket cannot exist when this block is the newest final one.
fn is_before_draw(block: u64, bucket: BucketNumber) -> bool {
    block.saturating_add(FINALITY_BLOCKS) < bucket.draw_block()
}

/// Whether a page that showed no header when this block was the newest final one shows none in time: the next reading
/// comes too late.
fn is_last_reading(block: u64, bucket: BucketNumber) -> bool {
    !is_before_draw(block.saturating_add(READ_EVERY), bucket)
}

/// The headers that commit to a bundle's lists of own prompts, and those between them. The bundle replays, so its
/// author signed them, and they stand in rising order of their buckets.
pub(crate) fn committing_headers(bundle: &AuditBundle) -> Vec<ShownHeader> {
    let of_commitment = |one: &ListCommitment| {
        let opens_lists = one
            .lists
            .iter()
            .any(|list| matches!(list, CommittedList::Opened(_)));
        Some(ShownHeader {
            opens_lists,
            ..read_header(&one.header)?
        })
    };
    bundle.commitments.iter().filter_map(of_commitment).collect()
}

/// All headers that a bundle shows.
pub(crate) fn shown_headers(bundle: &AuditBundle) -> Vec<ShownHeader> {
    let buckets = bundle.buckets.iter().map(|one| &one.header);
    let commitments = bundle.commitments.iter().map(|one| &one.header);
    buckets
        .chain(commitments)
        .filter_map(|text| read_header(text))
        .collect()
}

/// The header in a text that this validator signed for this subnet; `None` if it is no such text.
pub(crate) fn open_header(text: &str, author: ValidatorKey, subnet: (Digest, u16)) -> Option<ShownHeader> {
    open_text::<BucketHeader>(text, author, subnet)?;
    read_header(text)
}

fn read_header(text: &str) -> Option<ShownHeader> {
    let envelope = Envelope::<BucketHeader>::from_text(text).ok()?;
    let header = envelope.statement().ok()?;
    Some(ShownHeader {
        bucket: header.bucket,
        digest: envelope.digest(),
        previous: header.previous,
        opens_lists: false,
        text: text.to_owned(),
    })
}

/// Whether the lists of a header count. `own` is this validator's reading in the header's time, and `notes` are what
/// others signed.
pub(crate) fn witness_of(
    header: &ShownHeader,
    own: Option<&HeaderReading>,
    notes: &[HeaderNote],
    (author, me): (ValidatorKey, ValidatorKey),
    metagraph: &Metagraph,
) -> HeaderWitness {
    let in_time = |block: u64| is_before_draw(block, header.bucket);
    // A page that was read too early, and not again, was not read in its time.
    let own = own.filter(|own| own.header.is_some() || is_last_reading(own.block, header.bucket));
    match own {
        Some(reading) => {
            let is_it = reading
                .header
                .as_ref()
                .is_some_and(|read| read.digest == header.digest);
            if is_it && in_time(reading.block) {
                HeaderWitness::Seen
            } else {
                // Nobody's word stands against an own reading.
                HeaderWitness::Unseen
            }
        }
        None => {
            let saw_it = notes.iter().filter(|note| {
                note.author == author
                    && note.bucket == header.bucket.0
                    && note.header == header.digest
                    && in_time(note.block)
            });
            let seen_by = count_independent(saw_it.map(|note| note.validator), (author, me), metagraph);
            if seen_by.len() >= LEAST_NOTES {
                HeaderWitness::Seen
            } else {
                HeaderWitness::Open
            }
        }
    }
}

/// Whether this validator's readings show that an author signed no header between these two buckets.
pub(crate) fn are_empty_between(first: u64, last: u64, read: &BTreeMap<u64, HeaderReading>) -> bool {
    let is_empty = |bucket: u64| {
        read.get(&bucket).is_some_and(|reading| {
            reading.header.is_none() && is_last_reading(reading.block, BucketNumber(bucket))
        })
    };
    (first.saturating_add(1)..last).all(is_empty)
}

/// The first header of these that is not the one that was read of its bucket, with that one: its author signed two.
pub(crate) fn find_second(
    shown: &[ShownHeader],
    read: &BTreeMap<u64, HeaderReading>,
    author: ValidatorKey,
    at: Timestamp,
) -> Option<SecondHeader> {
    shown.iter().find_map(|header| {
        let first = read.get(&header.bucket.0)?.header.as_ref()?;
        (first.digest != header.digest).then(|| SecondHeader {
            author,
            bucket: header.bucket.0,
            first: first.text.clone(),
            second: header.text.clone(),
            seen_at: at,
        })
    })
}

#[cfg(test)]
mod tests {
    use muster_chain::{BlockNumber, Netuid, Neuron, Uid};
    use muster_protocol::Hotkey;
    use muster_validator_store::ReadHeader;
    use proptest::prelude::*;

    use super::*;

    const BUCKET: BucketNumber = BucketNumber(4);

    fn validator(seed: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([seed; 32]))
    }

    fn header(name: &str) -> ShownHeader {
        ShownHeader {
            bucket: BUCKET,
            digest: Digest::of(name.as_bytes()),
            previous: Digest::of(b"before"),
            opens_lists: true,
            text: name.to_owned(),
        }
    }

    fn reading(name: Option<&str>, block: u64) -> HeaderReading {
        HeaderReading {
            author: validator(1),
            bucket: BUCKET.0,
            header: name.map(|name| ReadHeader {
                digest: Digest::of(name.as_bytes()),
                text: name.to_owned(),
            }),
            block,
            at: Timestamp::from_secs(1),
        }
    }

    fn note(by: u8, name: &str, block: u64) -> HeaderNote {
        HeaderNote {
            genesis: Digest::of(b"genesis"),
            netuid: 1,
            validator: validator(by),
            author: validator(1),
            bucket: BUCKET.0,
            header: Digest::of(name.as_bytes()),
            block,
        }
    }

    /// Validators 1 to 6 with permits; the last two belong to one coldkey.
    fn metagraph() -> Metagraph {
        let neuron = |seed: u8| Neuron {
            uid: Uid(u16::from(seed)),
            hotkey: validator(seed).0,
            coldkey: Hotkey::from_bytes([if seed == 6 { 105 } else { 100 + seed }; 32]),
            axon: None,
            stake: 1,
            permit: true,
            active: true,
            registered: BlockNumber(0),
            last_update: BlockNumber(0),
            incentive: 0,
        };
        Metagraph {
            block: BlockNumber(1),
            netuid: Netuid(1),
            tempo: 99,
            last_epoch: BlockNumber(0),
            certificates: BTreeMap::new(),
            neurons: (1..=6).map(neuron).collect(),
        }
    }

    fn witness(own: Option<&HeaderReading>, notes: &[HeaderNote]) -> HeaderWitness {
        let keys = (validator(1), validator(2));
        witness_of(&header("it"), own, notes, keys, &metagraph())
    }

    #[test]
    fn a_header_is_noted_between_the_end_of_its_bucket_and_its_draw_block() {
        assert_eq!(noted_bucket(24), None, "no bucket has ended");
        assert_eq!(
            (noted_bucket(125), noted_bucket(130)),
            (Some(BUCKET), Some(BUCKET))
        );
        assert_eq!((noted_bucket(124), noted_bucket(131)), (None, None));
        assert_eq!(
            BUCKET.draw_block(),
            137,
            "the newest block may be six blocks further"
        );
    }

    #[test]
    fn an_own_reading_goes_before_everybodys_word() {
        let two = [note(3, "it", 130), note(4, "it", 130)];
        assert_eq!(witness(Some(&reading(Some("it"), 130)), &[]), HeaderWitness::Seen);
        assert_eq!(
            witness(Some(&reading(Some("it"), 131)), &two),
            HeaderWitness::Unseen
        );
        assert_eq!(witness(Some(&reading(None, 130)), &two), HeaderWitness::Unseen);
        assert_eq!(
            witness(Some(&reading(Some("other"), 130)), &two),
            HeaderWitness::Unseen
        );
        let early = witness(Some(&reading(None, 125)), &two);
        assert_eq!(
            early,
            HeaderWitness::Seen,
            "the header came after a reading that was not repeated"
        );
    }

    #[test]
    fn no_header_stands_between_two_only_where_all_readings_found_none() {
        let read = |buckets: &[u64]| -> BTreeMap<u64, HeaderReading> {
            let none = |bucket: &u64| {
                let last = BucketNumber(*bucket).draw_block() - FINALITY_BLOCKS - 1;
                (
                    *bucket,
                    HeaderReading {
                        bucket: *bucket,
                        ..reading(None, last)
                    },
                )
            };
            buckets.iter().map(none).collect()
        };
        assert!(
            are_empty_between(4, 5, &BTreeMap::new()),
            "nothing is between them"
        );
        assert!(are_empty_between(4, 7, &read(&[5, 6])));
        assert!(!are_empty_between(4, 7, &read(&[5])), "it did not read");
        let mut seen = read(&[5, 6]);
        if let Some(second) = seen.get_mut(&6) {
            second.header = reading(Some("it"), 130).header;
        }
        assert!(
            !are_empty_between(4, 7, &seen),
            "a header that the bundle leaves out"
        );
        let mut early = read(&[5, 6]);
        if let Some(second) = early.get_mut(&6) {
            second.block = 175;
        }
        assert!(!are_empty_between(4, 7, &early), "the header may have come later");
    }

    #[test]
    fn two_other_coldkeys_suffice_where_this_validator_did_not_read() {
        assert_eq!(witness(None, &[]), HeaderWitness::Open);
        assert_eq!(witness(None, &[note(3, "it", 130)]), HeaderWitness::Open);
        assert_eq!(
            witness(None, &[note(3, "it", 130), note(4, "it", 130)]),
            HeaderWitness::Seen
        );
        for second in [
            note(3, "it", 130),
            note(4, "it", 131),
            note(4, "other", 130),
            note(1, "it", 130),
            note(2, "it", 130),
            note(9, "it", 130),
        ] {
            let notes = [note(3, "it", 130), second];
            assert_eq!(witness(None, &notes), HeaderWitness::Open, "{second:?}");
        }
        let of_one_coldkey = [note(5, "it", 130), note(6, "it", 130)];
        assert_eq!(witness(None, &of_one_coldkey), HeaderWitness::Open);
    }

    #[test]
    fn another_header_than_the_one_that_was_read_convicts_its_author() {
        let read = |name: Option<&str>| [(BUCKET.0, reading(name, 130))].into();
        let at = Timestamp::from_secs(9);
        let find = |shown: &[ShownHeader], name| find_second(shown, &read(name), validator(1), at);
        assert_eq!(find(&[header("it")], Some("it")), None);
        assert_eq!(
            find(&[header("it")], None),
            None,
            "a page without a header contradicts nothing"
        );
        let found = find(&[header("it"), header("other")], Some("it")).unwrap();
        assert_eq!((found.first.as_str(), found.second.as_str()), ("it", "other"));
    }

    proptest! {
        #[test]
        fn no_word_of_others_makes_a_list_count_that_was_not_shown_here(
            notes in proptest::collection::vec((1u8..9, 100u64..150), 0..12), block in 126u64..150,
        ) {
            let notes: Vec<_> = notes.into_iter().map(|(by, block)| note(by, "it", block)).collect();
            for read in [reading(None, block), reading(Some("other"), block)] {
                prop_assert_eq!(witness(Some(&read), &notes), HeaderWitness::Unseen);
            }
        }
    }
}
