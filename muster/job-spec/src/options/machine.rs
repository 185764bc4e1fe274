//! The options of `muster job run` about the machine that the job needs, and the class of executor that has it.

use clap::Args;
use muster_protocol::ExecutorClass;
use muster_protocol::rest::ClassOffer;

/// The machine that a job needs.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq, Args)]
pub struct MachineOptions {
    /// The smallest class of executor with this number of GPUs; `all` is one or more.
    #[arg(
        long,
        value_name = "N",
        value_parser = gpus,
        conflicts_with = "class",
        help_heading = "Routing",
        hide_short_help = true
    )]
    pub gpus: Option<u32>,
    /// The smallest class of executor with this main memory: 512m, 8g, or bytes.
    #[arg(
        long,
        value_name = "SIZE",
        value_parser = memory,
        conflicts_with = "class",
        help_heading = "Routing",
        hide_short_help = true
    )]
    pub memory: Option<u64>,
}

/// A class of executor, with what its executors have.
#[derive(Clone, Debug, PartialEq, Eq)]
struct ClassMachine {
    class: ExecutorClass,
    executors: u32,
    /// As the miners report it; `None` if none has reported it.
    hardware: Option<String>,
    gpus: u32,
    /// Main memory in bytes; `None` if nobody says how much it is.
    memory: Option<u64>,
}

/// Reads a number of GPUs, or `all`.
///
/// # Errors
/// The text is neither.
pub fn gpus(text: &str) -> Result<u32, String> {
    match text {
        "all" => Ok(1),
        number => number
            .parse()
            .map_err(|_| format!("write a number of GPUs, or all, instead of {text:?}")),
    }
}

/// Reads a size as docker does: `512m`, `8g`, `8GB`, `8GiB` or bytes, all of them powers of 1,024.
///
/// # Errors
/// The text is no size, or none at all.
pub fn memory(text: &str) -> Result<u64, String> {
    let unread = || format!("write 512m, 8g or a number of bytes instead of {text:?}");
    let (digits, unit) = text
        .find(|letter: char| !letter.is_ascii_digit())
        .map_or((text, ""), |at| text.split_at(at));
    let power = match unit.to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 1,
        "m" | "mb" | "mib" => 2,
        "g" | "gb" | "gib" => 3,
        "t" | "tb" | "tib" => 4,
        _ => return Err(unread()),
    };
    let number: u64 = digits.parse().map_err(|_| unread())?;
    match number.checked_mul(1 << (10 * power)) {
        Some(bytes) if bytes > 0 => Ok(bytes),
        Some(_) | None => Err(unread()),
    }
}

impl MachineOptions {
    /// Whether the job needs a machine of some size.
    pub fn is_given(&self) -> bool {
        *self != Self::default()
    }

    /// The smallest of the classes that has what is asked for: the fewest GPUs, and then the least memory. Only classes
    /// with executors count.
    ///
    /// # Errors
    /// No class has it: the text lists them with what they have.
    pub fn choose(&self, offers: &[ClassOffer]) -> Result<ExecutorClass, String> {
        let mut machines: Vec<_> = offers
            .iter()
            .filter(|offer| offer.executors > 0)
            .map(ClassMachine::of)
            .collect();
        machines.sort_by_key(|machine| (machine.gpus, machine.memory.unwrap_or(u64::MAX), machine.class));
        match machines.iter().find(|machine| machine.has(self)) {
            Some(machine) => Ok(machine.class),
            None => Err(machines.iter().map(ClassMachine::describe).collect()),
        }
    }
}

impl ClassMachine {
    /// The machines of an offer, as their miners report them; where they report nothing, as the class promises.
    fn of(offer: &ClassOffer) -> Self {
        let parts = || offer.hardware.iter().flat_map(|hardware| hardware.split(", "));
        let told: u32 = parts()
            .filter_map(|part| part.split_once(" x ")?.0.parse::<u32>().ok())
            .fold(0, u32::saturating_add);
        let memory = parts().find_map(|part| part.strip_suffix(" GiB")?.parse::<u64>().ok());
        Self {
            class: offer.class,
            executors: offer.executors,
            gpus: match offer.class.has_gpu() {
                true => told.max(1),
                // A job of such a class gets no GPU, whatever its machine has.
                false => 0,
            },
            memory: memory
                .map(|gib| gib.saturating_mul(1 << 30))
                .or_else(|| promised_memory(offer.class)),
            hardware: offer.hardware.clone(),
        }
    }

    fn has(&self, asked: &MachineOptions) -> bool {
        self.gpus >= asked.gpus.unwrap_or(0)
            && asked
                .memory
                .is_none_or(|bytes| self.memory.is_some_and(|memory| memory >= bytes))
    }

    /// The class as a line of a list.
    fn describe(&self) -> String {
        let Self {
            class,
            executors,
            hardware,
            gpus,
            ..
        } = self;
        let gpus = match gpus {
            0 => "no GPU".to_owned(),
            1 => "1 GPU".to_owned(),
            more => format!("{more} GPUs"),
        };
        let hardware = hardware.as_deref().unwrap_or("its miners report no more");
        format!("\n  {class}: {executors} executors, {gpus}: {hardware}")
    }
}

/// The main memory that a class promises by its name, in bytes.
const fn promised_memory(class: ExecutorClass) -> Option<u64> {
    match class {
        ExecutorClass::AlwaysOnCpu8c16Gb => Some(16_000_000_000),
        ExecutorClass::SpinUpGpu24Gb
        | ExecutorClass::AlwaysOnGpu24Gb
        | ExecutorClass::AlwaysOnLlmA6000
        | ExecutorClass::AlwaysOnTest => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer(class: ExecutorClass, executors: u32, hardware: Option<&str>) -> ClassOffer {
        ClassOffer {
            class,
            hardware: hardware.map(str::to_owned),
            miners: 1,
            executors,
            free: executors,
            running: 0,
            private_images: executors,
            waiting: 0,
            ahead: 0,
            estimate_s: None,
            why: String::new(),
        }
    }

    fn asked(gpus: Option<u32>, memory: Option<&str>) -> MachineOptions {
        MachineOptions {
            gpus,
            memory: memory.map(|text| self::memory(text).unwrap()),
        }
    }

    #[test]
    fn sizes_are_read_as_docker_reads_them() {
        for (text, bytes) in [
            ("1", 1),
            ("1b", 1),
            ("2k", 2 << 10),
            ("512m", 512 << 20),
            ("8G", 8 << 30),
            ("8gb", 8 << 30),
            ("8GiB", 8 << 30),
            ("1t", 1 << 40),
        ] {
            assert_eq!(memory(text), Ok(bytes), "{text}");
        }
        for bad in ["", "g", "0", "1.5g", "8x", "-1g", "99999999999999999999g"] {
            assert!(memory(bad).is_err(), "{bad}");
        }
        assert_eq!((gpus("2"), gpus("all")), (Ok(2), Ok(1)));
        assert!(gpus("-1").is_err() && gpus("many").is_err());
    }

    #[test]
    fn the_smallest_class_that_has_the_machine_is_chosen() {
        let offers = [
            offer(
                ExecutorClass::AlwaysOnLlmA6000,
                2,
                Some("2 x NVIDIA A6000, 64 cores, 252 GiB"),
            ),
            offer(
                ExecutorClass::AlwaysOnGpu24Gb,
                1,
                Some("1 x RTX 4090, 16 cores, 63 GiB, watched disk"),
            ),
            offer(ExecutorClass::SpinUpGpu24Gb, 1, None),
            offer(ExecutorClass::AlwaysOnCpu8c16Gb, 1, None),
            offer(ExecutorClass::AlwaysOnTest, 4, Some("2 cores, 8 GiB")),
        ];
        for (gpus, memory, class) in [
            (None, Some("1g"), ExecutorClass::AlwaysOnTest),
            (None, Some("8g"), ExecutorClass::AlwaysOnTest),
            (None, Some("14g"), ExecutorClass::AlwaysOnCpu8c16Gb),
            (None, Some("32g"), ExecutorClass::AlwaysOnGpu24Gb),
            (Some(0), Some("8g"), ExecutorClass::AlwaysOnTest),
            (Some(1), None, ExecutorClass::AlwaysOnGpu24Gb),
            (Some(1), Some("64g"), ExecutorClass::AlwaysOnLlmA6000),
            (Some(2), None, ExecutorClass::AlwaysOnLlmA6000),
        ] {
            assert_eq!(
                asked(gpus, memory).choose(&offers),
                Ok(class),
                "{gpus:?} {memory:?}"
            );
        }
        for (gpus, memory) in [(Some(3), None), (None, Some("1t"))] {
            let listed = asked(gpus, memory).choose(&offers).unwrap_err();
            assert_eq!(listed.lines().count(), 6, "{listed}");
            assert!(
                listed.contains("\n  always_on.test: 4 executors, no GPU: 2 cores, 8 GiB\n"),
                "{listed}"
            );
        }
    }

    #[test]
    fn a_class_without_executors_is_not_chosen_and_cards_of_a_class_without_are_none() {
        let offers = [
            offer(ExecutorClass::AlwaysOnGpu24Gb, 0, Some("8 x H200")),
            offer(
                ExecutorClass::AlwaysOnTest,
                1,
                Some("1 x H200, 16 cores, 128 GiB"),
            ),
        ];
        assert!(asked(Some(1), None).choose(&offers).is_err());
        assert_eq!(
            asked(None, Some("128g")).choose(&offers),
            Ok(ExecutorClass::AlwaysOnTest)
        );
        assert_eq!(asked(Some(1), None).choose(&[]), Err(String::new()));
        assert!(!MachineOptions::default().is_given());
    }
}
