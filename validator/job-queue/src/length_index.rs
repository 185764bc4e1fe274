//! The accounts of a line by the number of their jobs and by their place, for the positions of jobs.

use std::collections::BTreeMap;

use crate::QueueTicket;
use crate::ranked_set::RankedSet;

/// An account as the index knows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AccountEntry {
    pub(crate) place: QueueTicket,
    /// Number of its jobs, at least one.
    pub(crate) length: usize,
}

/// Accounts whose lengths are in one range.
#[derive(Clone, Debug, Default)]
struct Group {
    places: RankedSet<QueueTicket>,
    /// Jobs of these accounts.
    jobs: usize,
}

/// Facts about some accounts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Totals {
    accounts: usize,
    jobs: usize,
    /// Accounts whose place is lower than the one that was asked for.
    before: usize,
}

/// A Fenwick tree over lengths whose nodes are sets of places.
///
/// Group `g` holds the accounts whose length is above `g` without its lowest bit, and at most `g`. An account is in as
/// many groups as the longest account has bits at most. An arrival that leaves the account's place as it was moves the
/// account between two groups on average, since neighbouring lengths share most of their groups.
#[derive(Clone, Debug, Default)]
pub(crate) struct LengthIndex {
    groups: BTreeMap<usize, Group>,
    /// The group of all accounts, a power of two; 0 before the first account.
    all: usize,
}

impl LengthIndex {
    /// Replaces what is known of one account. `None` stands for an account without jobs.
    pub(crate) fn replace(&mut self, before: Option<AccountEntry>, after: Option<AccountEntry>) {
        if let Some(after) = after {
            self.grow(after.length);
        }
        let groups_of = |entry: Option<AccountEntry>| {
            let first = entry.map_or(0, |entry| entry.length);
            let path = std::iter::successors(Some(first), |group| Some(self.parent(*group)));
            path.take_while(|group| *group != 0).collect::<Vec<_>>()
        };
        let (left, entered) = (groups_of(before), groups_of(after));
        let keeps_place = before.map(|entry| entry.place) == after.map(|entry| entry.place);
        if let Some(before) = before {
            for group in &left {
                let keeps_entry = keeps_place && entered.contains(group);
                self.take_from(*group, before, keeps_entry);
            }
        }
        if let Some(after) = after {
            for group in &entered {
                self.add_to(*group, after);
            }
        }
    }

    /// Number of jobs that start before a job that has `own` jobs of its account before it, if its account has this
    /// place.
    pub(crate) fn starts_before(&self, own: usize, place: QueueTicket) -> usize {
        let all = self.totals(self.all, place);
        let short = self.totals(own, place);
        // In each of the `own` rounds before the job's, every account has a turn as long as it has jobs; the job's own
        // account is counted like any other. In the job's own round, the accounts go first whose place is lower.
        starts_in_rounds(own, all, short).saturating_add(all.before.saturating_sub(short.before))
    }

    /// Number of jobs that start in the first rounds of a line, in each of which every account has a turn as long as it
    /// has jobs.
    pub(crate) fn starts_in(&self, rounds: usize) -> usize {
        let nobody = QueueTicket(0);
        starts_in_rounds(rounds, self.totals(self.all, nobody), self.totals(rounds, nobody))
    }

    /// The accounts with at most this many jobs.
    fn totals(&self, length: usize, place: QueueTicket) -> Totals {
        let mut totals = Totals::default();
        let mut at = length.min(self.all);
        while at != 0 {
            if let Some(group) = self.groups.get(&at) {
                totals.accounts = totals.accounts.saturating_add(group.places.len());
                totals.jobs = totals.jobs.saturating_add(group.jobs);
                totals.before = totals.before.saturating_add(group.places.count_below(&place));
            }
            at &= at.saturating_sub(1);
        }
        totals
    }

    /// The next group that holds all accounts of this one; 0 after the group of all.
    fn parent(&self, group: usize) -> usize {
        let above = group.saturating_add(group & group.wrapping_neg());
        if above > self.all { 0 } else { above }
    }

    /// Makes room for a length. The group of all accounts is copied once for each doubling of the longest account.
    fn grow(&mut self, length: usize) {
        let all = length.checked_next_power_of_two().unwrap_or(length);
        while self.all < all {
            let known = self.groups.get(&self.all).cloned();
            self.all = self.all.saturating_mul(2).max(1);
            if let Some(known) = known {
                self.groups.insert(self.all, known);
            }
        }
    }

    fn add_to(&mut self, group: usize, entry: AccountEntry) {
        let group = self.groups.entry(group).or_default();
        group.places.insert(entry.place);
        group.jobs = group.jobs.saturating_add(entry.length);
    }

    /// Takes an account from a group; `keeps_entry` if the account is about to be added to it at the same place.
    fn take_from(&mut self, group: usize, entry: AccountEntry, keeps_entry: bool) {
        let Some(known) = self.groups.get_mut(&group) else {
            return;
        };
        known.jobs = known.jobs.saturating_sub(entry.length);
        if !keeps_entry {
            known.places.remove(&entry.place);
            if known.places.is_empty() {
                self.groups.remove(&group);
            }
        }
    }
}

/// Number of jobs that start in these rounds; `short` are the accounts with at most `rounds` jobs.
fn starts_in_rounds(rounds: usize, all: Totals, short: Totals) -> usize {
    let longer = all.accounts.saturating_sub(short.accounts);
    short.jobs.saturating_add(longer.saturating_mul(rounds))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn positions_are_those_of_turns_taken_one_by_one(
            lengths in proptest::collection::vec(0usize..40, 1..12),
            changes in proptest::collection::vec((0usize..12, 0usize..40, any::<bool>()), 0..40),
        ) {
            let mut index = LengthIndex::default();
            let mut accounts: Vec<Option<AccountEntry>> = vec![None; lengths.len()];
            let mut last = 0;
            let all = lengths.iter().enumerate().map(|(account, length)| (account, *length, true));
            for (account, length, moves) in all.chain(changes) {
                let account = account % lengths.len();
                last += 1;
                let place = accounts[account].filter(|_| !moves).map_or(QueueTicket(last), |entry| entry.place);
                let after = (length > 0).then_some(AccountEntry { place, length });
                index.replace(accounts[account], after);
                accounts[account] = after;
                let mut lines: Vec<_> = accounts.iter().flatten().copied().collect();
                lines.sort_by_key(|entry| entry.place);
                let mut started = 0;
                for round in 0..40 {
                    for entry in lines.iter().filter(|entry| entry.length > round) {
                        prop_assert_eq!(index.starts_before(round, entry.place), started);
                        started += 1;
                    }
                }
                for (group, held) in &index.groups {
                    let lowest = group & (group - 1);
                    let expected: Vec<_> =
                        lines.iter().filter(|entry| entry.length > lowest && entry.length <= *group).collect();
                    prop_assert_eq!(held.places.len(), expected.len());
                    prop_assert_eq!(held.jobs, expected.iter().map(|entry| entry.length).sum::<usize>());
                }
            }
        }
    }
}
