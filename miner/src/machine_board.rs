//! The load of the persistent executors' machines, as they last measured it, for validators that ask for it.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use muster_protocol::wire::executor::{ExecutorMetrics, MAX_GPUS};
use muster_protocol::wire::machines::{MAX_MACHINES, MachineLoad, MachinesNotice};
use muster_protocol::{ExecutorClass, Timestamp};
use muster_status_views::miner::{GpuStatus, MAX_SAMPLES, MachineSample, MachineStatus};
use parking_lot::Mutex;

/// The time after which a measurement is out of date. An executor measures every few seconds.
const STALE_AFTER: Duration = Duration::from_secs(60);

/// The shortest time between two samples that are kept of a machine: [`MAX_SAMPLES`] of them are an hour.
const SAMPLE_EVERY: Duration = Duration::from_secs(30);

/// The newest measurement of each executor, by its name.
#[derive(Debug, Default)]
pub struct MachineBoard(Mutex<BTreeMap<String, KnownMachine>>);

/// The newest measurement of one executor's machine, and earlier ones.
#[derive(Debug)]
struct KnownMachine {
    noted: Timestamp,
    load: MachineLoad,
    gpus: Vec<GpuStatus>,
    /// The oldest first.
    history: VecDeque<MachineSample>,
}

impl MachineBoard {
    /// Notes what an executor measured. Beyond [`MAX_MACHINES`] executors, further ones are left out.
    pub fn note(&self, name: &str, class: ExecutorClass, metrics: &ExecutorMetrics, now: Timestamp) {
        let mut machines = self.0.lock();
        if machines.len() >= MAX_MACHINES && !machines.contains_key(name) {
            machines.retain(|_, machine| is_fresh(machine.noted, now));
            if machines.len() >= MAX_MACHINES {
                return;
            }
        }
        let load = MachineLoad::new(name, class, metrics);
        let mut history = machines
            .remove(name)
            .map(|known| known.history)
            .unwrap_or_default();
        if history
            .back()
            .is_none_or(|last| now.since(last.at) >= SAMPLE_EVERY)
        {
            history.push_back(sample(&load, metrics, now));
        }
        while history.len() > MAX_SAMPLES {
            history.pop_front();
        }
        let known = KnownMachine {
            noted: now,
            load,
            gpus: metrics.gpus.iter().take(MAX_GPUS).map(GpuStatus::from).collect(),
            history,
        };
        machines.insert(name.to_owned(), known);
    }

    /// The machines of connected executors for the operator, by name, with their history.
    pub fn status(&self, now: Timestamp) -> Vec<MachineStatus> {
        let machines = self.0.lock();
        let fresh = machines.values().filter(|machine| is_fresh(machine.noted, now));
        let status = fresh.map(|machine| MachineStatus {
            load: machine.load.clone(),
            gpus: machine.gpus.clone(),
            history: machine.history.iter().copied().collect(),
        });
        status.collect()
    }

    /// Forgets an executor that has disconnected.
    pub fn remove(&self, name: &str) {
        self.0.lock().remove(name);
    }

    /// The message for validators.
    pub fn notice(&self, now: Timestamp) -> MachinesNotice {
        let machines = self.0.lock();
        let fresh = machines.values().filter(|machine| is_fresh(machine.noted, now));
        MachinesNotice {
            machines: fresh.map(|machine| machine.load.clone()).collect(),
        }
    }
}

fn sample(load: &MachineLoad, metrics: &ExecutorMetrics, now: Timestamp) -> MachineSample {
    let heat = metrics.gpus.iter().map(|gpu| gpu.temperature_c);
    MachineSample {
        at: now,
        cpu_permille: load.cpu_permille,
        gpu_percent: load.gpu_percent,
        gpu_celsius: heat.max().unwrap_or(0),
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
    fn the_history_has_a_sample_each_half_minute_for_an_hour() {
        let board = MachineBoard::default();
        for second in 0..5_000 {
            let cpu = u32::try_from(second).unwrap() % 1_000;
            board.note("a", CLASS, &metrics(cpu), Timestamp::from_secs(second));
        }
        let status = board.status(Timestamp::from_secs(5_000));
        let history = &status[0].history;
        assert_eq!(history.len(), MAX_SAMPLES);
        assert_eq!(history.last().unwrap().at, Timestamp::from_secs(4_980));
        assert_eq!(history[1].at.since(history[0].at), SAMPLE_EVERY);
        assert_eq!(board.status(Timestamp::from_secs(6_000)), [], "a stale machine");
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
