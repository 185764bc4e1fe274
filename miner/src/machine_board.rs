//! The load of the persistent executors' machines, as they last measured it, for validators that ask to be told.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_protocol::wire::executor::ExecutorMetrics;
use muster_protocol::wire::machines::{MAX_MACHINES, MachineLoad, MachinesNotice};
use muster_protocol::{ExecutorClass, Timestamp};
use parking_lot::Mutex;

/// The time after which a measurement is out of date. An executor measures every few seconds.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// The newest measurement of each executor, by its name.
#[derive(Debug, Default)]
pub struct MachineBoard(Mutex<BTreeMap<String, (Timestamp, MachineLoad)>>);

impl MachineBoard {
    /// Notes what an executor measured. Beyond [`MAX_MACHINES`] executors, further ones are left out.
    pub fn note(&self, name: &str, class: ExecutorClass, metrics: &ExecutorMetrics, now: Timestamp) {
        let mut machines = self.0.lock();
        if machines.len() >= MAX_MACHINES && !machines.contains_key(name) {
            machines.retain(|_, (noted, _)| is_fresh(*noted, now));
            if machines.len() >= MAX_MACHINES {
                return;
            }
        }
        machines.insert(name.to_owned(), (now, MachineLoad::new(name, class, metrics)));
    }

    /// Forgets an executor that has disconnected.
    pub fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// The message for validators.
    pub fn notice(&self, now: Timestamp) -> MachinesNotice {
        let machines = self.0.lock();
        let fresh = machines.values().filter(|(noted, _)| is_fresh(*noted, now));
        MachinesNotice {
            machines: fresh.map(|(_, load)| load.clone()).collect(),
        }
    }
}

fn is_fresh(noted: Timestamp, now: Timestamp) -> bool {
    now.since(noted) < STALE_AFTER
}

#[cfg(test)]
mod tests {
    use super::*;

    const CLASS: ExecutorClass = ExecutorClass::AlwaysOnTest;

    fn metrics(cpu_permille: u32) -> ExecutorMetrics {
        ExecutorMetrics {
            at: Timestamp::from_secs(0),
            cpu_permille,
            memory_total: 4,
            memory_used: 3,
            disk_total: 2,
            disk_used: 1,
            network_received: 0,
            network_sent: 0,
            gpus: vec![],
        }
    }

    #[test]
    fn the_newest_measurement_of_each_executor_is_told_until_it_is_stale() {
        let at = Timestamp::from_secs;
        let board = MachineBoard::default();
        assert_eq!(board.notice(at(0)), MachinesNotice::default());
        board.note("b", CLASS, &metrics(1), at(0));
        board.note("a", CLASS, &metrics(2), at(1));
        board.note("b", CLASS, &metrics(3), at(2));
        let told = |now| -> Vec<_> {
            let machines = board.notice(at(now)).machines.into_iter();
            machines.map(|load| (load.name, load.cpu_permille)).collect()
        };
        assert_eq!(told(60), [("a".to_owned(), 2), ("b".to_owned(), 3)]);
        assert_eq!(told(61), [("b".to_owned(), 3)]);
        board.remove("b");
        assert_eq!(told(61), []);
    }

    #[test]
    fn many_executors_are_bounded_and_stale_ones_make_room() {
        let at = Timestamp::from_secs;
        let board = MachineBoard::default();
        for number in 0..1_000 {
            board.note(&format!("{number:04}"), CLASS, &metrics(0), at(0));
        }
        assert_eq!(board.notice(at(1)).machines.len(), MAX_MACHINES);
        board.note("new", CLASS, &metrics(0), at(100));
        assert_eq!(board.notice(at(100)).machines.len(), 1);
    }
}
