//! Kept data survives every stop of the process or the machine, and damage is noticed.

#![allow(
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::panic,
    clippy::unwrap_used,
    reason = "clippy knows tests, not their helpers; these may fail by panicking too"
)]

use muster_devchain_store::{Change, Error, Sealed, Store};
use redb::StorageBackend;
use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

/// How many states are kept in these tests.
const STATES: u32 = 3;

fn hash(number: u32) -> [u8; 32] {
    let mut hash = [7; 32];
    hash[..4].copy_from_slice(&number.to_le_bytes());
    hash
}

/// The changes of block `number`: its number, one key of its own, and an older one that goes.
fn changes(number: u32) -> Vec<Change> {
    let mut changes = vec![
        (b"number".to_vec(), Some(number.to_le_bytes().to_vec())),
        (number.to_le_bytes().to_vec(), Some(vec![1; 100])),
    ];
    if number >= 5 {
        changes.push(((number - 5).to_le_bytes().to_vec(), None));
    }
    changes
}

fn sealed(number: u32) -> Sealed {
    Sealed {
        number,
        hash: hash(number),
        block: vec![number.to_le_bytes()[0]; 200],
        changes: changes(number),
    }
}

fn apply(state: &mut BTreeMap<Vec<u8>, Vec<u8>>, changes: Vec<Change>) {
    for (key, value) in changes {
        match value {
            Some(value) => drop(state.insert(key, value)),
            None => drop(state.remove(&key)),
        }
    }
}

/// The state after block `number`.
fn state_after(number: u32) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut state = BTreeMap::new();
    (0..=number).for_each(|n| apply(&mut state, changes(n)));
    state
}

/// Everything in the store is what it is after block `last`.
#[track_caller]
fn check(store: &Store, last: u32) {
    assert_eq!(store.last().unwrap(), Some((last, hash(last))));
    for number in 0..=last {
        assert_eq!(
            store.block(number).unwrap(),
            Some((hash(number), sealed(number).block))
        );
        assert_eq!(store.number(&hash(number)).unwrap(), Some(number));
    }
    assert_eq!(store.block(last + 1).unwrap(), None);
    assert_eq!(store.number(&hash(last + 1)).unwrap(), None);
    let mut state: BTreeMap<_, _> = store.state().unwrap().into_iter().collect();
    assert_eq!(state, state_after(last));
    // Back through the states that are kept, and not beyond.
    let oldest = (last + 1).saturating_sub(STATES);
    for number in (oldest.max(1)..=last).rev() {
        apply(&mut state, store.undo(number).unwrap().unwrap());
        assert_eq!(state, state_after(number - 1));
    }
    if oldest > 1 {
        assert_eq!(store.undo(oldest - 1).unwrap(), None);
    }
}

#[test]
fn blocks_and_state_are_there_after_reopening() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("made/by/it");
    let store = Store::open(&place).unwrap();
    assert_eq!(store.last().unwrap(), None);
    store.leave_note("who", b"me").unwrap();
    store.commit(&[sealed(0)], STATES).unwrap();
    store
        .commit(&(1..=10).map(sealed).collect::<Vec<_>>(), STATES)
        .unwrap();
    check(&store, 10);
    drop(store);
    let store = Store::open(&place).unwrap();
    check(&store, 10);
    assert_eq!(store.note("who").unwrap().as_deref(), Some(&b"me"[..]));
    store.commit(&[sealed(11)], STATES).unwrap();
    check(&store, 11);
}

#[test]
fn a_gap_is_refused_and_nothing_of_it_is_kept() {
    let store = Store::temporary().unwrap();
    store.commit(&[sealed(0), sealed(1)], STATES).unwrap();
    for wrong in [vec![sealed(1)], vec![sealed(2), sealed(4)]] {
        assert!(matches!(store.commit(&wrong, STATES), Err(Error::Order { .. })));
        check(&store, 1);
    }
}

#[test]
fn two_cannot_have_one_folder() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    assert!(matches!(Store::open(folder.path()), Err(Error::InUse)));
    drop(store);
    Store::open(folder.path()).unwrap();
}

/// A request to the disk.
#[derive(Clone, Debug)]
enum Told {
    Length(u64),
    Write(u64, Vec<u8>),
    Sync,
}

/// A disk that remembers the operations that it received.
#[derive(Clone, Debug, Default)]
struct Disk(Arc<Mutex<(Vec<u8>, Vec<Told>)>>);

impl Disk {
    fn tell(&self, told: Told) {
        let mut disk = self.0.lock().unwrap();
        obey(&mut disk.0, &told);
        disk.1.push(told);
    }
}

fn obey(bytes: &mut Vec<u8>, told: &Told) {
    match told {
        Told::Length(length) => bytes.resize(usize::try_from(*length).unwrap(), 0),
        Told::Write(at, data) => {
            let at = usize::try_from(*at).unwrap();
            bytes[at..at + data.len()].copy_from_slice(data);
        }
        Told::Sync => {}
    }
}

impl StorageBackend for Disk {
    fn len(&self) -> io::Result<u64> {
        Ok(self.0.lock().unwrap().0.len() as u64)
    }
    fn read(&self, at: u64, out: &mut [u8]) -> io::Result<()> {
        let disk = self.0.lock().unwrap();
        let at = usize::try_from(at).unwrap();
        let found = disk
            .0
            .get(at..at + out.len())
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(found);
        Ok(())
    }
    fn set_len(&self, length: u64) -> io::Result<()> {
        self.tell(Told::Length(length));
        Ok(())
    }
    fn sync_data(&self) -> io::Result<()> {
        self.tell(Told::Sync);
        Ok(())
    }
    fn write(&self, at: u64, data: &[u8]) -> io::Result<()> {
        self.tell(Told::Write(at, data.to_vec()));
        Ok(())
    }
}

/// The same numbers in every run.
fn random(seed: &mut u64) -> u64 {
    *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
    *seed >> 33
}

/// The machine stops at every point of every commit: what was written before the last sync is there, of what was
/// written since any part may be, the last write in pieces. The store opens, has every block whose commit had returned,
/// and is consistent.
#[test]
fn a_stop_at_any_point_loses_nothing_that_was_acknowledged() {
    let disk = Disk::default();
    let store = Store::on(disk.clone()).unwrap();
    // After how many words to the disk which block was acknowledged.
    let mut acknowledged = vec![];
    for number in 0..12 {
        store.commit(&[sealed(number)], STATES).unwrap();
        acknowledged.push((disk.0.lock().unwrap().1.len(), number));
    }
    drop(store);
    let told = disk.0.lock().unwrap().1.clone();
    let begin = acknowledged[0].0;
    let mut seed = 11;
    let mut torn = 0;
    for stop in begin..told.len() {
        let due = acknowledged
            .iter()
            .filter(|(at, _)| *at <= stop)
            .map(|(_, n)| *n)
            .max()
            .unwrap();
        let synced = told[..stop]
            .iter()
            .rposition(|t| matches!(t, Told::Sync))
            .unwrap_or(0);
        for variant in 0..3 {
            let mut bytes = Vec::new();
            told[..synced].iter().for_each(|t| obey(&mut bytes, t));
            for t in &told[synced..stop] {
                // A killed process leaves all that it wrote; a machine without power leaves any of it.
                if variant == 0 || matches!(t, Told::Length(_)) || random(&mut seed).is_multiple_of(2) {
                    obey(&mut bytes, t);
                }
            }
            if let Told::Write(at, data) = &told[stop]
                && variant > 0
            {
                let part = usize::try_from(random(&mut seed)).unwrap() % data.len();
                obey(&mut bytes, &Told::Write(*at, data[..part].to_vec()));
                torn += 1;
            }
            let rest = Disk::default();
            rest.0.lock().unwrap().0 = bytes;
            let store = Store::on(rest).unwrap_or_else(|e| panic!("stop {stop}, variant {variant}: {e:?}"));
            let (last, _) = store.last().unwrap().unwrap();
            assert!(
                last == due || last == due + 1,
                "stop {stop}: {last} instead of {due}"
            );
            check(&store, last);
            store.commit(&[sealed(last + 1)], STATES).unwrap();
            check(&store, last + 1);
        }
    }
    assert!(torn > 20, "{torn} writes were torn");
}

/// After any change of the file, opening and reading it gives the kept data or an error, never anything else.
#[test]
fn damage_is_noticed() {
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(folder.path()).unwrap();
    store
        .commit(&(0..40).map(sealed).collect::<Vec<_>>(), STATES)
        .unwrap();
    drop(store);
    let file = folder.path().join("chain.redb");
    let good = std::fs::read(&file).unwrap();
    let mut seed = 5;
    let mut refused = 0;
    for round in 0..60 {
        let mut bad = good.clone();
        if round % 4 == 0 {
            let length = usize::try_from(random(&mut seed)).unwrap() % good.len();
            bad.truncate(length.max(1));
        } else {
            for _ in 0..20 {
                let at = usize::try_from(random(&mut seed)).unwrap() % good.len();
                bad[at] ^= 0x55;
            }
        }
        std::fs::write(&file, &bad).unwrap();
        match Store::open(folder.path()) {
            Ok(store) => check(&store, 39),
            Err(Error::InUse) => panic!("nobody uses it"),
            Err(error) => {
                refused += 1;
                assert!(!error.to_string().is_empty());
            }
        }
    }
    assert!(refused > 10, "{refused} of 60 were refused");
}
