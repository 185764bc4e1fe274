//! The list of the statements that a validator has read: others compare it with what they were shown.

use std::collections::{BTreeMap, BTreeSet};

use muster_protocol::{Digest, Signature, ValidatorKey, canonical};
use serde::{Deserialize, Serialize};

use crate::capacity_statements::statement::SignedStatement;

/// The largest list that is read, in bytes: two statements of each of 256 validators.
pub const MAX_SEEN_BYTES: usize = 256 * 1024;

/// The statements of a list that are looked at.
const MAX_SEEN: usize = 512;

/// Statements that are fetched of one peer in one round.
const MAX_FETCHES: usize = 4;

/// The digests of the statements that were seen, by validator.
pub type SeenDigests = BTreeMap<ValidatorKey, BTreeSet<Digest>>;

/// A statement that a validator has read, by its digest.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenDigest {
    /// The validator that signed the statement.
    pub validator: ValidatorKey,
    /// The first block of the cycle for which it is stated.
    pub cycle: u64,
    /// The digest of the signed text.
    pub digest: Digest,
    /// The signature over that text.
    pub signature: Signature,
}

/// The statements for one cycle that a validator has read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct SeenList {
    /// The statements, by validator.
    pub statements: Vec<SeenDigest>,
}

impl SeenDigest {
    /// The entry of a statement.
    pub fn of(statement: &SignedStatement) -> Self {
        let stated = statement.stated();
        Self {
            validator: stated.validator,
            cycle: stated.cycle,
            digest: statement.digest(),
            signature: statement.signature(),
        }
    }
}

impl SeenList {
    /// Reads a list; `None` if the text is none, or is too long.
    pub fn parse(text: &str) -> Option<Self> {
        if text.len() > MAX_SEEN_BYTES {
            return None;
        }
        let mut list: Self = serde_json::from_str(text).ok()?;
        list.statements.truncate(MAX_SEEN);
        Some(list)
    }

    /// The canonical text.
    pub fn to_text(&self) -> String {
        // A struct of texts, integers and lists always has a JSON form.
        canonical::sorted_compact_of(self).unwrap_or_default()
    }

    /// The entries of a peer's list that report something new, at most four: statements for `cycle` of the validators
    /// that may state, other than those that were seen, while fewer than two of a validator were.
    pub fn news(self, cycle: u64, stating: &BTreeSet<ValidatorKey>, seen: &SeenDigests) -> Vec<SeenDigest> {
        let mut fresh = SeenDigests::new();
        let mut worth = Vec::new();
        for entry in self.statements {
            let known = seen.get(&entry.validator);
            let known_count = known.map_or(0, BTreeSet::len);
            let others = fresh.entry(entry.validator).or_default();
            let is_new =
                !known.is_some_and(|known| known.contains(&entry.digest)) && !others.contains(&entry.digest);
            if entry.cycle == cycle
                && stating.contains(&entry.validator)
                && is_new
                && known_count.saturating_add(others.len()) < 2
            {
                others.insert(entry.digest);
                worth.push(entry);
            }
        }
        worth.truncate(MAX_FETCHES);
        worth
    }
}

#[cfg(test)]
mod tests {
    use muster_protocol::{Hotkey, Signature};

    use super::*;

    fn validator(seed: u8) -> ValidatorKey {
        ValidatorKey(Hotkey::from_bytes([seed; 32]))
    }

    fn entry(of: u8, cycle: u64, text: &str) -> SeenDigest {
        SeenDigest {
            validator: validator(of),
            cycle,
            digest: Digest::of(text.as_bytes()),
            signature: Signature::from_bytes([0; 64]),
        }
    }

    #[test]
    fn only_what_is_new_about_a_validator_is_fetched_and_never_much() {
        let worth = |statements: Vec<SeenDigest>, seen: &[(u8, &str)]| {
            let mut known = SeenDigests::new();
            for (of, text) in seen {
                let digests = known.entry(validator(*of)).or_default();
                digests.insert(Digest::of(text.as_bytes()));
            }
            let stating = (1..=9).map(validator).collect();
            SeenList { statements }.news(7, &stating, &known)
        };
        assert_eq!(worth(vec![entry(1, 7, "a")], &[(1, "a")]), [], "known");
        assert_eq!(worth(vec![entry(1, 7, "b")], &[(1, "a")]), [entry(1, 7, "b")]);
        assert_eq!(
            worth(vec![entry(1, 7, "c")], &[(1, "a"), (1, "b")]),
            [],
            "it contradicts itself already"
        );
        assert_eq!(worth(vec![entry(1, 6, "b")], &[(1, "a")]), [], "another cycle");
        assert_eq!(worth(vec![entry(10, 7, "b")], &[]), [], "without a permit");
        let twice = vec![
            entry(1, 7, "a"),
            entry(1, 7, "a"),
            entry(1, 7, "b"),
            entry(1, 7, "c"),
        ];
        assert_eq!(worth(twice, &[]), [entry(1, 7, "a"), entry(1, 7, "b")]);
        let many = (1..=9).map(|of| entry(of, 7, "a")).collect();
        assert_eq!(worth(many, &[]).len(), MAX_FETCHES);
    }
}
