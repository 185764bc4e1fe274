//! Executor classes: the kinds of machine that jobs ask for, and the manifest in which a miner announces its executors.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use indexmap::IndexMap;

use crate::macros::serde_as_text;

/// The text names no executor class. Unlike an unknown status, an unknown class makes the whole message invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown executor class {0:?}; known are {known}", known = ExecutorClass::ALL.iter().map(|c| c.as_str()).collect::<Vec<_>>().join(", "))]
pub struct UnknownClass(String);

/// The kinds of machine in the subnet, with ComputeHorde's names and numbers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum ExecutorClass {
    /// `spin_up-4min.gpu-24gb`: 24 GB of GPU memory, may take four minutes to appear. ComputeHorde's default.
    SpinUpGpu24Gb,
    /// `always_on.gpu-24gb`: 24 GB of GPU memory.
    AlwaysOnGpu24Gb,
    /// `always_on.llm.a6000`: 48 GB of GPU memory.
    AlwaysOnLlmA6000,
    /// `always_on.test`: no GPU; offered by machines without one.
    AlwaysOnTest,
    /// `always_on.cpu.8c.16gb`: eight cores, 16 GB of main memory.
    AlwaysOnCpu8c16Gb,
}

impl ExecutorClass {
    /// All classes that exist.
    pub const ALL: [Self; 5] = [
        Self::SpinUpGpu24Gb,
        Self::AlwaysOnGpu24Gb,
        Self::AlwaysOnLlmA6000,
        Self::AlwaysOnTest,
        Self::AlwaysOnCpu8c16Gb,
    ];

    /// The name on the wire.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::SpinUpGpu24Gb => "spin_up-4min.gpu-24gb",
            Self::AlwaysOnGpu24Gb => "always_on.gpu-24gb",
            Self::AlwaysOnLlmA6000 => "always_on.llm.a6000",
            Self::AlwaysOnTest => "always_on.test",
            Self::AlwaysOnCpu8c16Gb => "always_on.cpu.8c.16gb",
        }
    }

    /// The one-letter code in a chain commitment.
    pub const fn short_code(self) -> char {
        match self {
            Self::SpinUpGpu24Gb => 'S',
            Self::AlwaysOnGpu24Gb => 'A',
            Self::AlwaysOnLlmA6000 => 'L',
            Self::AlwaysOnTest => 'T',
            Self::AlwaysOnCpu8c16Gb => 'C',
        }
    }

    /// The time that a miner may take to provide such an executor.
    pub const fn spin_up_time(self) -> Duration {
        Duration::from_secs(match self {
            Self::SpinUpGpu24Gb => 240,
            Self::AlwaysOnGpu24Gb | Self::AlwaysOnTest => 3,
            Self::AlwaysOnLlmA6000 | Self::AlwaysOnCpu8c16Gb => 30,
        })
    }

    /// Whether jobs of this class get a GPU.
    pub const fn has_gpu(self) -> bool {
        match self {
            Self::SpinUpGpu24Gb | Self::AlwaysOnGpu24Gb | Self::AlwaysOnLlmA6000 => true,
            Self::AlwaysOnTest | Self::AlwaysOnCpu8c16Gb => false,
        }
    }
}

impl fmt::Display for ExecutorClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for ExecutorClass {
    type Err = UnknownClass;

    fn from_str(text: &str) -> Result<Self, UnknownClass> {
        let found = Self::ALL.into_iter().find(|class| class.as_str() == text);
        found.ok_or_else(|| UnknownClass(text.chars().take(64).collect()))
    }
}

serde_as_text!(ExecutorClass);

/// The number of executors of each class that a miner has.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
#[serde(transparent)]
pub struct Manifest(IndexMap<ExecutorClass, u32>);

impl Manifest {
    /// A manifest of these counts; the last count of a repeated class holds.
    pub fn new(counts: impl IntoIterator<Item = (ExecutorClass, u32)>) -> Self {
        Self(counts.into_iter().collect())
    }

    /// The number of executors of `class`; zero if the manifest does not name it.
    pub fn count(&self, class: ExecutorClass) -> u32 {
        self.0.get(&class).copied().unwrap_or(0)
    }

    /// The sum of two manifests, class by class.
    #[must_use]
    pub fn plus(&self, more: &Self) -> Self {
        let mut sum = self.0.clone();
        for (class, count) in &more.0 {
            let held = sum.entry(*class).or_default();
            *held = held.saturating_add(*count);
        }
        Self(sum)
    }

    /// The classes that have at least one executor, in the order given.
    pub fn iter(&self) -> impl Iterator<Item = (ExecutorClass, u32)> + '_ {
        self.0
            .iter()
            .map(|(class, count)| (*class, *count))
            .filter(|(_, count)| *count > 0)
    }

    /// The form of a chain commitment, `<M:C2;L3>`: one code and count per class, sorted by code.
    pub fn to_commitment(&self) -> String {
        let mut parts: Vec<_> = self
            .iter()
            .map(|(class, count)| format!("{}{count}", class.short_code()))
            .collect();
        parts.sort();
        format!("<M:{}>", parts.join(";"))
    }

    /// Reads a chain commitment; `None` for a text of another form. Unknown codes are skipped.
    pub fn from_commitment(text: &str) -> Option<Self> {
        let body = text.strip_prefix("<M:")?.strip_suffix('>')?;
        let mut counts = IndexMap::new();
        for part in body.split(';').filter(|part| !part.is_empty()) {
            let mut letters = part.chars();
            let code = letters.next()?;
            let count: u32 = letters.as_str().parse().ok()?;
            if let Some(class) = ExecutorClass::ALL
                .into_iter()
                .find(|class| class.short_code() == code)
            {
                counts.insert(class, count);
            }
        }
        Some(Self(counts))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_manifest_survives_its_commitment() {
        let manifest = Manifest::new([
            (ExecutorClass::AlwaysOnLlmA6000, 3),
            (ExecutorClass::AlwaysOnCpu8c16Gb, 2),
        ]);
        assert_eq!(manifest.to_commitment(), "<M:C2;L3>");
        let read = Manifest::from_commitment("<M:C2;L3>").unwrap();
        assert_eq!(read.count(ExecutorClass::AlwaysOnLlmA6000), 3);
        assert_eq!(read.count(ExecutorClass::AlwaysOnTest), 0);
        let more = manifest.plus(&Manifest::new([
            (ExecutorClass::AlwaysOnCpu8c16Gb, 1),
            (ExecutorClass::AlwaysOnTest, 4),
        ]));
        assert_eq!(more.to_commitment(), "<M:C3;L3;T4>");
        assert_eq!(Manifest::from_commitment("<M:>"), Some(Manifest::default()));
        assert_eq!(Manifest::from_commitment("<M:C>"), None);
        assert_eq!(Manifest::from_commitment("hello"), None);
    }

    #[test]
    fn an_unknown_class_names_the_known_ones() {
        let error = "always_on.h100".parse::<ExecutorClass>().unwrap_err().to_string();
        assert!(error.contains("always_on.test"), "{error}");
    }
}
