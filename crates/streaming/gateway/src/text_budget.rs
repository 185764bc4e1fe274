//! Which answers' texts a bucket keeps: the bound on all of them together, and the order in which they are let go.
//!
//! There is one bound and no reserved parts. While there is room, every text is kept, whoever fills the bucket. When it
//! is full, texts are let go until the new one fits. An answer has three parties: its session, its client and the
//! coldkey of its miner. The texts of the party that holds the most go first, as long as it holds more than its part of
//! the whole, which is a sixteenth. Within a session or coldkey those of the client that holds the most there go first,
//! and within a client those of the coldkey: else a flood of one client would take the places of all others that its
//! miner serves. The last choice is by a draw that a key of the bucket makes of the answer and its client, so nobody
//! can look for answers that stay. If no party holds more than its part, the draw alone decides over all answers.

use std::cmp::Reverse;
use std::collections::{BTreeSet, HashMap};

use muster_protocol::{Digest, Hotkey};
use muster_response_proof::SessionId;

/// The parts of a bucket that parties have: one of so many each.
const PARTS: u64 = 16;
/// Bytes that count for every answer beside its texts: its row and its places here.
pub(crate) const BYTES_OF_ANSWER: u64 = 1_024;

/// The parties to an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AnswerParties {
    /// The session that answered.
    pub(crate) session: SessionId,
    /// The name of the client, which is the same for all of its requests.
    pub(crate) client: Digest,
    /// The coldkey of the miner.
    pub(crate) coldkey: Hotkey,
}

/// The reason why a text was let go.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum LetGoBy {
    /// Its session held the most.
    Session,
    /// Its client held the most.
    Client,
    /// Its miner's coldkey held the most.
    Coldkey,
    /// No party held more than its part, so it was drawn from all.
    All,
    /// The room for the validator's own prompts was full.
    Own,
}

impl LetGoBy {
    /// The value of the metric's label.
    pub(crate) const fn label(self) -> &'static str {
        match self {
            Self::Session => "session",
            Self::Client => "client",
            Self::Coldkey => "coldkey",
            Self::All => "all",
            Self::Own => "own",
        }
    }
}

/// An answer whose text is let go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LetGo {
    /// The id of the answer.
    pub(crate) id: String,
    /// The kind of the party that held too much.
    pub(crate) by: LetGoBy,
}

/// A name of 32 bytes; sessions have shorter ones, filled up with zeros.
type Name = [u8; 32];

/// A session, a client or a coldkey, by the reason that is stated when it loses a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct Party {
    kind: LetGoBy,
    name: Name,
}

/// The place of an answer in a draw: the lowest goes first.
type DrawPlace = (u128, u64);

/// A kept answer.
#[derive(Debug)]
struct KeptAnswer {
    id: String,
    parties: AnswerParties,
    bytes: u64,
    draw: u128,
}

/// The answers of one party, by the other party that tells them apart.
#[derive(Debug, Default)]
struct Holding {
    bytes: u64,
    parts: HashMap<Name, PartHolding>,
    ranked: BTreeSet<(u64, Name)>,
}

#[derive(Debug, Default)]
struct PartHolding {
    bytes: u64,
    answers: BTreeSet<DrawPlace>,
}

/// The texts that one bucket keeps.
#[derive(Debug)]
pub(crate) struct TextBudget {
    /// The most bytes that are kept.
    total: u64,
    /// The secret of the draw.
    key: [u8; 32],
    held: u64,
    next: u64,
    answers: HashMap<u64, KeptAnswer>,
    places: BTreeSet<DrawPlace>,
    holdings: HashMap<Party, Holding>,
    ranked: BTreeSet<(u64, Reverse<Party>)>,
}

// === impl TextBudget ===

impl TextBudget {
    /// An empty bucket of `total` bytes, whose draw is made by this key.
    pub(crate) fn new(total: u64, key: [u8; 32]) -> Self {
        Self {
            total,
            key,
            held: 0,
            next: 0,
            answers: HashMap::new(),
            places: BTreeSet::new(),
            holdings: HashMap::new(),
            ranked: BTreeSet::new(),
        }
    }

    /// Bytes that are kept.
    pub(crate) const fn held(&self) -> u64 {
        self.held
    }

    /// Takes the text of an answer, of so many bytes. Returns the answers whose texts are let go for it, which may
    /// include the new one.
    pub(crate) fn admit(&mut self, id: &str, parties: AnswerParties, bytes: u64) -> Vec<LetGo> {
        let draw = self.draw(id, &parties.client);
        self.insert(KeptAnswer {
            id: id.to_owned(),
            parties,
            bytes: bytes.saturating_add(BYTES_OF_ANSWER),
            draw,
        });
        let mut let_go = Vec::new();
        while self.held > self.total
            && let Some((place, by)) = self.next_to_go()
            && let Some(answer) = self.remove(place)
        {
            let_go.push(LetGo { id: answer.id, by });
        }
        let_go
    }

    /// The draw of an answer: a digest over a secret, which nobody outside can compute.
    fn draw(&self, id: &str, client: &Digest) -> u128 {
        let facts = [self.key.as_slice(), client.as_bytes(), id.as_bytes()].concat();
        let digest = Digest::of(&facts);
        let first = digest.as_bytes().first_chunk::<16>();
        first.map_or(0, |bytes| u128::from_be_bytes(*bytes))
    }

    /// The answer that is let go next, and the reason.
    fn next_to_go(&self) -> Option<(DrawPlace, LetGoBy)> {
        let largest = self
            .ranked
            .last()
            .filter(|(bytes, _)| *bytes > self.total / PARTS);
        let Some((_, Reverse(party))) = largest else {
            return self.places.first().map(|place| (*place, LetGoBy::All));
        };
        let holding = self.holdings.get(party)?;
        let (_, part) = holding.ranked.last()?;
        let place = holding.parts.get(part)?.answers.first()?;
        Some((*place, party.kind))
    }

    fn insert(&mut self, answer: KeptAnswer) {
        let slot = self.next;
        self.next = self.next.saturating_add(1);
        let place = (answer.draw, slot);
        self.held = self.held.saturating_add(answer.bytes);
        self.places.insert(place);
        for (party, part) in answer.parties.holders() {
            let holding = self.holdings.entry(party).or_default();
            self.ranked.remove(&(holding.bytes, Reverse(party)));
            holding.add(part, place, answer.bytes);
            self.ranked.insert((holding.bytes, Reverse(party)));
        }
        self.answers.insert(slot, answer);
    }

    fn remove(&mut self, place: DrawPlace) -> Option<KeptAnswer> {
        let answer = self.answers.remove(&place.1)?;
        self.held = self.held.saturating_sub(answer.bytes);
        self.places.remove(&place);
        for (party, part) in answer.parties.holders() {
            let Some(holding) = self.holdings.get_mut(&party) else {
                continue;
            };
            self.ranked.remove(&(holding.bytes, Reverse(party)));
            holding.take(part, place, answer.bytes);
            if holding.parts.is_empty() {
                self.holdings.remove(&party);
            } else {
                self.ranked.insert((holding.bytes, Reverse(party)));
            }
        }
        Some(answer)
    }
}

impl AnswerParties {
    /// The three parties, each with the name by which its own answers are told apart.
    fn holders(&self) -> [(Party, Name); 3] {
        let mut session = [0; 32];
        if let Some(id) = session.first_chunk_mut::<16>() {
            *id = *self.session.0.as_bytes();
        }
        let (client, coldkey) = (*self.client.as_bytes(), *self.coldkey.as_bytes());
        let party = |kind, name| Party { kind, name };
        [
            (party(LetGoBy::Session, session), client),
            (party(LetGoBy::Client, client), coldkey),
            (party(LetGoBy::Coldkey, coldkey), client),
        ]
    }
}

impl Holding {
    fn add(&mut self, part: Name, place: DrawPlace, bytes: u64) {
        self.bytes = self.bytes.saturating_add(bytes);
        let of_part = self.parts.entry(part).or_default();
        self.ranked.remove(&(of_part.bytes, part));
        of_part.bytes = of_part.bytes.saturating_add(bytes);
        of_part.answers.insert(place);
        self.ranked.insert((of_part.bytes, part));
    }

    fn take(&mut self, part: Name, place: DrawPlace, bytes: u64) {
        self.bytes = self.bytes.saturating_sub(bytes);
        let Some(of_part) = self.parts.get_mut(&part) else {
            return;
        };
        self.ranked.remove(&(of_part.bytes, part));
        of_part.bytes = of_part.bytes.saturating_sub(bytes);
        of_part.answers.remove(&place);
        if of_part.answers.is_empty() {
            self.parts.remove(&part);
        } else {
            self.ranked.insert((of_part.bytes, part));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use uuid::Uuid;

    use super::*;

    const KIB: u64 = 1_024;
    const MIB: u64 = 1_024 * KIB;
    const TOTAL: u64 = 1_024 * MIB;

    fn parties(session: u8, client: u8, coldkey: u8) -> AnswerParties {
        AnswerParties {
            session: SessionId(Uuid::from_u128(u128::from(session))),
            client: Digest::of(&[client]),
            coldkey: Hotkey::from_bytes([coldkey; 32]),
        }
    }

    /// The answers that are let go, by their ids.
    fn let_go(
        budget: &mut TextBudget,
        id: &str,
        of: AnswerParties,
        bytes: u64,
    ) -> Vec<(String, &'static str)> {
        let gone = budget.admit(id, of, bytes).into_iter();
        gone.map(|gone| (gone.id, gone.by.label())).collect()
    }

    #[test]
    fn nothing_is_let_go_while_there_is_room_whoever_fills_it() {
        let mut budget = TextBudget::new(TOTAL, [7; 32]);
        for number in 0..170 {
            let gone = budget.admit(&format!("one {number}"), parties(1, 1, 1), 6 * MIB);
            assert_eq!(gone, [], "the parts of nobody else are lent");
        }
        assert_eq!(budget.held(), 170 * (6 * MIB + BYTES_OF_ANSWER));
    }

    /// Honest answers of 3 KiB come before, amid and after a flood of these parties.
    fn honest_answers_that_go(
        honest: impl Fn(u8) -> AnswerParties,
        flood: impl Fn(u32) -> AnswerParties,
    ) -> usize {
        let mut budget = TextBudget::new(TOTAL, [7; 32]);
        let mut gone = 0;
        for number in 0..600_u32 {
            let answer = format!("honest {number}");
            let of = honest(u8::try_from(number % 40).unwrap());
            let mut all = budget.admit(&answer, of, 3 * KIB);
            if number < 400 {
                all.extend(budget.admit(&format!("flood {number}"), flood(number), 6 * MIB));
            }
            gone += all.iter().filter(|gone| gone.id.starts_with("honest")).count();
            assert!(budget.held() <= TOTAL);
        }
        gone
    }

    #[test]
    fn a_flood_of_one_client_one_session_or_one_coldkey_leaves_every_small_partys_answers_in_place() {
        let apart = |number| parties(100 + number % 40, 100 + number, 100 + number % 20);
        let low = |number: u32| u8::try_from(number % 97).unwrap();
        assert_eq!(honest_answers_that_go(apart, |_| parties(1, 1, 1)), 0);
        assert_eq!(
            honest_answers_that_go(apart, |number| parties(low(number), 1, low(number))),
            0,
            "a client"
        );
        assert_eq!(
            honest_answers_that_go(apart, |number| parties(1, low(number), 1)),
            0,
            "a session"
        );
        assert_eq!(
            honest_answers_that_go(apart, |number| parties(low(number), low(number), 1)),
            0,
            "a coldkey with many clients"
        );
    }

    #[test]
    fn a_flood_of_a_client_leaves_the_other_clients_of_the_only_miner_their_answers() {
        let beside = |number| parties(1, 100 + number, 1);
        assert_eq!(honest_answers_that_go(beside, |_| parties(1, 1, 1)), 0);
        let one_client = |number: u8| parties(100 + number % 4, 1, 100 + number % 4);
        assert_eq!(
            honest_answers_that_go(one_client, |_| parties(1, 1, 1)),
            0,
            "a miner that pads its answers leaves the client those of the others"
        );
    }

    #[test]
    fn without_a_party_above_its_part_a_sample_of_all_is_kept() {
        let mut budget = TextBudget::new(64 * 10 * KIB, [7; 32]);
        let mut kept = BTreeSet::new();
        for number in 0..200_u32 {
            let id = number.to_string();
            let of = u8::try_from(number % 64).unwrap();
            let gone = let_go(&mut budget, &id, parties(of, of, of), 9 * KIB);
            kept.insert(id);
            for (id, by) in gone {
                assert_eq!(by, "all");
                kept.remove(&id);
            }
        }
        assert_eq!(kept.len(), 64);
        let early = kept.iter().filter(|id| id.parse::<u32>().unwrap() < 100).count();
        assert!(
            (16..48).contains(&early),
            "neither the first nor the last are preferred: {early}"
        );
    }

    #[test]
    fn the_key_of_the_bucket_chooses_and_nothing_else_does() {
        let survivors = |key: u8| -> Vec<String> {
            let mut budget = TextBudget::new(10 * 10 * KIB, [key; 32]);
            let mut kept = Vec::new();
            for number in 0..30 {
                kept.push(number.to_string());
                for gone in budget.admit(&number.to_string(), parties(1, 1, 1), 9 * KIB) {
                    assert_eq!(gone.by, LetGoBy::Session);
                    kept.retain(|id| *id != gone.id);
                }
            }
            kept
        };
        assert_eq!(survivors(1), survivors(1));
        assert_ne!(survivors(1), survivors(2));
        assert_eq!(survivors(1).len(), 10);
    }

    #[test]
    fn a_text_that_is_longer_than_the_bucket_is_let_go_itself() {
        let mut budget = TextBudget::new(10 * KIB, [7; 32]);
        assert_eq!(budget.admit("small", parties(2, 2, 2), 100), []);
        assert_eq!(
            let_go(&mut budget, "huge", parties(1, 1, 1), MIB),
            [("huge".to_owned(), "session")]
        );
        assert_eq!(budget.held(), 100 + BYTES_OF_ANSWER);
    }

    #[test]
    fn a_full_bucket_takes_answers_at_the_same_pace_as_an_empty_one() {
        // A scan over the answers would take minutes here.
        let mut budget = TextBudget::new(8 * MIB, [7; 32]);
        for number in 0..40_000_u32 {
            let of = u8::try_from(number % 251).unwrap();
            budget.admit(&number.to_string(), parties(of, of, of), 1);
        }
        assert!(budget.held() <= 8 * MIB && budget.answers.len() > 8_000);
    }

    proptest! {
        /// The bound holds; an answer of three small parties never goes while a party is above its part; what goes was
        /// kept; and the same key makes the same choice.
        #[test]
        fn small_parties_lose_nothing_to_large_ones(
            arriving in proptest::collection::vec((0_u8..6, 0_u8..24, 0_u8..8, 0_u64..40_000), 1..120),
        ) {
            const BUCKET: u64 = 200_000;
            let (mut budget, mut again) = (TextBudget::new(BUCKET, [7; 32]), TextBudget::new(BUCKET, [7; 32]));
            let mut kept: BTreeMap<String, (AnswerParties, u64)> = BTreeMap::new();
            for (number, (session, client, coldkey, bytes)) in arriving.into_iter().enumerate() {
                let of = parties(coldkey * 8 + session, client, coldkey);
                let id = number.to_string();
                kept.insert(id.clone(), (of, bytes + BYTES_OF_ANSWER));
                let gone = budget.admit(&id, of, bytes);
                prop_assert_eq!(&gone, &again.admit(&id, of, bytes));
                for gone in gone {
                    let mut held: BTreeMap<Party, u64> = BTreeMap::new();
                    for (of, bytes) in kept.values() {
                        for (party, _) in of.holders() {
                            *held.entry(party).or_default() += bytes;
                        }
                    }
                    let is_above = |party: &Party| held[party] > BUCKET / PARTS;
                    let (of, _) = kept.remove(&gone.id).unwrap();
                    let of_large = of.holders().iter().any(|(party, _)| is_above(party));
                    prop_assert_eq!(of_large, held.keys().any(is_above));
                    prop_assert_eq!(gone.by == LetGoBy::All, !of_large);
                }
                let sum: u64 = kept.values().map(|(_, bytes)| bytes).sum();
                prop_assert_eq!(sum, budget.held());
                prop_assert!(sum <= BUCKET);
                prop_assert_eq!(budget.answers.len(), kept.len());
            }
            for place in budget.places.clone() {
                prop_assert!(budget.remove(place).is_some());
            }
            prop_assert!(budget.holdings.is_empty() && budget.ranked.is_empty() && budget.held() == 0);
        }
    }
}
