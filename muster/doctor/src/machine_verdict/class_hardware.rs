//! Whether this machine has the hardware of the classes that a miner's configuration promises. A validator's grading
//! finds out the same by challenges, and pays nothing for what is not there.

use muster_protocol::ExecutorClass;

use crate::machine_verdict::machine_facts::{GpuFacts, HardwareFacts, PromisedExecutors};
use crate::machine_verdict::verdict::{Severity, Verdict};

const GB: u64 = 1_000_000_000;
/// The main memory that the system sees of 16 GiB: firmware and kernel keep a part.
const MEMORY_OF_16_GIB: u64 = 15 * GB;
/// The memory in MiB that a card of 24 GB (an L4) or of 48 GB (an A6000 or an L40S) shows.
const CARD_OF_24_GB: u64 = 22_000;
const CARD_OF_48_GB: u64 = 44_000;

/// The hardware of one executor of a class.
#[derive(Clone, Copy)]
enum ClassHardware {
    /// No demand: any machine will do.
    Any,
    /// Processors and main memory in bytes.
    Processors { cores: u64, memory: u64 },
    /// A card with this memory, in MiB.
    Card { memory: u64 },
}

impl ClassHardware {
    const fn of(class: ExecutorClass) -> Self {
        match class {
            ExecutorClass::AlwaysOnTest => Self::Any,
            ExecutorClass::AlwaysOnCpu8c16Gb => Self::Processors {
                cores: 8,
                memory: MEMORY_OF_16_GIB,
            },
            ExecutorClass::SpinUpGpu24Gb | ExecutorClass::AlwaysOnGpu24Gb => Self::Card {
                memory: CARD_OF_24_GB,
            },
            ExecutorClass::AlwaysOnLlmA6000 => Self::Card {
                memory: CARD_OF_48_GB,
            },
        }
    }
}

/// The verdict about the executors that one pool starts on this machine.
pub(crate) fn judge(promised: &PromisedExecutors, hardware: HardwareFacts, gpu: &GpuFacts) -> Verdict {
    const CHECK: &str = "class";
    let PromisedExecutors { pool, class, count } = promised;
    let executors = if *count == 1 { "executor" } else { "executors" };
    let promise = format!("the pool {pool} promises {count} {executors} of {class} on this machine");
    match lack(*class, (*count).into(), hardware, gpu) {
        None => Verdict::fine(CHECK, format!("{promise}, which has the hardware")),
        Some(lack) => Verdict::new(CHECK, Severity::Failure, format!("{promise}, which has {lack}")).advising(
            "set class and count in [executor], or of the pool, to what the machine has; `muster grade self` names the \
             classes that it would pass",
        ),
    }
}

/// The part of the hardware that is less than `count` executors of the class need; none if nothing is.
fn lack(class: ExecutorClass, count: u64, hardware: HardwareFacts, gpu: &GpuFacts) -> Option<String> {
    match ClassHardware::of(class) {
        ClassHardware::Any => None,
        ClassHardware::Processors { cores, memory } => {
            let (cores, memory) = (cores.saturating_mul(count), memory.saturating_mul(count));
            let HardwareFacts {
                cpus: has_cpus,
                memory: has_memory,
            } = hardware;
            if has_cpus < cores {
                return Some(format!("{has_cpus} processors; {cores} are promised"));
            }
            let gb = |bytes: u64| bytes.div_ceil(GB);
            (has_memory < memory).then(|| {
                format!(
                    "{} GB of memory; at least {} GB are promised",
                    gb(has_memory),
                    gb(memory)
                )
            })
        }
        ClassHardware::Card { memory } => {
            let fitting = gpu
                .found
                .iter()
                .filter(|card| memory_mib(card).is_some_and(|has| has >= memory));
            let fitting = u64::try_from(fitting.count()).unwrap_or(u64::MAX);
            (fitting < count).then(|| {
                let cards = match gpu.found.as_slice() {
                    [] => "no NVIDIA GPU that answers".to_owned(),
                    cards => cards.join("; "),
                };
                format!("{cards}; {count} cards with at least {memory} MiB each are promised")
            })
        }
    }
}

/// The memory in a card's line, which is `NAME, DRIVER, 143771 MiB`.
fn memory_mib(card: &str) -> Option<u64> {
    let memory = card.rsplit(',').next()?.trim();
    memory.strip_suffix("MiB")?.trim().parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGE: HardwareFacts = HardwareFacts {
        cpus: 16,
        memory: 32 << 30,
    };

    fn cards(lines: &[&str]) -> GpuFacts {
        GpuFacts {
            device: !lines.is_empty(),
            found: lines.iter().map(|line| (*line).to_owned()).collect(),
            ..GpuFacts::default()
        }
    }

    fn verdict(class: ExecutorClass, count: u32, hardware: HardwareFacts, gpu: &GpuFacts) -> Verdict {
        let promised = PromisedExecutors {
            pool: "own".to_owned(),
            class,
            count,
        };
        judge(&promised, hardware, gpu)
    }

    #[test]
    fn processors_and_memory_are_counted_for_every_executor_that_runs_at_once() {
        let class = ExecutorClass::AlwaysOnCpu8c16Gb;
        let none = cards(&[]);
        assert_eq!(verdict(class, 2, LARGE, &none).state, Severity::Fine);
        let short = verdict(class, 3, LARGE, &none);
        assert_eq!(short.state, Severity::Failure);
        assert!(
            short.says.contains("16 processors; 24 are promised"),
            "{}",
            short.says
        );
        let small = HardwareFacts {
            cpus: 8,
            memory: 8 << 30,
        };
        let short = verdict(class, 1, small, &none);
        assert!(
            short.says.contains("9 GB of memory; at least 15 GB"),
            "{}",
            short.says
        );
        let usual = HardwareFacts {
            cpus: 8,
            memory: 16_384_000 * 1_024,
        };
        assert_eq!(verdict(class, 1, usual, &none).state, Severity::Fine);
    }

    #[test]
    fn a_class_with_a_gpu_needs_a_card_with_its_memory_for_each_executor() {
        let l4 = "NVIDIA L4, 550.54, 23034 MiB";
        let a6000 = "NVIDIA RTX A6000, 550.54, 49140 MiB";
        for (class, count, lines, expected) in [
            (ExecutorClass::AlwaysOnGpu24Gb, 1, &[l4][..], Severity::Fine),
            (ExecutorClass::AlwaysOnGpu24Gb, 2, &[l4], Severity::Failure),
            (ExecutorClass::AlwaysOnGpu24Gb, 2, &[l4, a6000], Severity::Fine),
            (ExecutorClass::AlwaysOnLlmA6000, 1, &[l4], Severity::Failure),
            (ExecutorClass::AlwaysOnLlmA6000, 1, &[l4, a6000], Severity::Fine),
            (ExecutorClass::SpinUpGpu24Gb, 1, &[], Severity::Failure),
            (ExecutorClass::AlwaysOnTest, 99, &[], Severity::Fine),
        ] {
            let verdict = verdict(class, count, HardwareFacts::default(), &cards(lines));
            assert_eq!(verdict.state, expected, "{}", verdict.says);
            assert!(expected == Severity::Fine || !verdict.advice.is_empty());
        }
    }
}
