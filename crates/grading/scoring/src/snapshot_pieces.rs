//! The canonical text of a snapshot in pieces: a cycle may hold hundreds of megabytes of receipts, and no second copy
//! of them has to be in memory.

use std::fmt;

use muster_protocol::{Digest, canonical};
use serde::Serialize;
use sha2::{Digest as _, Sha256};

use crate::snapshot::ScoringSnapshot;

/// The size from which on a piece is complete, in bytes. The last fragment of a piece may make it longer.
const PIECE_BYTES: usize = 512 * 1024;

/// The texts that make up one value, in order.
type Fragments<'a> = Box<dyn Iterator<Item = String> + Send + 'a>;

/// The pieces of a snapshot's canonical text. Together they are the text that
/// [`to_text`](ScoringSnapshot::to_text) returns.
pub struct SnapshotPieces<'a> {
    fragments: Fragments<'a>,
}

impl fmt::Debug for SnapshotPieces<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SnapshotPieces").finish_non_exhaustive()
    }
}

impl Iterator for SnapshotPieces<'_> {
    type Item = String;

    fn next(&mut self) -> Option<String> {
        let mut piece = self.fragments.next()?;
        while piece.len() < PIECE_BYTES {
            match self.fragments.next() {
                Some(fragment) => piece.push_str(&fragment),
                None => break,
            }
        }
        Some(piece)
    }
}

impl ScoringSnapshot {
    /// The canonical text in pieces of about half a mebibyte: JSON with sorted keys and without spaces, in ASCII, as
    /// Python's `json.dumps(snapshot, sort_keys=True, separators=(",", ":"))` writes it.
    pub fn pieces(&self) -> SnapshotPieces<'_> {
        // A field that is added has to be listed here.
        let Self {
            format,
            genesis,
            netuid,
            span,
            me,
            neurons,
            validators,
            rules,
            receipts,
            capacity,
            allowance,
            history,
            convictions,
            quality,
            main_hotkeys,
            deferred,
            burned,
            standing,
            owner,
        } = self;
        let fields: [(&'static str, Option<Fragments<'_>>); 19] = [
            ("allowance", Some(value(allowance))),
            ("burned", Some(value(burned))),
            ("capacity", Some(value(capacity))),
            ("convictions", Some(list(convictions))),
            ("deferred", Some(list(deferred))),
            ("format", Some(value(format))),
            ("genesis", Some(value(genesis))),
            ("history", Some(list(history))),
            ("main_hotkeys", Some(list(main_hotkeys))),
            ("me", Some(value(me))),
            ("netuid", Some(value(netuid))),
            ("neurons", Some(list(neurons))),
            ("owner", owner.as_ref().map(|owner| value(owner))),
            ("quality", Some(list(quality))),
            ("receipts", Some(list(receipts))),
            ("rules", Some(value(rules))),
            ("span", Some(value(span))),
            ("standing", (!standing.is_empty()).then(|| list(standing))),
            ("validators", Some(value(validators))),
        ];
        let given = fields
            .into_iter()
            .filter_map(|(name, fragments)| Some((name, fragments?)));
        let members = given.enumerate().flat_map(|(place, (name, fragments))| {
            let comma = if place == 0 { "" } else { "," };
            std::iter::once(format!("{comma}\"{name}\":")).chain(fragments)
        });
        SnapshotPieces {
            fragments: Box::new(
                std::iter::once("{".to_owned())
                    .chain(members)
                    .chain(std::iter::once("}".to_owned())),
            ),
        }
    }

    /// The digest of the canonical text, which names the snapshot.
    pub fn digest(&self) -> Digest {
        let mut hash = Sha256::new();
        for piece in self.pieces() {
            hash.update(piece);
        }
        Digest::from_bytes(hash.finalize().into())
    }
}

/// The text of a value as one fragment.
fn value<T: Serialize + Sync + ?Sized>(value: &T) -> Fragments<'_> {
    Box::new(std::iter::once_with(|| text_of(value)))
}

/// The text of a list, an item at a time.
fn list<T: Serialize + Sync>(items: &[T]) -> Fragments<'_> {
    let begin = std::iter::once("[".to_owned());
    let items = items.iter().enumerate().map(|(place, item)| {
        let mut text = text_of(item);
        if place > 0 {
            text.insert(0, ',');
        }
        text
    });
    Box::new(begin.chain(items).chain(std::iter::once("]".to_owned())))
}

fn text_of<T: Serialize + ?Sized>(value: &T) -> String {
    // Texts, integers, lists and maps by key always have a JSON form.
    canonical::sorted_compact_of(value).unwrap_or_default()
}
