//! When a child of the checkpoint folder is a whole checkpoint that has not been taken yet.
//!
//! A child counts as whole if no process has a file of it open for writing and nothing in it has changed for ten
//! seconds, or for one second if the program named it in its progress file. A name that begins with a dot, or ends as
//! unfinished files do, never counts.

use std::collections::BTreeMap;

use muster_protocol::Timestamp;

use crate::file_tree::FileTree;

/// How long a child that its program did not name must rest.
pub const QUIET_SECS: u64 = 10;

/// How long a child that its program named must rest: a program that goes on writing into it at once is caught at it.
pub const NAMED_QUIET_SECS: u64 = 1;

/// The most children of the folder that are remembered. The folder belongs to the program.
const MAX_CHILDREN: usize = 1_000;

/// The endings of names under which programs write what is not whole yet.
const UNFINISHED: [&str; 5] = [".tmp", ".temp", ".partial", ".part", ".incomplete"];

/// A child of the checkpoint folder as one look found it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObservedChild {
    /// Its name in the folder.
    pub name: String,
    /// Everything in it.
    pub tree: FileTree,
}

/// The memory of a child.
#[derive(Clone, Debug)]
struct KnownChild {
    tree: FileTree,
    unchanged_since: Timestamp,
    /// The state in which it was taken, or in which a newer one was.
    taken: Option<FileTree>,
    /// The state in which it could not be taken.
    refused: Option<FileTree>,
}

impl KnownChild {
    fn new(tree: &FileTree, now: Timestamp) -> Self {
        Self {
            tree: tree.clone(),
            unchanged_since: now,
            taken: None,
            refused: None,
        }
    }
}

/// Watches the checkpoint folder of one attempt.
#[derive(Clone, Debug, Default)]
pub struct CandidateWatch {
    known: BTreeMap<String, KnownChild>,
}

/// Whether a child of this name is never a checkpoint.
pub fn is_never_whole(name: &str) -> bool {
    name.starts_with('.') || UNFINISHED.iter().any(|ending| name.ends_with(ending))
}

impl CandidateWatch {
    /// Notes the children that are there at the start, so that what the attempt resumes from is not taken as new.
    pub fn skip(&mut self, children: &[ObservedChild], now: Timestamp) {
        for child in children {
            self.note_taken(&child.name, &child.tree, now);
        }
    }

    /// Notes that a child was taken in this state, which passes over the children that had not changed since before it.
    /// Each counts again once it has changed.
    pub fn note_taken(&mut self, name: &str, tree: &FileTree, now: Timestamp) {
        for known in self.known.values_mut() {
            if known.tree.changed_ns() < tree.changed_ns() {
                known.taken = Some(known.tree.clone());
            }
        }
        self.know(name, tree, now).taken = Some(tree.clone());
    }

    /// Notes that a child could not be taken in this state. Older ones may be.
    pub fn note_refused(&mut self, name: &str, tree: &FileTree, now: Timestamp) {
        self.know(name, tree, now).refused = Some(tree.clone());
    }

    fn know(&mut self, name: &str, tree: &FileTree, now: Timestamp) -> &mut KnownChild {
        self.known
            .entry(name.to_owned())
            .or_insert_with(|| KnownChild::new(tree, now))
    }

    /// Whether a child was taken in this state, or a newer one was.
    pub fn is_taken(&self, name: &str, tree: &FileTree) -> bool {
        let known = self.known.get(name);
        known.is_some_and(|known| known.taken.as_ref() == Some(tree))
    }

    /// Notes that a process has a file of the child open for writing: its rest begins anew.
    pub fn note_writing(&mut self, name: &str, now: Timestamp) {
        if let Some(known) = self.known.get_mut(name) {
            known.unchanged_since = now;
        }
    }

    /// The name of the newest whole checkpoint that was not taken yet, out of one look at the folder.
    ///
    /// `is_named` returns whether the program has named a child since it was taken last. The caller still has to see
    /// that no process has the child open for writing, and reports it by [`Self::note_writing`].
    pub fn observe(
        &mut self,
        children: &[ObservedChild],
        is_named: impl Fn(&str) -> bool,
        now: Timestamp,
    ) -> Option<String> {
        self.known
            .retain(|name, _| children.iter().any(|child| child.name == *name));
        let mut ready: Vec<&ObservedChild> = Vec::new();
        for child in children {
            if is_never_whole(&child.name) || !self.has_room(&child.name) {
                continue;
            }
            let known = self.know(&child.name, &child.tree, now);
            if known.tree != child.tree {
                known.tree = child.tree.clone();
                known.unchanged_since = now;
            }
            let settled = [&known.taken, &known.refused];
            if settled.into_iter().flatten().any(|tree| *tree == child.tree) {
                continue;
            }
            let wanted = match is_named(&child.name) {
                true => NAMED_QUIET_SECS,
                false => QUIET_SECS,
            };
            if now.since(known.unchanged_since).as_secs() >= wanted {
                ready.push(child);
            }
        }
        let newest = ready
            .iter()
            .max_by_key(|child| (child.tree.changed_ns(), child.name.clone()))?;
        Some(newest.name.clone())
    }

    fn has_room(&self, name: &str) -> bool {
        self.known.len() < MAX_CHILDREN || self.known.contains_key(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::file_tree::{TreeEntry, TreeLimits};

    fn child(name: &str, size: u64, changed_ns: i128) -> ObservedChild {
        let mut tree = FileTree::default();
        let entry = TreeEntry {
            path: name.parse().unwrap(),
            is_folder: false,
            mode: 0o644,
            size,
            inode: 1,
            modified_ns: changed_ns,
            changed_ns,
        };
        tree.add(entry, TreeLimits::default()).unwrap();
        ObservedChild {
            name: name.to_owned(),
            tree,
        }
    }

    fn at(second: i64) -> Timestamp {
        Timestamp::from_secs(second)
    }

    const UNNAMED: fn(&str) -> bool = |_| false;

    #[test]
    fn a_child_counts_once_it_has_rested_and_again_once_it_has_changed() {
        let mut watch = CandidateWatch::default();
        let first = child("c1", 5, 1);
        assert_eq!(watch.observe(std::slice::from_ref(&first), UNNAMED, at(0)), None);
        assert_eq!(
            watch.observe(&[child("c1", 6, 2)], UNNAMED, at(9)),
            None,
            "it grew"
        );
        let grown = child("c1", 6, 2);
        assert_eq!(watch.observe(std::slice::from_ref(&grown), UNNAMED, at(18)), None);
        assert_eq!(
            watch.observe(std::slice::from_ref(&grown), UNNAMED, at(19)),
            Some("c1".to_owned())
        );
        watch.note_taken("c1", &grown.tree, at(19));
        assert_eq!(
            watch.observe(std::slice::from_ref(&grown), UNNAMED, at(90)),
            None,
            "taken"
        );
        let again = child("c1", 6, 3);
        assert_eq!(watch.observe(std::slice::from_ref(&again), UNNAMED, at(91)), None);
        assert_eq!(watch.observe(&[again], UNNAMED, at(101)), Some("c1".to_owned()));
    }

    #[test]
    fn the_rest_of_a_child_begins_after_it_was_written() {
        let mut watch = CandidateWatch::default();
        let open = child("c1", 5, 1);
        assert_eq!(watch.observe(std::slice::from_ref(&open), UNNAMED, at(0)), None);
        assert_eq!(
            watch.observe(std::slice::from_ref(&open), UNNAMED, at(10)),
            Some("c1".to_owned())
        );
        watch.note_writing("c1", at(10));
        assert_eq!(watch.observe(std::slice::from_ref(&open), UNNAMED, at(19)), None);
        assert_eq!(watch.observe(&[open], UNNAMED, at(20)), Some("c1".to_owned()));
    }

    #[test]
    fn a_named_child_counts_after_a_second_and_an_unfinished_name_never() {
        let mut watch = CandidateWatch::default();
        let is_named: fn(&str) -> bool = |name| name == "c1";
        assert_eq!(watch.observe(&[child("c1", 5, 1)], is_named, at(0)), None);
        assert_eq!(
            watch.observe(&[child("c1", 5, 1)], is_named, at(1)),
            Some("c1".to_owned())
        );
        for name in ["c.tmp", ".hidden", "c.partial", "c.part", "x.incomplete"] {
            let mut watch = CandidateWatch::default();
            assert_eq!(watch.observe(&[child(name, 5, 1)], |_| true, at(0)), None);
            assert_eq!(
                watch.observe(&[child(name, 5, 1)], |_| true, at(100)),
                None,
                "{name}"
            );
        }
    }

    #[test]
    fn an_older_one_is_next_after_a_refusal_and_a_refused_one_counts_as_not_taken() {
        let mut watch = CandidateWatch::default();
        let [older, newer] = [child("c1", 5, 1), child("c2", 5, 9)];
        let children = [older.clone(), newer.clone()];
        assert_eq!(watch.observe(&children, UNNAMED, at(0)), None);
        assert_eq!(watch.observe(&children, UNNAMED, at(10)), Some("c2".to_owned()));
        watch.note_refused("c2", &newer.tree, at(10));
        assert!(!watch.is_taken("c2", &newer.tree));
        assert_eq!(watch.observe(&children, UNNAMED, at(11)), Some("c1".to_owned()));
        watch.note_taken("c1", &older.tree, at(11));
        assert_eq!(watch.observe(&children, UNNAMED, at(12)), None);
        assert!(watch.is_taken("c1", &older.tree) && !watch.is_taken("c2", &newer.tree));
    }

    #[test]
    fn the_newest_of_several_is_taken_and_the_older_ones_are_passed_over() {
        let mut watch = CandidateWatch::default();
        let children = [child("c1", 5, 1), child("c2", 5, 9), child("c3", 5, 4)];
        assert_eq!(watch.observe(&children, UNNAMED, at(0)), None);
        assert_eq!(watch.observe(&children, UNNAMED, at(10)), Some("c2".to_owned()));
        watch.note_taken("c2", &children[1].tree, at(10));
        assert_eq!(watch.observe(&children, UNNAMED, at(30)), None);
    }

    #[test]
    fn candidates_from_before_the_start_are_skipped_and_a_full_folder_is_bounded() {
        let mut watch = CandidateWatch::default();
        watch.skip(&[child("c1", 5, 1)], at(0));
        assert_eq!(watch.observe(&[child("c1", 5, 1)], |_| true, at(20)), None);
        let many: Vec<_> = (0..5_000)
            .map(|number| child(&format!("c{number}"), 5, 1))
            .collect();
        watch.observe(&many, UNNAMED, at(21));
        assert!(watch.known.len() <= MAX_CHILDREN);
    }
}
